"""The paths of our own files and of our state.

Two environment variables, read from the engine's environment and never from a container's, change them:
XPU_CONFIG (the configuration file) and XPU_RUN_DIR (all state, except for the records of start/created.py;
lost at reboot, as the containers are). Paths only: nothing is opened here.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_CONFIG = "/etc/xpu/config.yaml"
DEFAULT_RUN_DIR = "/run/xpu"
DEFAULT_STATE_DIR = "/var/lib/xpu"
DEFAULT_CDI_DIR = "/etc/cdi"

# <lib>/python/xpu_runtime/paths.py when installed, src/xpu_runtime/paths.py in the tree: the data files lie
# beside the folder that holds the package. pip puts the package among others (setup.py puts the rest where
# `make install` does): <prefix>/lib/python3.N/site-packages/xpu_runtime/paths.py.
_PACKAGES = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BY_PIP = os.path.basename(_PACKAGES) == "site-packages"
LIB = os.path.dirname(_PACKAGES)
if BY_PIP:
    LIB = os.path.join(os.path.dirname(LIB), "xpu-container-runtime")

#: Default configuration and its JSON Schema.
DATA_DIR = os.path.join(LIB, "config")
#: Compiled files: the interposers, and the simulated driver's libraries.
NATIVE_DIR = os.path.join(LIB, "native")
#: click, pyyaml, jsonschema, nvidia-ml-py and others, as `make install` or pip put them beside us.
THIRD_PARTY_DIR = _PACKAGES if BY_PIP else os.path.join(LIB, "vendor")
#: In the run folder: the folders of grants (limits/folders.py).
GRANT_FOLDERS = "slices"
#: In the run folder: backends' files of devices (limits/per_device.py).
DEVICE_FOLDERS = "devices"
#: In the run folder: lists of files made in the root folders of builds' steps (delivery/build_step_files.py).
BUILDS = "builds"


def config_file() -> str:
    """The configuration file's path; it need not exist."""
    return os.environ.get("XPU_CONFIG") or DEFAULT_CONFIG


def run_dir() -> str:
    """The folder of all state: ledger, caches, simulated driver."""
    return os.environ.get("XPU_RUN_DIR") or DEFAULT_RUN_DIR


def state_dir() -> str:
    """The folder of state that outlives reboots. With a run folder of its own, a trial has it in there."""
    is_default = os.path.normpath(run_dir()) == DEFAULT_RUN_DIR
    return DEFAULT_STATE_DIR if is_default else in_run_dir("state")


def cdi_file() -> str:
    """The CDI file (vendors/cdi_file.py), where engines look for such files. A trial has it with its state:
    engines have to be told that folder."""
    is_default = os.path.normpath(run_dir()) == DEFAULT_RUN_DIR
    return os.path.join(DEFAULT_CDI_DIR if is_default else in_run_dir("cdi"), "yoyoworks.com-xpu.yaml")


def in_run_dir(*names: str) -> str:
    return os.path.join(run_dir(), *names)


_caller_library_path: tuple[str, ...] = ()


def take_caller_library_path() -> None:
    """Makes LD_LIBRARY_PATH count from now on. Only `xpu` calls this, because its user sets that variable on
    purpose; a program that an engine starts may have it from anyone, or from an image."""
    global _caller_library_path
    words = os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    _caller_library_path = tuple(dict.fromkeys(word for word in words if word.startswith("/")))


def caller_library_path() -> tuple[str, ...]:
    """The folders in which the caller's programs look for libraries; none unless they were taken."""
    return _caller_library_path


#: The agent sets it for programs that it runs for a member of the group: "COLUMNS" or "COLUMNS coloured", by
#: the member's terminal.
TERMINAL_VARIABLE = "XPU_TERMINAL"

#: The hook that the shim writes into specs: <prefix>/bin beside <prefix>/lib/xpu-container-runtime.
LAUNCHER = os.path.join(os.path.dirname(os.path.dirname(LIB)), "bin", "xpu-container-runtime")
HOOK = f"{LAUNCHER}-hook"
_HOOK_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def hook_environment(environment: Mapping[str, str], folder: str) -> list[str]:
    """The whole environment of a hook that is called for a process with `environment` in `folder`: nothing of
    an image's."""
    given = ((name, environment.get(name)) for name in ("XPU_CONFIG", "XPU_RUN_DIR"))
    # The hook's working directory is another.
    return [_HOOK_PATH, *(f"{name}={os.path.join(folder, value)}" for name, value in given if value)]
