# make          build everything and print the verdicts
# make test     the whole test suite       make test-hosts   all tests on several hosts (root, see CONTRIBUTING.md)
# make test-containers   builds the image and runs its services (root, podman; see CONTRIBUTING.md)
# make check    format, lint and types       make fix   repair what can be repaired
# make docs     config/README.md             make lock  the locks and environment.yaml in envs/
# make trainers installs the trainers that `snakemake audit` compares, beside the rest (see envs/trainers.lock)
# make data     installs what reads Parquet and datasets, beside the rest (see envs/data.lock)

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
TRAINERS := .venv/trainers
DATA := .venv/data
PATHS := src tests workflow_scripts envs benchmarks examples
SNAKEFILES := Snakefile rules
# Only when all of it is there: an error in a setting leaves the file as it is.
WRITE_CONFIG_DOCS = text=$$(python -m ddp_tokens.cli config-docs) && printf '%s\n' "$$text" > config/README.md
SHELL_SCRIPTS := .ci/run $(wildcard scripts/*.sh)

ifneq ($(words $(CURDIR)),1)
$(error Snakemake cannot run scripts from a folder with a space in its path: move this one, $(CURDIR))
endif

export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: all test test-hosts test-containers check fix docs lock trainers data
.DELETE_ON_ERROR:

all: $(INSTALLED)
	@python -m ddp_tokens.build

test: $(INSTALLED)
	python -m pytest

test-hosts: $(INSTALLED)
	python -m pytest --all-hosts tests/hosts tests/slurm

test-containers: $(INSTALLED)
	python -m pytest --containers tests/containers

check: $(INSTALLED)
	ruff format --check $(PATHS)
	ruff check $(PATHS)
	snakefmt --check $(SNAKEFILES)
	snakemake --lint
	mypy
	python -m ddp_tokens.cli config-docs | diff config/README.md -
	for script in $(SHELL_SCRIPTS); do bash -n $$script || exit; done

fix: $(INSTALLED)
	ruff check --fix $(PATHS)
	ruff format $(PATHS)
	snakefmt $(SNAKEFILES)
	$(WRITE_CONFIG_DOCS)

docs: $(INSTALLED)
	$(WRITE_CONFIG_DOCS)

lock: $(INSTALLED)
	python envs/lock.py

trainers: $(TRAINERS)

# What these need of the other lock is there, in the versions of that: so nothing of it is touched.
$(TRAINERS): envs/trainers.lock $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-deps --requirement envs/trainers.lock
	@touch $@

data: $(DATA)

$(DATA): envs/data.lock $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-deps --requirement envs/data.lock
	@touch $@

$(INSTALLED): envs/requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement envs/requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
