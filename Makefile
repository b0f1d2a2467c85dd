# `make` alone lists the targets.

PYTHON ?= python3

VENV  := .venv
DEMO  := .venv-demo
PEERS := .venv-peers
BIN   := $(VENV)/bin
TOOLS := $(CURDIR)/.tools/bin
LOCK  := .ci/constraints.txt
LOCKED := .venv-lock/bin

# pip takes the pins for the packages and for the build environment from the same file, old pips and new ones.
PINNED := PIP_CONSTRAINT=$(CURDIR)/$(LOCK) PIP_BUILD_CONSTRAINT=$(CURDIR)/$(LOCK) PIP_DISABLE_PIP_VERSION_CHECK=1

# What the tests call by name is found here first.
export PATH := $(TOOLS):$(PATH)

# kvwatch is started hundreds of times by the tests: from what was compiled once.
unexport PYTHONDONTWRITEBYTECODE

# Tests that wait most of the time, for processes that they start: they run beside the others, one after another, so
# that none has another of its kind beside it. Benchmarks run alone, afterwards.
WAITING := $(addprefix tests/,alerts cli contracts deploy e2e page)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint types contract docs fmt render plain preview advice live scale soak bench bench-live coverage tools lock hashes image-check sbom clean python

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "PYTHON=… chooses the interpreter (3.11 or newer; now: $(PYTHON)). It counts when a venv is made: 'make clean' first."

setup: $(VENV)/.ready ## make .venv with kvwatch and everything the tests need, at the pinned versions

demo: $(DEMO)/.ready ## run kvwatch on a recorded incident; needs nothing but Python
	$(DEMO)/bin/kvwatch demo

test: setup tools lint types contract docs ## everything that must hold before a change goes in
	@mkdir -p build
	$(BIN)/pytest -o cache_dir=.pytest_cache/waiting $(WAITING) >build/waiting.txt 2>&1 & waiting=$$!; \
	  trap 'kill $$waiting' INT TERM; \
	  $(BIN)/pytest $(WAITING:%=--ignore=%) -m "not live and not scale and not benchmark"; computed=$$?; \
	  wait $$waiting; waited=$$?; cat build/waiting.txt; exit $$((computed || waited))
	$(BIN)/pytest -m benchmark

lint: setup ## style and common mistakes, of the code and of the workflows
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@PYTHON=$(PYTHON) tests/tools/get-actionlint
	actionlint -shellcheck= -pyflakes= .github/workflows/*.yml

types: setup ## type check, strict
	$(BIN)/mypy

contract: setup ## which package may import which
	$(BIN)/lint-imports --no-cache

docs: setup ## build the documentation into build/site, and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f .mkdocs.yml
	$(BIN)/python tests/tools/check_site.py build/site

fmt: setup ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

render: setup ## write alerts/, dashboards/ and the tables of README.md and docs/ from the code
	$(BIN)/kvwatch render

plain: tools ## write deploy/kubernetes/plain.yaml from the example beside it
	{ echo "# What \`kubectl kustomize deploy/kubernetes/example\` prints (\`make plain\`): change it there."; \
	  kubectl kustomize deploy/kubernetes/example; } > deploy/kubernetes/plain.yaml

preview: setup tools ## pictures of the dashboards, from recordings, into dashboards/preview/
	$(BIN)/python -m tests.dashboards.preview

advice: setup ## does the advice work? the loop closed on a real vLLM; opt-in: VLLM=… MODEL=…, half an hour
	$(BIN)/python -m tests.tools.advice

live: setup ## tests against a real vLLM; opt-in
	$(BIN)/pytest -m live

scale: setup tools ## a thousand sidecars in one real Prometheus; opt-in, minutes and gigabytes
	$(BIN)/pytest -m scale -s

soak: setup ## a day of samples in minutes, and half an hour beside a real vLLM (KVWATCH_LIVE_URL); opt-in
	$(BIN)/python tests/tools/day.py
	@test -n "$(KVWATCH_LIVE_URL)" || echo "KVWATCH_LIVE_URL names no vLLM: that half is left out"
	test -z "$(KVWATCH_LIVE_URL)" || $(BIN)/python tests/tools/soak.py "$(KVWATCH_LIVE_URL)" --for 1800 -o build/soak

bench: setup tools ## what watching costs, against its budgets: one table, and a line more in .benchmarks/; minutes
	@test -x $(PEERS)/bin/pip || $(PYTHON) -m venv $(PEERS)
	@for peer in vllm-metrics-monitor vllm-doctor; do \
	  $(PEERS)/bin/pip install --quiet $$peer || echo "$$peer can't be installed here: not compared" >&2; done
	$(BIN)/python -m tests.benchmarks.run --peers $(PEERS)/bin

bench-live: setup ## what watching costs a real vLLM under load; opt-in: LIVE="--url … --pid …"
	$(BIN)/python -m tests.benchmarks.live $(LIVE)

coverage: setup tools ## the tests with branch coverage
	$(BIN)/pytest -m "not live and not scale and not benchmark" --cov --cov-report=term --cov-report=html

tools: python ## promtool, prometheus, amtool, alertmanager, kubectl, actionlint (from PATH or unpacked into .tools/), chromium
	@tests/tools/get-prometheus
	@PYTHON=$(PYTHON) tests/tools/get-kubectl
	@PYTHON=$(PYTHON) tests/tools/get-actionlint
	@tests/tools/get-chromium

lock: python ## refresh the pinned versions from the newest releases
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	PIP_CONSTRAINT= $(LOCKED)/pip install --quiet --upgrade pip
	PIP_CONSTRAINT= $(LOCKED)/pip install --quiet --upgrade hatchling editables -e '.[docs,sbom,test]'
	$(LOCKED)/pip freeze --exclude-editable | LC_ALL=C sort -f > $(LOCK).new
	@! grep -vE '^[A-Za-z0-9._-]+==[A-Za-z0-9.+!_-]+$$' $(LOCK).new || { echo "not a plain name==version, see above" >&2; exit 1; }
	mv $(LOCK).new $(LOCK)
	rm -rf .venv-lock
	$(MAKE) hashes

# uv asks the registry for the hashes of all files of a release, so that the image can be built for any processor.
COMPILE = $(LOCKED)/uv pip compile --quiet --no-config --no-header --no-annotate --generate-hashes --universal \
  --python-version 3.11 --constraints $(LOCK)

hashes: python ## what the image installs, and is built with, with hashes, at the pinned versions
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	PIP_CONSTRAINT= $(LOCKED)/pip install --quiet uv
	$(COMPILE) pyproject.toml --output-file .ci/requirements.txt
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | $(COMPILE) - --output-file .ci/build.txt
	rm -rf .venv-lock

image-check: setup ## the Dockerfile's steps, run without a container engine; needs root on Linux
	$(BIN)/python tests/tools/image_check.py

sbom: python ## kvwatch.cdx.json: what the image's environment holds, as CycloneDX
	rm -rf .venv-sbom .venv-image && $(PYTHON) -m venv .venv-sbom && $(PYTHON) -m venv --without-pip .venv-image
	$(PINNED) .venv-sbom/bin/pip install --quiet cyclonedx-bom
	PIP_DISABLE_PIP_VERSION_CHECK=1 .venv-sbom/bin/pip --python .venv-image/bin/python install --quiet --require-hashes -r .ci/requirements.txt
	$(PINNED) .venv-sbom/bin/pip --python .venv-image/bin/python install --quiet --no-deps .
	.venv-sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o kvwatch.cdx.json .venv-image
	rm -rf .venv-sbom .venv-image

clean: ## remove everything that was built or fetched
	rm -rf .venv .venv-demo .venv-lock .venv-sbom .venv-image .venv-peers .tools kvwatch.cdx.json build dist htmlcov .coverage .coverage.* .benchmarks \
	  .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find kvwatch tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --- how the venvs come to be ---

$(VENV)/.ready: pyproject.toml $(LOCK) | python
	@test -x $(BIN)/pip || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	@echo "setting up $(VENV): kvwatch and what its tests need, at the versions of $(LOCK)"
	@$(PINNED) $(BIN)/pip install --quiet -e '.[docs,test]'
	@touch $@

$(DEMO)/.ready: pyproject.toml $(LOCK) | python
	@test -x $(DEMO)/bin/pip || { rm -rf $(DEMO); $(PYTHON) -m venv $(DEMO); }
	@echo "setting up $(DEMO): kvwatch and what it needs to run, at the versions of $(LOCK)"
	@$(PINNED) $(DEMO)/bin/pip install --quiet -e .
	@touch $@

python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "no '$(PYTHON)' here: install Python 3.11 or newer, or say where it is: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), kvwatch needs 3.11 or newer: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments (no venv or ensurepip): on Debian, apt-get install python3-venv" >&2; exit 1; }
