# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test thorough lowest newest foreign wheel lint docs bench clean golden

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/tnmars demo --out build/demo
	@echo "the pages: build/demo/network.html and build/demo/tensor-train.html"

# One worker per core, each with one thread; a worker that is done takes tests from the other.
TESTING := -m pytest -n auto --maxprocesses 8 --dist worksteal
PYTEST := $(BIN)/python $(TESTING)

test: $(STAMP)
	$(PYTEST)

# Every number of cases that the issues state; `make test` runs about 5 % of them.
thorough: $(STAMP)
	TNMARS_THOROUGH=1 $(PYTEST)

# The same tests with the lowest versions that pyproject.toml declares, and with the newest torch that installs, each in an
# environment of its own. `make lowest PYTHON=python3.10 TESTS=tests/layer` takes another Python, and some of the tests.
lowest:
	mkdir -p build
	test -x .lowest/bin/python || $(PYTHON) -m venv .lowest
	$(PYTHON) tests/scripts/lowest.py > build/lowest.txt
	.lowest/bin/python tests/scripts/cpu_torch.py "$$($(PYTHON) tests/scripts/lowest.py torch)" build/lowest.txt
	.lowest/bin/python -m pip install --quiet -c build/lowest.txt -e '.[dev]'
	.lowest/bin/python $(TESTING) $(TESTS)

newest:
	test -x .newest/bin/python || $(PYTHON) -m venv .newest
	.newest/bin/python tests/scripts/cpu_torch.py newest
	.newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager -e '.[dev]'
	.newest/bin/python $(TESTING) $(TESTS)

# The tests against other libraries (transformers, Accelerate, Lightning, torchao, tensorly, tednet, quimb), which skip
# where one is missing. Here they are installed, and one that is missing is an error. The trained MobileNetV2 is in a
# package of npm: `npm pack nsfwjs@4.3.0`, then `make foreign TNMARS_NSFWJS=the file`.
FOREIGN := tests/integrations tests/interchange tests/models/test_mobile_networks.py tests/test_arguments.py
foreign:
	test -x .foreign/bin/python || $(PYTHON) -m venv .foreign
	.foreign/bin/python -m pip install --quiet -c constraints.txt -e '.[foreign]'
	TNMARS_FOREIGN=1 HF_HUB_OFFLINE=1 .foreign/bin/python $(TESTING) $(FOREIGN)

# The wheel, in an empty environment and away from this folder, runs the demo.
wheel:
	$(PYTHON) tests/scripts/wheel.py

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
	rm -rf build .venv .lowest .newest .foreign .mypy_cache .ruff_cache .pytest_cache .hypothesis
