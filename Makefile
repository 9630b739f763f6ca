# From a bare clone to a running lake. `make` alone lists the targets.
#
# Nothing is installed outside this folder, except Java where it is missing and may be installed, and the jars that
# Spark needs, in the user's cache folder. Works with the make 3.81 of macOS.

PYTHON ?=
ARGS ?=
JOBS ?= 3
MINUTES ?= 10
SLICE ?=
LEDGER ?= sqlite
WAREHOUSE ?= local

# What touches files or must recover them: test-all runs it with a warehouse in S3 too.
s3_core := tests/maintenance tests/backup tests/doctor \
	$(patsubst %,tests/acceptance/test_%.py,operations holes model failpoints)

py := .venv/bin/python
# A file's tests stay together, so that what they share is made once. Two of the jobs have a Spark of their own.
sharing = -n $(JOBS) --dist loadfile
# The tests start hundreds of processes of ours, which would compile all modules anew where Python may not keep them.
pytest = PYTHONDONTWRITEBYTECODE= STRAND_TEST_SLICE=$(SLICE) $(py) -m pytest $(sharing)
uv := .venv-tools/bin/uv
locking := $(uv) pip compile --quiet --generate-hashes --no-header --no-annotate --universal --python-version 3.11

# The stamps name this folder, because a virtual environment that was moved or copied still points at its old place.
here := $(shell printf '%s' "$(CURDIR)" | cksum | cut -d ' ' -f 1)
ready := .venv/.ready-$(here)
dlt_ready := .venv-dlt/.ready-$(here)
tools_ready := .venv-tools/.ready-$(here)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all fuzz soak damages check bench setup pages wheel lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile
	@echo "PYTHON=… chooses the Python; ARGS=\"…\" is handed on by demo, test, fuzz, soak, bench and lock; JOBS=3 by test."

demo: $(ready) ## make a lake in ./demo-lake and show what it does
	@$(py) -m examples.demo ./demo-lake $(ARGS)

test: $(ready) ## run all tests, sweeps in a slice (ARGS="-k flush" for some, SLICE=7 for that slice, JOBS=0 in turn)
	@$(pytest) $(ARGS)

test-all: $(ready) ## run all tests on SQLite and on Postgres, and then their core with a warehouse in S3
	@STRAND_TEST_SLICE=all $(py) -m pytest $(sharing) --ledger both $(ARGS)
	@STRAND_TEST_WAREHOUSE=s3 $(pytest) --ledger both $(s3_core) $(ARGS)

fuzz: $(ready) ## read 100,000 Arrow streams that lie (ARGS="--streams 1000000 --seed 2")
	@$(py) -m tests.fuzz $(ARGS)

soak: $(ready) ## kill everything at random for MINUTES=10 (LEDGER=postgres WAREHOUSE=s3), then compare what is where
	@$(py) -m tests.soak --minutes $(MINUTES) --ledger $(LEDGER) --warehouse $(WAREHOUSE) $(ARGS)

damages: $(ready) ## plant seven damages, one after the other, and show what doctor says about each
	@$(py) -m tests.doctor

check: $(ready) ## lint, format, types, and the rules of the house
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@$(py) -m mypy
	@$(py) -m pytest tests/structure -q

bench: $(ready) $(dlt_ready) ## measure, against dlt in an environment of its own
	@$(py) -m bench $(ARGS)

setup: $(ready) ## only set up: .venv, Java, jars
	@echo "Ready. The command is .venv/bin/strand; \`make demo\` shows what it does."

pages: $(ready) ## write docs/settings.md, errors.md, maintenance.md and documents.json anew, from what the program says of itself
	@$(py) -m strandline.cli.pages docs

wheel: $(ready) ## build dist/*.whl, and try it in an environment of its own
	@rm -rf dist && $(py) -m hatchling build -t wheel -d dist
	@STRAND_TEST_WHEEL="$$(echo dist/*.whl)" $(py) -m pytest -q tests/wheel

lock: $(tools_ready) ## pin the dependencies again (ARGS=--upgrade for newer ones)
	$(locking) $(ARGS) --group dev pyproject.toml -o locks/dev.txt
	$(locking) $(ARGS) --extra otel pyproject.toml -o locks/run.txt
	$(locking) $(ARGS) bench/dlt-requirements.in -o locks/dlt.txt
	$(locking) $(ARGS) locks/tools.in -o locks/tools.txt
	$(locking) $(ARGS) locks/build.in -o locks/build.txt

clean: ## remove everything that make has made here, the demo's lake included
	rm -rf .venv .venv-tools .venv-dlt demo-lake .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call environment,FOLDER): an empty virtual environment, unless there is a good one. `.unfinished` marks one in which
# an installation is under way; if it is still there, that one was killed, and half a package can look like a whole one.
define environment
	@if [ -e $(1)/.unfinished ] || ! grep -qsF "$(CURDIR)/$(1)" $(1)/pyvenv.cfg || ! $(1)/bin/python -c '' 2>/dev/null; then \
	    .venv-tools/bin/python -m venv --clear --without-pip "$(CURDIR)/$(1)"; fi
	@touch $(1)/.unfinished
endef

# Compiled when installed: where PYTHONDONTWRITEBYTECODE is set, every start would compile everything again.
sync = VIRTUAL_ENV= $(uv) pip sync --quiet --compile-bytecode --require-hashes --python

$(ready): pyproject.toml locks/dev.txt src/strandline/engines/spark/jars.lock $(tools_ready)
	@echo "Setting up .venv (about a minute the first time)"
	$(call environment,.venv)
	@$(sync) $(py) locks/dev.txt
	@VIRTUAL_ENV= $(uv) pip install --quiet --python $(py) --no-deps --no-build-isolation --editable .
	@rm .venv/.unfinished
	@$(py) -m compileall -q src
	@.venv/bin/strand setup --install-java
	@touch $@

$(dlt_ready): locks/dlt.txt $(tools_ready)
	@echo "Setting up .venv-dlt"
	$(call environment,.venv-dlt)
	@$(sync) .venv-dlt/bin/python locks/dlt.txt
	@rm .venv-dlt/.unfinished
	@touch $@

$(tools_ready): locks/tools.txt
	@old=; bare=; found=; \
	for python in $(or $(PYTHON),python3.11 python3.12 python3.13 python3.14 python3 python); do \
	    command -v "$$python" >/dev/null 2>&1 || continue; \
	    version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { old="$$python is $$version"; continue; }; \
	    "$$python" -c 'import ensurepip, venv' 2>/dev/null || { bare=$$version; continue; }; \
	    found=$$python; break; \
	done; \
	if [ -z "$$found" ]; then \
	    if [ -n "$$bare" ]; then \
	        echo "error: Python $$bare is here, but without its venv module."; \
	        echo "hint: type  sudo apt-get install -y python$$bare-venv  (Debian, Ubuntu) and run make again."; \
	    else \
	        echo "error: Strandline needs Python 3.11 or newer, and there is none$${old:+ ($$old)}."; \
	        echo "hint: type  sudo apt-get install -y python3 python3-venv  (Debian 12, Ubuntu 24.04 or newer),"; \
	        echo "      sudo dnf install -y python3.12  (Fedora, RHEL)  or  brew install python@3.12  (macOS),"; \
	        echo "      or say where one is:  make PYTHON=/path/to/python3.12"; \
	    fi; \
	    exit 1; \
	fi >&2; \
	"$$found" -m venv --clear .venv-tools
	@.venv-tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/tools.txt
	@touch $@
