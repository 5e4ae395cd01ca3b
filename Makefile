# Every command works from a fresh clone with Python 3.11 or newer; each sets up what it needs.
#
#   make demo      eight fake replicas, real traffic and faults, under a minute
#   make test      format, lint, types, every test, the conformance harness when it is there
#   make bench     what the proxy costs, next to its peers
#   make drills    overload and failure drills, one report
#   make pyz       dist/dd-proxy.pyz: the whole of dd-proxy in one executable file
#   make clean     remove what these commands made

PYTHON      ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
                 $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
CONFORMANCE ?= ../shared/conformance
JOBS        ?= 4

VENV := .venv
BIN  := $(VENV)/bin
DONE := $(VENV)/.installed

.PHONY: demo test bench drills pyz clean

demo: $(DONE)
	@$(BIN)/python tools/demo.py

test: $(DONE)
	@tools/debian-packages slurmctld slurmd slurm-client munge shellcheck prometheus chromium chromium-driver curl strace valgrind
	@$(BIN)/python tools/checks.py --conformance $(CONFORMANCE) --jobs $(JOBS)

bench: $(DONE)
	@tools/debian-packages nginx wrk
	@$(BIN)/python tools/bench.py

drills: $(DONE)
	@$(BIN)/python tools/drill.py

pyz: $(DONE)
	@$(BIN)/python tools/pyz.py dist/dd-proxy.pyz

clean:
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(DONE): pyproject.toml
	@test -n "$(PYTHON)" || \
	  { echo "dd-proxy needs Python 3.11 or newer, and none is on the PATH; name one: make PYTHON=…" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
	  { echo "$(PYTHON) cannot make an environment: install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	@echo "installing dd-proxy and its development tools into $(VENV)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,top]'
	@touch $@
