# The front door: what `make help` lists is supported, nothing else is.

PREFIX ?= /usr
DESTDIR ?=
PYTHON ?= /usr/bin/python3

SHELL_SCRIPTS = .ci/run $(wildcard packaging/*.sh tests/*.sh tests/*/*.sh)

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types contracts unit unit-pythons integration test-gpu install uninstall clean

help: ## List what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | awk -F '\t' '{ printf "make %-14s %s\n", $$1, $$2 }'

demo: ## Show a container getting its GPUs; installs what it needs (as root), leaves nothing else
	@packaging/requirements.sh demo
	@PYTHON=$(PYTHON) $(PYTHON) tests/demo/run.py

test: ## Run everything but test-gpu; installs what it needs (as root), leaves nothing else
	packaging/requirements.sh test
	$(MAKE) --no-print-directory check
	$(MAKE) --no-print-directory unit-pythons
	$(MAKE) --no-print-directory integration

check: .venv/up-to-date ## All that needs no root and no container: lint, types, contracts, unit; under a minute
	@$(MAKE) --no-print-directory --keep-going lint types contracts unit

lint: .venv/up-to-date ## Check Python and shell sources for faults of style and substance
	.venv/bin/ruff check --quiet --output-format concise .
	$(if $(shell command -v shellcheck),shellcheck,@echo "not checked, for want of shellcheck:") $(SHELL_SCRIPTS)

types: .venv/up-to-date ## Check types, strictly, as Python 3.9 has them
	.venv/bin/mypy

contracts: .venv/up-to-date ## Check which room imports which
	.venv/bin/lint-imports

unit: .venv/up-to-date ## Run the unit tests: no root, nothing of the machine is touched
	.venv/bin/python -m pytest -q tests/unit

unit-pythons: .venv/up-to-date ## Run the unit tests on each Python from 3.9 on that this machine has
	tests/unit-pythons.sh

integration: .venv/up-to-date ## Run the tests on real container runtimes (as root), in throw-away mounts
	@test "$$(id -u)" = 0 || { echo "make integration: needs root, for mounts and containers" >&2; exit 1; }
	.venv/bin/python -m pytest -q -m "not gpu" tests/integration

test-gpu: .venv/up-to-date ## Run the tests that need a host with a real NVIDIA driver and GPU (as root)
	@ls /proc/driver/nvidia/gpus/*/information >/dev/null 2>&1 || \
		{ echo "make test-gpu: this host has no GPU that an NVIDIA driver drives: nothing was tested" >&2; exit 1; }
	.venv/bin/python -m pytest -v -m gpu tests

install: ## Install below [DESTDIR=][PREFIX=/usr], for [PYTHON=/usr/bin/python3]
	@packaging/install.sh install "$(DESTDIR)" "$(PREFIX)" "$(PYTHON)"

uninstall: ## Take away what install put below [DESTDIR=][PREFIX=/usr]
	@packaging/install.sh uninstall "$(DESTDIR)" "$(PREFIX)"

clean: ## Remove what was built or cached here
	rm -rf .venv .venv-* .build .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache *.egg-info build
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/up-to-date: setup.cfg packaging/venv.sh
	packaging/venv.sh .venv "$(PYTHON)" dev
