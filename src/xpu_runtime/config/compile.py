"""Checks config.yaml against its schema and compiles it, after the file has changed.

A valid file is written to the run folder as JSON (for load.py) and as launcher.conf (for the C launcher,
which does not start Python). For an invalid file launcher.conf still gets a low-level runtime that works: a
mistake in the file must stop only new containers that ask for an XPU. This module does not depend on the
settings' meaning.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from xpu_runtime import jsonlite, paths, third_party
from xpu_runtime.config.cache import COMPILED, FORMAT, LAUNCHER, config_stamp, file_stamp, keep
from xpu_runtime.config.defaults import DEFAULTS, Config, from_plain
from xpu_runtime.config.low_level_runtime import find_runtime, last_runtime
from xpu_runtime.errors import ConfigError, did_you_mean

try:
    third_party.enable()
    import jsonschema

    from xpu_runtime.config.document import Document, Problem, dotted, read_document
except ImportError as error:
    raise ConfigError(
        f"PyYAML and jsonschema, which read {paths.config_file()}, cannot be imported ({error})",
        f"install again, or put them into {paths.THIRD_PARTY_DIR}",
    ) from None

#: A file that changed so recently could change again in the same clock tick, with the same stamp.
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
    """The configuration in `path`, the line of each attribute that it sets, and all problems.

    With problems, the Config is the defaults. ConfigError if the file cannot be read at all.
    """
    document = read_document(path)
    config, lines, problems = _checked(document)
    return config, lines, problems


def check(document: Document, schema: dict[str, Any]) -> list[Problem]:
    """The violations of the schema (this one, or one made of its parts), in the file's order."""
    errors = jsonschema.Draft202012Validator(schema).iter_errors(document.data)
    # A set: a value that violates both type and range is one problem.
    problems = {problem for error in errors for problem in _explained(error, document)}
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


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
            pass  # the file is gone by now: the launcher takes the defaults
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
    if problems := check(document, schema):
        return DEFAULTS, {}, problems
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
    if config.metrics_listen and (why := _not_listened(config)):
        what = f"metrics.listen: {json.dumps(config.metrics_listen)} is not allowed: {why}"
        return DEFAULTS, {}, [Problem(what, *document.places[("metrics", "listen")])]
    if config.kubernetes_require_assignment and config.kubernetes_node_name is None:
        what = "kubernetes.require_assignment: true is not allowed without kubernetes.node_name: give the "
        place = document.places[("kubernetes", "require_assignment")]
        return DEFAULTS, {}, [Problem(f"{what}node's name in the cluster (`kubectl get nodes`)", *place)]
    for path, named in ((("policy", "quotas"), config.policy_quotas), (("cdi", "sizes"), config.cdi_sizes)):
        if again := _twice(named):
            what = f"{'.'.join(path)}: two have the name {again[1]}: give each its own"
            return DEFAULTS, {}, [Problem(what, *document.places[path + (again[0], "name")])]
    for at, size in enumerate(config.cdi_sizes):
        if size.get("cores", 0) % config.cores_step:
            what = f"cdi.sizes[{at}].cores: {size['cores']} is not allowed: give a multiple of cores.step, "
            place = document.places[("cdi", "sizes", at, "cores")]
            return DEFAULTS, {}, [Problem(f"{what}which is {config.cores_step}", *place)]
    return config, lines, []


def _not_listened(config: Config) -> str:
    """Why metrics are not served there; "" if they are."""
    import ipaddress

    from xpu_runtime.linux import address

    try:
        where, port = address.parsed(config.metrics_listen or "")
    except ValueError:
        port = 0
    if not port:
        return "a port is a number from 1 to 65535"
    try:
        found = ipaddress.ip_address(where)
    except ValueError:
        return "give an IP address, such as 127.0.0.1"
    if found.is_loopback or config.metrics_allow_remote:
        return ""
    return (
        "other machines can reach this address and read all metrics; "
        "to allow it, set metrics.allow_remote: true"
    )


def _settings(data: dict[str, Any], schema: dict[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    """(path, value) of each key that a checked file sets, those in sections one by one."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in data.items():
        if "properties" in schema["properties"][key]:
            found.extend(((key, name), inner) for name, inner in (value or {}).items())
        else:
            found.append(((key,), value))
    return found


def _plain(path: tuple[str, ...], value: Any) -> Any:
    """A checked value in the type of its attribute in Config."""
    if path == ("policy", "devices"):
        return None if value == "all" else [str(device) for device in value]
    if path == ("policy", "quotas"):
        return [_quota(each) for each in value]
    if path == ("cdi", "sizes"):
        return [{k: int(v) if isinstance(v, float) else v for k, v in each.items()} for each in value]
    if path == ("oversubscribe", "memory"):
        return float(value)
    # JSON Schema accepts 5.0 as an integer.
    return int(value) if isinstance(value, float) else value


def _quota(value: dict[str, Any]) -> dict[str, Any]:
    whole = {key: int(each) if isinstance(each, float) else each for key, each in value.items()}
    return {**whole, "match": {key: int(v) if type(v) is float else v for key, v in value["match"].items()}}


def _twice(named: tuple[dict[str, Any], ...]) -> tuple[int, str] | None:
    """The first one that has another's name: its place in the list, and the name."""
    names = [each["name"] for each in named]
    return next(((at, name) for at, name in enumerate(names) if name in names[:at]), None)


def _explained(error: Any, document: Document) -> list[Problem]:
    """A schema error as problems for people: the key, its value, the allowed values."""
    path = tuple(error.absolute_path)
    if error.validator == "additionalProperties":
        allowed = list(error.schema["properties"])
        return [
            Problem(_unknown(dotted((*path, key)), key, allowed), *document.places[path + (key,)])
            for key in error.instance
            if key not in allowed
        ]
    place = document.places.get(path, (1, 1))
    value = json.dumps(error.instance, default=str)
    value = value if len(value) <= 60 else value[:57] + "..."
    key = f"{dotted(path)}: " if path else ""
    return [Problem(f"{key}{value} is not allowed: {error.schema['x-allowed']}", *place)]


def _unknown(name: str, key: str, allowed: list[str]) -> str:
    hint = did_you_mean(key, allowed, f"the keys here are {', '.join(allowed)}")
    return f"unknown key {name[:80]}: {hint}"


def _settled(state: os.stat_result) -> bool:
    return abs(time.time_ns() - state.st_mtime_ns) >= _UNSETTLED_NS


def _keep_launcher(path: str, config: Config | None, state: os.stat_result) -> None:
    """Writes launcher.conf: the runtime to start while config.yaml is unchanged. `config` is None if it is
    invalid."""
    if "\n" in path or not _settled(state):
        return
    runtime = _usable_runtime(config)
    if runtime is not None:
        values = {
            "format": FORMAT,
            "config": path,
            "stamp": file_stamp(state),
            "runtime": runtime,
        }
        keep(LAUNCHER, "".join(f"{key}={value}\n" for key, value in values.items()))


def _usable_runtime(config: Config | None) -> str | None:
    """The configured runtime; if it does not exist, the one that the launcher used last, or a default one."""
    candidates = [config.low_level_runtimes] if config else []
    last = last_runtime()
    candidates += [(last,)] if last else []
    for names in (*candidates, DEFAULTS.low_level_runtimes):
        try:
            return find_runtime(names)[0]
        except ConfigError:
            continue
    return None
