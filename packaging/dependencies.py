"""Prints the packages that pyproject.toml says the program needs, one a line, for pip."""

import os
import tomllib

with open(os.path.join(os.path.dirname(__file__), "..", "pyproject.toml"), "rb") as file:
    print("\n".join(tomllib.load(file)["project"]["dependencies"]))
