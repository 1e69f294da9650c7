"""The command line as a user has it: a process of its own, its words, its exit code and what it leaves on the disk."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.support import encoded, picture

import penstock

PENSTOCK = Path(sys.executable).with_name("penstock")


def run(*arguments: object, code: int = 0, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [PENSTOCK, *map(str, arguments)], capture_output=True, text=True, timeout=100, check=False, **options
    )
    assert done.returncode == code, f"exit code {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 pictures with a CSV of label and patient."""
    root = tmp_path_factory.mktemp("labelled")
    lines = ["file,label,patient"]
    for number in range(30):
        (root / f"{number:02}.jpg").write_bytes(encoded(picture(number), "JPEG"))
        lines.append(f"{number:02}.jpg,{('cat', 'dog', 'cow')[number % 3]},p{number // 5}")
    (root / "labels.csv").write_text("\n".join(lines))
    return root


def test_help_names_every_command_and_version_says_which() -> None:
    told = run("--help").stdout
    for command in ("pack", "verify", "inspect", "doctor", "demo"):
        assert command in told
        assert "Usage" in run(command, "--help").stdout
    assert run("--version").stdout.strip() == f"penstock {penstock.__version__}"


def test_pack_then_verify_then_read(labelled: Path, tmp_path: Path) -> None:
    dest = tmp_path / "packed"
    told = run("pack", labelled, dest, "--shard-size", "16KiB", "--verify").stdout
    assert "packed 30 samples" in told
    assert "every checksum is right" in told
    data = penstock.open(dest)
    assert (len(data), data.classes) == (30, ("cat", "cow", "dog"))
    assert len(list(dest.glob("*.tar"))) >= 2
    assert "already complete" in run("pack", labelled, dest, "--shard-size", "16KiB").stdout
    assert "every checksum is right" in run("verify", dest).stdout


def test_pack_what_holds_in_an_order_of_ones_own(labelled: Path, tmp_path: Path) -> None:
    run("pack", labelled, tmp_path / "cats", "--where", "label == 'cat'", "--shuffle", "3", "--quiet")
    data = penstock.open(tmp_path / "cats")
    assert len(data) == 10
    assert {sample["label"] for sample in data} == {0}


def test_verify_names_what_is_wrong_and_fails(labelled: Path, tmp_path: Path) -> None:
    run("pack", labelled, tmp_path / "packed", "-q")
    (shard,) = (tmp_path / "packed").glob("*.tar")
    content = bytearray(shard.read_bytes())
    content[700] ^= 1
    shard.write_bytes(content)
    told = run("verify", tmp_path / "packed", code=1).stderr
    assert "1 things are wrong" in told
    assert "sample 0 " in told
    assert "image" in told


def test_a_bad_sample_ends_the_pack_or_is_counted(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for number in range(6):
        (source / f"{number}.jpg").write_bytes(encoded(picture(number), "JPEG"))
    (source / "7.jpg").write_bytes(b"")
    told = run("pack", source, tmp_path / "a", code=1).stderr
    assert "7.jpg" in told
    assert "Traceback" not in told
    told = run("pack", source, tmp_path / "b", "--on-error", "skip")
    assert "packed 6 samples" in told.stdout
    assert "skipped 1 bad samples" in told.stderr
    assert "7.jpg" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("pack", "nowhere", "dest"), 1, "nowhere"),
        (("pack", ".", "dest", "--shard-size", "much"), 2, "--shard-size"),
        (("pack", ".", "dest", "--format", "zip"), 2, "keep, raw, psi"),
        (("inspect", "s4://bucket"), 1, "s4"),
        (("pack", "."), 2, "DEST"),
        (("unpack", "."), 2, "unpack"),
        (("inspect", "."), 1, "holds no files"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int, word: str
) -> None:
    done = run(*arguments, code=code, cwd=tmp_path)
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert len(done.stderr.strip().splitlines()) == 1
        assert "Traceback" in run("--debug", *arguments, code=1, cwd=tmp_path).stderr


def test_ctrl_c_says_how_to_go_on_and_the_pack_ends_in_the_same_bytes(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    rng = np.random.default_rng(1)
    for number in range(400):
        (source / f"{number:03}.jpg").write_bytes(rng.bytes(20_000))
    command = [
        str(PENSTOCK),
        "pack",
        str(source),
        str(tmp_path / "dest"),
        "--shard-size",
        "100KB",
        "--threads",
        "1",
    ]
    primary, secondary = pty.openpty()  # a terminal: the progress bar is alive
    process = subprocess.Popen(command, stdout=secondary, stderr=secondary)
    os.close(secondary)
    seen = b""
    try:
        while b"MB/s" not in seen and process.poll() is None:
            seen += os.read(primary, 4096)
        process.send_signal(signal.SIGINT)
        code = process.wait(10)
    finally:
        process.kill()
        process.wait(10)
        os.close(primary)
    if code == 0:
        pytest.skip("the pack was done before it was interrupted")
    assert code == 130
    told = run(*command[1:]).stdout
    assert "packed 400 samples" in told
    whole = tmp_path / "whole"
    run("pack", source, whole, "--shard-size", "100KB", "-q")
    for path in sorted(whole.iterdir()):
        assert (tmp_path / "dest" / path.name).read_bytes() == path.read_bytes(), path.name


def test_inspect_shows_schema_counts_sizes_labels_and_draws(labelled: Path, tmp_path: Path) -> None:
    told = run(
        "inspect", labelled, "--grid", tmp_path / "grid.png", env={**os.environ, "COLUMNS": "160"}
    ).stdout
    for word in (
        "30 samples",
        "image",
        "jpeg",
        "label",
        "patient",
        "cat",
        "33.3%",
        "6 groups of 5 to 5 samples",
        "█",
    ):
        assert word in told, word
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.width > 600
        assert len(grid.convert("RGB").getcolors(1 << 24) or []) > 1000, "there are pictures in it"


def test_inspect_as_json(labelled: Path, tar_folder: Path, tmp_path: Path) -> None:
    seen = json.loads(run("inspect", labelled, "--json").stdout)
    assert (seen["samples"], seen["histogram"]) == (30, {"cat": 10, "cow": 10, "dog": 10})
    (image,) = seen["stored"]
    assert image["formats"] == {"jpeg": 30}
    sizes = [path.stat().st_size for path in labelled.glob("*.jpg")]
    assert image["sizes"]["total"] == sum(sizes) == seen["bytes"]
    assert (image["sizes"]["min"], image["sizes"]["max"]) == (min(sizes), max(sizes))
    run("pack", tar_folder, tmp_path / "packed", "-q")
    seen = json.loads(run("inspect", tmp_path / "packed", "--json", "--rows", "2").stdout)
    assert {each["name"] for each in seen["stored"]} == {"image", "mask", "text"}
    assert [each["name"] for each in seen["columns"]] == ["label"]
    assert all(each["checksums"] for each in seen["stored"])
    assert len(seen["rows"]) == 2
    assert seen["bad"] == []


def test_inspect_names_samples_that_cannot_be_read(labelled: Path, tmp_path: Path) -> None:
    run("pack", labelled, tmp_path / "packed", "-q", "--shard-size", "16KiB")
    shard = max((tmp_path / "packed").glob("*.tar"))
    shard.unlink()
    done = subprocess.run(
        [PENSTOCK, "inspect", tmp_path / "packed"], capture_output=True, text=True, timeout=100, check=False
    )
    assert shard.name in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_doctor_prints_a_table_and_a_sentence_and_draws(labelled: Path, tmp_path: Path) -> None:
    told = run("doctor", labelled, "--batch-size", 8, "--seconds", 0.05, "--crop", 24, cwd=tmp_path).stdout
    for row in ("raw store, 1 in flight", "raw store, 512 in flight", "window", "decode", "loader + step"):
        assert row in told
    assert "limits: " in told or "limit: " in told
    assert (tmp_path / "doctor.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads(
        run("doctor", labelled, "--seconds", 0.05, "--step-ms", 1, "--json", cwd=tmp_path).stdout
    )
    assert figures["samples"] == 30
    assert figures["step_seconds"] == 0.001
    assert len(figures["levels"]) == 10


def test_the_demo_trains_and_draws(tmp_path: Path) -> None:
    told = run("demo", "--quick", "--out", "out", cwd=tmp_path).stdout
    for word in ("images/s", "the trainer waited", "named rightly", "demo.png"):
        assert word in told
    with Image.open(tmp_path / "out" / "demo.png") as drawn:
        assert drawn.width > 1000
    assert json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
