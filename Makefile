# `make` lists the targets; each recipe is one line. What is built lands in .venv, .build and */*.so; Kafka's
# jars go to the user's cache directory, for all clones. Types are checked beside the tests: both take CPU alone.
BIN := .venv/bin
PYTHON ?= $(shell .ci/need --python)
WORKERS ?= 5
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
TWO_WORKERS = $(patsubst %,tests/e2e/test_%.py,bytes clients exactly_once log_cleaning moved_log_start null_records odd_fetches own_reads \
	read_committed recreated_topic replicas security_conformance sessions unclean_election unlike_producers verify)
ALONE = $(BIN)/pytest -q -m alone $$(git grep -l 'mark\.alone' -- tests)
.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE  # tests start interpreters by the hundred: each would compile every module again

.PHONY: help build demo lab bench shape growth audit-bench audit-rows test check lint types suite audit-runs restart-runs workers monitoring page collect tidy unit e2e soak kills chaos matrix cluster apiserver docs lock tools clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/.ready: pyproject.toml dev.lock
	@.ci/need python cc
	$(PYTHON) -m venv .venv && $(BIN)/pip install -q --require-hashes -r dev.lock && $(BIN)/pip install -q --no-deps --no-build-isolation -e . && touch $@

build: .venv/.ready ## the virtual environment, the C extensions and .venv/bin/forebay
	@.ci/need cc && $(BIN)/python -m blockcache._build

tools: .venv/.ready ## what tests and demo need besides: Kafka's jars, and the archives of their classes
	@.ci/need java && $(BIN)/python -m tests.kit.broker.prepare

demo: build tools ## a broker, Forebay and clients on this machine, with live progress; under three minutes
	$(BIN)/python -m bench.demo

lab: build tools ## tailing consumers beside lagging ones on a slow disk, with and without Forebay; needs root
	$(BIN)/python -m bench.pollution $(LAB)

bench: build tools ## Forebay, haproxy and Kroxylicious before one broker, in turns; writes bench/results/ladder
	$(BIN)/python -m bench.ladder $(BENCH)

shape: build tools ## the shapes of real clients: many partitions and connections; writes bench/results/shape
	$(BIN)/python -m bench.shape $(SHAPE)

growth: build tools ## how cost grows with bytes, requests, partitions and connections; writes bench/results/growth
	$(BIN)/python -m bench.ladder.growth $(GROWTH)

audit-bench: build ## what the audit costs by the lines that it reads, DuckDB beside it; writes bench/results/audit
	$(BIN)/python -m bench.audit $(AUDIT)

audit-rows: build ## how even the tasks of a report are over synthetic rows; ROWS='--millions 1000' takes an hour and a half, and 60 GB of disk
	$(BIN)/python -m bench.audit.rows $(ROWS)

check: lint types ## format, lint, types, import contracts, generated documents

lint: build
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports && $(BIN)/python -m proxy.config.docs --check && $(BIN)/python -m metrics.catalog_docs --check

types: .venv/.ready
	$(BIN)/mypy

tidy: build ## print large files, functions and classes, writes to other objects, import cycles: places to look
	$(BIN)/python -m tests.tidy

test: .venv/.ready ## everything that CI runs, in 12 minutes on two cores; WORKERS=5 run side by side
	$(MAKE) -j2 lint collect tools && $(MAKE) -j2 types suite && $(ALONE)

suite: .venv/.ready
	$(PYTEST) -m 'not alone and not long'

audit-runs: build tools ## the audit for minutes: planted faults, looks under load, a killed follower, a Spark cluster and HDFS
	$(BIN)/pytest -m long tests/spark_audit

workers: build tools ## tests of bytes, sessions, transactions, rights and elections before two workers
	FOREBAY_WORKERS=2 $(BIN)/pytest -q -n 2 $(TWO_WORKERS)

restart-runs: build tools ## a warm restart with a group 200 MB behind
	$(BIN)/pytest -m long tests/e2e/test_warm_restart.py

monitoring: build tools ## every alert and every panel in a real Prometheus, before Forebays under load and faults; draws docs/dashboard; quarter of an hour
	$(BIN)/python -m tests.kit.prometheus && MONITORING_PICTURES=docs/dashboard $(BIN)/pytest -m long tests/monitoring

page: build tools ## docs/install-machine.md, word by word on a clean Debian with a broker under systemd, timed; root
	$(BIN)/pytest -s -m long tests/deploy

unit: build ## the tests that need neither a broker nor Java, in less than two minutes
	$(PYTEST) -m 'not e2e'

e2e: build tools ## the tests on real brokers and Spark
	$(PYTEST) -m 'e2e and not alone and not long' && $(ALONE)

collect: build  # each worker reads all test files: one reader compiles them first
	-@$(BIN)/pytest -qq --collect-only >/dev/null 2>&1

soak: build ## an hour of random load on the cache, in minutes; every byte served is compared
	SOAK_STEPS=3600000 $(BIN)/pytest tests/blockcache/test_soak.py -s

kills: build tools ## KILLS=1000 kills of the worker, or of WORKERS=2 and their keeper, at random moments under load; bytes are compared; SEED
	KILLS=$(or $(KILLS),1000) $(if $(WORKERS),WORKERS=$(WORKERS)) $(if $(SEED),SEED=$(SEED)) $(BIN)/pytest -s --timeout 0 tests/e2e/$(if $(WORKERS),test_kills_workers.py,test_kills.py)

chaos: build tools ## clients while brokers, Forebays and wires fail, and beside hostile ones; SEED and MINUTES of each; an even SEED has two workers
	for run in tests.chaos tests.chaos.hostile; do $(BIN)/python -m $$run $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) || exit 1; done

matrix: build tools ## clients of many kinds and ages, directly and through Forebay; writes docs/clients.md
	$(BIN)/python -m tests.matrix --write docs/clients.md $(MATRIX)

cluster: build tools ## the chart on a Kubernetes of one node in namespaces of its own; root; the first time 20 minutes more
	$(BIN)/python -m tests.cluster build && $(BIN)/pytest -s -m long tests/cluster

apiserver: build ## every scenario of the chart before a real API server; no root; a minute, the first time ten more
	$(BIN)/python -m tests.cluster build --no-node && $(BIN)/pytest -m long tests/cluster/test_apiserver.py

docs: build ## write docs/configuration.md and docs/metrics.md from the code
	$(BIN)/python -m proxy.config.docs && $(BIN)/python -m metrics.catalog_docs

lock: ## pin what pyproject.toml asks for, by hash, in *.lock; UPGRADE=--upgrade takes the newest
	$(PYTHON) -m venv .build/lock && .build/lock/bin/pip install -q uv && .ci/lock .build/lock/bin/uv $(UPGRADE)

clean: ## remove what was built in this clone
	rm -rf .venv .build blockcache/_pyfastcache* protocol/_ordinary* proxy/produce/_pipeline* proxy/partitions/_rows* .pytest_cache .mypy_cache .ruff_cache .hypothesis
