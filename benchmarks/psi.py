"""PSI on the CPU against other lossless formats: sizes, one core's rates, and regions.

``python benchmarks/psi.py [--quick] [--pictures FOLDER] [--only sizes,fields,rates,region]``. The pictures are the PNGs of
a folder (the targets are for the Kodak set) or made-up ones that cost a codec what photographs cost. Sizes are means over
pictures, headers included. Rates are those of one core, medians of rounds; the peers run right before, in a process of their own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np

from _process import MeasureFailed, measured
from _psi_pictures import mosaics, photographs
from _results import Results, quick
from peers._environment import PEERS, EnvironmentMissing, python_of
from penstock import psi

if TYPE_CHECKING:
    from collections.abc import Callable

LEVELS: tuple[psi.Level, ...] = ("fast", "dense", "max")
BITS = {"fast": 12.6, "dense": 10.0, "max": 9.5}
"""Bits per pixel at most, on Kodak."""
ROUNDS = 7
RATED = 8
"""Pictures whose rates are taken."""
Arrays = list["np.ndarray[Any, Any]"]


def peers(what: str, pictures: Arrays) -> dict[str, Any]:
    """What the peers' process measures of these arrays; empty where it cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        for number, picture in enumerate(pictures):
            np.save(Path(folder) / f"{number:03}.npy", picture)
        try:
            python = python_of("images")
            return measured([str(python), str(PEERS / "images" / "run.py"), what, folder], patience=1200)
        except (EnvironmentMissing, MeasureFailed) as error:
            print(f"no peers for {what}: {error}")
            return {}


def sizes(results: Results, pictures: Arrays, what: str, claims: bool) -> None:
    """Mean bits per pixel of photographs."""
    case = f"size: {what}"
    for name, bits in peers("sizes", pictures).items():
        results.row(case, name, "bits per pixel", bits, "bit")
    for level in LEVELS:
        bits = []
        for picture in pictures:
            file = psi.encode(picture, level=level)
            if not np.array_equal(psi.decode(file), picture):
                raise SystemExit(f"PSI {level} gave other pixels back")
            bits.append(8 * len(file) / (picture.shape[0] * picture.shape[1]))
        mean = float(np.mean(bits))
        results.row(case, f"PSI {level}", "bits per pixel", mean, "bit")
        if claims:
            results.claim(f"size: {level}, bits per pixel", mean, "<=", BITS[level])


def made_fields() -> dict[str, Arrays]:
    """Made-up data that is not photographs: what each is stands in the names."""
    random = np.random.default_rng(5)
    y, x = np.mgrid[0:768, 0:768]
    wave = sum(
        np.sin(x / random.uniform(15, 90) + phase) * np.cos(y / random.uniform(15, 90)) for phase in range(6)
    )
    scan = np.clip(1200 + 300 * wave + random.normal(0, 12, wave.shape), 0, 4095).astype(np.uint16)
    cells = random.uniform(0, 768, (60, 2))
    nearest = np.argmin((x[..., None] - cells[:, 0]) ** 2 + (y[..., None] - cells[:, 1]) ** 2, axis=-1)
    return {
        "12 bits in uint16": [scan],
        "float32, smooth": [(wave * 17.3 + random.normal(0, 1e-4, wave.shape)).astype(np.float32)],
        "float32, two decimal places": [np.round(wave * 17.3 + 280, 2).astype(np.float32)],
        "labels, 60 regions": [(nearest % 19).astype(np.uint8)],
        "labels, streets": [street(random) for _ in range(4)],
        **label_maps(random),
    }


def smooth(random: np.random.Generator, height: int, width: int, reach: float) -> np.ndarray[Any, Any]:
    """A random field whose hills are about ``reach`` wide."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    field = np.zeros((height, width), np.float32)
    for _ in range(40):
        angle, length, phase = (
            random.uniform(0, 2 * np.pi),
            reach * random.uniform(1.5, 5),
            random.uniform(0, 7),
        )
        field += np.sin((x * np.cos(angle) + y * np.sin(angle)) * (2 * np.pi / length) + phase)
    return field


def label_maps(random: np.random.Generator) -> dict[str, Arrays]:
    """More label maps: one kind each."""
    many = np.argmax([smooth(random, 375, 500, 25) for _ in range(21)], axis=0)
    instances = np.zeros((768, 768), np.uint16)
    y, x = np.mgrid[0:768, 0:768]
    for number in range(1, 421):
        (cx, cy), (a, b), turn = (
            random.uniform(0, 768, 2),
            random.uniform(6, 22, 2),
            random.uniform(0, np.pi),
        )
        u = (x - cx) * np.cos(turn) + (y - cy) * np.sin(turn)
        v = (y - cy) * np.cos(turn) - (x - cx) * np.sin(turn)
        instances[(u / a) ** 2 + (v / b) ** 2 < 1] = number
    return {
        "labels, few smooth regions": [
            np.argmax([smooth(random, 768, 1024, 60) for _ in range(5)], axis=0).astype(np.uint8)
        ],
        "labels, 21 classes, 375 × 500": [many.astype(np.uint8)],
        "labels, 96 × 112": [
            np.argmax([smooth(random, 96, 112, 14) for _ in range(4)], axis=0).astype(np.uint8)
        ],
        "labels, binary mask": [((smooth(random, 600, 800, 14) > 0) * 255).astype(np.uint8)],
        "labels, fine binary mask": [(smooth(random, 600, 800, 5) > 1).astype(np.uint8)],
        "labels, 420 instances in uint16": [instances],
        "labels, street in perspective": [perspective(random) for _ in range(2)],
    }


def perspective(random: np.random.Generator) -> np.ndarray[Any, Any]:
    """A road that runs to the horizon, houses, trees with ragged edges, poles, and people and cars that grow towards us."""
    labels = np.full((1024, 2048), 10, np.uint8)
    y, x = np.mgrid[0:1024, 0:2048]
    horizon = 420 + 30 * np.sin(np.arange(2048) / 300) + np.cumsum(random.normal(0, 0.8, 2048))
    labels[y > horizon] = 8
    for _ in range(9):
        centre, wide, tall = random.uniform(0, 2048), random.uniform(40, 150), random.uniform(100, 400)
        labels[(abs(x - centre) < wide) & (y > horizon - tall) & (y < horizon + 40)] = 2
    labels[(y > 460) & (abs(x - 1000) < (y - 410) * 2.2)] = 1
    labels[(y > 470) & (abs(x - 1000) < (y - 420) * 1.6)] = 0
    for _ in range(25):
        cx, cy = random.uniform(0, 2048), random.uniform(430, 800)
        size = (cy - 400) / 3
        wide = size * random.uniform(0.3, 2)
        labels[((x - cx) / wide) ** 2 + ((y - cy) / size) ** 2 < 1] = random.integers(11, 19)
    for _ in range(20):
        left, top = int(random.integers(0, 2040)), int(random.integers(100, 400))
        labels[top:560, left : left + random.integers(2, 8)] = 5
    labels[(smooth(random, 1024, 2048, 9) > 1) & (labels == 10) & (y > 200) & (y < 460)] = 8
    return labels


def street(random: np.random.Generator) -> np.ndarray[Any, Any]:
    """A label map such as those of street scenes: large areas, thin poles, small boxes."""
    labels = np.zeros((512, 1024), np.uint8)
    horizon = 180 + np.cumsum(random.integers(-1, 2, 1024))
    rows = np.arange(512)[:, None]
    labels[rows > horizon] = 7
    labels[rows > horizon + 120] = 8
    for _ in range(60):
        left, top = int(random.integers(0, 1000)), int(random.integers(60, 420))
        wide, tall = (2, 150) if random.random() < 0.4 else random.integers(4, 90, 2)
        labels[top : top + tall, left : left + wide] = random.integers(9, 34)
    return labels


def fields(results: Results) -> None:
    """Sizes of what is not photographs, against PNG where it can hold it and zstd-like shuffling where not."""
    for case, arrays in made_fields().items():
        total = sum(array.nbytes for array in arrays)
        ours = {level: sum(len(psi.encode(array, level=level)) for array in arrays) for level in LEVELS}
        for level, size in ours.items():
            results.row(f"field: {case}", f"PSI {level}", "of the raw bytes", size / total, "ratio")
        if arrays[0].dtype.kind == "u":
            pngs = peers("plain", arrays)
            for name, size in pngs.items():
                results.row(f"field: {case}", name, "of the raw bytes", size / total, "ratio")
            if case.startswith("labels") and pngs:
                smallest = min(pngs.values())
                results.claim(
                    f"field: {case}, dense against the smallest PNG", ours["dense"] / smallest, "<=", 1.0
                )


def seconds(work: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return median(taken)


def rates(results: Results, pictures: Arrays, what: str, rounds: int) -> None:
    """Megabytes of pixels per second, one core."""
    case = f"rate: {what}"
    pictures = pictures[:RATED]
    total = sum(picture.nbytes for picture in pictures) / 1e6
    found = peers("rates", pictures)
    for name, both in found.items():
        for way, rate in both.items():
            results.row(case, name, way, rate, "MB/s")
    decoded = {}
    for level in LEVELS:
        files = [psi.encode(picture, level=level, threads=1) for picture in pictures]
        outs = [np.empty_like(picture) for picture in pictures]

        def encode(level: psi.Level = level) -> None:
            for picture in pictures:
                psi.encode(picture, level=level, threads=1)

        def decode(files: list[bytes] = files, outs: Arrays = outs) -> None:
            for file, out in zip(files, outs, strict=True):
                psi.decode(file, out=out, threads=1)

        decode()
        decoded[level] = total / seconds(decode, rounds)
        encoded = total / seconds(encode, 3)
        results.row(case, f"PSI {level}", "decode", decoded[level], "MB/s")
        results.row(case, f"PSI {level}", "encode", encoded, "MB/s")
        target = {"fast": 400, "dense": 100}.get(level)
        if target is not None:
            results.claim(f"rate: encode {level}, MB/s a core", encoded, ">=", target)
    results.claim("rate: decode dense, MB/s a core", decoded["dense"], ">=", 800)
    results.claim("rate: decode fast, MB/s a core", decoded["fast"], ">=", 2500)
    png = found.get("PNG (Pillow, optimised)")
    if png is not None:
        results.claim("rate: decode dense against Pillow's PNG", decoded["dense"] / png["decode"], ">=", 6)


def regions(results: Results, pictures: Arrays, rounds: int) -> None:
    """A corner of 224 × 224 that touches no more tiles than it must, and ones that lie anywhere, of 2048 × 1024."""
    (picture,) = mosaics(pictures, 1, 2048, 1024)
    random = np.random.default_rng(2)
    corners = [(int(random.integers(0, 801)), int(random.integers(0, 1825))) for _ in range(40)]
    for level in LEVELS:
        file = psi.encode(picture, level=level)
        whole = np.empty_like(picture)
        part = np.empty((224, 224, 3), np.uint8)

        def all_of_it(file: bytes = file, whole: np.ndarray[Any, Any] = whole) -> None:
            psi.decode(file, out=whole, threads=1)

        def some(file: bytes = file, part: np.ndarray[Any, Any] = part) -> None:
            for y, x in corners:
                psi.decode(file, region=np.s_[y : y + 224, x : x + 224], out=part, threads=1)

        all_of_it()
        ratio = seconds(all_of_it, rounds) / (seconds(some, rounds) / len(corners))
        results.row("region: 224 × 224 of 2048 × 1024", f"PSI {level}", "times faster", ratio, "times")
        if level == "dense":
            results.claim("region: dense, times faster than the whole", ratio, ">=", 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--pictures", help="a folder of PNG photographs")
    parser.add_argument("--only", default="sizes,fields,rates,region")
    options = parser.parse_args()
    only = set(options.only.split(","))
    pictures = photographs(options.pictures)
    name = Path(options.pictures).name if options.pictures else "made-up photographs"
    rounds = 3 if quick() else ROUNDS
    results = Results("psi-quick" if quick() else "psi", merge=True)
    if "sizes" in only:
        sizes(results, pictures[:4] if quick() else pictures, name, claims=options.pictures is not None)
    if "fields" in only:
        results.forget("field")
        fields(results)
    if "rates" in only:
        rates(results, pictures[:2] if quick() else pictures, name, rounds)
    if "region" in only:
        regions(results, pictures, rounds)
    results.write()


if __name__ == "__main__":
    main()
