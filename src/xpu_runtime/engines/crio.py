"""cri-o: our runtime, in a file of our own below /etc/crio/crio.conf.d (crio.conf(5), crio.conf.d(5)).

It is made from cri-o's documents and source; no cri-o has run with it. A pod's annotations reach every
runtime. cri-o has its own values for keys that the entry leaves out: the monitor, the folder of its state.
"""

from __future__ import annotations

from xpu_runtime.engines import RUNTIME_NAME, _drop_in
from xpu_runtime.textfile import Edit, TextFile

PROGRAM = "crio"
DEFAULT_PATH = "/etc/crio/crio.conf.d/99-xpu.conf"
CONFIG_OPTIONS: tuple[str, ...] = ()
AFTER_CONFIGURE = AFTER_UNCONFIGURE = "systemctl restart crio (containers go on)"

_RUNTIME = ("crio", "runtime", "runtimes", RUNTIME_NAME)
FILE = _drop_in.DropIn(_RUNTIME, ("crio", "runtime", "default_runtime"), "crio.conf")
unconfigure, data, sources, unseen = FILE.unconfigure, FILE.data, FILE.sources, FILE.unseen


def configure(file: TextFile, runtime_path: str, set_as_default: bool) -> tuple[Edit, ...]:
    """The file with our runtime at `runtime_path`. ConfigError."""
    entry = {"runtime_path": runtime_path, "runtime_type": "oci"}
    wanted = {"crio": {"runtime": {"runtimes": {RUNTIME_NAME: entry}}}}
    return FILE.configure(file, wanted, set_as_default)


def runtime_path(file: TextFile) -> str | None:
    """The program that the file names as our runtime; None if it names none. ConfigError."""
    path = _drop_in.of(file, (*_RUNTIME, "runtime_path"))
    return path if isinstance(path, str) else None
