# Everything a developer does here. `make quickstart` and `make test` need only Python 3.11-3.13, git, make and a package index.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
FRAMEWORKS := $(VENV)/.frameworks
CLIENTS := .clients/.made
TORCH  := torch==2.13.0
# Processes that run tests: one more than there are cores, as many tests wait for processes of their own.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.DEFAULT_GOAL := help
.PHONY: help install clients quickstart test check tables format lint types imports pytest test-unit bench lock test-long test-campaigns test-gpu test-newest test-oldest lock-versions clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(STAMP) ## Create .venv with everything the workspace needs

# torch comes through pip, so that a machine's own wheel links (a CPU build, say) are honoured; uv installs the rest.
# Both compile what they install: otherwise the first processes that import a library at once each do so.
$(STAMP): constraints.txt pyproject.toml $(wildcard packages/*/pyproject.toml)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "Leyden needs Python 3.11 to 3.13, but $(PYTHON) is %d.%d. Try: make PYTHON=python3.12 ..." % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(TORCH)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode -c constraints.txt $(TORCH) \
		-e 'packages/core[train,tensorboard,gepa,tune]' -e 'packages/langchain-adapter[example]' httpx httpx2 --group pyproject.toml:dev
	@touch $@

# Every framework that has an adapter, and VERL with Ray, in the same environment. Only developers need them all.
$(FRAMEWORKS): $(STAMP)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode -c constraints.txt $(TORCH) -e 'packages/core[train,tensorboard,verl,gepa,tune]' \
		-e 'packages/autogen-adapter[example]' -e 'packages/openai-agents-adapter[example]' -e packages/crewai-adapter -e 'packages/console[mcp]' --group pyproject.toml:dev
	@touch $@

clients: $(CLIENTS) ## Create the environments of the real clients that tests/clients drives

$(CLIENTS): $(STAMP) scripts/make_clients $(wildcard tests/clients/environments/*.txt tests/clients/environments/node/*.json)
	scripts/make_clients

quickstart: $(STAMP) ## Train the example agent on this machine (about three minutes)
	$(BIN)/leyden quickstart

test: $(FRAMEWORKS) ## Checks and tests, at the same time; CI runs test-long, too
	@$(MAKE) --no-print-directory --jobs 2 pytest check

check: lint types imports ## Format, lint, types, layers

format: $(STAMP) ## Rewrite the code in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

tables: $(STAMP) ## Write the tables of the documentation that follow from the code
	$(BIN)/python scripts/parameter_table.py

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(FRAMEWORKS)
	$(BIN)/pyright --warnings

imports: $(FRAMEWORKS)
	$(BIN)/lint-imports --no-cache

# One torch thread: on a shared machine two of them cost a tiny model up to seven times as much. Bytecode is kept, whatever
# the shell says: the tests start hundreds of processes, and each would compile its libraries again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder --forked-tests=all

pytest: $(FRAMEWORKS)
	$(PYTEST) -m "not long"

test-unit: $(FRAMEWORKS) ## Only the tests that start no process and no server
	$(PYTEST) -m unit

test-long: $(FRAMEWORKS) clients ## What takes longer: killed runs, campaigns, whole trainings, real clients, applications of their own
	$(PYTEST) -m "long and not campaign"

test-campaigns: $(FRAMEWORKS) clients ## The longest tests, before a release: many kills, a hundred agents, benchmarks of stores
	$(PYTEST) -m campaign

test-gpu: $(STAMP) ## What needs a GPU that PyTorch can use; fails without one
	$(BIN)/pytest -m gpu tests/gpu

bench: $(STAMP) ## Run every benchmark; JSON goes to benchmarks/results
	mkdir -p benchmarks/results; for file in benchmarks/*.py; do $(BIN)/python $$file --json benchmarks/results/$$(basename $$file .py).json || exit 1; done

lock: $(STAMP) ## Resolve constraints.txt again from the packages' own floors
	scripts/lock

test-newest: $(STAMP) ## Run the adapters' tests on the newest frameworks (openai 3, without CrewAI), in an environment of its own
	$(BIN)/python scripts/adapter_versions.py test newest

test-oldest: $(STAMP) ## Run each adapter's tests on the oldest framework it declares
	$(BIN)/python scripts/adapter_versions.py test oldest

lock-versions: $(STAMP) ## Resolve tests/versions again, and write docs/versions.md
	$(BIN)/python scripts/adapter_versions.py lock

clean: ## Remove the environment and caches
	rm -rf $(VENV) .clients .versions .pytest_cache .ruff_cache .hypothesis
