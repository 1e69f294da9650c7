"""From the kernels' source to machine code, through NVRTC; compiled once for each device and kept on disk.

A cached file starts with the SHA-256 of the rest and is not used without it. Its name is the SHA-256 of everything that
decides its content, so that nothing in the cache ever needs to be thrown away for being old.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.psi.gpu.bindings import bindings

if TYPE_CHECKING:
    from penstock.psi.gpu.variants import Variant

_DIGEST = 32


def machine_code(variant: Variant, architecture: str, folder: Path | None = None) -> bytes:
    """Machine code of ``variant`` for ``architecture`` (``"sm_90"``), from the cache or compiled.

    ``folder``: where it is kept; default: ``kernels`` in ``$PENSTOCK_CACHE`` or the user's cache. A folder that
    cannot be written to only costs the time to compile.
    """
    nvrtc = bindings("nvrtc")
    path = (folder or cache_folder()) / f"{_name(variant, architecture, nvrtc)}.cubin"
    kept = _read(path)
    if kept is None:
        kept = compile_kernel(variant, architecture)
        _write(path, kept)
    return kept


def compile_kernel(variant: Variant, architecture: str) -> bytes:
    """Compiles ``variant``. RuntimeError with the compiler's own words where that fails: a bug in penstock."""
    from penstock.psi.gpu.variants import sources

    nvrtc = bindings("nvrtc")
    files = dict(sources())
    main = files.pop("decode.cu").encode()
    names = [name.encode() for name in files]
    texts = [text.encode() for text in files.values()]
    program = _checked(
        nvrtc, nvrtc.nvrtcCreateProgram(main, b"decode.cu", len(names), texts, names), "create a program"
    )[0]
    try:
        options = [f"-arch={architecture}".encode(), b"-std=c++17", b"-default-device"]
        options += [definition.encode() for definition in variant.definitions]
        result = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            size = _checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program), "read its log")[0]
            log = b" " * size
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"the PSI kernel {variant} does not compile:\n{log.decode(errors='replace')}")
        size = _checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program), "size the machine code")[0]
        code: bytes = b" " * size
        _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, code), "read the machine code")
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def cache_folder() -> Path:
    """Where machine code is kept."""
    from penstock.sources.cache import cache_folder as of_user

    return of_user() / "kernels"


def _checked(nvrtc: Any, result: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC could not {what}: {result[0].name}")
    return result[1:]


def _name(variant: Variant, architecture: str, nvrtc: Any) -> str:
    from penstock.psi.gpu.variants import sources

    version = _checked(nvrtc, nvrtc.nvrtcVersion(), "tell its version")
    parts = [architecture, str(version), *variant.definitions]
    parts += [f"{name}\n{text}" for name, text in sources().items()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _read(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, code = data[:_DIGEST], data[_DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        Path(name).replace(path)
    except OSError:
        pass  # a cache that cannot be written to is none
