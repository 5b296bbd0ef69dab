# `make` lists the targets. Each one sets up .venv first when that is needed, so one command is enough.
SHELL := bash
.DEFAULT_GOAL := help
VENV := .venv
STAMP := $(VENV)/.ready
BIN := $(VENV)/bin
# Side by side: mypy takes half of the time, and one core.
CHECKS := check-types check-all-else
GUIDE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

.PHONY: help setup demo up down check check-types check-all-else test long e2e-cluster attack faults disasters histories mutants planted-faults quarter edits corpus bench scale rival docs screenshots format render lock sbom clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 16

setup: $(STAMP) ## Make .venv with everything, fetch the jars, install Java where that is possible
	@echo "Ready."

$(STAMP): requirements/dev.txt pyproject.toml laptop/jars.lock laptop/setup.sh
	@bash laptop/setup.sh
	@touch $@

demo: $(STAMP) ## Meter generated traffic end to end and compare the bills with the truth
	@$(BIN)/weir demo $(if $(CI),--exit) $(ARGS)

up: $(STAMP) ## Start broker, database, the four applications and the dashboard; Ctrl-C stops them
	@$(BIN)/weir up $(ARGS)

down: $(STAMP) ## Stop what `make up` started
	@$(BIN)/weir down $(ARGS)

check: $(STAMP) ## What CI checks: style, format, types, who imports whom, contracts that take what they took, current lock files, links of the guide
	@$(MAKE) --no-print-directory --jobs=2 $(CHECKS)

check-types: $(STAMP)
	$(BIN)/mypy

check-all-else: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tests.contracts --check
	$(BIN)/python requirements/lock.py --check
	$(BIN)/python -m pip check
	$(GUIDE)

test: $(STAMP) ## Run the tests, the end-to-end ones beside the others; ARGS="tests/rules -k late" selects some
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	@$(BIN)/python -m tests.everything
endif

long: $(STAMP) ## Run the tests that take too long for CI; writes tests/LONG.md
	$(BIN)/python -m tests.long $(ARGS)

e2e-cluster: $(STAMP) ## Install the chart on a cluster (KUBECONFIG= and BUILD= for your own), break it, compare the bills; writes tests/cluster/RESULT.md
	@tests/cluster/run

attack: $(STAMP) ## Hurt running stacks in ways that take minutes: backlogs, lost tables, poison, servers that are away
	$(BIN)/python -m pytest tests/attack -m attack $(ARGS)

faults: $(STAMP) $(if $(ARGS),,histories disasters) ## Strike a running stack 100 times under traffic, and compare the bills with the truth; ARGS="--seed 7 --store --driver-rows 1"
	$(BIN)/python -m tests.faults $(ARGS)

disasters: $(STAMP) ## Restore backups of each age, lose tables and unread records, and go back a release, as the guide says
	$(BIN)/python -m tests.long tests/e2e/test_restore.py tests/e2e/test_way_back.py
	$(BIN)/python -m pytest -m attack tests/attack/test_tables.py
	$(BIN)/python -m pytest tests/streaming/test_kafka_faults.py -k retention_deleted_unread

histories: $(STAMP) ## Simulate 5,000 histories of crashes, zombies and lost answers; writes bench/results/histories.json
	$(BIN)/python -m tests.simulation --histories 5000 --processes 2 --results bench/results/histories.json

mutants: $(STAMP) ## Plant bugs in a copy of the source, and see that the tests find each; writes tests/mutants/CAUGHT.md
	$(BIN)/python -m tests.mutants $(ARGS)

planted-faults: $(STAMP) ## Plant thirteen kinds of wrong money in committed rows, and see the audit name each; writes tests/planted_faults/FOUND.md
	$(BIN)/python -m pytest tests/planted_faults -m planted $(ARGS)

quarter: $(STAMP) ## Bill a simulated quarter of 100,000 records, late, doubled and repriced, and compare each sum with the truth; writes tests/quarter/RESULT.md
	$(BIN)/python -m tests.quarter $(ARGS)

edits: $(STAMP) ## Edit the catalog 1,000 times by SQL under traffic, with Connect, Postgres and joins killed in turn; writes tests/edits/RESULT.md
	$(BIN)/python -m tests.edits $(ARGS)

corpus: $(STAMP) ## Meter 100,000 mutated records, and see that two readers agree on each; writes tests/corpus/RESULT.md
	$(BIN)/python -m pytest tests/streaming/test_corpus_by_mutation.py -m corpus -x -v $(ARGS)

bench: $(STAMP) ## Measure CPU-seconds per million events; writes bench/results/
	$(BIN)/python -m bench $(ARGS)

scale: $(STAMP) ## Measure ingestion, joins and billing with 0, 1, 2 and 4 executors on this machine; writes bench/results/scale-<time>.json
	$(BIN)/python -m bench.scale $(ARGS)

rival: $(STAMP) ## The same minute sums in Weir, in Flink SQL and with Polars alone, side by side (fetches PyFlink, 1 GB); `make bench rival` does both
	$(BIN)/python -m bench.rival $(ARGS)

docs: $(STAMP) ## Build the guide into build/guide; `make docs SERVE=1` serves it and follows changes
	$(if $(SERVE),$(subst build --quiet,serve,$(GUIDE)),$(GUIDE))

screenshots: $(STAMP) ## Take the README's pictures of the dashboard of a running stack that has traffic (`weir traffic`)
	$(BIN)/python -m tests.screenshots $(ARGS)

format: $(STAMP) ## Format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

render: $(STAMP) ## Write anew what is generated: alert rules, panels, the chart's schema, and the pages of docs/reference
	$(BIN)/python -m metering.contracts.render
	$(BIN)/python -m monitoring.render
	$(BIN)/python -m charts.render
	$(BIN)/python -m reference.render

lock: $(STAMP) ## Resolve pyproject.toml into requirements/*.txt anew
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python requirements/lock.py

sbom: $(STAMP) ## Write build/weir.cdx.json: a CycloneDX list of the packages and jars of the image, from the lock files
	SERVERS=$(SERVERS) $(BIN)/python requirements/sbom.py build/weir.cdx.json $(DEBIAN)

clean: ## Remove .venv and caches; data folders stay (`weir down`, then delete .weir)
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
