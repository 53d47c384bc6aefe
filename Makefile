# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test lint types bench soak clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@mkdir -p .import-root && ln -sfn .. .import-root/tenxgraph_temporal
	@touch $(STAMP)

demo: setup ## kill a worker mid-step and watch another finish; KEEP=1 leaves the servers up
	@$(BIN)/python -m tenxgraph_temporal.examples.demo $(if $(KEEP),--keep)

test: setup ## the whole suite, on real servers that it starts itself
	@$(BIN)/python -m pytest -n 4 --dist worksteal $(ARGS)

bench: setup ## floor, product, batched tools and, where installed, LangGraph, on servers that it starts
	@$(BIN)/python -m tenxgraph_temporal.bench.run $(ARGS)

soak: setup ## 10,000 short runs, and what memory they take; ARGS="--runs 0 --paused 1000" for runs that wait
	@$(BIN)/python -m tenxgraph_temporal.bench.soak $(ARGS)

lint: setup
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: setup
	@$(BIN)/mypy -p tenxgraph_temporal

clean:
	rm -rf .venv .import-root .dev build *.egg-info
