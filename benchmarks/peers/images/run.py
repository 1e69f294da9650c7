"""Lossless image codecs over the arrays of a folder: sizes, or one core's rates.

``run.py sizes FOLDER`` and ``run.py rates FOLDER`` read ``*.npy`` and print one line of JSON: for each codec the mean of
bits per pixel, or megabytes of pixels per second of encoding and decoding (medians of rounds). Every file is checked
to give its pixels back.
"""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import imagecodecs
import numpy as np
import oxipng
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable

    Encode = Callable[[np.ndarray], bytes]
    Decode = Callable[[bytes], np.ndarray]

ROUNDS = 3


def pillow(picture: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG", optimize=True)
    return out.getvalue()


def pillow_decode(file: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(file)))


def jxl(effort: int) -> Encode:
    return lambda picture: imagecodecs.jpegxl_encode(picture, lossless=True, effort=effort, numthreads=1)


PHOTOGRAPHS: dict[str, tuple[Encode, Decode]] = {
    "PNG (Pillow, optimised)": (pillow, pillow_decode),
    "PNG (oxipng -o4)": (
        lambda picture: oxipng.optimize_from_memory(pillow(picture), level=4),
        imagecodecs.spng_decode,
    ),
    "WebP lossless": (
        lambda picture: imagecodecs.webp_encode(picture, lossless=True, method=6, numthreads=1),
        imagecodecs.webp_decode,
    ),
    "JPEG XL e1": (jxl(1), imagecodecs.jpegxl_decode),
    "JPEG XL e2": (jxl(2), imagecodecs.jpegxl_decode),
    "JPEG XL e3": (jxl(3), imagecodecs.jpegxl_decode),
    "QOI": (imagecodecs.qoi_encode, imagecodecs.qoi_decode),
    "HTJ2K": (lambda picture: imagecodecs.htj2k_encode(picture, reversible=True), imagecodecs.htj2k_decode),
}
"""Encoder and decoder, one thread each."""

SLOW = {"PNG (oxipng -o4)", "WebP lossless"}
"""Encoders whose rate is taken from one round."""


def sizes(pictures: list[np.ndarray]) -> dict[str, float]:
    found = {}
    for name, (encode, decode) in PHOTOGRAPHS.items():
        bits = []
        for picture in pictures:
            file = encode(picture)
            if not np.array_equal(decode(file), picture):
                raise SystemExit(f"{name} gave other pixels back")
            bits.append(8 * len(file) / (picture.shape[0] * picture.shape[1]))
        found[name] = float(np.mean(bits))
    return found


def palette_png(picture: np.ndarray) -> bytes | None:
    """With a palette and as few bits a pixel as it allows: what a careful writer makes of a label map."""
    values, index = np.unique(picture, return_inverse=True)
    if len(values) > 256:
        return None
    image = Image.fromarray(index.reshape(picture.shape).astype(np.uint8), "P")
    image.putpalette([level for value in range(len(values)) for level in (value, value, value)])
    bits = next(bits for bits in (1, 2, 4, 8) if len(values) <= 1 << bits)
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True, bits=bits)
    return out.getvalue()


def plain_sizes(pictures: list[np.ndarray]) -> dict[str, float]:
    """PNG of single channels: label maps and 16-bit fields. oxipng chooses bits, palette and filters by itself."""
    plain = [pillow(picture) for picture in pictures]
    found = {
        "PNG (Pillow, optimised)": float(sum(map(len, plain))),
        "PNG (oxipng -o4)": float(sum(len(oxipng.optimize_from_memory(file, level=4)) for file in plain)),
    }
    palettes = [palette_png(picture) for picture in pictures]
    small = [file for file in palettes if file is not None]
    if len(small) == len(pictures):
        found["PNG (Pillow, palette)"] = float(sum(map(len, small)))
        found["PNG (oxipng -o4, palette)"] = float(
            sum(len(oxipng.optimize_from_memory(file, level=4)) for file in small)
        )
    return found


def rates(pictures: list[np.ndarray]) -> dict[str, dict[str, float]]:
    total = sum(picture.nbytes for picture in pictures) / 1e6
    found = {}
    for name, (encode, decode) in PHOTOGRAPHS.items():
        encoding, decoding = [], []
        for _ in range(1 if name in SLOW else ROUNDS):
            start = time.perf_counter()
            files = [encode(picture) for picture in pictures]
            encoding.append(time.perf_counter() - start)
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for file in files:
                decode(file)
            decoding.append(time.perf_counter() - start)
        found[name] = {"encode": total / median(encoding), "decode": total / median(decoding)}
    return found


def main() -> None:
    what, folder = sys.argv[1:3]
    pictures = [np.load(path) for path in sorted(Path(folder).glob("*.npy"))]
    found = {"sizes": sizes, "plain": plain_sizes, "rates": rates}[what](pictures)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
