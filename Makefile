# `make demo` shows what it does; `make test` shows that it works. Both create .venv if need be.
PYTHON ?= python3
BIN := .venv/bin
# The library alone, which is all that the demo needs; and with every extra.
LIBRARY := .venv/.library
INSTALLED := .venv/.installed

.PHONY: demo check test thorough lab-test lint format docs bench statistics fuzz versions install
install: $(INSTALLED)

$(LIBRARY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable .
	touch $@

$(INSTALLED): $(LIBRARY)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[data,dev,docs,explore,flows,neighbors,parallel,xla]' --editable './packages/elbocheck[psis,numpyro]'
	touch $@

demo: $(LIBRARY)
	$(BIN)/python -m examples.quickstart

# The library's tests; the laboratory has its own.
test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests packages --ignore tests/lab

# Every test there is, also those that ask the same of further models, data and faults.
thorough: $(INSTALLED)
	FACETVAE_THOROUGH=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests packages

lab-test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests/lab

# While you work: in less than a minute what is quick to check. It lists the tests that it leaves out.
check: $(INSTALLED)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet --numprocesses 2 --dist worksteal -m "not slow" --ignore tests/lab
	@echo "Also left out: mypy (make lint) and the site (make docs)."

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, into docs/_build/html; needs no network, and a warning is an error.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

# Every way to take a step of MFCVAE, at three sizes, beside plain loops and NumPyro (the extra
# `benchmarks`, which `make install` leaves out); then steps of every model. Twenty minutes or so.
bench: $(INSTALLED)
	$(BIN)/python -m lab.benchmarks.step_time
	$(BIN)/python -m lab.benchmarks.step_time --size quickstart
	$(BIN)/python -m lab.benchmarks.step_time --size table
	$(BIN)/python -m lab.benchmarks.model_costs

# The statistical tests from twenty random states: about half an hour on one core.
statistics: $(INSTALLED)
	for seed in $$(seq 0 19); do FACETVAE_TEST_SEED=$$seed $(BIN)/python -m pytest -q tests/statistical || exit 1; done

# Saved runs and checkpoints that were altered, processes that were killed, and odd inputs, in
# thousands: about half an hour on one core.
fuzz: $(INSTALLED)
	FACETVAE_FUZZ_RUNS=10000 FACETVAE_FUZZ_INPUTS=5000 $(BIN)/python -m pytest -q tests/fuzz

# The core's tests on the other Pythons that are here with the newest versions, and on the oldest
# with the lowest; the first time, some GB for each are downloaded.
versions:
	tests/versions.sh
