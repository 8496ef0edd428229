# Dispatch: run `make help`. Needs Python 3.11 or newer as `python3`, and nothing else.

PYTHON ?= python3
# How many processes run the tests, each with servers of its own: one more than there are cores, since they wait now
# and then. Servers that were given are used by one.
JOBS ?= $(if $(DATABASE_URL)$(REDIS_URL),0,$(shell expr 1 + $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)))
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

# The simulator, demo data and demo logins: only with the embedded servers, or when asked for by hand.
ifeq ($(DATABASE_URL)$(REDIS_URL),)
DISPATCH_DEVELOPMENT ?= 1
export DISPATCH_DEVELOPMENT
endif

# Compiled once: the tests alone start some hundred processes, and each would compile everything by itself.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up demo stop test lint bench soak clean

help: ## say what there is
	@echo "Dispatch. DATABASE_URL and REDIS_URL put all of these on servers of your own (docs/configuration.md)."
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

up: $(STAMP) ## run everything, with demo data and simulated phones, until Ctrl-C
	@exec $(PY) manage.py up

demo: $(STAMP) ## submit forms, watch simulated technicians answer them, end with a table
	@exec $(PY) manage.py demo

stop: $(STAMP) ## stop embedded servers that nobody uses (left behind when `make up` was killed)
	@$(PY) -m dispatch.core.embedded "$${DISPATCH_DATA_DIR:-.data}"

test: $(STAMP) ## run the whole suite (ARGS="-k offer" for a part)
	$(PY) -m pytest -m "not soak" -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(STAMP) ## ruff, mypy and the layers of the design
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: $(STAMP) ## measure (SUITE=jobs for one suite); writes bench.json
	@exec $(PY) -m tests.benchmarks $(SUITE)

soak: $(STAMP) ## the random and long tests
	$(PY) -m pytest -m soak --timeout 3600 $(ARGS)

clean: ## remove caches and the tests' servers; .venv and .data stay
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis staticfiles test-results .data/test
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# What pyproject.toml asks for, in the versions of constraints.txt; the project itself is run from this folder.
REQUIRED := import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*p["dependencies"], *p["optional-dependencies"]["dev"], sep="\n")

$(STAMP): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version)'
	@echo "Preparing $(VENV): once, a minute or two"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -c '$(REQUIRED)' > $(VENV)/required.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check -r $(VENV)/required.txt -c constraints.txt
	@touch $@
