"""Kernels on a device: machine code loaded once for each device, launched on torch's current stream."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from penstock.psi.gpu.bindings import bindings
from penstock.psi.gpu.compiler import machine_code
from penstock.psi.gpu.variants import WARPS

if TYPE_CHECKING:
    from penstock.psi.gpu.variants import Variant


class JobRecord(ctypes.Structure):
    """``Job`` of kernels/picture.cuh: what a kernel is called with."""

    _fields_ = (
        ("blob", ctypes.c_uint64),
        ("blob_bytes", ctypes.c_uint64),
        ("manifest", ctypes.c_uint64),
        ("pictures", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64),
        ("out", ctypes.c_uint64),
        ("status", ctypes.c_uint64),
        ("scale", ctypes.c_uint64),
        ("bias", ctypes.c_uint64),
        ("verify", ctypes.c_uint32),
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """A variant on one device, ready to launch."""

    function: Any
    shared_bytes: int
    module: Any  # keeps the code loaded

    def launch(self, job: JobRecord, blocks: int, stream: int) -> None:
        """Enqueues ``blocks`` blocks on ``stream``; returns at once."""
        cuda = bindings("driver")
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(job))
        _checked(
            cuda,
            cuda.cuLaunchKernel(
                self.function,
                blocks,
                1,
                1,
                32 * WARPS,
                1,
                1,
                self.shared_bytes,
                stream,
                ctypes.addressof(arguments),
                0,
            ),
            "launch a kernel",
        )


@lru_cache(maxsize=256)
def kernel(variant: Variant, device: int) -> Kernel:
    """The kernel of ``variant`` on CUDA device ``device``; compiled, or read from the cache, at the first call."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    code = machine_code(variant, f"sm_{major}{minor}")
    cuda = bindings("driver")
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # makes torch's context the current one
        module = _checked(cuda, cuda.cuModuleLoadData(code), "load a kernel")[0]
        function = _checked(cuda, cuda.cuModuleGetFunction(module, b"psi_decode"), "find the kernel")[0]
        attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(
            cuda,
            cuda.cuFuncSetAttribute(function, attribute, variant.shared_bytes),
            "reserve the kernel's shared memory",
        )
    return Kernel(function, variant.shared_bytes, module)


def _checked(cuda: Any, result: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    if result[0] != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA could not {what}: {result[0].name}")
    return result[1:]
