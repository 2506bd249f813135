"""The effective configuration and the low-level runtime, at the price of a few stats.

YAML and JSON Schema cost more than a whole container start, so a file that was checked once is
kept as plain JSON in the run folder, and is used for as long as the file's stamp stays the same.
Nothing here needs the run folder: where it cannot be written, each call works out again what it
would have found there.
"""

from __future__ import annotations

import os
import stat

from xpu_runtime import jsonlite, paths
from xpu_runtime.config.defaults import DEFAULTS, Config, from_plain
from xpu_runtime.errors import ConfigError
from xpu_runtime.linux import files
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Where a low-level runtime's name is looked up; PATH is the engine's, and nobody's promise.
RUNTIME_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

#: The compiled configuration, and what is known of the low-level runtimes, in the run folder.
COMPILED = "config.json"
LAUNCHER = "launcher.conf"
RUNTIMES = "runtimes.json"

#: Part of every stamp: another version of this program does not read what this one compiled.
_FORMAT = 1

#: The launcher's own name; naming it as the low-level runtime would start it for ever.
_OURSELVES = "xpu-container-runtime"


class Runtime(Value):
    """The OCI runtime that does the work: its absolute path, its name, and what it knows.

    `create_runtime_hooks`: it runs createRuntime hooks (runtime-spec 1.0.2); older ones have prestart.
    """

    path: str
    name: str
    create_runtime_hooks: bool


def load() -> Config:
    """The effective configuration; the defaults where there is no file.

    Raises ConfigError, with the first problem's line, where the file cannot be used.
    """
    path = paths.config_file()
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return DEFAULTS
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})", "check its permissions") from None
    compiled = _read_compiled(config_stamp(path, found))
    if compiled is not None:
        return compiled
    from xpu_runtime.config.compile import compile_config

    return compile_config(path)


def config_stamp(path: str, found: os.stat_result) -> list[Any]:
    """What a compiled configuration is known by: the file, its state, and this boot of the node."""
    # The change time as well, which nobody can set back: `cp -p` and friends restore the others.
    state = [found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_dev, found.st_ino]
    return [_FORMAT, path, *state, _boot_id()]


def low_level_runtime(config: Config) -> Runtime:
    """The first of the configured runtimes that exists here.

    It is started once (`--version`), to learn which hooks it knows; the answer is kept for as
    long as the program stays the same. Raises ConfigError where none exists.
    """
    path, found = find_runtime(config.low_level_runtimes)
    identity = [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]
    known = _read_plain(RUNTIMES)
    entry = known.get(path)
    if not (isinstance(entry, dict) and entry.get("identity") == identity):
        from xpu_runtime.config.probe import knows_create_runtime

        entry = {"identity": identity, "create_runtime_hooks": knows_create_runtime(path)}
        keep(RUNTIMES, jsonlite.dumps({**known, path: entry}))
    return Runtime(path, os.path.basename(path), entry.get("create_runtime_hooks") is True)


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
                    continue  # put in runc's place for an engine; the real one is further on
                raise ConfigError(
                    f"low_level_runtimes in {paths.config_file()} names {path}, which is this runtime itself",
                    "name the one that does the work, as runc",
                )
            return path, found
    raise ConfigError(
        f"no low-level runtime found: {', '.join(names)} (names are looked up in "
        f"{', '.join(RUNTIME_FOLDERS)})",
        f"install one, as runc, or name it in low_level_runtimes in {paths.config_file()}",
    )


def last_runtime() -> str | None:
    """The low-level runtime that the launcher was last told of; None where it was told of none."""
    try:
        lines = files.read(paths.in_run_dir(LAUNCHER), 1 << 16).decode().splitlines()
    except (OSError, ValueError):
        return None
    return next((line.removeprefix("runtime=") for line in lines if line.startswith("runtime=/")), None)


def keep(name: str, text: str) -> None:
    """Writes a file of the run folder, for the next call; a run folder that cannot be written is no error."""
    folder = paths.run_dir()
    try:
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            os.chmod(folder, 0o755)  # noqa: S103 - whatever the engine's umask is
        files.write_atomic(os.path.join(folder, name), text.encode(), mode=0o644)
    except OSError:
        pass


def _read_compiled(stamp: list[Any]) -> Config | None:
    document = _read_plain(COMPILED)
    if document.get("stamp") != stamp:
        return None
    try:
        return from_plain(document["config"])
    except (LookupError, TypeError, AttributeError):
        return None


def _read_plain(name: str) -> dict[str, Any]:
    """A JSON object of the run folder; empty where it is missing or damaged, for it is only a copy."""
    try:
        document = jsonlite.loads(files.read(paths.in_run_dir(name), 1 << 20).decode())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _boot_id() -> str:
    try:
        fd = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 64).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
