"""Which version this is. pyproject.toml, the packages and `xpu --version` take it from here."""

VERSION = "0.1.0"

#: The commit that it was installed from, which `make install` and the packages write here; empty where it is
#: used in place or was installed by pip.
COMMIT = ""

#: It changes with any file of this package; `make install` writes it here. No other build uses the files that
#: one build has compiled or cached. Empty if the package is used in place.
BUILD = ""
