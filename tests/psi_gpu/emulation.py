"""The GPU's kernels on a CPU: compiled for it, with a warp that is emulated, and every access checked."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from penstock.psi.gpu.driver import JobRecord
from penstock.psi.gpu.plan import PADDING, readable
from penstock.psi.gpu.variants import KERNELS, WARPS, Variant

HERE = Path(__file__).parent
POISON = 0xA7


@functools.cache
def compiled(variant: Variant) -> ctypes.CDLL:
    """The kernel of ``variant`` as a library; kept in the temporary folder by what decides its content."""
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler: install g++")
    texts = b"".join(path.read_bytes() for path in sorted([*KERNELS.iterdir(), *HERE.glob("emulat*.[ch]*")]))
    key = hashlib.sha256(texts + repr((variant, compiler, WARPS)).encode()).hexdigest()[:24]
    library = Path(tempfile.gettempdir()) / f"penstock-emulated-{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "emulated.so"
            command = [
                compiler, "-std=c++17", "-O1", "-fPIC", "-shared", "-U_FORTIFY_SOURCE", "-DPSI_EMULATED",
                *variant.definitions, f"-I{KERNELS}", f"-I{HERE}", str(HERE / "emulator.cpp"), "-x", "c++", "-o", str(made),
            ]  # fmt: skip
            subprocess.run(command, check=True, timeout=300)
            beside = library.with_suffix(f".{made.parent.name}")
            shutil.move(made, beside)
            beside.replace(library)
    loaded = ctypes.CDLL(str(library))
    loaded.psi_emulate.restype = ctypes.c_char_p
    loaded.psi_emulate.argtypes = [
        ctypes.POINTER(JobRecord), ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64,
    ]  # fmt: skip
    return loaded


def run(
    plan, files: np.ndarray, out: np.ndarray, pictures: int, scale=(), bias=(), *, verify=True
) -> np.ndarray:
    """Runs ``plan`` over the bytes of ``files`` into ``out``; returns the status of each picture."""
    manifest = np.frombuffer(plan.manifest, np.uint8)
    padded = readable(len(files)) + PADDING
    space = np.full(padded + len(manifest) + 64, POISON, np.uint8)
    start = -space.ctypes.data % 16
    both = space[start : start + padded + len(manifest)]
    both[: len(files)] = files
    both[padded:] = manifest
    status = np.zeros(pictures, np.uint32)
    numbers = [np.array(values, np.float32) for values in (scale, bias)]
    base = both.ctypes.data
    job = JobRecord(
        blob=base,
        blob_bytes=readable(len(files)),
        manifest=base + padded,
        pictures=base + padded,
        blocks=base + padded + plan.blocks_at,
        out=out.ctypes.data,
        status=status.ctypes.data,
        scale=numbers[0].ctypes.data,
        bias=numbers[1].ctypes.data,
        verify=int(verify),
    )
    for launch in plan.launches:
        library = compiled(launch.variant)
        fault = library.psi_emulate(
            ctypes.byref(job), launch.first_block, launch.blocks, len(both), out.nbytes
        )
        assert fault is None, fault.decode()
    return status
