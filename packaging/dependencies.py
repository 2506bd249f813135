"""Prints the packages that pyproject.toml names, one a line, for pip; `dev` adds those of that extra."""

import os
import sys
import tomllib

with open(os.path.join(os.path.dirname(__file__), "..", "pyproject.toml"), "rb") as file:
    project = tomllib.load(file)["project"]
names = list(project["dependencies"])
for extra in sys.argv[1:]:
    names += project["optional-dependencies"][extra]
print("\n".join(names))
