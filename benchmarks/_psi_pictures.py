"""Pictures for the PSI suites: mosaics of a folder of photographs, or of made-up ones; and odd content for checks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

TYPES = ("uint8", "int8", "uint16", "int16", "float16", "float32", "uint32", "int32")


def photographs(folder: str | None, count: int = 24) -> list[np.ndarray]:
    """RGB pictures of a folder, or made-up ones that cost a codec what photographs cost it."""
    if folder is not None:
        from PIL import Image

        paths = sorted(Path(folder).glob("*.png"))
        if not paths:
            raise SystemExit(f"{folder} holds no PNG pictures")
        return [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    from penstock.demo.pictures import picture

    return [np.asarray(picture(7, number, number % 4, (768, 512)).pixels) for number in range(count)]


def mosaics(
    pictures: list[np.ndarray], count: int, width: int, height: int, seed: int = 1
) -> list[np.ndarray]:
    """``count`` different pictures of one size, put together from others."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        canvas = np.empty((height, width, 3), np.uint8)
        y = 0
        while y < height:
            x, low = 0, height
            while x < width:
                part = pictures[random.integers(len(pictures))]
                part = part[:, ::-1] if random.integers(2) else part
                shift = random.integers(0, max(1, part.shape[1] // 4))
                part = part[: height - y, shift : shift + width - x]
                canvas[y : y + part.shape[0], x : x + part.shape[1]] = part
                x += part.shape[1]
                low = min(low, part.shape[0])
            y += low
        made.append(canvas)
    return made


def label_map(random: np.random.Generator, height: int, width: int, labels: int) -> np.ndarray:
    """Numbers of regions with slanted and wavy edges, poles and boxes among them."""
    y, x = np.mgrid[0:height, 0:width]
    slant, wave, side = random.integers(-4, 5), random.uniform(2, 20), int(random.integers(9, 200))
    across = (x + slant * y // 4 + wave * np.sin(y / 13)).astype(np.int64) // side
    down = (y + wave * np.sin(x / 17)).astype(np.int64) // int(random.integers(9, 200))
    made = (across * 5 + down * 11) % labels
    for _ in range(height * width // 20_000):
        top, left = int(random.integers(height)), int(random.integers(width))
        tall, wide = random.integers(1, 90, 2)
        made[top : top + tall, left : left + (wide if random.integers(2) else 2)] = random.integers(labels)
    return made


def odd_picture(random: np.random.Generator) -> np.ndarray:
    """Any type, size, number of channels and content: smooth, noise, constant, few colours, labels, steps, bits of every kind."""
    dtype = np.dtype(TYPES[random.integers(len(TYPES))])
    height, width = (int(2 ** random.uniform(0, 8.5)) for _ in range(2))
    channels = int(random.choice([1, 1, 2, 3, 3, 3, 4, 5, 9]))
    shape = (height, width, channels)
    bits = random.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    kind = random.integers(9)
    if kind == 0:
        return bits
    if kind == 1:
        return np.broadcast_to(bits[:1, :1], shape).copy()
    if kind == 2:
        few = bits.reshape(-1)[: random.integers(1, 20)]
        return few[random.integers(0, len(few), shape)]
    if kind >= 7:
        values = bits.reshape(-1)[: random.integers(1, 300)]
        return values[label_map(random, height, width, len(values))][..., None]
    y, x = np.mgrid[0:height, 0:width]
    wave = np.sin(x / random.uniform(2, 90)) + np.cos(y / random.uniform(2, 90))
    wave = wave[..., None] * random.uniform(0.5, 1, channels) + random.normal(
        0, 10 ** -random.uniform(0, 4), shape
    )
    if dtype.kind == "f":
        return (wave * 10 ** random.uniform(-3, 3)).astype(dtype)
    info = np.iinfo(dtype)
    scale = (info.max - info.min) * 2.0 ** -random.integers(0, 8 * dtype.itemsize)
    values = (wave / 4 + 0.5) * scale
    if kind == 3:
        values = np.floor(values / 4) * 4
    return np.clip(info.min + values, info.min, info.max).astype(dtype)
