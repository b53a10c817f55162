# `make test` is all a fresh machine needs: it makes .venv, installs what is missing, then checks and tests.

PY := .venv/bin/python
READY := .venv/.perdure-ready
CODE := $(wildcard src tests benchmarks examples scripts)

# Two workers halve the time on two cores; more than four only start more servers.
WORKERS ?= auto
PYTEST ?= -n $(WORKERS) --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup test lint demo demo-storage kills bench-storage size clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

test: setup lint ## set up, check and run all tests; PYTEST="-k name" replaces pytest's arguments
	$(PY) -m pytest $(PYTEST)

lint: $(READY) ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(CODE)

setup: $(READY) ## make .venv with everything in it, install missing database servers
	@sh scripts/ensure_servers.sh

$(READY): pyproject.toml scripts/setup_venv.sh
	sh scripts/setup_venv.sh
	@touch $@

demo: $(READY) ## orders that survive a killed worker
	$(PY) -m examples.order_demo

demo-storage: $(READY) ## the storage layer by itself
	$(PY) -m examples.storage_demo

kills: $(READY) ## kill worker processes 200 times on each database
	PERDURE_KILLS=200 $(PY) -m pytest -q -s tests/engine/test_kills.py

bench-storage: $(READY) ## measure the storage layer
	$(PY) -m benchmarks.storage

size: $(READY) ## lines of code of the storage layer against their limit
	$(PY) scripts/size.py

clean: ## back to a clean clone
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
