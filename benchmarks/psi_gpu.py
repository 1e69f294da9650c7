"""PSI on a GPU: exact, how fast the kernels are, and from host memory to the tensor that is trained on.

    make bench SUITE=psi_gpu [ARGS="--data FOLDER_OF_PNG --only kernel"]

Sections: ``verify``, ``kernel``, ``transfer``, ``loader``, ``train``, ``peers``, ``sanitize``; one that fails or is cut off
leaves the others' figures. Kernel times are medians of device events around the
launches alone, over inputs larger than the caches. Run it where there is a GPU; nothing is installed or downloaded.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _psi_pictures import label_map, mosaics, odd_picture, photographs
from _results import Results, quick
from penstock import psi

LEVELS = ("fast", "dense", "max")
SECTIONS = ("verify", "kernel", "transfer", "loader", "train", "peers", "sanitize")
"""What the names of their cases and claims begin with, too."""


def encoded(pictures: list[np.ndarray], level: str) -> list[bytes]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda picture: psi.encode(picture, level=level, threads=1), pictures))


def on_device(array: np.ndarray, got, what: str) -> None:
    import torch

    torch.cuda.synchronize()
    if not np.array_equal(
        np.ascontiguousarray(got.cpu().numpy()).view(np.uint8), np.ascontiguousarray(array).view(np.uint8)
    ):
        raise SystemExit(f"not the same samples: {what}")


def compile_all() -> None:
    """Every variant that the checks below can meet, on all cores."""
    from itertools import product

    import torch

    from penstock.psi.gpu.compiler import machine_code
    from penstock.psi.gpu.variants import Variant

    major, minor = torch.cuda.get_device_capability()
    variants = [
        Variant(bits, channels, tables, plain, out)
        for bits, channels, tables, plain, out in product(
            (8, 16, 32), (0, 1, 2, 3, 4), (True, False), (True, False), (1, 2, 4, 14)
        )
        if not plain or (bits == 8 and out in (1, 14))
    ]
    start = time.perf_counter()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda variant: machine_code(variant, f"sm_{major}{minor}"), variants))
    print(f"{len(variants)} variants compiled in {time.perf_counter() - start:.1f} s")


def verify(results: Results, cases: int) -> None:
    """Whole pictures, regions, mirror images and types against what was encoded; damage must be an error or the same."""
    import torch

    from penstock.errors import DataError

    compile_all()
    random = np.random.default_rng(time.time_ns() % 2**32)
    done = damaged = 0
    while done < cases:
        pictures = [odd_picture(random) for _ in range(64)]
        for dtype in {picture.dtype for picture in pictures}:
            some = [picture for picture in pictures if picture.dtype == dtype]
            levels = [LEVELS[random.integers(3)] for _ in some]
            files = [psi.encode(p, level=level) for p, level in zip(some, levels, strict=True)]
            regions, flips, wanted = [], [], []
            for picture in some:
                y, x = (int(random.integers(0, side)) for side in picture.shape[:2])
                h, w = (
                    int(random.integers(1, s - o + 1)) for s, o in zip(picture.shape[:2], (y, x), strict=True)
                )
                whole = random.integers(2) == 0
                regions.append(None if whole else np.s_[y : y + h, x : x + w])
                flips.append(bool(random.integers(2)))
                part = picture if whole else picture[y : y + h, x : x + w]
                wanted.append(part[:, ::-1] if flips[-1] else part)
            for layout in ("CHW", "HWC"):
                got = psi.decode_batch(files, device="cuda", regions=regions, flips=flips, layout=layout)
                for tensor, array, level in zip(got, wanted, levels, strict=True):
                    array = array.transpose(2, 0, 1) if layout == "CHW" else array
                    on_device(array, tensor, f"{array.dtype} {array.shape} {level} {layout}")
                    done += 1
            numbers = psi.decode_batch(
                files,
                device="cuda",
                regions=regions,
                flips=flips,
                layout="CHW",
                dtype="float32",
                scale=0.25,
                bias=-1.5,
            )
            for tensor, array in zip(numbers, wanted, strict=True):
                with np.errstate(all="ignore"):
                    # float32 of the sample first, then a rounding after each operation.
                    near = array.astype(np.float32).transpose(2, 0, 1) * np.float32(0.25) + np.float32(-1.5)
                same = np.array_equal(tensor.cpu().numpy(), near, equal_nan=True)
                if not same:
                    raise SystemExit(f"not the same numbers: {array.dtype} {array.shape}")
                done += 1
            # Damage that the checksums do not see: the kernels must end, stay inside, and say so or give some samples.
            for file in files[:4]:
                broken = np.frombuffer(file, np.uint8).copy()
                for at in random.integers(len(broken) // 2, len(broken), 3):
                    broken[at] ^= 1 << random.integers(8)
                for check in (True, False):
                    try:
                        psi.decode_batch([broken], device="cuda", verify=check)
                    except DataError:
                        damaged += 1
    torch.cuda.synchronize()
    print(f"verified {done} pictures, {damaged} damaged ones refused")
    results.row("verify", "penstock", "pictures_exact", done, "")


def time_kernel(
    files: list[bytes], dtype: str | None, layout: str, repeat: int, *, check: bool
) -> tuple[float, int]:
    """Median seconds of the launches alone, and bytes of output."""
    import torch

    from penstock.psi.gpu.driver import JobRecord, kernel
    from penstock.psi.gpu.plan import Box, fill, joined, plan

    infos = [psi.info(file) for file in files]
    boxes = [Box(0, 0, 0, i.width, i.height, i.depth, i.channels) for i in infos]
    kind = "bits" if dtype is None else dtype
    out_type = getattr(torch, dtype or str(infos[0].dtype))
    counts = [b.width * b.height * b.depth * b.channels for b in boxes]
    starts = (np.cumsum(counts) - counts).tolist()
    offsets, lengths, total = joined(files)
    blob = np.zeros(total + 64, np.uint8)
    fill(blob, files, offsets)
    made = plan(blob, offsets, lengths, boxes, starts, layout, kind, out_type.itemsize)
    on_gpu = torch.from_numpy(blob).cuda()
    manifest = torch.from_numpy(np.frombuffer(made.manifest, np.uint8).copy()).cuda()
    status = torch.zeros(len(files), dtype=torch.int32, device="cuda")
    out = torch.empty(sum(counts), dtype=out_type, device="cuda")
    scale, bias = torch.full((8,), 1 / 128, device="cuda"), torch.full((8,), -1.0, device="cuda")
    job = JobRecord(
        blob=on_gpu.data_ptr(), blob_bytes=total, manifest=manifest.data_ptr(), pictures=manifest.data_ptr(),
        out=out.data_ptr(), status=status.data_ptr(), scale=scale.data_ptr(), bias=bias.data_ptr(), verify=int(check),
    )  # fmt: skip
    stream = torch.cuda.current_stream().cuda_stream
    seconds = []
    for round_ in range(repeat + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for launch in made.launches:
            job.blocks = manifest.data_ptr() + made.blocks_at + 8 * launch.first_block
            kernel(launch.variant, 0).launch(job, launch.blocks, stream)
        end.record()
        end.synchronize()
        if round_ >= 3:
            seconds.append(start.elapsed_time(end) / 1e3)
    if int(status.max()) != 0:
        raise SystemExit("the kernels refuse a good file")
    return statistics.median(seconds or [0.0]), out.numel() * out.element_size()


def copy_bandwidth() -> float:
    """Bytes read plus bytes written a second, of a large copy on the device."""
    import torch

    source = torch.randint(0, 255, (1 << 31,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    seconds = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return 2 * source.numel() / statistics.median(seconds)


def kernels(results: Results, pictures: list[np.ndarray], repeat: int) -> None:
    ceiling = copy_bandwidth()
    results.row("kernel", "device", "copy", ceiling / 1e9, "GB/s", note="read plus written")
    for name, width, height, count in (("2048x1024", 2048, 1024, 64), ("512x512", 512, 512, 256)):
        images = mosaics(pictures, count, width, height)
        raw = sum(image.nbytes for image in images)
        for level in LEVELS:
            files = encoded(images, level)
            packed = sum(len(file) for file in files)
            case = f"kernel {name} {level}"
            results.row(case, "penstock", "size", 8 * packed / (raw / 3), "bits/pixel")
            for label, dtype, check in (
                ("uint8", None, True),
                ("uint8, hashes not checked", None, False),
                ("float16", "float16", True),
            ):
                seconds, written = time_kernel(files, dtype, "CHW", repeat, check=check)
                results.row(
                    case, label, "decoded", raw / seconds / 1e9, "GB/s", note="uint8 samples a second"
                )
                share = (packed + written) / seconds / ceiling
                results.row(case, label, "share_of_copy", share, "of a copy's bandwidth")
                if label == "uint8":
                    targets = (
                        {"fast": 1000, "dense": 400, "max": 150} if name == "2048x1024" else {"dense": 300}
                    )
                    if level in targets:
                        results.claim(
                            f"{case}: GB/s of decoded samples", raw / seconds / 1e9, ">=", targets[level]
                        )
    random = np.random.default_rng(4)
    masks = [label_map(random, 1024, 2048, 19).astype(np.uint8) for _ in range(64)]
    raw = sum(mask.nbytes for mask in masks)
    for level in ("dense", "max"):
        seconds, _ = time_kernel(encoded(masks, level), None, "HW", repeat, check=True)
        results.row(f"kernel labels 2048x1024 {level}", "uint8", "decoded", raw / seconds / 1e9, "GB/s")


def transfer(results: Results, pictures: list[np.ndarray], repeat: int) -> None:
    """From pinned host memory to normalised float16 planes on the device: copy and kernels overlapped on two streams."""
    import io
    import os

    import torch
    import torchvision
    from PIL import Image

    from penstock.psi.gpu.decoder import Decoder
    from penstock.psi.gpu.plan import Box, fill, joined, plan

    images = mosaics(pictures, 64, 2048, 1024)
    raw = sum(image.nbytes for image in images)
    scale, bias = torch.full((3,), 1 / 58.0, device="cuda"), torch.full((3,), -2.0, device="cuda")
    case = "transfer 2048x1024"
    link = 0.0
    for level in LEVELS:
        files = encoded(images, level)
        offsets, lengths, total = joined(files)
        blob = torch.empty(total, dtype=torch.uint8, pin_memory=True)
        fill(blob.numpy(), files, offsets)
        target = torch.empty_like(blob, device="cuda")

        def copy(target=target, blob=blob) -> None:
            for _ in range(repeat):
                target.copy_(blob, non_blocking=True)

        link = total * repeat / _wall(copy)
        boxes = [Box(0, 0, 0, 2048, 1024, 1, 3)] * len(files)
        starts = [number * 3 * 2048 * 1024 for number in range(len(files))]
        decoder = Decoder("cuda")
        streams = [torch.cuda.Stream() for _ in range(2)]
        outs = [torch.empty((len(files), 3, 1024, 2048), dtype=torch.float16, device="cuda") for _ in streams]

        def decode(
            decoder=decoder, streams=streams, outs=outs, blob=blob, places=(offsets, lengths, boxes, starts)
        ) -> None:
            for number in range(repeat):
                with torch.cuda.stream(streams[number % 2]):
                    made = plan(blob.numpy(), *places, "CHW", "float16", 2)
                    decoder.decode(blob, made, outs[number % 2], scale=scale, bias=bias, pictures=64)
            decoder.finish()

        decode()
        rate = raw * repeat / _wall(decode)
        results.row(f"{case} {level}", "link", "pinned_copy", link / 1e9, "GB/s")
        results.row(
            f"{case} {level}", "penstock", "decoded", rate / 1e9, "GB/s", note="uint8 samples a second"
        )
        results.claim(f"{case} {level}: rate / (link x compression)", rate / (link * raw / total), ">=", 0.9)
        if level == "dense":
            ours = rate
    coded = []
    for image in images[:32]:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "png")
        coded.append(buffer.getvalue())

    def through_pillow() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            arrays = list(pool.map(lambda data: np.asarray(Image.open(io.BytesIO(data))), coded))
        stacked = torch.from_numpy(np.stack(arrays)).pin_memory().cuda(non_blocking=True)
        stacked.permute(0, 3, 1, 2).to(torch.float16).mul_(1 / 58.0).add_(-2.0)

    through_pillow()
    pillow = sum(image.nbytes for image in images[:32]) / _wall(through_pillow)
    results.row(case, "Pillow, PNG, all cores", "decoded", pillow / 1e9, "GB/s")
    results.claim(f"{case}: dense / PNG by Pillow on all cores and a copy", ours / pillow, ">=", 80)
    jpegs = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "jpeg", quality=95)
        jpegs.append(torch.from_numpy(np.frombuffer(buffer.getvalue(), np.uint8).copy()))

    def through_nvjpeg() -> None:
        for picture in torchvision.io.decode_jpeg(jpegs, device="cuda"):
            picture.to(torch.float16).mul_(1 / 58.0).add_(-2.0)

    through_nvjpeg()
    nvjpeg = len(jpegs) / _wall(through_nvjpeg)
    results.row(case, "nvJPEG, q95", "pictures", nvjpeg, "1/s")
    results.claim(
        f"{case}: dense / nvJPEG in pictures a second", ours / (raw / len(images)) / nvjpeg, ">=", 5
    )


def _wall(work) -> float:
    """Median seconds of three runs, with everything on the device over."""
    import torch

    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def loader(results: Results, pictures: list[np.ndarray]) -> None:
    """The Loader's batches from the GPU against those from the CPU: exact, where they are resampled within a level."""
    import tempfile

    import torch

    import penstock

    with tempfile.TemporaryDirectory() as folder:
        for number, image in enumerate(mosaics(pictures, 48, 500, 375)):
            path = Path(folder) / "ab"[number % 2] / f"{number}.psi"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(psi.encode(image, level=LEVELS[number % 3]))
        worst = {}
        ways = {
            "crop, flip, normalise": [penstock.RandomCrop(224), penstock.Flip(), penstock.Normalize()],
            "crop, bytes": [penstock.RandomCrop(201), penstock.Flip(), penstock.Flip(axis="vertical")],
            "resized": [penstock.RandomResizedCrop(224), penstock.Flip()],
            "padded": [penstock.CenterCrop(300), penstock.Pad(7)],
        }
        for name, transform in ways.items():
            both = []
            for device in ("cpu", "cuda"):
                with penstock.Loader(
                    penstock.open(folder), 16, transform=transform, device=device, seed=3
                ) as made:
                    both.append([(batch.ids.copy(), batch["image"].cpu().double()) for batch in made])
            worst[name] = max(
                float((here - there).abs().max())
                for (a, here), (b, there) in zip(*both, strict=True)
                if (a == b).all()
            )
            assert sum(len(ids) for ids, _ in both[1]) == 48
            results.row("loader", name, "largest_difference", worst[name], "levels")
        torch.cuda.synchronize()
    results.claim("loader: exact without resampling", max(worst[n] for n in ways if n != "resized"), "==", 0)
    results.claim("loader: resampled, levels of 255", worst["resized"], "<=", 1)


def peers(results: Results, pictures: list[np.ndarray]) -> None:
    """The lossless decoders that a GPU has, in a process of their own, and ours on the same pictures right after."""
    import os
    import tempfile

    from _process import MeasureFailed, measured

    home = Path(__file__).resolve().parent / "peers" / "gpu"
    libraries = [str(path.parent) for path in (home / "env").glob("nvidia/*/lib*/*.so*")]
    if not libraries:
        raise SystemExit("no peers here: `make gpu-peers` fetches them, on a machine with a package registry")
    images = mosaics(pictures, 96, 2048, 1024)
    raw = sum(image.nbytes for image in images)
    case = "peers 2048x1024"
    with tempfile.TemporaryDirectory() as folder:
        for number, image in enumerate(images):
            np.save(Path(folder) / f"{number:03}.npy", image)
        paths = [*sorted(set(libraries)), os.environ.get("LD_LIBRARY_PATH", "")]
        try:
            found = measured(
                [sys.executable, str(home / "run.py"), folder],
                patience=240,
                environment={"LD_LIBRARY_PATH": ":".join(filter(None, paths))},
            )
        except MeasureFailed as error:
            raise SystemExit(f"peers: {error}") from None
    files = encoded(images, "dense")
    bits = 8 * sum(map(len, files)) / (raw / 3)
    seconds, _ = time_kernel(files, None, "CHW", 12, check=True)
    rate = raw / seconds
    results.row(case, "penstock, dense", "size", bits, "bits/pixel")
    results.row(
        case, "penstock, dense", "decoded", rate / 1e9, "GB/s", note="hash, colours and prediction too"
    )
    for name, figures in found.items():
        if "error" in figures:
            results.row(case, name, "decoded", float("nan"), "GB/s", note=figures["error"])
            continue
        note = ", ".join(f"{key} {figures[key]}" for key in ("block", "chunk") if key in figures)
        results.row(case, name, "size", figures["bits"], "bits/pixel")
        results.row(case, name, "decoded", figures["rate"] / 1e9, "GB/s", note=note)
    htj2k, ans = (found.get(name, {}) for name in ("HTJ2K", "ANS"))
    if "rate" in htj2k:
        results.claim(f"{case}: dense / HTJ2K of nvJPEG2000, GB/s", rate / htj2k["rate"], ">=", 30)
    if "rate" in ans:
        results.claim(f"{case}: size against nvCOMP's ANS", bits / ans["bits"], "<=", 0.86)
        results.claim(f"{case}: dense / nvCOMP's ANS, GB/s", rate / ans["rate"], ">=", 1.4)


def sanitize(results: Results) -> None:
    """A small ``verify`` under compute-sanitizer, which comes with CUDA's toolkit and not as a wheel."""
    import os
    import shutil
    import subprocess

    places = [
        os.environ.get("CUDA_HOME", ""),
        "/usr/local/cuda",
        *map(str, Path("/usr/local").glob("cuda-*")),
    ]
    path = os.pathsep.join([os.environ.get("PATH", ""), *(f"{place}/bin" for place in places if place)])
    tool = shutil.which("compute-sanitizer", path=path)
    for check in ("memcheck", "initcheck", "racecheck"):
        if tool is None:
            results.row(
                "sanitize", check, "errors", float("nan"), "", note="no compute-sanitizer on this machine"
            )
            continue
        command = [tool, "--tool", check, "--error-exitcode", "9", "--print-limit", "20"]
        command += [
            "--kernel-name",
            "kns=psi_decode",
            sys.executable,
            __file__,
            "--only",
            "verify",
            "--cases",
            "128",
        ]
        try:
            done = subprocess.run(
                [*command, "--no-results"], capture_output=True, text=True, timeout=150, check=False
            )
        except subprocess.TimeoutExpired:
            results.row("sanitize", check, "errors", float("nan"), "", note="not over within 150 s")
            continue
        said = done.stdout + done.stderr
        found = [line for line in said.splitlines() if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line]
        clean = done.returncode == 0 and bool(found)
        if not clean:
            print(said[-4000:], flush=True)
        results.row("sanitize", check, "clean", float(clean), "", note=found[-1].strip("= ") if found else "")
        results.claim(f"sanitize: {check} is clean", float(clean), "==", 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="a folder of RGB photographs as PNG")
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--no-results", action="store_true", help="print only")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each training run")
    parser.add_argument("--task", choices=("large", "small"), help="one training task alone")
    parser.add_argument("--scratch", default="/tmp/penstock-psi-training")
    parser.add_argument("--cases", type=int, default=2000)
    options, _ = parser.parse_known_args()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("this suite needs a CUDA device")
    print(torch.cuda.get_device_name(), torch.__version__)
    short = quick()
    results = Results("psi_gpu", merge=True)
    sections = options.only.split(",")
    unknown = set(sections) - set(SECTIONS)
    if unknown:
        raise SystemExit(f"--only knows {', '.join(SECTIONS)}, not {', '.join(sorted(unknown))}")
    pictures = photographs(options.data)
    work = {
        "verify": lambda: verify(results, 200 if short else options.cases),
        "kernel": lambda: kernels(results, pictures, 5 if short else 20),
        "transfer": lambda: transfer(results, pictures, 4 if short else 16),
        "loader": lambda: loader(results, pictures),
        "train": lambda: train(results, pictures, options),
        "peers": lambda: peers(results, pictures),
        "sanitize": lambda: sanitize(results),
    }
    failed = []
    for name in sections:
        # Each part stands for itself: what another build or an earlier day measured of it goes, what it measures is kept.
        results.forget(name)
        start = time.perf_counter()
        try:
            work[name]()
        except (Exception, SystemExit) as error:
            failed.append(name)
            print(f"{name} failed: {type(error).__name__}: {error}", flush=True)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        name_of_device, version = torch.cuda.get_device_name(), torch.__version__
        results.row("machine", name_of_device, "torch", float(version.split(".")[0]), "", note=version)
        results.row("machine", "kernels", "digest", 0, "", note=digest())
        if not options.no_results:
            results.save()
    if not options.no_results:
        results.write()
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def train(results: Results, pictures: list[np.ndarray], options: argparse.Namespace) -> None:
    from _psi_training import LARGE, SMALL, training

    for task in {"large": (LARGE,), "small": (SMALL,)}.get(options.task, (LARGE, SMALL)):
        training(results, pictures, task, Path(options.scratch), options.seconds)


def digest() -> str:
    """Which kernels were measured."""
    import hashlib

    from penstock.psi.gpu.variants import sources

    return hashlib.sha256("\0".join(sources().values()).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main()
