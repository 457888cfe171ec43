# make demo    the main job on real data, on a fresh machine
# make test    all tests, on the newest `datasets` and on 4.8.4
# make test-clusters    those of Spark and Ray, which `make test` leaves out
# make bench   our reading and writing beside other systems' (benchmarks/README.md); installs them: some GB
# make lint    ruff and mypy
# make clean   remove what these made

PYTHON ?= python3
PIP_INSTALL = bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
NEW = .venv
OLD = .venv-datasets4
CLUSTERS = .venv-clusters
# Ray listens on all interfaces: its tests run where there is none but loopback, and are skipped where that cannot be.
ALONE = unshare --net --map-root-user
TEST_CLUSTERS = $(CLUSTERS)/bin/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS) tests/clusters
# What depends on `datasets`: tested again with the release that axolotl pins.
TESTS_OF_DATASETS = tests/hf tests/conformance tests/engine
# Servers that tests start and no package of pip brings: Azurite comes by npm, where there is npm.
SERVERS = .servers
SOURCES = hf_mds builders build_backend tests demo benchmarks notebooks
export HF_HUB_OFFLINE = 1

.PHONY: demo test test-clusters bench lint clean

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

bench: $(NEW)/.ready-bench
	$(NEW)/bin/python benchmarks/run.py $(BENCH_ARGS)

lint: $(NEW)/.ready-test
	$(NEW)/bin/ruff check $(SOURCES)
	$(NEW)/bin/ruff format --check $(SOURCES)
	$(NEW)/bin/mypy

clean:
	rm -rf $(NEW) $(OLD) $(CLUSTERS) $(SERVERS) .venv-peers benchmarks/data demo-data build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(NEW)/bin/python $(OLD)/bin/python $(CLUSTERS)/bin/python:
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

$(SERVERS)/.ready: Makefile
	@mkdir -p $(@D)
	@npm install --prefix $(@D) --silent --no-audit --no-fund azurite@3.35.0 \
		|| echo "no Azurite: its tests are skipped (they need npm)"
	@touch $@
