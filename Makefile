# Each target makes its own environment first; after that a target starts at once.
PYTHON ?= python3
VENV   ?= .venv
# Waiting threads must not take the core that a neighbour needs.
export OMP_WAIT_POLICY ?= PASSIVE
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test slow portable campaign lint format benchmark results clean help

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Fewgraft needs Python 3.11 or newer; $$($(PYTHON) --version) is '$(PYTHON)'. Try: make PYTHON=python3.11 ..."; exit 2; }
	@echo "Setting up $(VENV) (once, a minute or two) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)  ## the main job on the embedded data
	@$(BIN)/fewgraft demo --out build/demo

test: $(READY) lint  ## lint, then the default tests, one process per core with one thread each
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto --maxprocesses 4 --dist loadfile

slow: $(READY)  ## the minutes-long tests
	@$(BIN)/python -m pytest -m slow

portable: $(READY)  ## the numerical tests on other instruction sets, with 1 and 2 threads
	@$(BIN)/python tools/portable.py

campaign: $(READY)  ## an hour of attacks; its table goes into docs/reliability.md
	@$(BIN)/python -m campaign --log build/campaign.jsonl --write docs/reliability.md

lint: $(READY)  ## ruff, format check, types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(READY)  ## put the code into the house format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

benchmark: $(READY)  ## speed, as ratios of two things measured in one run
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

results: $(READY)  ## the tables and figures of docs/results.md, made anew: hours
	@$(BIN)/python tools/write_results.py

clean:  ## remove the environment and what was built
	rm -rf $(VENV) build
