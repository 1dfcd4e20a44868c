# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test thorough lint docs bench clean golden

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/tnmars demo --out build/demo
	@echo "the pages: build/demo/network.html and build/demo/tensor-train.html"

# One worker per core, each with one thread; a worker that is done takes tests from the other.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

test: $(STAMP)
	$(PYTEST)

# Every number of cases that the issues state; `make test` runs about 5 % of them.
thorough: $(STAMP)
	TNMARS_THOROUGH=1 $(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/python docs/generate
	$(BIN)/python -m sphinx -W --keep-going -q docs build/docs
	@echo "the docs: build/docs/index.html"

# Ratios against dense torch layers and against peers, interleaved in one run; not part of the tests.
bench: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python tests/bench

# Rewrites the golden files and the shipped schema; review the diff.
golden: $(STAMP)
	$(BIN)/python -c "from tnmars.spec import schema_text; print(schema_text(), end='')" > tnmars/spec/schema.json.new
	mv tnmars/spec/schema.json.new tnmars/spec/schema.json
	TNMARS_REWRITE_GOLDEN=1 $(BIN)/python -m pytest tests/test_golden.py tests/test_messages.py -k golden

clean:
	rm -rf build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
