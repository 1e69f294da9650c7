#!/usr/bin/env bash
# The wheel installs into an empty environment without torch, imports in under 0.2 s, and iterates as NumPy.
set -euo pipefail
wheel=$(ls -t "$@" | head -n 1)
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
${PYTHON:-python3} -m venv "$here/env"
"$here/env/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$wheel"
cd "$here"
env/bin/python - <<'PYTHON'
import importlib.util
import pathlib
import statistics
import subprocess
import sys

import numpy as np

assert importlib.util.find_spec("torch") is None, "torch came along"
times = []
for _ in range(7):
    code = "import time; t = time.perf_counter(); import penstock; print(time.perf_counter() - t)"
    times.append(float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout))
best, median = min(times), statistics.median(times)
print(f"import penstock: {median * 1000:.0f} ms (median of {len(times)}, best {best * 1000:.0f})")
assert median < 0.2, f"importing penstock takes {median:.3f} s; it may take 0.2"

import penstock

folder = pathlib.Path("arrays")
folder.mkdir()
rows = np.arange(60, dtype=np.float32).reshape(20, 3)
for number, row in enumerate(rows):
    np.save(folder / f"{number:02}.npy", row)
data = penstock.open(folder)
with penstock.Loader(data, batch_size=6, seed=1) as loader:
    batches = list(loader)
assert len(batches) == 4
assert all(type(batch["array"]) is np.ndarray for batch in batches)
seen = {int(id): row for batch in batches for id, row in zip(batch.ids, batch["array"])}
assert sorted(seen) == list(range(20))
assert all((seen[number] == row).all() for number, row in enumerate(rows))
assert "torch" not in sys.modules
print("the wheel works alone: 20 samples in 4 batches of NumPy arrays")
PYTHON
