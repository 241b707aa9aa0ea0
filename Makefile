# Two commands for a newcomer (demo, test), one for a change (check). Everything runs in .venv, which
# they make themselves: nothing is installed into the system's Python.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PLUGINS = capacity-sglang capacity-vllm capacity-legacy-fork capacity-gpu-specs capacity-kv-layouts capacity-deepseek-v4
EDITABLE = -e . $(foreach plugin,$(PLUGINS),-e plugins/$(plugin))
SOURCES = capacity_core $(foreach plugin,$(PLUGINS),plugins/$(plugin)/src)
EXAMPLES = references/examples

.PHONY: demo install test lint check format references bench drift clean

demo: install
	$(BIN)/capacity analyze $(EXAMPLES)/sglang.log --smi $(EXAMPLES)/smi.txt --config $(EXAMPLES)/config.json
	@echo
	@echo "======================================================================================"
	@echo
	$(BIN)/capacity analyze $(EXAMPLES)/vllm.log

install: $(VENV)/.installed

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

# All but the tests.
lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports

check: lint
	$(BIN)/python -m pytest

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Rewrites the generated tables of references/.
references: $(VENV)/.installed-dev
	$(BIN)/python -m capacity_core.testing.reference references

# Not in the default run: makes a 200 MB log in a temporary folder and measures scanning it.
bench: $(VENV)/.installed-dev
	$(BIN)/python tests/benchmarks/bench.py

# Not in the default run: downloads releases of the engines, and shows that every message about memory
# in their source is recognised or excused. CAPACITY_DRIFT_CACHE=FOLDER keeps what was downloaded.
drift: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m network tests/drift

# One `pip install` of all distributions at once, so that none is looked for elsewhere.
$(VENV)/.installed: setup.cfg pyproject.toml $(foreach plugin,$(PLUGINS),plugins/$(plugin)/setup.cfg) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(EDITABLE)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
