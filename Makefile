# XPU container runtime.
#
#   make demo    all set-up, then the main job on real containers
#   make test    all set-up, then every test
#   make check   lint and unit tests, under a minute
#   make bench   what a container's start and the wrapper libraries cost, beside runc and the driver alone
#   make install / uninstall   PREFIX (/usr/local), DESTDIR
#
# Everything is built below build/.

PYTHON  ?= /usr/bin/python3
PREFIX  ?= /usr/local
DESTDIR ?=

BUILD   := $(CURDIR)/build
NAME    := xpu-container-runtime
LIB     := $(DESTDIR)$(PREFIX)/lib/$(NAME)
BIN     := $(DESTDIR)$(PREFIX)/bin
VENV    := $(BUILD)/venv
PIP_OPTIONS := --quiet --disable-pip-version-check --root-user-action=ignore
# The tree that demo, tests and benchmarks run: what `make install` leaves, nothing else.
ROOT    := $(BUILD)/root

# Debian packages: what building needs, what running containers needs, what testing needs besides.
BUILD_PACKAGES  := gcc libc6-dev make musl-tools python3 python3-venv
ENGINE_PACKAGES := busybox-static containerd docker.io runc
TEST_PACKAGES   := bpftool clang-format crun e2fsprogs mmdebstrap procps qemu-system-x86 strace util-linux \
	gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static

.PHONY: all build install uninstall clean packages-% demo test check bench
all: build

packages-build:
	@packaging/install-packages $(BUILD_PACKAGES)
packages-engine: packages-build
	@packaging/install-packages $(ENGINE_PACKAGES)
packages-test: packages-engine
	@packaging/install-packages $(TEST_PACKAGES)

build: packages-build $(BUILD)/vendor.stamp
	@$(MAKE) --no-print-directory -s -C native/launcher OUT=$(BUILD)/launcher PYTHON=$(PYTHON)
	@$(MAKE) --no-print-directory -s -C native/libxpu OUT=$(BUILD)/libxpu
	@$(MAKE) --no-print-directory -s -C native/sim OUT=$(BUILD)/sim
	@$(MAKE) --no-print-directory -s -C native/probe OUT=$(BUILD)/probe

# What the commands for people need, beside our own package and touched by no other.
$(BUILD)/vendor.stamp: pyproject.toml | packages-build
	@rm -rf $(BUILD)/vendor $(BUILD)/pip
	@$(PYTHON) -m venv $(BUILD)/pip
	@$(PYTHON) packaging/dependencies.py | xargs $(BUILD)/pip/bin/pip install $(PIP_OPTIONS) \
		--no-compile --target $(BUILD)/vendor
	@touch $@

# Linters, type checker, test runner.
$(BUILD)/venv.stamp: pyproject.toml | packages-build
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(PYTHON) packaging/dependencies.py dev | xargs $(VENV)/bin/pip install $(PIP_OPTIONS)
	@touch $@

# Every file is made under this umask, whatever the caller's is: root runs them, and everybody reads them.
install: build
	@umask 022 && $(MAKE) --no-print-directory install-files

.PHONY: install-files
install-files:
	@rm -rf $(LIB)
	@install -d $(BIN) $(LIB)/native/libxpu $(LIB)/native/sim $(LIB)/python
	@install -m 755 $(BUILD)/launcher/$(NAME) $(BIN)/$(NAME)
	@for program in $(NAME)-hook xpu; do \
		sed -e '1s|.*|#!$(PYTHON) -IS|' hooks/$$program > $(BIN)/$$program && chmod 755 $(BIN)/$$program; \
	done
	@cp -R src/xpu_runtime $(LIB)/python/
	@cp -R config $(LIB)/config
	@cp -R $(BUILD)/vendor $(LIB)/vendor
	@install -m 644 hooks/shim.py $(LIB)/shim.py
	@install -m 644 hooks/xpu_bundle.py $(LIB)/python/xpu_bundle.py
	@install -m 755 $(BUILD)/libxpu/libcuda.so.1 $(BUILD)/libxpu/libnvidia-ml.so.1 $(LIB)/native/libxpu/
	@find $(BUILD)/sim -maxdepth 1 -type f -exec install -m 755 {} $(LIB)/native/sim/ \;
	@find $(LIB) -name __pycache__ -prune -exec rm -rf {} +
	@$(PYTHON) packaging/bundle.py $(LIB)/python
	@$(PYTHON) -IS -m compileall -q --invalidation-mode unchecked-hash \
		$(if $(DESTDIR),-s $(DESTDIR) -p /) $(LIB)/python $(LIB)/vendor
	@# A clone or a build that was made under another umask has brought its modes along.
	@chmod -R u=rwX,go=rX $(LIB)

uninstall:
	@rm -rf $(LIB)
	@rm -f $(BIN)/$(NAME) $(BIN)/$(NAME)-hook $(BIN)/xpu

# The installed tree that the doors' tests, the demo and the benchmarks go through.
.PHONY: root
root:
	@$(MAKE) --no-print-directory install PREFIX=$(ROOT) DESTDIR=

demo: packages-engine root
	@$(PYTHON) -IS packaging/demo.py $(ROOT)

check: packages-test $(BUILD)/venv.stamp
	@packaging/lint $(VENV)
	@PYTHONPATH=src $(VENV)/bin/pytest -q tests/unit

test: packages-test $(BUILD)/venv.stamp root
	@packaging/lint $(VENV)
	@XPU_TEST_PREFIX=$(ROOT) PYTHONPATH=src $(VENV)/bin/pytest

# Says whether NVIDIA has newer headers than the tests use; no fault of anybody's, so it always succeeds.
.PHONY: newer-headers
newer-headers: $(BUILD)/venv.stamp
	@$(VENV)/bin/python packaging/newer_headers.py $(VENV)/bin/pip

bench: packages-engine root
	@$(PYTHON) bench/passthrough.py $(ROOT)/bin/$(NAME)
	@$(PYTHON) bench/container_start.py $(ROOT)
	@$(PYTHON) bench/wrappers.py $(ROOT)

clean:
	@rm -rf $(BUILD)
