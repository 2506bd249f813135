# Everything is built below build/; `make install` copies from there.
PYTHON ?= /usr/bin/python3
