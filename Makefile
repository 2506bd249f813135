# XPU container runtime.
#
#   make demo    all set-up, then the main job on real containers
#   make test    all set-up, then every test; what costs minutes only where what it protects has changed
#   make test-all   every test, whatever has changed; before a release
#   make root    builds, and installs into build/root, which demo, tests and benchmarks run
#   make test-kubernetes   of these the tests on a real kubelet, scheduler and API server alone
#   make check   its set-up, then lint and unit tests: a minute or two, and no engine
#   make deps    what building needs: Debian packages (as root), Python packages below build/
#   make         builds; like install, it takes what is there and installs nothing on this machine
#   make docs    the site of docs/, into build/site; make pictures: its pictures, anew
#   make deb     the Debian packages, into dist/ (ARCH=arm64: cross-built)
#   make rpm     the rpms, into dist/ (ARCH=aarch64: cross-built)
#   make image   the container image for Kubernetes, into dist/, of the Debian package; as root
#   make bench   what a container's start and the interposers cost, beside runc and the driver alone
#   make bench-package   the same start, with the package beside make install
#   make bench-share   how well caps on compute hold: shares, errors, pictures (SHARE="--quick": in short)
#   make bench-agent   what the agent costs, with no container and with 64
#   make bench-kubernetes   memory of the device plugin, and how soon it answers the kubelet
#   make lease   what runs on a card need on a machine without a network, into build/lease (docs/developers/try-a-card.md)
#   make soak    whether the agent grows over an hour of starts and stops (SOAK="--minutes 10": in short)
#   make install / uninstall   PREFIX (/usr/local), DESTDIR
#
# Everything is built below build/.

# make takes a space for the end of a name, and recipes remove folders.
ifneq ($(words $(CURDIR)),1)
$(error the path of this folder has a space in it, which make cannot work with: move it)
endif

PYTHON  ?= /usr/bin/python3
PREFIX  ?= /usr/local
DESTDIR ?=
# What a package is built of is no git checkout, and says itself which commit it is.
COMMIT  ?= $(shell git describe --always --abbrev=12 --dirty --exclude='*' 2> /dev/null)

BUILD   := $(CURDIR)/build
NAME    := xpu-container-runtime
LIB     := $(DESTDIR)$(PREFIX)/lib/$(NAME)
BIN     := $(DESTDIR)$(PREFIX)/bin
VENV    := $(BUILD)/venv
PIP_OPTIONS := --quiet --disable-pip-version-check
# No option of all of pip's versions and commands.
export PIP_ROOT_USER_ACTION := ignore
# How many processes run tests side by side; tests/support/parallel.py says how.
WORKERS ?= 2
# Of unit tests, which wait more than they compute.
CHECK_WORKERS ?= 4
# The tree that demo, tests and benchmarks run: what `make install` leaves, nothing else.
ROOT    := $(BUILD)/root

# Debian packages, as packaging/install-packages reads them: what building needs (lint and unit tests need no
# more), what running containers needs, what the other tests need besides.
BUILD_PACKAGES  := gcc libc6-dev make musl-tools python3 python3-venv
# What packages are made with, and for ARCH= of another machine.
PACKAGING_PACKAGES := build-essential debhelper dpkg-dev fakeroot rpm
CROSS_PACKAGES := gcc-aarch64-linux-gnu libc6-dev-arm64-cross
ENGINE_PACKAGES := busybox-static containerd=containerd dockerd=docker.io "docker=docker-cli|docker.io" runc=runc
KUBERNETES_PACKAGES := dpkg-dev openssl util-linux
TEST_PACKAGES   := bpftool chromium crun e2fsprogs mmdebstrap procps prometheus qemu-system-x86 strace util-linux \
	lintian rpmlint "qemu-user-static|qemu-user" $(PACKAGING_PACKAGES) $(CROSS_PACKAGES) patchelf \
	$(KUBERNETES_PACKAGES)

# What the image for Kubernetes is made with besides.
IMAGE_PACKAGES := mmdebstrap patchelf
# What its manifests are checked with.
KUBERNETES_TOOLS := $(BUILD)/kubernetes-tools

# All processors, unless the caller's own -j says how many.
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))

.PHONY: all deps build install uninstall clean packages-% demo test check bench
all: build

packages-build:
	@packaging/install-packages $(BUILD_PACKAGES)
packages-packaging: packages-build
	@packaging/install-packages $(PACKAGING_PACKAGES) $(if $(filter-out amd64 x86_64,$(ARCH)),$(CROSS_PACKAGES))
packages-engine: packages-build
	@packaging/install-packages $(ENGINE_PACKAGES)
# The benchmarks of starts have a disk of their own.
packages-bench: packages-engine
	@packaging/install-packages e2fsprogs mount util-linux
packages-test: packages-engine
	@packaging/install-packages $(TEST_PACKAGES)
packages-lease: packages-engine
	@packaging/install-packages patchelf
packages-kubernetes: packages-engine
	@packaging/install-packages $(KUBERNETES_PACKAGES)

# The packages by others that are installed with ours (packaging/third_party.py unpacks them): the only part of a build
# that needs a network. What was fetched lies beside the list that it was fetched for, so that a copy of the folder
# serves on a machine that has none; it stays until there is another.
deps: packages-build
	@cmp -s packaging/requirements.txt $(BUILD)/wheels/requirements.txt || { \
		rm -rf $(BUILD)/wheels.new $(BUILD)/pip && $(PYTHON) -m venv $(BUILD)/pip && \
		$(BUILD)/pip/bin/pip download $(PIP_OPTIONS) --require-hashes --no-deps --only-binary :all: \
			--python-version 3.11 --implementation cp --platform manylinux2014_x86_64 \
			--dest $(BUILD)/wheels.new -r packaging/requirements.txt && \
		cp packaging/requirements.txt $(BUILD)/wheels.new/ && \
		rm -rf $(BUILD)/wheels && mv $(BUILD)/wheels.new $(BUILD)/wheels; }

build:
	@command -v $(firstword $(CC)) > /dev/null || \
		{ echo "there is no C compiler: run 'make deps' as root (Debian), or install one" >&2; exit 1; }
	@cmp -s packaging/requirements.txt $(BUILD)/wheels/requirements.txt || \
		{ echo "build/wheels is missing or not of packaging/requirements.txt: run 'make deps', which fetches it with pip" >&2; exit 1; }
	@# Not anew where it is up to date: several `make install` at a time, as tests do, copy it.
	@[ $(BUILD)/vendor -nt $(BUILD)/wheels/requirements.txt ] && [ $(BUILD)/vendor -nt packaging/third_party.py ] || \
		$(PYTHON) -IS packaging/third_party.py $(BUILD)/wheels $(BUILD)/vendor
	@$(MAKE) --no-print-directory -s -C native/launcher OUT=$(BUILD)/launcher PYTHON=$(PYTHON)
	@$(MAKE) --no-print-directory -s $(JOBS) -C native/interposer/nvidia OUT=$(BUILD)/interposer/nvidia
	@# CUDART is for tests alone, and not to be installed, whoever asks for it: see sim/README.md.
	@$(MAKE) --no-print-directory -s $(JOBS) -C sim OUT=$(BUILD)/sim CUDART=
	@$(MAKE) --no-print-directory -s -C native/probe OUT=$(BUILD)/probe

# Linters, type checker, test runner.
$(BUILD)/venv.stamp: pyproject.toml | packages-build
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(PYTHON) packaging/dependencies.py dev | xargs $(VENV)/bin/pip install $(PIP_OPTIONS)
	@touch $@

# Every file is made under this umask, whatever the caller's is: root runs them, and everybody reads them.
install: build
	@umask 022 && $(MAKE) --no-print-directory install-anew
	@umask 022 && $(PYTHON) -IS $(LIB)/precompile.py $(PREFIX)/lib/$(NAME)

.PHONY: install-anew install-runtime install-simulator install-node install-simulator-node
install-anew:
	@rm -rf $(LIB)
	@$(MAKE) --no-print-directory install-runtime install-simulator

install-runtime:
	@install -d $(BIN) $(LIB)/native/interposer/nvidia $(LIB)/python $(LIB)/config
	@install -m 755 $(BUILD)/launcher/$(NAME) $(BUILD)/launcher/$(NAME)-hook $(BIN)/
	@sed -e '1s|.*|#!$(PYTHON) -IS|' hooks/xpu > $(BIN)/xpu && chmod 755 $(BIN)/xpu
	@cp -R src/xpu_runtime $(LIB)/python/
	@cp -R $(BUILD)/vendor $(LIB)/vendor
	@find $(LIB)/python $(LIB)/vendor -name __pycache__ -prune -exec rm -rf {} +
	@sed -i 's/^COMMIT = .*/COMMIT = "$(COMMIT)"/' $(LIB)/python/xpu_runtime/version.py
	@install -m 644 config/* $(LIB)/config/
	@install -m 644 hooks/shim.py hooks/hook.py hooks/worker.py hooks/precompile.py $(LIB)/
	@install -m 644 hooks/xpu_bundle.py $(LIB)/python/xpu_bundle.py
	@# What is compiled or cached of one build is of no use to another (version.py, xpu_bundle.py).
	@cd $(LIB)/python && build=$$(find xpu_bundle.py xpu_runtime -name '*.py' | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-15) && \
		sed -i "s/^BUILD = .*/BUILD = \"$$build\"/" xpu_bundle.py xpu_runtime/version.py
	@install -m 755 $(BUILD)/interposer/nvidia/libcuda.so.1 $(BUILD)/interposer/nvidia/libnvidia-ml.so.1 $(LIB)/native/interposer/nvidia/
	@# A clone or a build that was made under another umask has brought its modes along.
	@chmod -R u=rwX,go=rX $(LIB)

install-simulator:
	@install -d $(LIB)/native/sim $(LIB)/python $(LIB)/sim
	@cp -R sim/python/xpu_simulator $(LIB)/python/
	@find $(LIB)/python/xpu_simulator -name __pycache__ -prune -exec rm -rf {} +
	@cp -R sim/topologies sim/topology.schema.json $(LIB)/sim/
	@find $(BUILD)/sim -maxdepth 1 -type f -exec install -m 755 {} $(LIB)/native/sim/ \;
	@chmod -R u=rwX,go=rX $(LIB)

# What a package has besides: for the node, for people. Only for PREFIX=/usr: the files name their paths.
# Debian's zsh looks there, others' in site-functions.
ZSH_FUNCTIONS ?= $(PREFIX)/share/zsh/vendor-completions
install-node:
	@install -d $(DESTDIR)/etc/xpu $(addprefix $(DESTDIR)$(PREFIX)/,lib/systemd/system lib/udev/rules.d lib/tmpfiles.d \
		share/$(NAME)/monitoring share/containers/oci/hooks.d share/man/man5 share/man/man8 share/bash-completion/completions \
		share/fish/vendor_completions.d) $(DESTDIR)$(ZSH_FUNCTIONS)
	@install -m 644 config/config.yaml $(DESTDIR)/etc/xpu/
	@install -m 644 packaging/node/xpu-inventory.service packaging/node/xpu-agent.service \
		$(DESTDIR)$(PREFIX)/lib/systemd/system/
	@install -m 644 packaging/node/60-$(NAME).rules $(DESTDIR)$(PREFIX)/lib/udev/rules.d/
	@install -m 644 packaging/node/$(NAME).conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/
	@install -m 644 packaging/monitoring/* $(DESTDIR)$(PREFIX)/share/$(NAME)/monitoring/
	@# For helm and kubectl; what makes and checks them is not for people who install.
	@cp -R packaging/kubernetes $(DESTDIR)$(PREFIX)/share/$(NAME)/
	@cd $(DESTDIR)$(PREFIX)/share/$(NAME)/kubernetes && rm -rf *.py requirements.txt __pycache__ && chmod -R u=rwX,go=rX .
	@install -m 644 hooks/hooks.d/*.json $(DESTDIR)$(PREFIX)/share/containers/oci/hooks.d/
	@install -m 644 $(filter-out $(BUILD)/pages/man/xpu-sim%,$(wildcard $(BUILD)/pages/man/*.8)) packaging/node/*.8 \
		$(DESTDIR)$(PREFIX)/share/man/man8/
	@install -m 644 $(BUILD)/pages/man/*.5 $(DESTDIR)$(PREFIX)/share/man/man5/
	@install -m 644 $(BUILD)/pages/completion/bash/xpu $(DESTDIR)$(PREFIX)/share/bash-completion/completions/
	@install -m 644 $(BUILD)/pages/completion/zsh/_xpu $(DESTDIR)$(ZSH_FUNCTIONS)/
	@install -m 644 $(BUILD)/pages/completion/fish/xpu.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/

install-simulator-node:
	@install -d $(DESTDIR)$(PREFIX)/share/man/man8
	@install -m 644 $(BUILD)/pages/man/xpu-sim*.8 $(DESTDIR)$(PREFIX)/share/man/man8/

# The packages, into dist/. Nothing is fetched, and no root is needed.
.PHONY: pages deb rpm
pages: build
	@PYTHONPATH=src:$(BUILD)/vendor $(PYTHON) -S packaging/manpages.py $(BUILD)/pages

deb: packages-packaging deps
	@packaging/build-deb $(BUILD) $(CURDIR)/dist $(ARCH)

rpm: packages-packaging deps
	@packaging/build-rpm $(BUILD) $(CURDIR)/dist $(ARCH)

# The image of the package in dist/, which is built first.
.PHONY: image
image: deb $(BUILD)/venv.stamp
	@packaging/install-packages $(IMAGE_PACKAGES)
	@$(VENV)/bin/python packaging/kubernetes/image.py dist/xpu-container-runtime_*_amd64.deb dist/xpu-kubernetes.tar $(BUILD)/image

# helm, kubectl and the API's schemas.
$(KUBERNETES_TOOLS)/stamp: packaging/kubernetes/tools.py $(BUILD)/venv.stamp
	@$(VENV)/bin/python packaging/kubernetes/tools.py $(KUBERNETES_TOOLS)
	@touch $@

uninstall:
	@rm -rf $(LIB)
	@rm -f $(BIN)/$(NAME) $(BIN)/$(NAME)-hook $(BIN)/xpu

# The installed tree that the integration tests, the demo and the benchmarks go through.
.PHONY: root
root: deps
	@$(MAKE) --no-print-directory install PREFIX=$(ROOT) DESTDIR=

demo: packages-engine root
	@$(PYTHON) -IS packaging/demo.py $(ROOT)

# The linters take one processor, the tests another.
check: $(BUILD)/venv.stamp
	@packaging/lint $(VENV) & lint=$$!; \
		PYTHONPATH=src $(VENV)/bin/pytest -q -n $(CHECK_WORKERS) -m "not slow" tests/unit; tests=$$?; wait $$lint && exit $$tests

# What is built for tests/kubernetes takes minutes, and nobody waits for it but these tests: it has the time that others
# leave.
KUBERNETES_PARTS := PYTHONPATH=tests nice -n 19 $(PYTHON) -m kubernetes.parts

# Tests that cost minutes are left out while what they protect is as it was when they passed
# (tests/support/tiers.py); `make test-all` runs them whatever has changed, and writes down that they pass.
# WORKERS=0 runs one test at a time.
test: TIER = PYTHONPATH=tests $(VENV)/bin/python -m support.tiers
test-all: TIER := true
test-all: ALL := --all
.PHONY: test-all
test test-all: packages-test $(BUILD)/venv.stamp root
	@packaging/lint $(VENV)
	@if $(TIER) tests/packages || $(TIER) tests/kubernetes; then $(MAKE) $(KUBERNETES_TOOLS)/stamp; fi
	@if $(TIER) tests/kubernetes; then $(KUBERNETES_PARTS); fi & parts=$$!; \
		XPU_TEST_PREFIX=$(ROOT) PYTHONPATH=src $(VENV)/bin/pytest -n $(WORKERS) $(ALL); tests=$$?; \
		wait $$parts && exit $$tests

.PHONY: test-kubernetes
test-kubernetes: packages-kubernetes $(BUILD)/venv.stamp root $(KUBERNETES_TOOLS)/stamp
	@$(KUBERNETES_PARTS)
	@XPU_TEST_PREFIX=$(ROOT) PYTHONPATH=src $(VENV)/bin/pytest tests/kubernetes

# The site, into build/site: open index.html there. A link or an anchor that leads nowhere is an error.
.PHONY: docs
docs: $(BUILD)/venv.stamp
	@PYTHONPATH=src $(VENV)/bin/python packaging/docs/reference.py
	@packaging/docs/build $(VENV)

# The pictures of the pages, from what the product prints and serves now: docs/assets/.
.PHONY: pictures
pictures: packages-engine $(BUILD)/venv.stamp root
	@packaging/install-packages chromium
	@$(VENV)/bin/python packaging/docs/pictures.py $(ROOT)

# Says whether NVIDIA has newer headers than the tests use; no fault of anybody's, so it always succeeds.
.PHONY: newer-headers
newer-headers: $(BUILD)/venv.stamp
	@$(VENV)/bin/python packaging/newer_headers.py $(VENV)/bin/pip

bench: packages-bench root
	@$(PYTHON) bench/passthrough.py $(ROOT)/bin/$(NAME)
	@unshare -m $(PYTHON) bench/container_start.py $(ROOT)
	@unshare -m $(PYTHON) bench/docker_run.py $(ROOT)
	@$(PYTHON) bench/interposers.py $(ROOT)

# How well limits on compute hold: docs/developers/testing.md. SHARE has more options, say SHARE="--quick --law tokens".
SHARE ?= --out $(BUILD)/share
.PHONY: bench-share
bench-share: packages-engine root
	@exec env PYTHONPATH=bench:src:packaging $(PYTHON) -m share $(ROOT) $(SHARE)

# For a machine that may have neither a network nor a compiler: bench/gpu/lease runs there with it.
.PHONY: lease
lease: packages-lease root
	@$(PYTHON) packaging/lease.py $(BUILD)/lease $(COMMIT)

.PHONY: bench-kubernetes
bench-kubernetes: packages-engine $(BUILD)/venv.stamp root
	@$(VENV)/bin/python bench/kubernetes_plugin.py $(ROOT)

.PHONY: bench-agent
bench-agent: packages-engine root
	@$(PYTHON) bench/agent.py $(ROOT)

.PHONY: soak
soak: packages-bench root
	@exec unshare -m $(PYTHON) bench/soak.py $(ROOT) $(SOAK)

# The same start with what the package installs, made ready as its configuration does, beside what make install does.
.PHONY: bench-package
bench-package: packages-bench root deb
	@rm -rf $(BUILD)/unpacked
	@for package in dist/*_$$(dpkg --print-architecture).deb; do dpkg-deb --extract $$package $(BUILD)/unpacked || exit; done
	@$(PYTHON) -IS $(BUILD)/unpacked/usr/lib/$(NAME)/precompile.py
	@unshare -m $(PYTHON) bench/installations.py install=$(ROOT) package=$(BUILD)/unpacked/usr

clean:
	@rm -rf $(BUILD)
