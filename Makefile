# `make` lists the targets; each recipe is one line. Everything that is built or fetched for this clone lands in .venv and .build.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help

.PHONY: help build check unit test clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/.ready: pyproject.toml
	$(PYTHON) -m venv .venv && $(BIN)/pip install -q --upgrade pip && $(BIN)/pip install -q -e '.[audit]' --group dev && touch $@

build: .venv/.ready ## the virtual environment, the C extension and .venv/bin/forebay
	$(BIN)/python -m blockcache._build

check: build ## format, lint, types, import contracts
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports

test: check ## everything that CI runs
	$(BIN)/pytest

clean: ## remove what was built in this clone
	rm -rf .venv .build
