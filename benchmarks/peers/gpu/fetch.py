"""Fetches the wheels of ``requirements.txt`` and keeps of them what decoding needs, in ``env/``: to carry to a GPU machine.

``python fetch.py [--python 3.12]``: of the Python that is there. About 47 MB. Nothing of it runs here.
"""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE / "env"
WANTED = (
    "nvidia/libnvcomp/__init__.py",
    "nvidia/libnvcomp/lib64/libnvcomp*.so*",
    "nvidia/nvcomp/*.py",
    "nvidia/nvcomp/nvcomp_impl.cpython-{tag}-*.so",
    "nvidia/nvimgcodec/__init__.py",
    "nvidia/nvimgcodec/libnvimgcodec.so*",
    "nvidia/nvimgcodec/nvimgcodec_impl.cpython-{tag}-*.so",
    "nvidia/nvimgcodec/extensions/libnvjpeg2k_ext.so*",
    "nvidia/nvimgcodec/.libs/*",
    "nvidia/nvjpeg2k/lib/*.so*",
    "*/licenses/*",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="3.12")
    options = parser.parse_args()
    wanted = [pattern.format(tag=options.python.replace(".", "")) for pattern in WANTED]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        for platform in ("manylinux2014_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64"):
            command += ["--platform", platform]
        command += ["--python-version", options.python, "--only-binary", ":all:", "--dest", folder]
        subprocess.run([*command, "-r", str(HERE / "requirements.txt")], check=True, timeout=1200)
        shutil.rmtree(HOME, ignore_errors=True)
        for wheel in sorted(Path(folder).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if any(fnmatch.fnmatch(name, pattern) for pattern in wanted):
                        archive.extract(name, HOME)
    total = sum(path.stat().st_size for path in HOME.rglob("*") if path.is_file())
    print(f"{HOME}: {total / 2**20:.1f} MiB for Python {options.python}")


if __name__ == "__main__":
    main()
