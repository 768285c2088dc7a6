# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-slow test-gpu test-cluster test-browser lint bench golden torture docs clean

setup: .venv/ready

# constraints.txt pins the versions that the tests ran with; an unpinned `torch` may install gigabytes of CUDA.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,parquet,report]'
	touch $@

demo: setup
	$(BIN)/sora demo

test: setup lint
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: setup
	$(BIN)/pytest -m slow

# The same tests as on the emulated device, and gpu-report.json to send back: make test-gpu DEVICE=mps
DEVICE ?= cuda
test-gpu: setup
	$(BIN)/pytest tests/accelerator --device $(DEVICE) -m ''
	$(BIN)/python benchmarks/gpu.py --device $(DEVICE)

# Slurm, Ray and two nodes on this machine; INSTALL=1 installs the packages that are missing (Debian, as root).
test-cluster: setup
	$(BIN)/python -m tests.cluster $(if $(INSTALL),--install)

# Needs Chromium: Debian's package, or the path of another in $CHROMIUM.
test-browser: setup
	command -v "$${CHROMIUM:-chromium}" || apt-get install --yes chromium
	$(BIN)/pip install --quiet -c constraints.txt -e '.[browser]'
	$(BIN)/pytest -m browser

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	for name in step textbook floor memory scaling data guard startup grid; do \
	  echo "== $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; done
	$(BIN)/python benchmarks/step.py --all --rounds 3
	$(BIN)/python benchmarks/step.py --width 64 --rounds 5
	$(BIN)/python benchmarks/textbook.py --width 64 --rounds 5 --processes 1
	$(BIN)/python benchmarks/memory.py --width 64

# Did a change alter behaviour? Commands on the commit $(OLD) and on the working tree: make golden OLD=HEAD~3
golden: setup
	$(BIN)/python benchmarks/golden.py $(OLD) $(if $(ONLY),--only $(ONLY)) $(if $(EXPECT),--expect '$(EXPECT)')

# An hour of kills, flipped bits, bad input and hostile files; docs/results/reliability.md has the last table.
torture: setup
	$(BIN)/python -m tests.torture --minutes 60 --jobs 2

# The site in build/site; a warning is an error. `make docs` alone installs what it needs.
docs: setup
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
