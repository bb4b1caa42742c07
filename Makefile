# The two commands of the README are `make demo` and `make test`. Each makes .venv on first use; `make setup` does only that.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
ARGS   ?=

# On all cores, of many at most eight: each of the workers collects every test. Tests that start real programs go file by file to a worker.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 8

.PHONY: help setup demo test test-all kube-assets vm-assets watch-assets check format lint types contracts explore vm-soak bench reference image-requirements protos clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

# With the extra of the scheduler's live page, which the demo serves.
$(VENV)/.runtime: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt -e '.[page]'
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "adding the test tools to $(VENV) (once)"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

# With a cluster it needs the library of Kubernetes, too, and with real guests that of QEMU: both are extras.
demo: $(VENV)/$(if $(findstring --cluster,$(ARGS))$(findstring qemu,$(ARGS)),.dev,.runtime) ## watch VMs being scaled by negotiation (ARGS="--vms 8 --seconds 30", ARGS="--vms qemu", ARGS="--cluster kube")
	@$(BIN)/parley demo --load $(ARGS)

setup: $(VENV)/.dev ## only set up $(VENV): the programs and the test tools

test: $(VENV)/.dev ## pass the quick tests, under five minutes on two cores (ARGS="-k permit")
	@echo "the quick tests: without real programs and long walks, which \`make test-all\` runs too"
	@$(PYTEST) --dist load -m quick $(ARGS)

test-all: $(VENV)/.dev ## pass all tests, half an hour on two cores; those with Kubernetes, Prometheus or Chromium are skipped until `make kube-assets watch-assets` has run
	@$(PYTEST) --dist loadgroup $(ARGS)

kube-assets: ## build Kubernetes and install what its tests and demos need, once: some minutes, into a cache (needs Go and root)
	@$(PYTHON) tests/kube/assets/build.py --packages

vm-assets: ## get QEMU and a kernel for real guests, once: 29 MB into a cache (root only where QEMU is not installed)
	@$(PYTHON) -m labs.vms.assets

watch-assets: ## get Prometheus (19 MB into a cache) and Chromium for the tests of alerts, board and live page, once (root only for Chromium)
	@$(PYTHON) -m tests.support.watch_assets

format: $(VENV)/.dev ## rewrite the files in the project's format
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: $(VENV)/.dev ## formatting and lint, without changing anything
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: $(VENV)/.dev ## strict types in packages and tests
	@$(BIN)/mypy

contracts: $(VENV)/.dev ## the import contracts
	@$(BIN)/lint-imports

reference: $(VENV)/.dev ## the pages below docs/reference, after a change of a reason, error, metric, option or setting
	@$(BIN)/python -m tests.support.reference

image-requirements: $(VENV)/.dev ## the packages of the image with the hashes of their files, after a change of versions (asks the package index)
	@$(BIN)/python -m tests.support.image_requirements

protos: $(VENV)/.dev ## the modules of the .proto files of node plugins, after a change of those
	@$(BIN)/python -m tests.support.protos

check: lint types contracts test ## what to pass before a commit; CI runs all tests

explore: $(VENV)/.dev ## walk the ledger's model, and run the three cores together, from fresh seeds (ARGS="-x")
	@PARLEY_WALK_SEED=fresh PARLEY_WALK_STEPS=$${PARLEY_WALK_STEPS:-10000000} \
	  PARLEY_SIMULATION_SEED=fresh PARLEY_SIMULATION_RUNS=$${PARLEY_SIMULATION_RUNS:-600} \
	  $(BIN)/python -m pytest tests/machines/test_ledger_walk.py tests/simulation/test_simulation.py $(ARGS)

# SECONDS is not taken from the environment, where a shell may keep its own.
SECONDS := 600
vm-soak: $(VENV)/.dev ## put random load on three real guests for ten minutes, and look all the time whether anything goes wrong (SECONDS=120, ARGS="--seed 7")
	@$(BIN)/python -m tests.vm.soak --seconds $(SECONDS) $(ARGS)

bench: $(VENV)/.dev ## the figures of the README (ARGS="--short")
	@for f in benchmarks/*.py; do echo "== $$f"; $(BIN)/python $$f $(ARGS) || exit 1; done

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
