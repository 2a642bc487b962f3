# Commands for a fresh machine; each does its own set-up in .venv and needs only Python and a network.
#   make demo    a published run, saved on cuda:7, resumed on what this machine has
#   make test    style, types and every test
#   make matrix  every cell of the matrix of optimizers, and its table

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test check bench matrix clean

demo: $(READY)
	@$(BIN)/unmoor demo

test: check
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Every optimizer, the whole product; `make test` takes the part of it that tests/matrix/cover.py describes.
matrix: $(READY)
	$(BIN)/python -m tests.matrix.optimizers

bench: $(READY)
	$(BIN)/python -m benchmarks.restore
	$(BIN)/python -m benchmarks.save

# torch first and alone: pip then takes a CPU build where the machine has one, and nothing later pulls a second torch.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,pictures,dev,docs,real]'
	@touch $(READY)

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache build dist
