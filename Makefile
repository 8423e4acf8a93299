# make run, make test: both begin on a bare machine. `make env` makes .venv alone.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.made
OUT    := build

.PHONY: env run test lint format bench history docs clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt tools/environment.sh
	PYTHON="$(PYTHON)" sh tools/environment.sh $(VENV)
	@touch $@

run: env
	@mkdir -p $(OUT)
	$(BIN)/qkv explain "draw a map" --excel $(OUT)/draw-a-map.xlsx
	$(BIN)/qkv explain "the coffee spilled on the laptop and it stopped working" --model minilm --excel $(OUT)/coffee.xlsx
	@echo
	@echo "The workbooks: $(OUT)/draw-a-map.xlsx and $(OUT)/coffee.xlsx"

test: env
	$(BIN)/python -m pytest

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/limits.py

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: env
	@worst=0; \
	$(BIN)/python -m benchmarks.attention --runs 3 || worst=1; \
	$(BIN)/python -m benchmarks.imports --runs 3 || worst=1; \
	$(BIN)/python -m benchmarks.workbook || worst=1; \
	$(BIN)/python -m benchmarks.generate --runs 3 || worst=1; \
	$(BIN)/python -m benchmarks.load --runs 3 || worst=1; \
	$(BIN)/python -m benchmarks.embeddings || worst=1; \
	$(BIN)/python -m benchmarks.weights --runs 3 || worst=1; \
	$(BIN)/python -m benchmarks.watch --runs 3 || worst=1; \
	$(BIN)/python -m benchmarks.train --runs 3 || worst=1; \
	$(BIN)/python -m benchmarks.train --reached 180 || worst=1; \
	$(BIN)/python -m benchmarks.classify || worst=1; \
	$(BIN)/python -m benchmarks.tasks || worst=1; \
	exit $$worst

# the table of docs/history.md: over an hour; what was stopped goes on
history: env
	mkdir -p $(OUT)/history
	$(BIN)/qkv history --out $(OUT)/history --seeds 3 --plot $(OUT)/history/pictures --excel $(OUT)/history/sentence.xlsx

docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) $(OUT) site dist
