# make demo   set up and solve a puzzle        make test   set up, then lint, types and tests
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
COPY := .build/wheel
SOURCES := $(shell find rksc_tot strategies verifiers -name '*.py' -o -name '*.json' -o -name '*.safetensors')

export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: install demo test lint types tests slow coverage format bench clean

install: $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/rksc-tot solve game24 "4 5 6 10"

test: lint types tests

# Tools see strategies/ and verifiers/ under their import names only in a copy.
lint: $(COPY)/.made
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd $(COPY) && ../../$(BIN)/lint-imports --no-cache ../../pyproject.toml

types: $(COPY)/.made
	cd $(COPY) && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p rksc_tot

# Tests that pytest has rewritten are kept for later runs, whatever the environment says.
tests slow coverage: export PYTHONDONTWRITEBYTECODE :=

# One process a core, each with one thread (tests/conftest.py); eight at most, since each holds models of its own.
tests: $(INSTALLED)
	$(BIN)/pytest --numprocesses logical --maxprocesses 8 --dist worksteal

# More random programs, and more examples of each property test, against the same invariants.
slow: $(INSTALLED)
	$(BIN)/pytest -m "slow or hypothesis" --hypothesis-profile=many --numprocesses logical --maxprocesses 8 --dist worksteal

coverage: $(INSTALLED)
	$(BIN)/pytest --cov --cov-report=term

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks results

clean:
	rm -rf .venv .build build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The virtual environment points at the sources, so an edit needs no new install; only new requirements do.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev,dot,gguf]'
	touch $@

$(COPY)/.made: $(INSTALLED) $(SOURCES)
	rm -rf $(COPY)
	mkdir -p $(COPY)
	cp -r rksc_tot $(COPY)
	cp -r strategies verifiers $(COPY)/rksc_tot
	touch $@
