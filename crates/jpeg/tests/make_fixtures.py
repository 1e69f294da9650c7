"""Make the pictures that the decoder is tested on, and the pixels that libjpeg-turbo finds in them.

    python crates/jpeg/tests/make_fixtures.py

Needs Pillow (built with libjpeg-turbo, as its wheels are) and NumPy. Writes `tests/data/NAME.jpg` and
`tests/data/NAME.rgb`, Pillow's `convert("RGB")` of the whole picture. What Pillow's encoder cannot write
(odd sampling, separate scans, YCCK, 16-bit quantisers) comes from the small encoder below.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, JpegImagePlugin

HERE = Path(__file__).parent / "data"

ZIGZAG = sorted(
    ((r, c) for r in range(8) for c in range(8)),
    key=lambda p: (p[0] + p[1], p[0] if (p[0] + p[1]) % 2 else p[1]),
)
BASIS = np.array(
    [[(0.5 if u else 0.5**1.5) * np.cos((2 * x + 1) * u * np.pi / 16) for x in range(8)] for u in range(8)]
)


def picture(width: int, height: int, seed: int = 1, channels: int = 3) -> np.ndarray:
    """Waves, an edge and noise: something in every frequency, and colours out of gamut after coding."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for c in range(channels):
        wave = 128 + 90 * np.sin(x / (4.0 + 3 * c) + c) * np.cos(y / (7.0 - c))
        edge = np.where(x * (c + 1) + y * 2 > (width * (c + 1) + 2 * height) / 2, 70, -50)
        planes.append(wave + edge + random.normal(0, 12, (height, width)))
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def usual_tables() -> dict[int, tuple[bytes, dict[int, tuple[int, int]]]]:
    """The standard's Huffman tables, read from a file that Pillow wrote: class and index → body, codes."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    data, at, tables = file.getvalue(), 2, {}
    while data[at + 1] != 0xDA:
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] == 0xC4:
            body = data[at + 4 : at + 2 + length]
            while body:
                count = sum(body[1:17])
                codes, code, k = {}, 0, 17
                for bits in range(1, 17):
                    for _ in range(body[bits]):
                        codes[body[k]] = (code, bits)
                        code, k = code + 1, k + 1
                    code <<= 1
                tables[body[0]] = (body[: 17 + count], codes)
                body = body[17 + count :]
        at += 2 + length
    return tables


TABLES = usual_tables()


@dataclass
class Component:
    samples: np.ndarray
    h: int = 1
    v: int = 1
    table: int = 0
    name: int = 0


@dataclass
class Encoder:
    """Sequential JPEG of any sampling and any division into scans."""

    components: list[Component]
    quantisers: list[np.ndarray]
    scans: list[list[int]]
    restart: int = 0
    wide: bool = False
    application: bytes = b""
    tables: bool = True
    bits: list[str] = field(default_factory=list)

    def encode(self, width: int, height: int) -> bytes:
        h_max = max(c.h for c in self.components)
        v_max = max(c.v for c in self.components)
        out = b"\xff\xd8" + self.application
        for i, q in enumerate(self.quantisers):
            values = [int(q[p]) for p in ZIGZAG]
            body = b"".join(v.to_bytes(2 if self.wide else 1, "big") for v in values)
            out += segment(0xDB, bytes([i | (0x10 if self.wide else 0)]) + body)
        frame = bytes([8]) + height.to_bytes(2, "big") + width.to_bytes(2, "big")
        frame += bytes([len(self.components)])
        for c in self.components:
            frame += bytes([c.name, c.h << 4 | c.v, c.table])
        out += segment(0xC1 if self.wide else 0xC0, frame)
        if self.tables:
            for body, _ in TABLES.values():
                out += segment(0xC4, body)
        if self.restart:
            out += segment(0xDD, self.restart.to_bytes(2, "big"))
        mcus = (-(-width // (8 * h_max)), -(-height // (8 * v_max)))
        blocks = [self.blocks(c, mcus, h_max, v_max) for c in self.components]
        for scan in self.scans:
            body = bytes([len(scan)])
            for i in scan:
                body += bytes([self.components[i].name, 0x11 if i in (1, 2) else 0])
            out += segment(0xDA, body + b"\0\x3f\0") + self.scan(
                scan, blocks, mcus, (width, height), (h_max, v_max)
            )
        return out + b"\xff\xd9"

    def blocks(self, c: Component, mcus: tuple[int, int], h_max: int, v_max: int) -> np.ndarray:
        """Quantised coefficients, rows × columns × 64 in the order of the file."""
        x, y = h_max // c.h, v_max // c.v
        padded = np.pad(
            c.samples.astype(float) - 128,
            (
                (0, mcus[1] * 8 * v_max - c.samples.shape[0]),
                (0, mcus[0] * 8 * h_max - c.samples.shape[1]),
            ),
            "edge",
        )
        small = padded.reshape(mcus[1] * 8 * c.v, y, mcus[0] * 8 * c.h, x).mean((1, 3))
        tiles = small.reshape(mcus[1] * c.v, 8, mcus[0] * c.h, 8).transpose(0, 2, 1, 3)
        spectrum = BASIS @ tiles @ BASIS.T / self.quantisers[c.table]
        rounded = np.rint(spectrum).astype(int)
        return np.stack([rounded[..., r, k] for r, k in ZIGZAG], -1)

    def scan(
        self,
        scan: list[int],
        blocks: list[np.ndarray],
        mcus: tuple[int, int],
        size: tuple[int, int],
        most: tuple[int, int],
    ) -> bytes:
        units: list[list[tuple[int, np.ndarray]]] = []
        if len(scan) == 1:
            c = self.components[scan[0]]
            columns = -(-(-(-size[0] * c.h // most[0])) // 8)
            rows = -(-(-(-size[1] * c.v // most[1])) // 8)
            units = [[(scan[0], b)] for b in blocks[scan[0]][:rows, :columns].reshape(-1, 64)]
        else:
            for y in range(mcus[1]):
                for x in range(mcus[0]):
                    unit = []
                    for i in scan:
                        c = self.components[i]
                        for dy in range(c.v):
                            for dx in range(c.h):
                                unit.append((i, blocks[i][y * c.v + dy, x * c.h + dx]))
                    units.append(unit)
        out, before = b"", dict.fromkeys(scan, 0)
        for n, unit in enumerate(units):
            if self.restart and n and n % self.restart == 0:
                out += self.flush() + bytes([0xFF, 0xD0 + (n // self.restart - 1) % 8])
                before = dict.fromkeys(scan, 0)
            for i, block in unit:
                self.block(block, before[i], 1 if i in (1, 2) else 0)
                before[i] = int(block[0])
        return out + self.flush()

    def number(self, value: int, size: int) -> None:
        if size:
            self.bits.append(format(value if value > 0 else value + (1 << size) - 1, f"0{size}b"))

    def code(self, table: int, symbol: int) -> None:
        code, bits = TABLES[table][1][symbol]
        self.bits.append(format(code, f"0{bits}b"))

    def block(self, block: np.ndarray, before: int, table: int) -> None:
        difference = int(block[0]) - before
        size = abs(difference).bit_length()
        self.code(table, size)
        self.number(difference, size)
        run = 0
        for value in map(int, block[1:]):
            if value == 0:
                run += 1
                continue
            while run > 15:
                self.code(0x10 | table, 0xF0)
                run -= 16
            size = abs(value).bit_length()
            self.code(0x10 | table, run << 4 | size)
            self.number(value, size)
            run = 0
        if run:
            self.code(0x10 | table, 0)

    def flush(self) -> bytes:
        bits = "".join(self.bits)
        self.bits.clear()
        bits += "1" * (-len(bits) % 8)
        data = int(bits or "0", 2).to_bytes(len(bits) // 8, "big")
        return data.replace(b"\xff", b"\xff\0")


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def ycc(rgb: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(p) for p in Image.fromarray(rgb).convert("YCbCr").split()]


def flat(first: int, slope: int) -> np.ndarray:
    return first + slope * np.add.outer(np.arange(8), np.arange(8))


ADOBE = {n: segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([n])) for n in (0, 1, 2)}
JFIF = segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")


def sampled(factors: list[tuple[int, int]], width: int, height: int, **kw: Any) -> tuple[Encoder, int, int]:
    """An encoder of YCbCr, or of as many components as there are factors."""
    if len(factors) == 3:
        planes = ycc(picture(width, height, seed=width + height))
    else:
        planes = list(np.moveaxis(picture(width, height, seed=7, channels=len(factors)), -1, 0))
    components = [
        Component(p, h, v, 0 if i in (0, 3) else 1, i + 1)
        for i, (p, (h, v)) in enumerate(zip(planes, factors, strict=True))
    ]
    options: dict[str, Any] = {
        "quantisers": [flat(3, 2), flat(5, 3)],
        "scans": [list(range(len(factors)))],
        "application": JFIF if len(factors) == 3 else b"",
    }
    return Encoder(components, **(options | kw)), width, height


def own() -> dict[str, bytes]:
    made = {
        "own-420": sampled([(2, 2), (1, 1), (1, 1)], 45, 37),
        "own-440": sampled([(1, 2), (1, 1), (1, 1)], 45, 37),
        "own-411": sampled([(4, 1), (1, 1), (1, 1)], 75, 21),
        "own-410": sampled([(4, 2), (1, 1), (1, 1)], 75, 37),
        "own-441": sampled([(1, 4), (1, 1), (1, 1)], 21, 75),
        "own-311": sampled([(3, 1), (1, 1), (1, 1)], 55, 21),
        "own-313": sampled([(1, 3), (1, 1), (1, 1)], 21, 55),
        "own-chroma-larger": sampled([(1, 1), (2, 2), (2, 1)], 45, 37),
        "own-mixed": sampled([(2, 2), (2, 1), (1, 2)], 45, 37),
        "own-444-as-22": sampled([(2, 1), (2, 1), (2, 1)], 45, 37),
        "own-restart-3": sampled([(2, 2), (1, 1), (1, 1)], 61, 45, restart=3),
        "own-restart-1": sampled([(2, 1), (1, 1), (1, 1)], 41, 29, restart=1),
        "own-restart-9": sampled([(2, 2), (1, 1), (1, 1)], 61, 90, restart=9),
        "own-scans": sampled([(2, 2), (1, 1), (1, 1)], 53, 43, scans=[[0], [1], [2]]),
        "own-scans-mixed": sampled([(2, 2), (1, 1), (1, 1)], 53, 43, scans=[[0], [1, 2]], restart=4),
        "own-wide-quantisers": sampled(
            [(2, 2), (1, 1), (1, 1)],
            45,
            37,
            quantisers=[flat(3, 40), flat(5, 60)],
            wide=True,
        ),
        "own-no-tables": sampled([(2, 2), (1, 1), (1, 1)], 33, 21, tables=False),
        "own-ycck": sampled([(1, 1)] * 4, 37, 29, application=ADOBE[2]),
        "own-ycck-420": sampled([(2, 2), (1, 1), (1, 1), (2, 2)], 45, 29, application=ADOBE[2]),
        "own-cmyk-bare": sampled([(1, 1)] * 4, 37, 29),
        "own-cmyk-adobe": sampled([(1, 1)] * 4, 21, 13, application=ADOBE[0]),
        "own-rgb-adobe": sampled([(1, 1)] * 3, 21, 13, application=ADOBE[0]),
        "own-ycc-adobe": sampled([(1, 1)] * 3, 21, 13, application=ADOBE[1]),
    }
    files = {name: encoder.encode(w, h) for name, (encoder, w, h) in made.items()}
    encoder, w, h = sampled([(1, 1)] * 3, 21, 13, application=b"")
    for c, name in zip(encoder.components, b"RGB", strict=True):
        c.name = name
    files["own-rgb-names"] = encoder.encode(w, h)
    encoder, w, h = sampled([(2, 2)], 29, 19)
    files["own-grey-22"] = encoder.encode(w, h)
    files["own-trailing"] = files["own-rgb-adobe"] + b"anything \xff\xd8 may follow" * 5
    return files


def pillows() -> dict[str, bytes]:
    exif = Image.Exif()
    exif[0x0112] = 6
    made: dict[str, tuple[np.ndarray, dict[str, Any]]] = {}
    for subsampling, name in enumerate(("444", "422", "420")):
        for width, height in ((1, 1), (2, 3), (5, 4), (7, 9), (17, 33), (64, 48)):
            made[f"{name}-{width}x{height}"] = (
                picture(width, height),
                {"subsampling": subsampling},
            )
        made[f"{name}-progressive"] = (
            picture(51, 39),
            {"subsampling": subsampling, "progressive": True},
        )
    for quality in (1, 5, 25, 50, 85, 95, 100):
        made[f"quality-{quality}"] = (picture(47, 31, seed=quality), {"quality": quality})
    made |= {
        "wide-photo": (picture(187, 37), {"quality": 93}),
        "optimised": (picture(97, 41), {"optimize": True, "quality": 92}),
        "restart-rows": (picture(65, 70), {"restart_marker_rows": 1}),
        "restart-blocks": (picture(65, 50), {"restart_marker_blocks": 2}),
        "restart-progressive": (
            picture(65, 50),
            {"restart_marker_blocks": 5, "progressive": True},
        ),
        "grey": (picture(35, 27)[..., 0], {}),
        "grey-progressive": (picture(35, 27)[..., 0], {"progressive": True}),
        "cmyk": (picture(35, 27, channels=4), {}),
        "cmyk-progressive": (picture(35, 27, channels=4), {"progressive": True}),
        "rgb": (picture(35, 27), {"keep_rgb": True}),
        "exif-6": (picture(19, 13), {"exif": exif}),
        "noise": (
            np.random.default_rng(3).integers(0, 256, (40, 56, 3), dtype=np.uint8),
            {"quality": 100, "subsampling": 0},
        ),
    }
    files = {}
    for name, (pixels, options) in made.items():
        file = io.BytesIO()
        image = Image.fromarray(pixels, "CMYK") if pixels.shape[-1] == 4 else None
        image = image or Image.fromarray(pixels)
        image.save(file, "JPEG", **({"quality": 90} | options))
        files[name] = file.getvalue()
    return files


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for old in (*HERE.glob("*.jpg"), *HERE.glob("*.rgb")):
        old.unlink()
    total = 0
    for name, data in (pillows() | own()).items():
        image = Image.open(io.BytesIO(data))
        assert isinstance(image, JpegImagePlugin.JpegImageFile)
        pixels = image.convert("RGB").tobytes()
        (HERE / f"{name}.jpg").write_bytes(data)
        (HERE / f"{name}.rgb").write_bytes(pixels)
        total += len(data) + len(pixels)
    print(f"{total} bytes")


if __name__ == "__main__":
    main()
