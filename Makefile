# make demo    everything from an empty folder to a promoted configuration
# make test    all checks and tests
PYTHON ?= python3.11
STUDY ?= conf/study/demo.yaml
# KEEP=0 ends production and MLflow when the study is over; else they stay up until Ctrl-C.
KEEP ?= 1
HTTP_PORT ?= 8000
MLFLOW_PORT ?= 5000
DASHBOARD_PORT ?= 8265
VERSION ?= 0.28.0
VENV := .venv/bin

.PHONY: help setup demo test lint unit integration e2e engine tiny-models bench-cpu bench-fuzz bench-load bench-lossless bench-router bench-verdict bench-watch audit chaos chaos-promotion chaos-attack clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# make/make/p' Makefile

# make setup    the environment alone
setup:
	@$(PYTHON) infra/setup/install.py project

demo: setup
	@$(VENV)/python -m infra.demo --study $(STUDY) --keep $(KEEP) --http-port $(HTTP_PORT) \
		--mlflow-port $(MLFLOW_PORT) --dashboard-port $(DASHBOARD_PORT) $(ARGS)

# What continuous integration runs: style, types, and every test that needs no GPU. Boots wait more
# than they compute, so that the parts run side by side; each prints when it ends. The other engine
# build is installed meanwhile: only the end-to-end tests boot it.
test: setup
	@$(MAKE) --no-print-directory -j3 --output-sync=target boots checks

.PHONY: clusters boots checks
clusters:
	$(VENV)/python -m pytest tests/integration
boots: clusters engine
	$(VENV)/python -m pytest tests/e2e
checks: lint
	$(VENV)/python -m pytest tests/unit tests/contract

# make lint    style and types
lint: setup
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy

# make unit    the tests that need neither Ray nor an engine
unit: setup
	$(VENV)/python -m pytest tests/unit tests/contract -m "not integration and not e2e"

# make engine VERSION=0.28.0    another engine build, to be named by engine.python
engine:
	@$(PYTHON) infra/setup/install.py engine $(VERSION)

# make bench-cpu    request-steps/s of the interpreted engine, by rule combination
bench-cpu: setup
	$(VENV)/python -m infra.bench.cpu_steps

# make bench-fuzz    millions of random inputs for what reads bytes of others; ARGS="--inputs 10000"
bench-fuzz: setup
	$(VENV)/python -m infra.fuzz $(ARGS)

# make bench-load    the load client beside vllm, guidellm and aiperf; ARGS=--write renews the docs
bench-load: setup
	$(VENV)/python -m infra.bench.load $(ARGS)

# make bench-router    the way through Serve and the router beside the engine's own; ARGS=--write
bench-router: setup
	$(VENV)/python -m infra.bench.router $(ARGS)

# make bench-verdict    coverage of the intervals, the race beside other rules, published tables
bench-verdict: setup
	$(VENV)/python -m infra.bench.verdict coverage
	$(VENV)/python -m infra.bench.verdict race
	$(VENV)/python -m infra.bench.verdict replay

# make bench-lossless    false alarms, power and speed of the lossless test, in simulation
bench-lossless: setup
	$(VENV)/python -m infra.bench.lossless $(ARGS)

# make bench-watch    false alarms a month of `watch` and the delay until a drift is found, in simulation
bench-watch: setup
	$(VENV)/python -m infra.bench.watch $(ARGS)

# make audit    which builds and rules the lossless audit rejects, hours; ARGS=--short for minutes
audit: setup engine
	$(VENV)/python -m infra.audit $(ARGS)
	$(VENV)/python -m infra.audit.stale
	$(VENV)/python -m infra.audit.stale --python .engines/$(VERSION)/bin/python

# make tiny-models    train the tiny target and its draft again, in an environment of its own
tiny-models:
	@$(PYTHON) infra/setup/install.py tiny-models
	.venv-tiny/bin/python -m infra.tiny_models build
	.venv-tiny/bin/python -m infra.tiny_models evaluate

# make chaos    200 studies whose parts are killed at random moments (ARGS=, docs/chaos.md)
chaos: setup
	$(VENV)/python -m infra.chaos.studies $(ARGS)

# make chaos-promotion    promotions under sixteen streams while their parts are killed
chaos-promotion: setup
	$(VENV)/python -m infra.chaos.promotion $(ARGS)

# make chaos-attack    the route under attack while honest clients stream; ARGS="--only 'no JSON'"; ARGS=--haproxy
chaos-attack: setup
	$(VENV)/python -m infra.chaos.attack $(ARGS)

# make clean    remove environments, results and caches
clean:
	rm -rf .venv .engines .venv-tiny .bench .venv-install.log .venv-tiny-install.log .specpilot .mypy_cache .ruff_cache .pytest_cache
