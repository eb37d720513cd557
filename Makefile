# make demo   set up .venv and run the main job on this CPU (at most 5 minutes after installation)
# make test   set up .venv and run the tests
# BEGIN INSTRUCTOR
# make test-all  and then the thorough ones: sandboxed attacks, kills, browsers, Dask (about 40 minutes more)
# END INSTRUCTOR
# make setup  only set up
# make watch  also install what `lab watch` and `lab export` need: Panel, TensorBoard, Weights & Biases
# BEGIN INSTRUCTOR
# make lint   ruff, import-linter and mypy alone: with these `make test` begins
# make fix    let ruff fix what it can, and lay out the code
# make grading  also install what instructors need beside it: nbgrader and Dask (not: bubblewrap and libseccomp, which are the system's)
# make site   the pages, labs, commands and records as one site of plain files, in build/site
# END INSTRUCTOR
#
# PYTHON=python3.12 make setup          another interpreter (3.11 or newer)
# TORCH_INDEX_URL=https://... make setup   take torch from that index, for example PyTorch's CPU-only one
# JOBS=4 make test                      run so many tests at a time; each starts up to 8 ranks, so keep it low

PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2
STAMP  := $(VENV)/.installed

.PHONY: demo test setup clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n '/^# BEGIN /d; /^# END /d; s/^# //p' Makefile

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH_INDEX_URL="$(TORCH_INDEX_URL)" sh setup.sh
	@touch $@

demo: $(STAMP)
	@echo "First, at most 5 minutes on two cores: one small decoder is trained seven times on this CPU, then a verdict and its page."
	@$(VENV)/bin/lab compare --preset cpu-tiny --out runs/demo
# BEGIN INSTRUCTOR
	@echo "Then four submissions are graded. Last, the paths of two pages to open."
	@$(VENV)/bin/python -m grading.demo runs/grading-demo
# END INSTRUCTOR

# BEGIN INSTRUCTOR
# First, so that a slip costs seconds. A second lock, so that a student's laptop installs none of it.
test: lint

LINT := $(VENV)/.lint
$(LINT): requirements-lint.lock $(STAMP)
	@$(VENV)/bin/python -m pip install -q -r requirements-lint.lock
	@touch $@

.PHONY: lint ruff imports types fix
lint: ruff imports types
ruff: $(LINT)
	@$(VENV)/bin/ruff check --quiet && $(VENV)/bin/ruff format --check --quiet || { \
	  echo "'make fix' fixes the layout, and some of the findings." >&2; exit 1; }
imports: $(LINT)
	@said=$$($(VENV)/bin/lint-imports --no-logo 2>&1) || { echo "$$said" >&2; exit 1; }
types: $(LINT)
	@$(VENV)/bin/mypy
fix: $(LINT)
	@$(VENV)/bin/ruff check --fix --quiet; $(VENV)/bin/ruff format --quiet

# One thread each: the tests that run at a time share the cores, and threads that wait for one another burn them.
test test-all: export OMP_NUM_THREADS = 1
# What decides right or wrong quickly; then the rest. Their budgets stand in tests/conftest.py.
test: TIER = --durations 10
.PHONY: test-all
test-all: test
	@$(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 10 -m thorough
# END INSTRUCTOR
test: $(STAMP)
	@$(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(TIER)

# BEGIN INSTRUCTOR
.PHONY: grading
grading: $(STAMP)
	@$(VENV)/bin/python -m pip install -q -r requirements-grading.lock
	@echo "Ready: $(VENV)/bin/grade doctor says whether submissions can be shut in on this machine."
# END INSTRUCTOR

# BEGIN INSTRUCTOR
.PHONY: site site-tools
site-tools: $(STAMP)
	@$(VENV)/bin/python -m pip install -q -r requirements-grading.lock -r requirements-watch.lock -r requirements-site.lock
site: site-tools
	@$(VENV)/bin/python site/build.py build/site
	@echo "Ready: open build/site/index.html, or copy build/site to any web server"
# END INSTRUCTOR

.PHONY: watch
watch: $(STAMP)
	@$(VENV)/bin/python -m pip install -q -r requirements-watch.lock
	@echo "Ready: $(VENV)/bin/lab watch runs/demo"

clean:
	rm -rf $(VENV) runs build *.egg-info
