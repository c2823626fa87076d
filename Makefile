# What `make help` lists is supported, nothing else is.

PREFIX ?= /usr
DESTDIR ?=
PYTHON ?= /usr/bin/python3

SHELL_SCRIPTS = packaging/completions/oci-gpu-hook \
	$(filter-out %.json %-start,$(wildcard .ci/* hooks.d/*)) $(wildcard packaging/*.sh packaging/*/*.sh packaging/debian/*.p* tests/*.sh tests/*/*.sh)

# What git does not hold: made from the program and from the sources beside it.
MANUALS = $(patsubst %.rst,%,$(wildcard packaging/man/*.rst))
COMPLETIONS = $(addprefix packaging/completions/,oci-gpu-hook oci-gpu-hook.fish _oci-gpu-hook)
RULE = packaging/prometheus/prometheusrule.yaml
SETTINGS = packaging/oci-gpu-hook.conf
PROGRAM = $(shell find oci_gpu_hook -name '*.py') packaging/commandline.py setup.cfg

# For tests that share nothing of the machine: one process more than cores, as some tests wait.
export PARALLEL = -n $(shell expr $$(nproc) + 1) --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types contracts unit unit-pythons integration test-docker test-docker-next test-driver
.PHONY: test-hostile test-on-the-machine test-beside-the-machine test-packaging test-selinux test-aarch64 test-memory
.PHONY: ready test-gpu bench bench-load fuzz rpm deb dist openshift
.PHONY: install install-docker install-cli uninstall generated list-generated clean

help: ## List what can be made
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | awk -F '\t' '{ printf "make %-18s %s\n", $$1, $$2 }'

demo: ## Show a container getting its GPUs; installs what it needs (as root), leaves nothing else
	@packaging/requirements.sh demo
	@PYTHON=$(PYTHON) $(PYTHON) tests/demo/run.py

test: ## Run everything but fuzz, test-aarch64, test-memory and test-gpu; installs what it needs (as root), leaves nothing else
	packaging/requirements.sh test
	$(MAKE) --no-print-directory check generated
	tests/selinux/requirements.sh policy
	tests/selinux/requirements.sh vm
	@echo "two rows of lanes run side by side: each lane's output comes at its end"
	$(MAKE) --no-print-directory -j 2 --output-sync=target test-on-the-machine test-beside-the-machine

# Containers, mounts and cgroups of the machine: one lane after the other.
test-on-the-machine:
	$(MAKE) --no-print-directory integration
	$(MAKE) --no-print-directory test-driver
	$(MAKE) --no-print-directory test-docker
	$(MAKE) --no-print-directory test-docker-next
	$(MAKE) --no-print-directory test-hostile

# Other Pythons, policies in scratch folders, a virtual machine, and packages in roots of their own.
test-beside-the-machine:
	$(MAKE) --no-print-directory unit-pythons PYTHONS=--others
	$(MAKE) --no-print-directory -C policy check
	$(MAKE) --no-print-directory test-selinux
	$(MAKE) --no-print-directory test-packaging

check: .venv/up-to-date ## Run lint, types, contracts and unit: under a minute, no root
	@$(MAKE) --no-print-directory --keep-going lint types contracts unit

lint: .venv/up-to-date generated ## Check Python and shell sources for faults of style and substance
	.venv/bin/ruff check --quiet --output-format concise .
	@if command -v shellcheck >/dev/null; then shellcheck -x $(SHELL_SCRIPTS); \
	else echo "shellcheck is not installed; not checked: $(SHELL_SCRIPTS)"; fi

types: .venv/up-to-date ## Check types, strictly, as Python 3.9 has them
	.venv/bin/mypy

contracts: .venv/up-to-date ## Check which module imports which
	.venv/bin/lint-imports

# Byte code is kept, whatever the environment says: without it each run compiles all, and so does each Python in it.
unit: .venv/up-to-date generated ## Run the unit tests: no root, nothing of the machine is touched
	env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m pytest -q $(PARALLEL) tests/unit

fuzz: .venv/up-to-date ## Feed hostile values to every input of a start and of commands; [FUZZ_SECONDS=600] [FUZZ=ld.so.cache]
	@.venv/bin/python -m tests.fuzz $(or $(FUZZ_SECONDS),600) $(FUZZ)

unit-pythons: .venv/up-to-date generated ## Run the unit tests on each Python from 3.9 on that this machine has
	tests/unit-pythons.sh $(PYTHONS)

# What a lane on this machine needs: packages first, as .venv is made by them.
ready:
	packaging/requirements.sh test
	$(MAKE) --no-print-directory .venv/up-to-date generated

integration: ready ## Run the tests on real container runtimes (as root), in throw-away mounts; installs what it needs
	.venv/bin/python -m pytest -q -m "not gpu" tests/integration

test-docker: ready ## Run containers by real Docker, Swarm and containerd (as root); [DOCKER_FROM=FOLDER]; installs what it needs
	$(if $(DOCKER_FROM),DOCKER_FROM=$(DOCKER_FROM)) .venv/bin/python -m pytest -q \
		-n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(or $(DOCKER_TESTS),tests/docker)

test-driver: ready ## NVIDIA's real user space, two drivers as Debian packages them (as root, on Debian); installs what it needs
	tests/driver/fetch.sh .build/driver
	.venv/bin/python -m pytest -q tests/driver

test-docker-next: ready ## The newest podman, Docker, LXC, runc and crun, in a root of Debian's unstable release (as root, on Debian); installs what it needs
	tests/newest.sh .build/newest python3 -m pytest -q -p no:cacheprovider \
		$(foreach name,cdi cgroup_location leases lxc main_job podman restore,tests/integration/test_$(name).py)
	tests/newest.sh .build/newest python3 -m pytest -q -p no:cacheprovider -n 2 --dist loadfile \
		$(foreach name,accept build compose options,tests/docker/test_$(name).py)
	tests/newest.sh .build/newest env POLICIES=.build/newest/policy python3 -m pytest -q -p no:cacheprovider -k any_age \
		tests/policy/test_policy.py

test-hostile: ready ## Attack the hook, and a naive one, in real containers (as root); [HOSTILE_LOAD=1000] [HOSTILE_MATRIX=all]; installs what it needs
	.venv/bin/python -m pytest -q tests/hostile

test-packaging: ready ## Test the RPM, the Debian packages and the units (as root), in scratch roots; installs what it needs
	.venv/bin/python -m pytest -q tests/packaging

test-selinux: ## Run containers on an enforcing kernel, in a virtual machine (as root, on Debian)
	tests/selinux/run.sh

test-aarch64: ## Run the main job on aarch64, in a virtual machine (as root, on Debian); not part of test
	tests/aarch64/run.sh

test-memory: ready ## Limit GPU memory on a kernel with dmem, built once, in a virtual machine (as root, on Debian); not part of test
	tests/memory/run.sh

test-gpu: ## Run the tests that need a real NVIDIA driver and GPU (as root)
	@ls /proc/driver/nvidia/gpus/*/information >/dev/null 2>&1 || { echo >&2 \
		"make test-gpu: nothing was tested, this host has no GPU that an NVIDIA driver drives"; exit 1; }
	$(MAKE) --no-print-directory .venv/up-to-date generated
	.venv/bin/python -m pytest -v -m gpu tests

bench: ## Measure container starts (as root): table in .build/bench; [BENCH="--rounds 40"]
	@packaging/requirements.sh bench
	@$(PYTHON) -B -m tests.bench --python $(PYTHON) $(BENCH)

bench-load: ## Start 500 GPU containers, 8 at a time (as root); [BENCH="--load 500"]
	@packaging/requirements.sh bench
	@$(PYTHON) -B -m tests.bench --python $(PYTHON) --only load $(BENCH)

rpm: ## Build the RPMs from a clean copy of this tree, in .build/rpm
	@packaging/requirements.sh rpm
	@packaging/rpm.sh .build/rpm

deb: ## Build the Debian packages from a clean copy of this tree, in .build/deb
	@packaging/requirements.sh deb
	@packaging/deb.sh .build/deb

dist: ## Make what a release publishes, in .build/dist: sources, RPMs, Debian packages, checksums
	@packaging/requirements.sh rpm
	@packaging/requirements.sh deb
	@packaging/dist.sh .build/dist

install: generated ## Install below [DESTDIR=][PREFIX=/usr], for [PYTHON=/usr/bin/python3]
	@packaging/install.sh install "$(DESTDIR)" "$(PREFIX)" "$(PYTHON)"

install-docker: ## Let dockerd start what is installed below [DESTDIR=][PREFIX=/usr] for 'docker run --gpus'
	@packaging/install.sh install-docker "$(DESTDIR)" "$(PREFIX)"

install-cli: ## Let LXC, enroot, Apptainer and others find it as nvidia-container-cli, below [DESTDIR=][PREFIX=/usr]
	@packaging/install.sh install-cli "$(DESTDIR)" "$(PREFIX)"

uninstall: ## Take away what install put below [DESTDIR=][PREFIX=/usr]
	@packaging/install.sh uninstall "$(DESTDIR)" "$(PREFIX)"

generated: $(MANUALS) $(COMPLETIONS) $(RULE) $(SETTINGS) ## Make manuals, completions, settings file and PrometheusRule

list-generated: generated
	@printf '%s\n' $(MANUALS) $(COMPLETIONS) $(RULE) $(SETTINGS)

$(MANUALS) &: $(MANUALS:=.rst) packaging/build_man.py $(PROGRAM)
	@PYTHON="$(PYTHON)" packaging/generate.sh build_man.py packaging/man

$(COMPLETIONS) &: $(wildcard packaging/completions/*.in) packaging/build_completions.py $(PROGRAM)
	@PYTHON="$(PYTHON)" packaging/generate.sh build_completions.py packaging/completions

$(SETTINGS): packaging/man/oci-gpu-hook.conf.5.rst packaging/build_settings.py packaging/build_man.py $(PROGRAM)
	@PYTHON="$(PYTHON)" packaging/generate.sh build_settings.py packaging

$(RULE): packaging/prometheus/build_rule.py packaging/prometheus/oci-gpu-hook.rules.yaml
	@"$(PYTHON)" packaging/prometheus/build_rule.py packaging/prometheus

openshift: .venv/up-to-date generated ## Write OpenShift's MachineConfigs into .build/openshift; [ROLE=gpu] [CONF=FILE]
	.venv/bin/python packaging/openshift/generate.py .build/openshift --role $(or $(ROLE),gpu) $(if $(CONF),--settings "$(CONF)")

clean: ## Remove what was built or cached here
	rm -rf .venv .venv-* .build build *.egg-info
	rm -f $(MANUALS) $(COMPLETIONS) $(RULE) $(SETTINGS)
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/up-to-date: setup.cfg packaging/venv.sh
	packaging/venv.sh .venv "$(PYTHON)" dev

# A hub's packages are many: byte code is made on all cores.
.build/jupyterhub/up-to-date: setup.cfg packaging/venv.sh
	PIP_NO_COMPILE=1 packaging/venv.sh .build/jupyterhub "$(PYTHON)" jupyterhub
	.build/jupyterhub/bin/python -m compileall -q -j 0 .build/jupyterhub/lib || :
	touch $@
