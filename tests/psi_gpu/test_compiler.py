"""The kernels compile for a GPU, without one, and what is kept of that is not trusted blindly."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="pip install cuda-bindings, or torch with CUDA")

from penstock.psi.gpu.compiler import compile_kernel, machine_code
from penstock.psi.gpu.variants import OUT, Variant

VARIANTS = [
    Variant(8, 3, True, True, OUT["bits", 1]),
    Variant(8, 3, True, True, OUT["float16", 2]),
    Variant(8, 1, False, True, OUT["float32", 4]),
    Variant(8, 0, True, False, OUT["bits", 1]),
    Variant(16, 1, True, False, OUT["bits", 2]),
    Variant(16, 3, False, False, OUT["bfloat16", 2]),
    Variant(32, 2, True, False, OUT["bits", 4]),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_kernels_compile(variant, architecture):
    assert compile_kernel(variant, architecture)[:4] == b"\x7fELF"


def test_what_is_kept_is_used_and_what_was_damaged_is_not(tmp_path, monkeypatch):
    variant = VARIANTS[2]
    code = machine_code(variant, "sm_90", tmp_path)
    (kept,) = tmp_path.iterdir()
    compiled = []
    monkeypatch.setattr(
        "penstock.psi.gpu.compiler.compile_kernel", lambda *args: compiled.append(args) or b"compiled again"
    )
    assert machine_code(variant, "sm_90", tmp_path) == code
    assert not compiled
    kept.write_bytes(kept.read_bytes()[:-1] + b"!")
    assert machine_code(variant, "sm_90", tmp_path) == b"compiled again"
    (tmp_path / "file").write_bytes(b"")
    assert machine_code(variant, "sm_90", tmp_path / "file") == b"compiled again", "a cache is not needed"


def test_another_source_is_another_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.psi.gpu.compiler.compile_kernel", lambda *_: b"code")
    machine_code(VARIANTS[0], "sm_90", tmp_path)
    machine_code(VARIANTS[0], "sm_80", tmp_path)
    machine_code(VARIANTS[1], "sm_90", tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
