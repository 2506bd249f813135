"""The ConfigMap xpu in pods: the cluster's part of the runtime's configuration. Nodes and extender read the
same file.

If the two differed in the unit of memory, the signed amount would not be the requested one. So each of them
refuses the whole file if the other would, and refuses keys that nobody reads. node_setup/ installs it on a
node.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from xpu_runtime.config.compile import check, load_schema
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.config.document import Document, Problem, read_document
from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.resources import Resources
from xpu_runtime.paths import DEFAULT_CONFIG
from xpu_runtime.request.units import parse_memory
from xpu_runtime.value import Value

_SECTION = "kubernetes"
#: Settings of placement; on a node they are the node's own, for docker's containers, too.
_POLICY = ("placement", "policy")
#: Its keys that cannot be the same on all nodes, or are written there with the Secret.
_OF_A_NODE = ("node_name", "keys")
#: Files of the kubelet beside those of a ConfigMap.
_MOUNTED = "..data"
#: Its sections.
_TAKEN = (_SECTION, _POLICY[0])
_THERE = f"write it there, into {DEFAULT_CONFIG}"


class Configuration(Value):
    """The file's content, checked."""

    #: Its section of that name.
    kubernetes: Mapping[str, Any]
    #: binpack or spread, for the extender; None: it is not said.
    policy: str | None = None

    @property
    def resources(self) -> Resources:
        """The resources that nodes with this file offer."""
        unit = self.kubernetes.get("memory_unit", DEFAULTS.kubernetes_memory_unit)
        aliases = self.kubernetes.get("aliases", DEFAULTS.kubernetes_aliases)
        return Resources(parse_memory(unit).on(0), tuple(aliases))


def read(path: str) -> Configuration:
    """The file's content; ConfigError, with the key, if it is refused."""
    document = read_document(path)
    problems = document.problems or _problems(document)
    if problems:
        raise ConfigError(problems[0].at(_name(path)))
    found = (document.data or {}).get(_SECTION)
    if found is None:
        todo = "write it as the chart does (templates/configuration.yaml)"
        raise ConfigError(f"{_name(path)} has no section {_SECTION}", todo)
    policy = ((document.data or {}).get(_POLICY[0]) or {}).get(_POLICY[1])
    if policy is not None and found.get("placement", DEFAULTS.kubernetes_placement) != "extender":
        what = Problem(f"{'.'.join(_POLICY)} is the extender's, and kubernetes.placement is not extender")
        raise ConfigError(what.at(_name(path)), f"write it into each node's {DEFAULT_CONFIG}")
    return Configuration(found, policy)


def _name(path: str) -> str:
    """The place that people can change: the kubelet makes the file from a key of the ConfigMap."""
    folder, key = os.path.split(path)
    return f"ConfigMap xpu, key {key}" if os.path.lexists(os.path.join(folder, _MOUNTED)) else path


def _problems(document: Document) -> Sequence[Problem]:
    data = document.data
    if data is None:
        return ()
    sections = load_schema()["properties"]
    keys = dict(sections[_SECTION]["properties"])
    if isinstance(data, dict):
        # "Unknown" would not help for a key that the runtime knows.
        elsewhere: list[tuple[str, ...]] = [(key,) for key in data if key in sections and key not in _TAKEN]
        theirs = data.get(_SECTION)
        elsewhere += [(_SECTION, key) for key in _OF_A_NODE if isinstance(theirs, dict) and key in theirs]
        if elsewhere:
            return [Problem(_elsewhere(path), *document.places[path]) for path in elsewhere]
    for name in _OF_A_NODE:
        del keys[name]
    taken = {
        **{name: sections[name] for name in _TAKEN},
        _SECTION: {**sections[_SECTION], "properties": keys},
    }
    allowed = f"give `{_SECTION}:` and its keys below it"
    schema = {"type": "object", "additionalProperties": False, "x-allowed": allowed, "properties": taken}
    return check(document, schema)


def _elsewhere(path: tuple[str, ...]) -> str:
    todo = "leave it out, it is written there" if len(path) > 1 else _THERE
    return f"{'.'.join(path)} is each node's own: {todo}"
