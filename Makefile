# From a fresh clone: `make run` starts a broker, `make test` runs the tests. Needs Python 3.11+.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
# Tests mostly wait: more of them at once than there are cores.
WORKERS ?= 6
TESTS := $(BIN)/python -m pytest --numprocesses $(WORKERS)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements/constraints.txt
SOURCES := pyproject.toml setup.py requirements/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup run test test-fast lint type imports fmt bench bench-spark bench-security bench-sql demo demo-spark demo-sql docs screenshots proto compat faults variants machines mutants lock clean ci

help: ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

setup: .venv/installed ## make the environment in .venv
run: setup ## start a broker with its embedded PostgreSQL (ARGS="--listen …")
	$(BIN)/penstock serve $(ARGS)
test: .venv/installed-test ## run all tests, several at once (WORKERS=6 ARGS="-k produce")
	$(TESTS) $(ARGS)
test-fast: .venv/installed-test ## run what needs no stock client, no Spark and no campaign
	$(TESTS) --ignore tests/compat --ignore tests/spark --ignore tests/faults -m "not (spark or java or fault or slow)" $(ARGS)
lint: .venv/installed-lint ## style and likely bugs
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
type: .venv/installed-lint .venv/installed-test ## types, strictly (of Spark too, so with what the tests need)
	$(BIN)/mypy
imports: .venv/installed-lint ## which room may import which
	$(BIN)/lint-imports
fmt: .venv/installed-lint ## put the sources into shape
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
bench: .venv/installed-bench ## measure (ARGS="--quick")
	$(BIN)/python -m bench $(ARGS)
bench-spark: .venv/installed-bench .venv/installed-spark ## measure Spark (ARGS="--peer-kafka nosync")
	$(BIN)/python -m bench.spark $(ARGS)
bench-security: .venv/installed-bench ## measure what security costs (ARGS="--peer-kafka")
	$(BIN)/python -m bench.security $(ARGS)
bench-sql: .venv/installed-bench ## measure what SQL doors cost (ARGS="--long")
	$(BIN)/python -m bench --only sql/ --figures $(ARGS)
demo: .venv/installed-demo ## move a real data set through a broker
	$(BIN)/python -m demo $(ARGS)
demo-spark: .venv/installed-demo .venv/installed-spark ## the same through Spark, whose drivers are killed
	$(BIN)/python -m demo.pipeline $(ARGS)
demo-sql: .venv/installed-demo ## flights in tables and topics, one COMMIT each, by processes that are killed
	$(BIN)/python -m demo.sql $(ARGS)
docs: setup ## write the generated pages anew
	$(BIN)/python -m docs.generate
screenshots: .venv/installed-test ## take the pictures of the page in the docs anew
	PENSTOCK_TEST_SCREENSHOTS=docs/images $(BIN)/python -m pytest tests/gateway/console/test_newcomer.py
proto: .venv/installed-test ## write the modules of .proto files anew
	$(BIN)/python -m grpc_tools.protoc --proto_path . --python_out . --pyi_out . gateway/pulsar/commands.proto
compat: .venv/installed-test ## only the tests with stock clients
	$(TESTS) tests/compat $(ARGS)
faults: .venv/installed-test ## only the fault tests, each going on for a while (SECONDS=60 ARGS="-k restore")
	PENSTOCK_FAULT_SECONDS=$(or $(SECONDS),60) PENSTOCK_SPARK_FAULT_SECONDS=$(or $(SECONDS),60) \
	$(BIN)/python -m pytest tests/faults tests/spark/test_sink_faults.py tests/compat/test_spark_faults.py \
	tests/demo/test_pipeline.py $(ARGS)
variants: .venv/installed-test ## only the variants of slow tests that `make test` leaves out (ARGS="-k spark")
	PENSTOCK_FAULT_SECONDS=$(or $(SECONDS),10) $(TESTS) -m variant $(ARGS)
machines: .venv/installed-test ## only the property machines, for longer (EXAMPLES=2000 ARGS="-k log")
	$(foreach each,LOG GROUP STAGING TXN,PENSTOCK_$(each)_MACHINE_EXAMPLES=$(or $(EXAMPLES),2000)) \
	$(TESTS) --timeout 0 $(wildcard tests/property/test_*_machine.py) $(ARGS)
mutants: .venv/installed-mutants ## which small faults in core no test notices (ARGS="--sample 300 --seed 1 core/log")
	$(BIN)/python -m tests.mutants $(ARGS)
lock: .venv/installed-test .venv/installed-lint .venv/installed-bench .venv/installed-demo .venv/installed-mutants ## write down the installed versions
	$(BIN)/python -m pip freeze --exclude-editable > requirements/constraints.txt
clean: ## remove the environment and caches
	rm -rf .venv .cache build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache *.egg-info
ci: ## what CI runs
	.ci/run

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("Penstock needs Python 3.11 or later: make PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
.venv/installed: .venv/bin/python $(SOURCES)
	$(PIP) --editable . && touch $@
.venv/installed-%: .venv/installed
	$(PIP) --editable '.[$*]' && touch $@
