# Dispatch: run `make help`. Needs Python 3.11 or newer as `python3`, and nothing else.

PYTHON ?= python3
# Number of test processes, each with dedicated servers: two more than the number of cores, because tests
# often wait. With servers from the environment, there is only one.
JOBS ?= $(if $(DATABASE_URL)$(REDIS_URL),0,$(shell expr 2 + $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)))
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

# The simulator, demo data and demo logins: only with the embedded servers, or when set explicitly.
ifeq ($(DATABASE_URL)$(REDIS_URL),)
DISPATCH_DEVELOPMENT ?= 1
export DISPATCH_DEVELOPMENT
endif

# Compile once: the tests alone start some hundred processes, and each would otherwise compile everything.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up demo stop test lint bench soak image-test clean lock sbom

help: ## list the commands
	@echo "Dispatch. Set DATABASE_URL and REDIS_URL to use your servers (docs/reference/configuration.md)."
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

up: $(STAMP) ## run everything, with a busy demo company, until Ctrl-C (ARGS=--quiet: no new forms)
	@exec $(PY) manage.py up $(ARGS)

demo: $(STAMP) ## submit forms, watch simulated technicians and a provider outage, and end with a table
	@exec $(PY) manage.py demo

stop: $(STAMP) ## stop unused embedded servers (left behind if `make up` or `make demo` was killed)
	@$(PY) -m dispatch.dev.embedded_servers "$${DISPATCH_DATA_DIR:-.data}"

test: $(STAMP) ## run the whole suite (ARGS="-k offer" for a part)
	$(PY) -m pytest -m "not soak and not image" -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(STAMP) ## run ruff, mypy, import-linter and the prose check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) -m tests.prose

bench: $(STAMP) ## run the benchmarks (SUITE=jobs for one suite); writes bench.json
	@exec $(PY) -m tests.benchmarks $(SUITE)

soak: $(STAMP) ## run the random and long tests; ends with what was left out and why
	$(PY) -m pytest -m soak -rs --timeout 3600 $(ARGS)

image-test: $(STAMP) ## build the image with buildah, and run the services of the compose file from it
	$(PY) -m pytest -m image tests/image $(ARGS)

lock: $(STAMP) ## write deploy/requirements.txt: what the image installs, with hashes
	$(PY) deploy/supply_chain.py lock

sbom: $(STAMP) ## print the software bill of materials of the image (CycloneDX)
	@$(PY) deploy/supply_chain.py sbom

clean: ## remove caches and the tests' servers; .venv and .data stay
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis staticfiles test-results .data/test
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# The requirements of pyproject.toml, in the versions of constraints.txt. The project runs from this folder.
REQUIRED := import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*p["dependencies"], *p["optional-dependencies"]["dev"], sep="\n")

$(STAMP): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is required; this is " + sys.version)'
	@echo "Preparing $(VENV) (once, takes a minute or two)"
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PY) -c '$(REQUIRED)' > $(VENV)/required.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check -r $(VENV)/required.txt -c constraints.txt
	@touch $@
