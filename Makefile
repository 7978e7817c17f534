# Each target is one command a person could type. `make demo` and `make test` set up all they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KERNEL_SOURCES := $(shell find kernel -name target -prune -o -type f \( -name '*.rs' -o -name '*.toml' -o -name '*.lock' -o -name '*.pyi' \) -print 2>/dev/null)

# Modules are compiled when they are first imported, see tests/conftest.py; not at installation.
PIP := $(BIN)/python -m pip install --quiet --no-compile
# Without --no-deps uv builds pyspark, an sdist, anew each time.
UV := $(BIN)/uv pip install --quiet --no-deps --python $(BIN)/python $(if $(PIP_INDEX_URL),--default-index $(PIP_INDEX_URL))

SEEDS ?= 1000

STARTED := $(shell date +%s)

# Compiled modules are kept, beside those of the tests, even where the environment forbids it: each
# tool would compile all that it imports again.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/.cache/pycache

.PHONY: help setup demo check unit test test-loaded simulate lint fmt coverage bench docs dist lock clean

help:
	@echo "make setup   a virtual environment in $(VENV), the native kernel when cargo is there"
	@echo "make demo    the main job: real records through broker, consumers and Spark"
	@echo "make check   formatting, types, structure and the unit tests, within a minute"
	@echo "make unit    the unit tests (KEROLOX_KERNEL=python or native: with that kernel only)"
	@echo "make test    lint and every test"
	@echo "make test-loaded   the tests three times in a row on a busy machine (hours)"
	@echo "make simulate SEEDS=100000   simulated clusters, one from each seed; goes on where it ended"
	@echo "make lint    formatting, types, structure"
	@echo "make fmt     format Python and Rust, mend what lint can mend"
	@echo "make coverage   lines that the tests run, of Python and Rust (KEROLOX_COVERAGE: which tests)"
	@echo "make bench   the figures that the README quotes (long; needs ../shared)"
	@echo "make docs    the documentation, into site/; a link that leads nowhere is an error"
	@echo "make dist    sdists and wheels of both distributions, into dist/"
	@echo "make lock    resolve constraints.txt and the requirements of the image anew"
	@echo "make clean   remove all that the targets made"

setup: $(VENV)/.kernel

$(VENV)/.installed: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Kerolox needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "setup: installing the locked packages into $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' constraints.txt > $(VENV)/uv.txt
	@$(PIP) --require-hashes --no-deps -r $(VENV)/uv.txt || echo "setup: uv can't be had; pip goes on alone"
	@$(UV) --require-hashes -r constraints.txt || { \
	  echo "setup: pip installs what uv could not (slower)"; $(PIP) --require-hashes -r constraints.txt; }
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.kernel: $(VENV)/.installed $(KERNEL_SOURCES)
	@if [ "$$(uname)" = Linux ] && command -v cargo >/dev/null 2>&1; then \
	  $(BIN)/python tools/install_kernel.py; \
	else \
	  echo "setup: this is not Linux, or cargo is not here, so the pure-Python kernel is used: complete, but several times slower."; \
	  echo "setup: install Rust (rustup) and run make setup again for the native one."; \
	fi
	@touch $@

demo: setup
	@$(BIN)/python -m kerolox.demo

check: setup
	@KEROLOX_STARTED=$(STARTED) $(BIN)/python tools/run_tests.py --quick

unit: setup
	@$(BIN)/pytest -q -n auto tests/unit

# run_tests.py builds the native kernel beside the checks that do without it.
test: $(VENV)/.installed
	@KEROLOX_STARTED=$(STARTED) $(BIN)/python tools/run_tests.py

test-loaded: $(VENV)/.installed
	@$(BIN)/python tools/run_loaded.py

simulate: $(VENV)/.installed
	@$(BIN)/python tools/simulate.py --seeds $(SEEDS)

lint: setup
	@$(BIN)/python tools/run_lint.py

bench: setup
	@$(BIN)/python benchmarks/run.py

fmt: setup
	@$(BIN)/ruff check --quiet --fix src tests tools benchmarks || true
	@$(BIN)/ruff format src tests tools benchmarks
	@if command -v cargo >/dev/null 2>&1; then cd kernel && cargo fmt; fi

coverage: setup
	@$(BIN)/python tools/run_coverage.py

docs: setup
	@$(BIN)/python tools/build_docs.py

dist: setup
	@$(BIN)/python tools/build_dist.py

lock: $(VENV)/.installed
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --extra spark --extra demo --extra console --extra oidc --extra schemas --group dev --group docs --group guides \
	  pyproject.toml -o constraints.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate --constraint constraints.txt \
	  --extra compression --extra console --extra grpc --extra oidc --extra otel --extra schemas --extra tls pyproject.toml -o deploy/docker/requirements.txt

clean:
	rm -rf $(VENV) .cache kernel/target demo-output dist site
