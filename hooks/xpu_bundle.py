"""Imports the modules of a container's start from one file: to find and read 50 files takes half of the
import.

precompile.py writes the file, on the machine, with the code of the modules by name. If it is missing,
or was written by another version of the interpreter, the modules are imported one by one as usual.
"""

import marshal
import sys

_HERE = __file__.rpartition("/")[0]
_bootstrap = sys.modules["_frozen_importlib"]


class Bundle:
    """A finder and loader (importlib.abc) of the modules in the file."""

    def __init__(self, modules):
        self._modules = modules

    def find_spec(self, name, path=None, target=None):
        found = self._modules.get(name)
        if found is None:
            return None
        is_package, file, _ = found
        spec = _bootstrap.ModuleSpec(name, self, origin=f"{_HERE}/{file}", is_package=is_package)
        spec.has_location = True
        if is_package:
            # What is not in the bundle is found beside it.
            spec.submodule_search_locations.append(spec.origin.rpartition("/")[0])
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(marshal.loads(self._modules[module.__name__][2]), module.__dict__)  # noqa: S102, S302 - ours


def install():
    """Puts the bundle in front of the other finders."""
    try:
        with open(f"{_HERE}/start.bundle", "rb") as file:
            magic, modules = marshal.loads(file.read())  # noqa: S302 - written by make install
        if magic == sys.modules["_frozen_importlib_external"].MAGIC_NUMBER:
            sys.meta_path.insert(0, Bundle(modules))
    except (OSError, ValueError, EOFError, TypeError):
        pass
