# XPU container runtime.
#
#   make demo    all set-up, then the main job on real containers
#   make test    all set-up, then every test
#   make check   lint and unit tests, under a minute
#   make bench   what a container's start costs, as ratios to runc alone
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
# The tree that demo, tests and benchmarks run: what `make install` leaves, nothing else.
ROOT    := $(BUILD)/root

.PHONY: all build install uninstall clean setup
all: build

build: $(BUILD)/vendor.stamp
	$(MAKE) -C native/launcher OUT=$(BUILD)/launcher PYTHON=$(PYTHON)
	$(MAKE) -C native/sim OUT=$(BUILD)/sim

# What the commands for people need, beside our own package and touched by no other.
$(BUILD)/vendor.stamp: pyproject.toml
	rm -rf $(BUILD)/vendor
	$(PYTHON) packaging/dependencies.py | xargs $(PYTHON) -m pip install --quiet --disable-pip-version-check \
		--root-user-action=ignore --no-compile --target $(BUILD)/vendor
	touch $@

install: build
	rm -rf $(LIB)
	install -d $(BIN) $(LIB)/native/sim $(LIB)/python
	install -m 755 $(BUILD)/launcher/$(NAME) $(BIN)/$(NAME)
	for program in $(NAME)-hook xpu; do \
		sed -e '1s|.*|#!$(PYTHON) -IS|' hooks/$$program > $(BIN)/$$program && chmod 755 $(BIN)/$$program; \
	done
	cp -R src/xpu_runtime $(LIB)/python/
	cp -R config $(LIB)/config
	cp -R $(BUILD)/vendor $(LIB)/vendor
	install -m 644 hooks/shim.py $(LIB)/shim.py
	find $(BUILD)/sim -maxdepth 1 -type f -exec install -m 755 {} $(LIB)/native/sim/ \;
	find $(LIB) -name __pycache__ -prune -exec rm -rf {} +
	$(PYTHON) -IS -m compileall -q --invalidation-mode unchecked-hash -s $(DESTDIR) $(LIB)/python $(LIB)/vendor

uninstall:
	rm -rf $(LIB)
	rm -f $(BIN)/$(NAME) $(BIN)/$(NAME)-hook $(BIN)/xpu

clean:
	rm -rf $(BUILD)
