"""The low-level runtime: the OCI runtime that does the work, runc or crun, and its features.

Names are looked up in the system's folders and never in PATH. A program's answer is kept while its file stays
the same, so that no container's start runs it a second time. Knows no command line (oci/argv.py) and no
container.
"""

from __future__ import annotations

import os
import stat

from xpu_runtime import jsonlite, paths
from xpu_runtime.config import cache
from xpu_runtime.errors import ConfigError
from xpu_runtime.linux import files
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config

#: Where the name of a low-level runtime is looked up: the engine's PATH may be anything. The last folder has
#: runc and crun of cri-o's packages.
RUNTIME_FOLDERS = (
    "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/libexec/crio",
)  # fmt: skip

#: The launcher's own name: as the low-level runtime it would start itself forever.
_OURSELVES = "xpu-container-runtime"

#: The runtime that drops a hook's stderr. Its own line, the last in the log, has no more than the hook's exit
#: status.
CRUN = "crun"
#: Those whose containers have a kernel of their own. No device, mount or limit of ours gets into it.
_UNREACHED = {
    "runsc": "gVisor's runsc",
    "kata-runtime": "that of Kata Containers",
    "krun": "crun's krun, which starts virtual machines",
}
#: Where crun looks for cgroups (src/libcrun/cgroup.c and cgroup-utils.c).
_CGROUPS = "/sys/fs/cgroup"


class Runtime(Value):
    """The OCI runtime that does the work: its absolute path, its name, and its features.

    `name`: its own, not its file's. `create_runtime_hooks`: it runs createRuntime hooks (runtime-spec 1.0.2);
    older ones have prestart.
    """

    path: str
    name: str
    create_runtime_hooks: bool


def low_level_runtime(config: Config) -> Runtime:
    """The first of the configured runtimes that exists here.

    It is run once with `--version` to find out which hooks it supports; the answer is kept as
    long as the program is unchanged. Raises ConfigError where none exists.
    """
    path, found = find_runtime(config.low_level_runtimes)
    identity = [cache.FORMAT, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]
    known = cache.read(cache.RUNTIMES)
    entry = known.get(path)
    if not (isinstance(entry, dict) and entry.get("identity") == identity):
        from xpu_runtime.config import probe

        text = probe.version_text(path)
        entry = {
            "identity": identity,
            "create_runtime_hooks": probe.knows_create_runtime(text),
            "name": own_name(path, text),
        }
        known = {**known, path: entry}
        cache.keep(cache.RUNTIMES, jsonlite.dumps(known))
    return Runtime(path, str(entry.get("name")), entry.get("create_runtime_hooks") is True)


def own_name(path: str, text: str) -> str:
    """The name of the runtime at `path` that prints `text` for `--version`."""
    from xpu_runtime.config.probe import program_name

    # crun behaves as another runtime if it is started by this name.
    name = os.path.basename(path)
    return name if name in _UNREACHED else program_name(text) or name


def refusal(path: str, name: str) -> ConfigError | None:
    """Why a container of the runtime with this `own_name` cannot have a slice here; None if it can."""
    what = _UNREACHED.get(name)
    if what is None:
        return _refusal_of_crun(path) if name == CRUN else None
    return ConfigError(
        f"the low-level runtime {path} is {what}: its containers have a kernel of their own, which devices "
        "and mounts of this host do not reach",
        f"name runc or crun in low_level_runtimes in {paths.config_file()}",
    )


def _refusal_of_crun(path: str) -> ConfigError | None:
    """crun makes no cgroup where v2 has a controller beside v1, and comes to that only after a slice is
    booked. It then calls no hook that would give the slice back."""
    if os.path.exists(f"{_CGROUPS}/cgroup.controllers"):
        return None  # v2 alone
    try:
        controllers = files.read(f"{_CGROUPS}/unified/cgroup.controllers", 4096).decode().split()
    except OSError:
        return None
    if not controllers:
        return None
    return ConfigError(
        f"the low-level runtime {path} is crun, which starts no container where cgroup v2 has controllers "
        f"beside v1 ({' '.join(controllers)}, in {_CGROUPS}/unified)",
        f"name runc in low_level_runtimes in {paths.config_file()}, or boot with "
        "systemd.unified_cgroup_hierarchy=1",
    )


def hook_stage(create_runtime_hooks: bool) -> str:
    """The stage in which a runtime calls the hook that gives a container its slice."""
    return "createRuntime" if create_runtime_hooks else "prestart"


def find_runtime(names: tuple[str, ...]) -> tuple[str, os.stat_result]:
    """The path of the first runtime that can be executed, and its stat.

    Names are looked up in RUNTIME_FOLDERS, absolute paths are taken as they are. Raises ConfigError.
    """
    for name in names:
        for path in (name,) if name.startswith("/") else [f"{f}/{name}" for f in RUNTIME_FOLDERS]:
            try:
                found = os.stat(path)
            except OSError:
                continue
            if not stat.S_ISREG(found.st_mode) or not os.access(path, os.X_OK):
                continue
            if os.path.basename(os.path.realpath(path)) == _OURSELVES:
                if not name.startswith("/"):
                    continue  # we are installed under runc's name for an engine: look for the real one
                raise ConfigError(
                    f"low_level_runtimes in {paths.config_file()} names {path}, which is this runtime itself",
                    "name the one that does the work, such as runc",
                )
            return path, found
    raise ConfigError(
        f"no low-level runtime found: {', '.join(names)} (names are looked up in "
        f"{', '.join(RUNTIME_FOLDERS)})",
        f"install one, such as runc, or name it in low_level_runtimes in {paths.config_file()}",
    )


def last_runtime() -> str | None:
    """The low-level runtime in launcher.conf; None if there is none."""
    try:
        lines = files.read(paths.in_run_dir(cache.LAUNCHER), 1 << 16).decode().splitlines()
    except (OSError, ValueError):
        return None
    return next((line.removeprefix("runtime=") for line in lines if line.startswith("runtime=/")), None)
