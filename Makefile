# Commands for a fresh machine; each does its own set-up in .venv and needs only Python and a network.
#   make demo    a published run, saved on cuda:7, resumed on what this machine has
#   make test    style, types and every test
#   make docs    builds the documentation and shows it at http://127.0.0.1:8000; it needs no network
#   make pictures  the pictures of README and documentation, with Chromium
#   make bench   speed beside every peer, into docs/performance.md
#   make soak    half an hour of training under random kills, which must end exact (SOAK_MINUTES)
#   make fuzz    every reader under fuzzing for an hour (FUZZ_SECONDS, FUZZ_SEED)
#   make matrix  every cell of the matrix of optimizers, and its table

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# A file of tests stays in one worker: what its fixtures make is made once.
WORKERS ?= 2
READY  := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test check docs bench fuzz soak matrix pictures chromium clean

demo: $(READY)
	@$(BIN)/unmoor demo

test: check chromium
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Strictly: a link to nowhere ends the build, as it fails tests/docs.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --strict

# Every optimizer, the whole product; `make test` takes the part of it that tests/matrix/cover.py describes.
matrix: $(READY)
	$(BIN)/python -m tests.matrix.optimizers

# Generators, mutation and coverage over every reader; exits with 1 and the inputs where one breaks.
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz

# A run that is killed again and again, against one that nothing disturbs.
soak: $(READY)
	$(BIN)/python -m benchmarks.soak --minutes $(or $(SOAK_MINUTES),30)

# Everything beside its peers, 20 minutes at most: docs/performance.md and its plots. It goes on where it was stopped.
bench: $(READY)
	$(BIN)/python -m benchmarks.speed

# Chromium, in which tests open pages: Debian's where it is missing and can be installed; elsewhere those tests skip.
chromium:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq >/dev/null 2>&1 && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1; \
	then echo "installed chromium, for tests that open pages"; \
	else echo "no Chromium, and it cannot be installed here: tests that open pages will skip"; fi

# The pictures in the documentation.
pictures: $(READY)
	$(BIN)/python -m docs.pictures.make

# torch first and alone: pip then takes a CPU build where the machine has one, and nothing later pulls a second torch.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,pictures,dev,docs,real]'
	@touch $(READY)

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache build dist site
