"""Which version this is. pyproject.toml, the packages and `xpu --version` take it from here."""

VERSION = "0.1.0"

#: The commit that it was installed from, which `make install` and the packages write here; empty where it is
#: used in place or was installed by pip.
COMMIT = ""

#: Another one for each change to any file of this package; `make install` writes it here. What one build has
#: compiled or cached, no other uses. Empty where it is used in place.
BUILD = ""
