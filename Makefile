# make demo    the main job on real data, on a fresh machine
# make test    all tests, on the newest `datasets` and on 4.8.4
# make test-clusters    those of Spark and Ray, which `make test` leaves out
# make test-train    those of trainers (transformers, trl, accelerate, Lightning), which `make test` leaves out
# make test-axolotl    those of axolotl and of trl's command line, with the releases that axolotl pins
# make test-reference    the reference reads what we write
# make bench   our reading and writing beside other systems' (benchmarks/README.md); installs them: some GB
# make lint    ruff and mypy
# make clean   remove what these made

PYTHON ?= python3
PIP_INSTALL = bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
NEW = .venv
OLD = .venv-datasets4
CLUSTERS = .venv-clusters
AXOLOTL = .venv-axolotl
# Ray listens on all interfaces: its tests run where there is none but loopback, and are skipped where that cannot be.
ALONE = unshare --net --map-root-user
TEST_CLUSTERS = $(CLUSTERS)/bin/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS) tests/clusters
# Trainers: the newest, and those that axolotl 0.19 pins, which only the tests of transformers' Trainer run with.
TRAIN = .venv-train
TRAIN_OLD = .venv-train4
TRAINERS = datasets==5.2.0 transformers==5.24.0 accelerate==1.15.0 trl==1.16.0
TRAINERS_OLD = datasets==4.8.4 transformers==5.16.1 accelerate==1.13.0 trl==1.9.0
# The others are tests of what is elsewhere and needs transformers.
TEST_TRAINERS = tests/train tests/cli/test_tokenize.py tests/hf/reading/test_packed.py
TEST_TRAINERS_OLD = tests/train/test_trainers.py
# Reads what we write. Of torchvision, which it wants, no more than its name is imported.
REFERENCE = .venv-reference
# What depends on `datasets`: tested again with the release that axolotl pins.
TESTS_OF_DATASETS = tests/hf tests/conformance tests/engine
# Servers that tests start and no package of pip brings: Azurite comes by npm, where there is npm.
SERVERS = .servers
SOURCES = hf_mds builders build_backend tests demo benchmarks notebooks
export HF_HUB_OFFLINE = 1

.PHONY: demo test test-clusters test-axolotl test-train test-reference bench lint clean

demo: $(NEW)/.ready-demo
	$(NEW)/bin/python demo/demo.py

# Both runs always happen; the later closing line of pytest is that of $(OLD).
test: $(NEW)/.ready-test $(OLD)/.ready-test $(SERVERS)/.ready
	@status=0; \
	for venv in $(NEW) $(OLD); do \
		paths=; \
		if [ $$venv = $(OLD) ]; then paths=$$(ls -d $(TESTS_OF_DATASETS) 2>/dev/null); fi; \
		$$venv/bin/python -c 'import datasets; print("\ntests with datasets", datasets.__version__)'; \
		$$venv/bin/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS) $$paths || status=1; \
	done; \
	exit $$status

test-clusters: $(CLUSTERS)/.ready-test
	@if $(ALONE) ip link set lo up 2>/dev/null; then \
		$(ALONE) sh -c 'ip link set lo up; exec "$$@"' sh $(TEST_CLUSTERS); \
	else $(TEST_CLUSTERS); fi

test-train: $(TRAIN)/.ready-test $(TRAIN_OLD)/.ready-test
	@status=0; \
	$(TRAIN)/bin/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS) $(TEST_TRAINERS) || status=1; \
	$(TRAIN_OLD)/bin/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS) $(TEST_TRAINERS_OLD) || status=1; \
	exit $$status

test-axolotl: $(AXOLOTL)/.ready-test
	$(AXOLOTL)/bin/python -m pytest -p no:anyio -n 2 --dist loadfile $(PYTEST_ARGS) tests/train_axolotl tests/train/test_trl_command.py

test-reference: $(NEW)/.ready-test $(REFERENCE)/.ready
	HF_MDS_REFERENCE_PYTHON=$(REFERENCE)/bin/python $(NEW)/bin/python -m pytest $(PYTEST_ARGS) tests/engine/writing/test_reference_reads.py

bench: $(NEW)/.ready-bench
	$(NEW)/bin/python benchmarks/run.py $(BENCH_ARGS)

lint: $(NEW)/.ready-test
	$(NEW)/bin/ruff check $(SOURCES)
	$(NEW)/bin/ruff format --check $(SOURCES)
	$(NEW)/bin/mypy

clean:
	rm -rf $(NEW) $(OLD) $(CLUSTERS) $(AXOLOTL) $(TRAIN) $(TRAIN_OLD) $(REFERENCE) $(SERVERS) .venv-peers benchmarks/data demo-data build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(NEW)/bin/python $(OLD)/bin/python $(CLUSTERS)/bin/python $(TRAIN)/bin/python $(TRAIN_OLD)/bin/python $(AXOLOTL)/bin/python \
$(REFERENCE)/bin/python:
	$(PYTHON) -m venv $(@D:/bin=)

$(NEW)/.ready-demo: setup.cfg constraints.txt | $(NEW)/bin/python
	$(NEW)/$(PIP_INSTALL) --editable .
	@touch $@

$(NEW)/.ready-bench: setup.cfg constraints.txt | $(NEW)/bin/python
	$(NEW)/$(PIP_INSTALL) --editable '.[images]'
	@touch $@

$(NEW)/.ready-test: setup.cfg constraints.txt | $(NEW)/bin/python
	$(NEW)/$(PIP_INSTALL) --editable '.[test,test-servers]'
	@touch $@

$(OLD)/.ready-test: setup.cfg constraints.txt | $(OLD)/bin/python
	$(OLD)/$(PIP_INSTALL) --editable '.[test]' datasets==4.8.4
	@touch $@

$(CLUSTERS)/.ready-test: setup.cfg constraints.txt | $(CLUSTERS)/bin/python
	$(CLUSTERS)/$(PIP_INSTALL) --editable '.[test-clusters]'
	@touch $@

$(TRAIN)/.ready-test: setup.cfg constraints.txt Makefile | $(TRAIN)/bin/python
	$(TRAIN)/$(PIP_INSTALL) --editable '.[test-train]' $(TRAINERS)
	@touch $@

$(TRAIN_OLD)/.ready-test: setup.cfg constraints.txt Makefile | $(TRAIN_OLD)/bin/python
	$(TRAIN_OLD)/$(PIP_INSTALL) --editable '.[test-train]' $(TRAINERS_OLD)
	@touch $@

# axolotl and what it wants of a GPU's machine come without their own requirements, which no CPU can meet.
$(AXOLOTL)/.ready-test: setup.cfg constraints.txt tests/train_axolotl/requirements.txt Makefile | $(AXOLOTL)/bin/python
	$(AXOLOTL)/$(PIP_INSTALL) --requirement tests/train_axolotl/requirements.txt --editable .
	$(AXOLOTL)/$(PIP_INSTALL) --no-deps axolotl==0.19.0 axolotl-contribs-lgpl==0.0.7 axolotl-contribs-mit==0.0.6 \
		bitsandbytes==0.50.2 triton==3.9.0
	@touch $@

$(REFERENCE)/.ready: constraints.txt Makefile | $(REFERENCE)/bin/python
	$(REFERENCE)/$(PIP_INSTALL) mosaicml-streaming==0.13.0 torch==2.13.0
	@touch $@

$(SERVERS)/.ready: Makefile
	@mkdir -p $(@D)
	@npm install --prefix $(@D) --silent --no-audit --no-fund azurite@3.35.0 \
		|| echo "no Azurite: its tests are skipped (they need npm)"
	@touch $@
