# The commands of the book. `make book` and `make test` are all a newcomer needs.
PYTHON ?= python3
JOBS   ?= 2
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
BENCH  := .venv-bench

.DEFAULT_GOAL := help
.PHONY: help book html test refresh bench lab serve lock clean

help: ## list these commands
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

book: $(READY) ## execute every chapter, check every figure, render the pages
	@$(BIN)/fingers run --jobs $(JOBS)
	@$(BIN)/fingers check --require-fresh --jobs $(JOBS)
	@$(BIN)/fingers render

html: $(READY) ## render the committed notebooks without running them
	@$(BIN)/fingers render

test: $(READY) ## unit, property, book and rendered-page tests, ruff, type check
	$(BIN)/ruff check src tests benchmarks chapters
	$(BIN)/ruff format --check src tests benchmarks chapters
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

refresh: $(READY) ## execute what changed and write it over the committed notebooks
	@$(BIN)/fingers refresh --jobs $(JOBS)

lab: $(READY) ## open the chapters in JupyterLab, to run them cell by cell
	@$(BIN)/jupyter trust chapters/*.ipynb  # or JupyterLab would hide the committed figures
	$(BIN)/jupyter lab --ServerApp.root_dir=$(CURDIR)/chapters

serve: html ## serve the rendered pages on http://localhost:8000
	$(BIN)/python -m http.server 8000 --bind 127.0.0.1 --directory _build/html

bench: $(BENCH)/.ready ## compare with peers, side by side, in an environment of their own
	$(BENCH)/bin/python benchmarks/run.py

lock: $(READY) ## write requirements.lock from the versions installed in .venv
	$(BIN)/python -m thousand_fingers.book.lock > requirements.lock.new && mv requirements.lock.new requirements.lock

clean: ## remove everything that can be made again (data carriers are kept)
	rm -rf _build $(VENV) $(BENCH) $(BENCH)-* .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV) || \
	  { echo "The venv module is missing (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@echo "installing into $(VENV) (on Linux, torch is a download of several gigabytes) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[book,test]'
	@touch $@

$(BENCH)/.ready: benchmarks/bench.lock $(READY)
	@test -x $(BENCH)/bin/pip || $(PYTHON) -m venv --clear $(BENCH)
	@$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -c benchmarks/bench.lock -e . -r benchmarks/requirements.txt
	@touch $@
