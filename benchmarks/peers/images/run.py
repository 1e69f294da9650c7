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


def plain_sizes(pictures: list[np.ndarray]) -> dict[str, float]:
    """PNG of single channels: label maps and 16-bit fields."""
    return {
        "PNG (Pillow, optimised)": float(sum(len(pillow(picture)) for picture in pictures)),
        "PNG (oxipng -o4)": float(
            sum(len(oxipng.optimize_from_memory(pillow(picture), level=4)) for picture in pictures)
        ),
    }


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
