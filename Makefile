# Each target works alone on a machine that has only Python 3.11 and make: all of them run `setup` first.

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp

.PHONY: help setup demo test test-slow lint format bench bench-peers coverage clean
.DEFAULT_GOAL := help

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Create .venv and install reknit editable, with a CPU build of torch

# Removed first and written last: an install that was interrupted, or that ended in a CUDA build, is done again.
$(STAMP): pyproject.toml constraints.txt
	@rm -f $@
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,examples]'
	@$(BIN)/python -c 'import sys, torch; \
		cpu = torch.version.cuda is None and "+cu" not in torch.__version__; \
		print(f"torch {torch.__version__}", "(CPU build)" if cpu else f"is a CUDA build; constraints.txt asks for a CPU one. Remove $(VENV) and run make setup.", file=sys.stdout if cpu else sys.stderr); \
		sys.exit(not cpu)'
	@touch $@

demo: setup  ## Run the demo
	$(BIN)/python examples/demo.py

# Not `python -m pytest`: it puts this folder on sys.path, where services/ and worker/ would import under a second name.
test: setup  ## Run the tests, without those marked slow
	$(BIN)/pytest

test-slow: setup  ## Run only the tests marked slow
	$(BIN)/pytest -m slow

lint: setup  ## Check style, formatting, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## Repair what ruff can repair
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup  ## Run the benchmarks
	$(BIN)/python bench/run.py

# Not into .venv: what we are compared with is no part of the project.
bench-peers: setup  ## Install torchft for the benchmarks, in an environment outside this folder
	$(BIN)/python bench/torchft_venv.py

coverage: setup  ## Run the tests with coverage, in every process they start
	$(BIN)/coverage run $(BIN)/pytest
	$(BIN)/coverage combine
	$(BIN)/coverage report

clean:  ## Remove the environment, builds and caches
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .coverage .coverage.*
