"""Makes the reference cases of tests/pillow.rs with Pillow and torchvision: `python make.py`.

Each case is an input file, a program, and what Pillow (for colour: torchvision on Pillow images) makes of it. The
results are committed, so that the Rust tests need neither.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from torchvision.transforms import functional  # type: ignore[import-untyped]

HERE = Path(__file__).parent
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
WIDTH, HEIGHT = 61, 47
Pixels = npt.NDArray[Any]

cases: list[dict[str, Any]] = []


def picture() -> Pixels:
    """A picture with smooth parts, edges and some noise."""
    rng = np.random.default_rng(5)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    planes = [
        127 + 120 * np.sin(x / 7.0) * np.cos(y / 9.0),
        np.where((x - 30) ** 2 + (y - 20) ** 2 < 150, 240, 30) + x,
        255.0 * y / HEIGHT,
    ]
    noisy = np.stack(planes, -1) + rng.normal(0, 6, (HEIGHT, WIDTH, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def png(pixels: Pixels, colour: int, depth: int, *, interlaced: bool = False, extra: bytes = b"") -> bytes:
    """Write what Pillow cannot: any depth, interlaced."""
    planes = pixels if pixels.ndim == 3 else pixels[..., None]

    def rows(part: Pixels) -> bytes:
        lines = []
        for line in part:
            flat = line.reshape(-1)
            if depth == 16:
                data = flat.astype(">u2").tobytes()
            elif depth == 8:
                data = flat.astype(np.uint8).tobytes()
            else:
                bits = "".join(f"{value:0{depth}b}" for value in flat)
                bits += "0" * (-len(bits) % 8)
                data = bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))
            lines.append(b"\0" + data)
        return b"".join(lines)

    passes = [
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ]
    if interlaced:
        parts = [planes[y0::dy, x0::dx] for x0, y0, dx, dy in passes]
        data = b"".join(rows(part) for part in parts if part.size)
    else:
        data = rows(planes)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width = planes.shape[:2]
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + extra
        + chunk(b"IDAT", zlib.compress(data, 9))
        + chunk(b"IEND", b"")
    )


def case(
    name: str,
    file: str,
    expected: Pixels,
    ops: list[dict[str, Any]] | None = None,
    *,
    kind: str = "image",
    mode: str = "rgb",
    tolerance: int = 0,
) -> None:
    np.save(HERE / f"{name}.npy", np.ascontiguousarray(expected))
    program = {"version": 1, "mode": mode, "layout": None, "ops": ops or []}
    cases.append({"name": name, "file": file, "kind": kind, "program": program, "tolerance": tolerance})


def formats(rgb: Pixels) -> None:
    grey = rgb[..., 1].copy()
    alpha = np.dstack([rgb, rgb[..., 0]])
    wide = rgb.astype(np.uint16) * 257 - rgb.astype(np.uint16) // 3
    files = {
        "rgb.png": png(rgb, 2, 8),
        "rgb_interlaced.png": png(rgb, 2, 8, interlaced=True),
        "rgba.png": png(alpha, 6, 8),
        "grey.png": png(grey, 0, 8),
        "grey_alpha.png": png(np.dstack([grey, rgb[..., 0]]), 4, 8),
        "rgb16.png": png(wide, 2, 16),
        "grey16.png": png(wide[..., 1], 0, 16, interlaced=True),
    }
    for name, data in files.items():
        (HERE / name).write_bytes(data)
    case("png_rgb", "rgb.png", rgb)
    case("png_rgb_interlaced", "rgb_interlaced.png", rgb)
    case("png_rgba_as_rgb", "rgba.png", rgb)
    case("png_rgba", "rgba.png", alpha, mode="unchanged")
    case("png_rgb_as_grey", "rgb.png", np.asarray(Image.fromarray(rgb).convert("L"))[..., None], mode="grey")
    case("png_grey_as_rgb", "grey.png", np.repeat(grey[..., None], 3, 2))
    case("png_grey", "grey.png", grey[..., None], mode="unchanged")
    case("png_grey_alpha_as_rgb", "grey_alpha.png", np.repeat(grey[..., None], 3, 2))
    case("png_rgb16_as_rgb", "rgb16.png", np.asarray(Image.open(HERE / "rgb16.png").convert("RGB")))
    case("png_rgb16", "rgb16.png", wide, mode="unchanged")
    case("png_grey16", "grey16.png", wide[..., 1:2], mode="unchanged")
    case("png_grey16_mask", "grey16.png", wide[..., 1], kind="mask")
    for depth in (1, 2, 4):
        values = grey >> (8 - depth)
        name = f"grey{depth}.png"
        (HERE / name).write_bytes(png(values, 0, depth, interlaced=depth == 2))
        shown = np.asarray(Image.open(HERE / name).convert("L"))
        case(f"png_grey{depth}", name, shown[..., None], mode="grey")
        case(f"png_grey{depth}_mask", name, values, kind="mask")
    palette = Image.fromarray(rgb).quantize(13)
    palette.save(HERE / "palette.png", optimize=True)
    case("png_palette", "palette.png", np.asarray(palette.convert("RGB")))
    case("png_palette_mask", "palette.png", np.asarray(palette), kind="mask")
    palette.save(HERE / "palette_transparent.png", transparency=3)
    opened = Image.open(HERE / "palette_transparent.png")
    case("png_palette_transparent", "palette_transparent.png", np.asarray(opened.convert("RGB")))
    case("png_palette_alpha", "palette_transparent.png", np.asarray(opened.convert("RGBA")), mode="unchanged")

    Image.fromarray(rgb).save(HERE / "lossy.webp", quality=70)
    Image.fromarray(rgb).save(HERE / "lossless.webp", lossless=True)
    Image.fromarray(alpha).save(HERE / "lossy_alpha.webp", quality=70)
    case("webp_lossless", "lossless.webp", rgb)
    case("webp_lossy", "lossy.webp", np.asarray(Image.open(HERE / "lossy.webp").convert("RGB")))
    opened = Image.open(HERE / "lossy_alpha.webp")
    case("webp_alpha", "lossy_alpha.webp", np.asarray(opened), mode="unchanged")
    case("webp_alpha_as_rgb", "lossy_alpha.webp", np.asarray(opened.convert("RGB")))

    Image.fromarray(rgb).save(HERE / "photo.jpg", quality=90)
    Image.fromarray(grey).save(HERE / "grey.jpg", quality=90)
    case("jpeg", "photo.jpg", np.asarray(Image.open(HERE / "photo.jpg")))
    case("jpeg_grey", "grey.jpg", np.asarray(Image.open(HERE / "grey.jpg"))[..., None], mode="unchanged")
    case("jpeg_mask", "grey.jpg", np.asarray(Image.open(HERE / "grey.jpg")), kind="mask")


def orientations(rgb: Pixels) -> None:
    from PIL import ImageOps

    for orientation in range(1, 9):
        name = f"orientation{orientation}.png"
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(rgb[::2, ::2].copy()).save(HERE / name, exif=exif)
        turned = np.asarray(ImageOps.exif_transpose(Image.open(HERE / name)))
        case(f"orientation{orientation}", name, turned, [{"op": "orient"}])
        crop = [{"op": "orient"}, {"op": "center_crop", "size": [9, 11]}]
        top, left = round((turned.shape[0] - 9) / 2.0), round((turned.shape[1] - 11) / 2.0)
        case(f"orientation{orientation}_cropped", name, turned[top : top + 9, left : left + 11], crop)


def resampling(rgb: Pixels) -> None:
    image = Image.fromarray(rgb)
    for interpolation, resample in FILTERS.items():
        for height, width in [(20, 31), (12, 12), (47, 20), (90, 150), (60, 25), (1, 1), (3, 200)]:
            expected = np.asarray(image.resize((width, height), resample))
            ops = [{"op": "resize", "size": [height, width], "interpolation": interpolation}]
            case(f"{interpolation}_{height}x{width}", "rgb.png", expected, ops, tolerance=1)
        ops = [
            {"op": "resize", "size": 30, "interpolation": interpolation},
            {"op": "center_crop", "size": [17, 21]},
        ]
        small = functional.center_crop(functional.resize(image, 30, resample), [17, 21])
        case(f"{interpolation}_short_side_cropped", "rgb.png", np.asarray(small), ops, tolerance=1)
        ops = [
            {"op": "center_crop", "size": [30, 70]},
            {"op": "resize", "size": [20, 40], "interpolation": interpolation},
        ]
        small = functional.resize(functional.center_crop(image, [30, 70]), [20, 40], resample)
        case(f"{interpolation}_cropped_resized", "rgb.png", np.asarray(small), ops, tolerance=1)
        ops = [{"op": "resize", "size": [20, 31], "interpolation": interpolation}]
        for mode, file in (("grey", "grey.png"), ("rgba", "rgba.png")):
            opened = Image.open(HERE / file)
            expected = np.asarray(opened.resize((31, 20), resample)).reshape(20, 31, -1)
            case(f"{interpolation}_{mode}", file, expected, ops, mode="unchanged", tolerance=1)
        wide = Image.open(HERE / "grey16.png")
        expected = np.asarray(wide.resize((31, 20), resample)).astype(np.uint16)[..., None]
        case(f"{interpolation}_grey16", "grey16.png", expected, ops, mode="unchanged", tolerance=1)
    mask = Image.fromarray(np.asarray(Image.open(HERE / "palette.png")))
    for height, width in [(20, 31), (90, 150), (47, 7)]:
        expected = np.asarray(mask.resize((width, height), Image.Resampling.NEAREST))
        ops = [{"op": "resize", "size": [height, width], "interpolation": "bilinear"}]
        case(f"nearest_mask_{height}x{width}", "palette.png", expected, ops, kind="mask")


def colours(rgb: Pixels) -> None:
    image = Image.fromarray(rgb)
    nothing = {"brightness": [1, 1], "contrast": [1, 1], "saturation": [1, 1], "hue": [0, 0]}
    for name, factors, adjust in [
        ("brightness", (0.0, 0.63, 1.7), functional.adjust_brightness),
        ("contrast", (0.0, 0.63, 1.7), functional.adjust_contrast),
        ("saturation", (0.0, 0.63, 1.7), functional.adjust_saturation),
        ("hue", (-0.5, -0.13, 0.2), functional.adjust_hue),
    ]:
        for factor in factors:
            ops = [{"op": "color_jitter", **nothing, name: [factor, factor]}]
            case(f"{name}_{factor}", "rgb.png", np.asarray(adjust(image, factor)), ops)
    grey = np.asarray(image.convert("L"))
    case("grayscale", "rgb.png", np.repeat(grey[..., None], 3, 2), [{"op": "grayscale", "p": 1.0}])


def main() -> None:
    rgb = picture()
    formats(rgb)
    orientations(rgb)
    resampling(rgb)
    colours(rgb)
    (HERE / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
