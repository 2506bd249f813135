"""cri-o: our runtime, in a file of our own below /etc/crio/crio.conf.d (crio.conf(5), crio.conf.d(5)).

It is made from cri-o's documents and source; no cri-o has run with it. A pod's annotations reach every
runtime. cri-o has its own values for keys that the entry leaves out: the monitor, the folder of its state.
"""

from __future__ import annotations

from typing import Any

from xpu_runtime.engines import RUNTIME_NAME, _drop_in
from xpu_runtime.engines.containerd import blocks
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import Edit, TextFile

PROGRAM = "crio"
DEFAULT_PATH = "/etc/crio/crio.conf.d/99-xpu.conf"
CONFIG_OPTIONS: tuple[str, ...] = ()
AFTER_CONFIGURE = AFTER_UNCONFIGURE = "systemctl restart crio (containers go on)"

_RUNTIME = ("crio", "runtime", "runtimes", RUNTIME_NAME)
FORM = _drop_in.Format(_RUNTIME, ("crio", "runtime", "default_runtime"), "crio.conf")


def configure(file: TextFile, runtime_path: str, set_as_default: bool) -> tuple[Edit, ...]:
    """The file with our runtime at `runtime_path`. ConfigError."""
    entry = {"runtime_path": runtime_path, "runtime_type": "oci"}
    wanted = {"crio": {"runtime": {"runtimes": {RUNTIME_NAME: entry}}}}
    return _drop_in.configure(FORM, file, wanted, set_as_default)


def unconfigure(file: TextFile) -> tuple[Edit, ...]:
    """The file without our runtime. ConfigError."""
    return _drop_in.unconfigure(FORM, file)


def runtime_path(file: TextFile) -> str | None:
    """The program that the file names as our runtime; None if it names none. ConfigError."""
    path = _drop_in.of(file, (*_RUNTIME, "runtime_path"))
    return path if isinstance(path, str) else None


def data(file: TextFile) -> dict[str, Any]:
    """The file's content; ConfigError."""
    return blocks.parse(file.path, file.text)


def sources(file: TextFile) -> list[str]:
    """The paths of the files that cri-o reads. ConfigError."""
    return [each.target for each in _drop_in.files(FORM, file)]


def unseen(file: TextFile) -> ConfigError | None:
    """Why cri-o takes another program for our name than the one in our file. ConfigError."""
    return _drop_in.unseen(FORM, file)
