"""`penstock psi`, `penstock inspect x.psi` and `penstock pack --format psi`, as a user has them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from tests.cli.test_commands import run
from tests.support import picture

import penstock
from penstock import psi

if TYPE_CHECKING:
    from pathlib import Path


def test_there_and_back(tmp_path: Path) -> None:
    picture(0, (300, 200)).save(tmp_path / "a.png")
    told = run("psi", "encode", tmp_path / "a.png", tmp_path / "a.psi", "--level", "max").stdout
    assert "bits a pixel" in told
    assert psi.info((tmp_path / "a.psi").read_bytes()).level == "max"
    for extension in ("png", "tif", "npy"):
        run("psi", "decode", tmp_path / "a.psi", tmp_path / f"b.{extension}")
    for found in (np.asarray(Image.open(tmp_path / "b.png")), np.load(tmp_path / "b.npy")):
        assert np.array_equal(found, np.asarray(picture(0, (300, 200))))
    told = run("psi", "encode", tmp_path / "a.png", tmp_path / "x.psi", "--level", "best", code=1).stderr
    assert "level is 'best'" in told
    assert not (tmp_path / "x.psi").exists()


def test_inspect_tells_what_a_file_holds(tmp_path: Path) -> None:
    file = psi.encode(np.asarray(picture(0, (300, 200))), metadata={"json": {"scan": 7}, "icc": b"x" * 2000})
    (tmp_path / "a.psi").write_bytes(file)
    told = run("inspect", tmp_path / "a.psi", "--grid", tmp_path / "a.png").stdout
    for text in (
        "200×300×3 (HWC) uint8",
        "6 tiles of 128×128",
        "level dense",
        "{'scan': 7}",
        "every tile decodes",
    ):
        assert text in told
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), psi.decode(file))
    said = json.loads(run("inspect", tmp_path / "a.psi", "--json").stdout)
    assert (said["shape"], said["bytes"], said["damage"]) == ([200, 300, 3], len(file), None)


def test_inspect_tells_of_damage(tmp_path: Path) -> None:
    file = bytearray(psi.encode(np.asarray(picture(0, (300, 200)))))
    file[-9] ^= 1
    (tmp_path / "a.psi").write_bytes(bytes(file))
    assert "damaged: PSI checksum: the bytes of tile 5" in run("inspect", tmp_path / "a.psi", code=1).stdout
    (tmp_path / "b.psi").write_bytes(bytes(file[:20]))
    assert "b.psi" in run("inspect", tmp_path / "b.psi", code=1).stderr


def test_pack_as_psi(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for number in range(6):
        picture(number).save(source / f"{number}.png")
    run("pack", source, tmp_path / "packed", "--format", "psi", "--level", "fast", "--verify")
    packed = penstock.open(tmp_path / "packed")
    for number, sample in enumerate(packed):
        assert np.array_equal(sample["image"], np.asarray(picture(number)))
    assert "psi" in run("inspect", tmp_path / "packed").stdout
