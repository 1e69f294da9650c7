# penstock: `make demo` to see it, `make test` to trust it.

SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
SUITE ?= local
SECONDS ?= 60
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name Cargo.toml -o -name '*.cu')
# Tests that take long or need servers that are not installed everywhere: SLOW=1.
PYTEST_MARK := $(if $(SLOW),,-m "not slow and not gpu")
cargo = PATH="$$(scripts/ensure-rust.sh):$$PATH" cargo

.PHONY: help setup servers clouds demo test test-rust test-python lint format bench figures reference fuzz wheel device-bundle gpu-peers clean

help:
	@echo "make demo     make a data set, pack it, train on it, show the figures and a picture"
	@echo "make test     all Rust and Python tests (SLOW=1: the long ones too)"
	@echo "make servers  what the tests of far storage start: SeaweedFS, slowwire, nginx (as root, with apt)"
	@echo "make clouds   emulators of Google Cloud Storage and Azure for SLOW=1 tests (with go and npm)"
	@echo "make lint     ruff, mypy --strict, cargo fmt, clippy"
	@echo "make bench    a benchmark suite against its peers: SUITE=$(SUITE) [QUICK=1]"
	@echo "make fuzz     damaged files through every format and source: SECONDS=$(SECONDS) each"
	@echo "make figures  the figures of benchmarks/results into README.md and docs/figures.md"
	@echo "make reference  docs/reference.md from the docstrings"
	@echo "make wheel    a release wheel in dist/"
	@echo "make gpu-peers  the lossless decoders that psi_gpu compares with, to carry along"
	@echo "make device-bundle  what a GPU machine needs to run and measure PSI there, in dist/"

setup: $(VENV)/.built

$(VENV)/.installed: pyproject.toml requirements-dev.txt constraints.txt
	@scripts/check-prerequisites.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-r requirements-dev.txt
	# torch is yours: whatever version is there stays.
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt torch
	touch $@

$(VENV)/.built: $(VENV)/.installed $(RUST_SOURCES)
	PATH="$$(scripts/ensure-rust.sh):$$PATH" VIRTUAL_ENV="$$PWD/$(VENV)" CARGO_BUILD_JOBS=$(JOBS) \
		$(BIN)/maturin develop --release --quiet
	touch $@

servers: $(VENV)/.servers

$(VENV)/.servers: $(VENV)/.installed tests/requirements-servers.txt constraints.txt $(shell find tests/servers/slowwire -name '*.rs' -o -name Cargo.toml)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-r tests/requirements-servers.txt
	$(cargo) build --release -j $(JOBS) --quiet -p slowwire
	scripts/install-nginx.sh
	touch $@

clouds:
	scripts/install-clouds.sh

demo: setup
	$(BIN)/penstock demo $(if $(QUICK),--quick)

test: test-rust test-python

test-rust: $(VENV)/.installed
	$(cargo) test -j $(JOBS) --quiet

test-python: setup servers
	$(BIN)/python -m pytest $(PYTEST_MARK)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(cargo) fmt --all --check
	$(cargo) clippy -j $(JOBS) --quiet --workspace --all-targets -- -D warnings

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(cargo) fmt --all

bench: setup
	$(BIN)/python benchmarks/$(SUITE).py $(if $(QUICK),--quick) $(ARGS)

figures: setup
	$(BIN)/python benchmarks/_figures.py

reference: setup
	$(BIN)/python scripts/make-reference.py
	$(BIN)/ruff format --quiet docs/reference.md

fuzz: setup
	PENSTOCK_FUZZ_SECONDS=$(SECONDS) $(cargo) test --release -j $(JOBS) -p penstock-codec --test fuzz -- --nocapture
	PENSTOCK_FUZZ_SECONDS=$(SECONDS) $(BIN)/python -m pytest tests/fuzz

wheel: $(VENV)/.installed
	PATH="$$(scripts/ensure-rust.sh):$$PATH" CARGO_BUILD_JOBS=$(JOBS) $(BIN)/maturin build --release --out dist --quiet

# For a GPU machine without a package registry and without Rust: unpack it there and run
#   PYTHONPATH=python python3 benchmarks/psi_gpu.py
device-bundle: setup
	rm -rf dist/device && mkdir -p dist/device/benchmarks/results
	cp -r python dist/device/ && find dist/device -name __pycache__ -prune -exec rm -rf {} +
	cp benchmarks/psi_gpu.py benchmarks/_*.py dist/device/benchmarks/
	if [ -d benchmarks/peers/gpu/env ]; then mkdir -p dist/device/benchmarks/peers && \
		cp -r benchmarks/peers/gpu dist/device/benchmarks/peers/; fi
	tar -C dist/device -czf dist/penstock-device.tar.gz . && ls -l dist/penstock-device.tar.gz

# The peers of psi_gpu, for the Python of that machine: before device-bundle.
gpu-peers: $(VENV)/.installed
	$(BIN)/python benchmarks/peers/gpu/fetch.py --python $(or $(GPU_PYTHON),3.12)

clean:
	rm -rf target dist demo-out $(VENV)
