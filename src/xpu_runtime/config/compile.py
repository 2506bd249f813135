"""Checks config.yaml against its schema and compiles it, for the few calls that meet a changed file.

What passes is written to the run folder as JSON (for `load`) and as launcher.conf (for the C
launcher, which must not wait for Python). What does not pass still leaves a launcher.conf with a
runtime that works, so that a mistake in the file stops new containers that ask for an XPU and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from xpu_runtime import jsonlite, paths
from xpu_runtime.config.defaults import DEFAULTS, Config, from_plain
from xpu_runtime.config.load import COMPILED, LAUNCHER, config_stamp, find_runtime, keep, last_runtime
from xpu_runtime.errors import ConfigError, nearest

try:
    import jsonschema

    from xpu_runtime.config.document import Document, Problem, dotted, read_document
except ImportError:
    # The shim runs `-I -S`: no site-packages, only what `make install` put beside us.
    sys.path.append(paths.VENDOR_DIR)
    try:
        import jsonschema

        from xpu_runtime.config.document import Document, Problem, dotted, read_document
    except ImportError as error:
        raise ConfigError(
            f"PyYAML and jsonschema, which read {paths.config_file()}, cannot be imported ({error})",
            f"install again, or put them into {paths.VENDOR_DIR}",
        ) from None

#: A file changed so lately could change again within the same tick of its clock, and keep its stamp.
_UNSETTLED_NS = 20_000_000


def schema_file() -> str:
    """The JSON Schema of config.yaml."""
    return os.path.join(paths.DATA_DIR, "config.schema.json")


def default_file() -> str:
    """The commented file that holds every default."""
    return os.path.join(paths.DATA_DIR, "config.yaml")


def load_schema() -> dict[str, Any]:
    """The schema as data; ConfigError where the installation lacks it."""
    try:
        with open(schema_file(), encoding="utf-8") as file:
            schema: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{schema_file()} cannot be read ({error})", "install again") from None
    return schema


def read_config(path: str) -> tuple[Config, dict[str, int], list[Problem]]:
    """The configuration in `path`, the line of each attribute that it sets, and all that is wrong with it.

    With problems, the Config is the defaults. ConfigError if the file cannot be read at all.
    """
    document = read_document(path)
    config, lines, problems = _checked(document)
    return config, lines, problems


def setting_names() -> dict[str, str]:
    """Each of Config's attributes with its key in the file: `driver_root` is `driver.root`."""
    names = {}
    for key, schema in load_schema()["properties"].items():
        section = schema.get("properties")
        for path in [[key, name] for name in section] if section else [[key]]:
            names["_".join(path)] = ".".join(path)
    return names


def compile_config(path: str) -> Config:
    """The configuration in `path`, kept in the run folder; ConfigError with its first problem."""
    try:
        document = read_document(path)
        config, _, problems = _checked(document)
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise ConfigError(problems[0].at(path) + more, f"see `xpu config check {path}`")
    except ConfigError:
        try:
            _keep_launcher(path, None, os.stat(path))
        except OSError:
            pass  # gone meanwhile: the launcher takes the defaults
        raise
    if _settled(document.state):
        stamp = config_stamp(path, document.state)
        keep(COMPILED, jsonlite.dumps({"stamp": stamp, "config": config.as_dict()}))
    _keep_launcher(path, config, document.state)
    return config


def _checked(document: Document) -> tuple[Config, dict[str, int], list[Problem]]:
    if document.problems:
        return DEFAULTS, {}, list(document.problems)
    schema = load_schema()
    errors = jsonschema.Draft202012Validator(schema).iter_errors(document.data)
    # A set: a value that fits neither type nor range is one mistake, told once.
    problems = {problem for error in errors for problem in _explained(error, document)}
    if problems:
        return DEFAULTS, {}, sorted(problems, key=lambda problem: (problem.line, problem.column))
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for path, value in _settings(document.data or {}, schema):
        values["_".join(path)] = _plain(path, value)
        lines["_".join(path)] = document.places[path][0]
    config = from_plain(values)
    if (config.defaults_cores or 0) % config.cores_step:
        what = f"defaults.cores: {config.defaults_cores} is not allowed: give a multiple of cores.step, "
        place = document.places[("defaults", "cores")]
        return DEFAULTS, {}, [Problem(f"{what}which is {config.cores_step}", *place)]
    return config, lines, []


def _settings(data: dict[str, Any], schema: dict[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    """The keys that a checked file sets, sections opened, with their values."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in data.items():
        if "properties" in schema["properties"][key]:
            found.extend(((key, name), inner) for name, inner in (value or {}).items())
        else:
            found.append(((key,), value))
    return found


def _plain(path: tuple[str, ...], value: Any) -> Any:
    """A checked value in the type that Config promises."""
    if path == ("policy", "devices"):
        return None if value == "all" else [str(device) for device in value]
    if path == ("oversubscribe", "memory"):
        return float(value)
    # JSON Schema takes 5.0 for an integer.
    return int(value) if isinstance(value, float) else value


def _explained(error: Any, document: Document) -> list[Problem]:
    """A schema error as lines for people: the key, the value, what is allowed."""
    path = tuple(error.absolute_path)
    if error.validator == "additionalProperties":
        allowed = list(error.schema["properties"])
        return [
            Problem(_unknown(dotted((*path, key)), key, allowed), *document.places[(*path, key)])
            for key in error.instance
            if key not in allowed
        ]
    place = document.places.get(path, (1, 1))
    value = json.dumps(error.instance, default=str)
    value = value if len(value) <= 60 else value[:57] + "..."
    key = f"{dotted(path)}: " if path else ""
    return [Problem(f"{key}{value} is not allowed: {error.schema['x-allowed']}", *place)]


def _unknown(name: str, key: str, allowed: list[str]) -> str:
    near = nearest(key, allowed)
    hint = f"did you mean {near}?" if near else f"the keys here are {', '.join(allowed)}"
    return f"unknown key {name[:80]}: {hint}"


def _settled(state: os.stat_result) -> bool:
    return abs(time.time_ns() - state.st_mtime_ns) >= _UNSETTLED_NS


def _keep_launcher(path: str, config: Config | None, state: os.stat_result) -> None:
    """Tells the launcher which runtime to start while config.yaml stays as it is; None: it is broken."""
    if "\n" in path or not _settled(state):
        return
    runtime = _usable_runtime(config)
    if runtime is not None:
        stamp = f"{state.st_mtime_ns}:{state.st_size}:{state.st_ino}"
        keep(LAUNCHER, f"config={path}\nstamp={stamp}\nruntime={runtime}\n")


def _usable_runtime(config: Config | None) -> str | None:
    """The configured runtime; where there is none, what the launcher used last, else a default one."""
    candidates = [config.low_level_runtimes] if config else []
    last = last_runtime()
    candidates += [(last,)] if last else []
    for names in (*candidates, DEFAULTS.low_level_runtimes):
        try:
            return find_runtime(names)[0]
        except ConfigError:
            continue
    return None
