# Two commands are enough: `make lab` and `make test`.

PYTHON ?= python3
VENV ?= .venv
export VENV
BIN = $(VENV)/bin
TWO = --numprocesses=2 --dist=loadfile
# One thread each: two that wait for each other, and for whoever else wants the cores, can take ten times as long.
ONE_THREAD = OMP_NUM_THREADS=1
NOTEBOOKS = --nbval-lax --nbval-current-env --nbval-cell-timeout=600 --nbval-kernel-startup-timeout=300 \
	--nbval-sanitize-with=tests/nbval_sanitize.cfg

.PHONY: help setup lab test-setup lint test test-all check student-kit format clean

help:
	@echo "make lab       set up if needed, then JupyterLab on the first lesson"
	@echo "make setup     environment, packages, model"
	@echo "make test      set up, then every test and every notebook"
	@echo "make test-all  the longer runs too"
	@echo "make check     the fast part: lint, types, tests without the real model"
	@echo "make student-kit  an archive of the course without the answers, in dist/"
	@echo "make format    format code and notebooks"
	@echo "make clean     remove the environment (fetched models stay)"

setup:
	$(PYTHON) bootstrap.py

lab:
	$(PYTHON) bootstrap.py lab $(LAB_ARGS)

test-setup:
	$(PYTHON) bootstrap.py --extras test,instructor

lint: test-setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint
	$(ONE_THREAD) $(BIN)/pytest $(TWO) -m "not model and not slow and not browser and not install and not timing" tests

# What times something runs last and alone.
test: lint
	$(ONE_THREAD) $(BIN)/pytest $(TWO) -m "not slow and not timing" tests
	$(BIN)/pytest -m "timing and not slow" tests
	$(ONE_THREAD) $(BIN)/pytest $(NOTEBOOKS) lessons

test-all: lint
	$(ONE_THREAD) $(BIN)/pytest $(TWO) -m "not timing" tests
	$(BIN)/pytest -m timing tests
	$(ONE_THREAD) $(BIN)/pytest $(NOTEBOOKS) lessons

student-kit:
	$(PYTHON) tools/student_kit.py

format: test-setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)
