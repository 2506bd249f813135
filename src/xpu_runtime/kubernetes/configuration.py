"""The ConfigMap xpu as pods have it: the section `kubernetes` of the runtime's configuration, of which nodes
and extender read the same file.

Where the two differed in the unit of memory, what is signed would not be what was asked for. What becomes of
the section on a node is node_setup/'s to know.
"""

from __future__ import annotations

from typing import Any

from xpu_runtime import third_party
from xpu_runtime.config.compile import load_schema
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.resources import Resources
from xpu_runtime.request.units import parse_memory

third_party.enable()
import jsonschema  # noqa: E402 - where it is, only now
import yaml  # noqa: E402


def section(path: str) -> dict[str, Any]:
    """The section `kubernetes` of the file; ConfigError where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            document = yaml.safe_load(file)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be used ({' '.join(str(error).split())})") from None
    found = document.get("kubernetes") if isinstance(document, dict) else None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} has no section kubernetes", "see the ConfigMap xpu")
    return found


def resources(path: str) -> Resources:
    """The resources that nodes with this file offer; ConfigError where they refuse it."""
    found = section(path)
    schema = load_schema()["properties"]["kubernetes"]
    for error in jsonschema.Draft202012Validator(schema).iter_errors(found):
        where = ".".join(("kubernetes", *map(str, error.absolute_path)))
        raise ConfigError(f"{path}: {where}: {error.message}", error.schema.get("x-allowed", ""))
    unit = found.get("memory_unit", DEFAULTS.kubernetes_memory_unit)
    aliases = found.get("aliases", DEFAULTS.kubernetes_aliases)
    return Resources(parse_memory(unit).on(0), tuple(aliases))
