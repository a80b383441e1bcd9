# Every target sets up what it needs by itself, in .venv, on its first use; see CONTRIBUTING.md.
# Another interpreter: make clean, then make PYTHON=python3.12 test.
# Arguments to pytest: make test ARGS="tests/store -k cursor".

BIN := .venv/bin
PYTHON ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check fmt bench cover lock lock-check build clean

help:
	@echo "make setup       make .venv with what the others need; they do so themselves"
	@echo "make demo        see ofuwatch find real regressions, end to end, on this machine"
	@echo "make test        run the tests"
	@echo "make check       lint, format, types, import arrows, configuration"
	@echo "make bench       measure, and write docs/performance.md anew"
	@echo "make cover       run the tests with branch coverage"
	@echo "make fmt         format, and fix what the linter can fix"
	@echo "make lock        resolve requirements/*.txt anew from pyproject.toml"
	@echo "make build       build the wheel and the sdist into dist/"
	@echo "make clean       remove .venv and everything that was generated"

setup:
	@if $(BIN)/python scripts/bootstrap.py current 2>/dev/null; then exit 0; fi; \
	for python in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        exec "$$python" scripts/bootstrap.py; \
	    fi; \
	done; \
	echo "set-up: no Python 3.11 or newer was found on PATH; install one, or name it:" \
	    "make PYTHON=/path/to/python3 ..." >&2; \
	exit 1

demo: setup
	@$(BIN)/ofuwatch demo $(ARGS)

test: setup
	@$(BIN)/python -m pytest $(ARGS) || { code=$$?; \
	    if [ $$code = 5 ]; then echo "make test: no test was collected; is ARGS right?" >&2; fi; \
	    exit $$code; }
	@echo "make test: passed. By part: make test ARGS=tests/<part>; coverage: make cover"

check: setup lock-check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/ofuwatch check
	@echo "make check: all in order"

fmt: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

cover: setup
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage html --quiet
	$(BIN)/coverage report
	@echo "make cover: line by line in htmlcov/index.html"

lock: setup
	$(BIN)/python scripts/bootstrap.py lock
	@$(MAKE) --no-print-directory setup

lock-check: setup
	@$(BIN)/python scripts/bootstrap.py lock-check

build: setup
	$(BIN)/uv build --no-build-isolation --offline --python $(BIN)/python

clean:
	rm -rf .venv dist build htmlcov .coverage .coverage.* .mypy_cache .ruff_cache \
	    .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
