# make demo   set up .venv and run the main job on this CPU (about 5 minutes after installation)
# make test   set up .venv and run the tests
# make setup  only set up
# BEGIN INSTRUCTOR
# make lint   ruff, import-linter and mypy alone: with these `make test` begins
# make fix    let ruff mend what it can, and lay out the code
# make grading  also install what instructors need beside it: nbgrader and Dask (not: bubblewrap, which is the system's)
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

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "These labs need Python 3.11 or newer, and $(PYTHON) is older: run 'make setup PYTHON=python3.12' with one you have." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@echo "Setting up $(VENV): about 2 minutes, and 1 to 6 GB of disk depending on the torch build."
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@if [ -n "$(TORCH_INDEX_URL)" ]; then \
	  $(VENV)/bin/python -m pip install -q --index-url "$(TORCH_INDEX_URL)" "$$(grep '^torch==' requirements.lock)"; fi
	@$(VENV)/bin/python -m pip install -q -r requirements.lock
	@$(VENV)/bin/python -m pip install -q --no-deps -e .
	@touch $@
	@echo "Ready: $(VENV)/bin/lab --help, or 'source $(VENV)/bin/activate' and then plain 'lab'."

demo: $(STAMP)
	@$(VENV)/bin/lab compare --preset cpu-tiny --out runs/demo
# BEGIN INSTRUCTOR
	@$(VENV)/bin/grade demo --out runs/grading-demo
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
	  echo "'make fix' mends the layout, and some of the findings." >&2; exit 1; }
imports: $(LINT)
	@said=$$($(VENV)/bin/lint-imports --no-logo 2>&1) || { echo "$$said" >&2; exit 1; }
types: $(LINT)
	@$(VENV)/bin/mypy
fix: $(LINT)
	@$(VENV)/bin/ruff check --fix --quiet; $(VENV)/bin/ruff format --quiet

# One thread each: the tests that run at a time share the cores, and threads that wait for one another burn them.
test: export OMP_NUM_THREADS = 1
# END INSTRUCTOR
test: $(STAMP)
	@$(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# BEGIN INSTRUCTOR
.PHONY: grading
grading: $(STAMP)
	@$(VENV)/bin/python -m pip install -q -r requirements-grading.lock
	@echo "Ready: $(VENV)/bin/grade doctor tells whether submissions can be shut in on this machine."
# END INSTRUCTOR

clean:
	rm -rf $(VENV) runs build *.egg-info
