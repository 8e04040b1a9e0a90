# Every target works from a fresh clone; Python 3.11 or newer, pip and make are enough.
# (The `contract` targets also need npm, for buf.)
#
#   make demo                               see it work
#   make test                               run the tests
#   make test PYTHON=python3.12             with another Python
#   make demo TORCH_INDEX_URL=<address>     take torch from another index, for example PyTorch's CPU-only one:
#                                           on Linux the default wheel brings several GB of CUDA libraries

PYTHON ?= python3
TORCH_INDEX_URL ?=
PYTEST_ARGS ?=
TEST_WORKERS ?= 3

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
HATCHLING := $(BIN)/hatchling
VERSION_FILE := sdk/draftwire/version.txt
# Changes with every commit and checkout, where this is a clone.
GIT_LOG := $(wildcard $(shell git rev-parse --git-path logs/HEAD 2>/dev/null))
BUF := node_modules/.bin/buf
PUBLISHED := protos/published/draftwire.v1.binpb

# What tests need, and how they run: a group of tests in one worker, the longest groups first.
TEST_READY := $(READY) $(VERSION_FILE) $(if $(shell command -v npm),$(BUF))
# Bytecode is kept even where the environment says not to: else each worker and process compiles everything anew, in each run.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(TEST_WORKERS) --max-worker-restart 0 --dist loadgroup --no-loadscope-reorder

# An environment of its own for tools that look at what is installed here.
TOOLS := $(VENV)/tools

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
KERNELS := draftwire_core/engine/kernels/build.py $(wildcard draftwire_core/engine/kernels/csrc/*.[ch] draftwire_core/engine/kernels/csrc/*/*.[ch])
# The requirements of the checkout and of some of its extras, a line each.
REQUIREMENTS := import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	extras = project["optional-dependencies"]; \
	print(*project["dependencies"], *(each for extra in "serve gateway tracing docs dev".split() for each in extras[extra]), sep="\n")
# A stage of the set-up: a line before it, and one after it with its time. Arguments: its name, its command.
stage = echo "$(1) ..."; begun=$$(date +%s); $(2) && echo "$(1): $$(($$(date +%s) - begun)) s"

.DEFAULT_GOAL := help
.PHONY: help setup version demo test test-quick test-slow test-all durations test-vllm lint format docs protos contract publish-contract wheels release licences sbom audit clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) $(VERSION_FILE) ## Create .venv and install everything into it

version: $(VERSION_FILE) ## Print the version, which is taken from git
	@echo "$$(cat $<)"

# pip uses one core, so the kernels are compiled meanwhile. The installation finds them by the hash of their sources.
$(READY): pyproject.toml constraints.txt services/hatch_build.py $(KERNELS) | $(HATCHLING)
	@$(MAKE) --silent --no-print-directory --jobs=2 $(VENV)/.packages $(VENV)/.kernels
	@$(call stage,draftwire,$(PIP_INSTALL) --no-deps --no-build-isolation -e .)
	@touch $@

# torch comes first and alone, so that TORCH_INDEX_URL serves torch and nothing else.
$(VENV)/.packages: pyproject.toml constraints.txt | $(HATCHLING)
	@$(BIN)/python -c '$(REQUIREMENTS)' > $(VENV)/requirements.txt
	@$(call stage,torch,$(PIP_INSTALL) --no-deps $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) torch)
	@$(call stage,packages,$(PIP_INSTALL) -r $(VENV)/requirements.txt)
	@touch $@

# Without a C compiler draftwire works as well, slower on CPUs.
$(VENV)/.kernels: $(KERNELS) | $(HATCHLING)
	@$(call stage,kernels,$(BIN)/python -P draftwire_core/engine/kernels/build.py) || echo "slower kernels are used"
	@touch $@

# The version needs nothing else, so that building images does not set up everything.
$(HATCHLING):
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("draftwire needs Python 3.11 or newer: make PYTHON=...")'
	@test -x $(BIN)/python || { echo "Setting up $(VENV), once: 2 to 3 minutes on two cores"; $(PYTHON) -m venv $(VENV); }
	@$(call stage,build tools,$(PIP_INSTALL) hatchling hatch-vcs)

# The installation wrote the version once; git may have moved on since.
$(VERSION_FILE): $(HATCHLING) $(GIT_LOG)
	@$(BIN)/hatchling version > $@.new
	@mv $@.new $@

demo: $(READY) $(VERSION_FILE) ## See a small real model (90 MB, downloaded once) and drafters work on this machine
	@$(BIN)/draftwire demo

test: $(TEST_READY) ## Run the tests of the default tier, 10 minutes (PYTEST_ARGS="-k tree" for some of them)
	@$(PYTEST) --tier default $(PYTEST_ARGS)

test-quick: $(TEST_READY) ## Run the tests that take least and start no process, 2 minutes
	@$(PYTEST) --tier quick $(PYTEST_ARGS)

test-slow: $(TEST_READY) ## Run the slow tests (PYTEST_ARGS="FILE ..." for those of some files)
	@$(PYTEST) --tier slow $(PYTEST_ARGS)

test-all: $(TEST_READY) ## Run all tests, 50 minutes
	@$(PYTEST) --tier all $(PYTEST_ARGS)

durations: $(TEST_READY) ## Run all tests and record what each file takes (tests/durations.json)
	@$(PYTEST) --tier all --record-durations $(PYTEST_ARGS)

test-vllm: $(READY) $(VERSION_FILE) ## Test draftwire_vllm and --engine vllm with vLLM itself (installs it, once, where temporary files are)
	@$(BIN)/python -c 'from benchmarks.peers.vllm_environment import prepare; prepare()'
	@$(BIN)/python -m pytest tests/draftwire_core/adapters/vllm tests/verifier_service/vllm $(PYTEST_ARGS)
	@DRAFTWIRE_TEST_ENGINE=vllm $(BIN)/python -m pytest --tier default tests/end_to_end $(PYTEST_ARGS)

lint: $(READY) ## Check style, words, types and import directions
	$(BIN)/ruff check
	$(BIN)/python -m scripts.words
	$(BIN)/ruff format --check
	$(BIN)/python scripts/generate_sync.py --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY) ## Format the code, fix what can be fixed, and generate the synchronous clients
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/python scripts/generate_sync.py

docs: $(READY) $(VERSION_FILE) ## Build the documents as a site, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

protos: $(READY) ## Generate the Python stubs and the reference from protos/
	$(BIN)/python scripts/generate_stubs.py
	$(BIN)/python scripts/generate_grpc_reference.py

contract: $(READY) $(BUF) ## Check the contract: stubs, style, nothing published broken
	$(BIN)/python scripts/generate_stubs.py --check
	$(BIN)/python scripts/generate_grpc_reference.py --check
	$(BUF) lint
	$(BUF) breaking protos --against $(PUBLISHED)

publish-contract: $(BUF) ## Record protos/ as the published contract (part of a release)
	@mkdir -p $(dir $(PUBLISHED))
	$(BUF) build protos --exclude-source-info --output $(PUBLISHED)

wheels: $(READY) ## Build the wheels and source distributions, into dist/
	@$(BIN)/python scripts/release/build_wheels.py

release: $(TEST_READY) $(TOOLS)/.ready ## Build and try all that a release publishes, into dist/ (VERSION=0.1.0; WITHOUT="images ...")
	@$(BIN)/python -m scripts.release.release "$(VERSION)" $(addprefix --without ,$(WITHOUT))

licences: $(READY) $(TOOLS)/.ready ## Check the licences of what an installation brings
	@$(BIN)/python -m scripts.release.licences $(TOOLS)/bin/pip-licenses

sbom: $(READY) $(TOOLS)/.ready ## List what an installation is made of (CycloneDX), into dist/
	@$(BIN)/python -m scripts.release.sbom $(TOOLS)/bin/cyclonedx-py

audit: $(READY) $(TOOLS)/.ready ## Look for known vulnerabilities in what an installation brings (asks PyPI)
	@$(BIN)/python -m scripts.release.packages > $(TOOLS)/installed.txt
	@$(TOOLS)/bin/pip-audit --strict --disable-pip --no-deps --requirement $(TOOLS)/installed.txt

$(TOOLS)/.ready: scripts/release/tools.txt | $(HATCHLING)
	@test -x $(TOOLS)/bin/python || $(BIN)/python -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

$(BUF): package.json package-lock.json
	@command -v npm >/dev/null || { echo "buf comes through npm, and npm is not installed" >&2; exit 1; }
	@npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

clean: ## Remove everything that make has made
	rm -rf $(VENV) $(VERSION_FILE) node_modules dist build site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
