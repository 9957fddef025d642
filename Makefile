# Everything a contributor runs. `make` alone lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
# Extra arguments for pytest: make test ARGS="-k tape"
ARGS ?=

COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --generate-hashes --no-emit-index-url \
	--universal --python-version 3.11 --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help setup demo check format test test-full requirements bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the locked dependencies and this project in it

$(STAMP): requirements/dev.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

demo: setup ## show what it does, in a terminal
	$(BIN)/python examples/demo.py

check: setup ## format, lint, types, layers, module length
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python tools/check_modules.py

format: setup ## rewrite the code the way `check` wants it
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

test: setup ## the tests, without the slow ones, in four lanes at once
	$(BIN)/python tools/lanes.py $(ARGS)

test-full: setup ## the tests, with the slow ones
	$(BIN)/pytest -m "full or not full" $(ARGS)

requirements: setup ## rewrite tests/requirements.toml from the promise markers
	$(BIN)/python tools/requirements.py

bench: setup ## measure this machine
	$(BIN)/tenuto bench

# Keeps the versions that are locked already; make lock UPGRADE=--upgrade takes the newest.
lock: setup ## lock the dependencies again after a change in pyproject.toml
	$(COMPILE) $(UPGRADE) -o requirements/lock.txt
	$(COMPILE) $(UPGRADE) --group dev -c requirements/lock.txt -o requirements/dev.txt

clean: ## remove everything that can be made again
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	rm -rf tests/*/node/installed
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
