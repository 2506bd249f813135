"""What `pip install` has to build and to put beside the package, for development: see pyproject.toml.

The launcher and the interposers are compiled (make, cc). All lies in the environment's folder as with
`make install`, but for the package and those that it needs, which lie where pip puts them. The simulator is
left out.
"""

import os
import subprocess
import sys

from setuptools import Distribution, setup
from setuptools.command.build import build

_OUT = "build/pip-parts"
_LIB = "lib/xpu-container-runtime"
_PARTS = {"launcher": "native/launcher", "interposer": "native/interposer/nvidia"}


class Build(build):
    """Compiles first; the launcher is for the interpreter that this runs in: the environment's."""

    def run(self) -> None:
        here = os.path.dirname(os.path.abspath(__file__))
        for name, folder in _PARTS.items():
            words = ["make", "-s", "-C", folder, f"OUT={here}/{_OUT}/{name}", f"PYTHON={sys.executable}"]
            try:
                subprocess.run(words, cwd=here, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                sys.exit(f"{folder} cannot be compiled ({error}): install make and a C compiler")
        super().run()


class Compiled(Distribution):
    """A wheel of it is for one interpreter on one kind of machine."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build": Build},
    distclass=Compiled,
    data_files=[
        ("bin", [f"{_OUT}/launcher/xpu-container-runtime"]),
        (_LIB, ["hooks/pip/shim.py"]),
        (f"{_LIB}/config", ["config/config.yaml", "config/config.schema.json"]),
        (
            f"{_LIB}/native/interposer/nvidia",
            [f"{_OUT}/interposer/{name}" for name in ("libcuda.so.1", "libnvidia-ml.so.1")],
        ),
    ],
)
