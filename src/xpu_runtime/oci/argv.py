"""The command line of an OCI runtime, as the launcher has read it.

Only the launcher knows the rules of runc's options (native/launcher/argv.c). It puts one word before the
runtime's own, which says where in them the values are: in `xpu-argv-1,creates,id=5+0,bundle=4+9` the id is
word 5, and the bundle is word 4 from offset 9 on. This module must not look at options itself.
"""

from __future__ import annotations

import os

from xpu_runtime.errors import SpecError
from xpu_runtime.value import Value

#: With the format's number: a launcher and a shim of two installations must not misread each other.
_MARK = "xpu-argv-1"


class Invocation(Value):
    """One call of the runtime.

    `creates` says that a container comes to be if the runtime accepts the line: create, run or
    restore, only options that we know, exactly one id, no help asked for. Where it is False the
    line is the runtime's alone: it refuses it, or knows an option that we do not.
    """

    arguments: list[str]
    """The runtime's, after its name."""
    places: dict[str, tuple[int, int]]
    """Of each value that is given: the index of its argument, and where in that it begins."""
    creates: bool
    root: str | None
    """The folder of the low-level runtime's state: absolute, or None: its own."""
    container_id: str
    """Of create, run and restore, or of a later command; empty where there is not exactly one."""
    bundle: str
    """Absolute, not normalised; the working directory where none is given."""
    spec_path: str
    """Absolute: config.json in the bundle, or what `--config` of crun and newer runc names."""
    log: str | None
    """Absolute, or None: the runtime's standard error."""
    log_format: str
    """As given, "text" where it is not; runc takes "text" and "json"."""
    systemd_cgroup: bool


def read(words: list[str], cwd: str) -> Invocation:
    """The launcher's word and the runtime's, for a process whose working directory is `cwd`.

    SpecError if another program than this installation's launcher has made the arguments.
    """
    mark, *facts = words[0].split(",") if words else [""]
    arguments = words[1:]
    places = _places(facts, arguments) if mark == _MARK else None
    if places is None:
        raise SpecError(
            "the shim was not started by the launcher that belongs to it",
            "start xpu-container-runtime instead; if you did, install it again",
        )

    def value(name: str, default: str) -> str:
        index, offset = places.get(name, (-1, 0))
        return arguments[index][offset:] if index >= 0 else default

    bundle = os.path.join(cwd, value("bundle", "") or cwd)
    # crun: a spec file given by name is relative to the working directory, unless it is config.json.
    config = value("config", "config.json")
    root = value("root", "")
    log = value("log", "")
    return Invocation(
        arguments=arguments,
        places=places,
        creates="creates" in facts,
        root=os.path.join(cwd, root) if root else None,
        container_id=value("id", ""),
        bundle=bundle,
        spec_path=os.path.join(bundle if config == "config.json" else cwd, config),
        log=os.path.join(cwd, log) if log else None,
        log_format=value("log-format", "text"),
        systemd_cgroup="systemd-cgroup" in facts,
    )


def _places(facts: list[str], arguments: list[str]) -> dict[str, tuple[int, int]] | None:
    """The places of the values that the launcher reports; None if they do not fit these arguments."""
    places: dict[str, tuple[int, int]] = {}
    for fact in facts:
        name, given, place = fact.partition("=")
        if given:
            index, _, offset = place.partition("+")
            if not (index.isdecimal() and offset.isdecimal() and int(index) < len(arguments)):
                return None
            places[name] = int(index), int(offset)
    return places


def with_bundle(invocation: Invocation, other: str) -> list[str]:
    """The arguments of an invocation that creates, with the bundle `other` in the place of its own."""
    arguments = list(invocation.arguments)

    def put(name: str, value: str) -> None:
        index, offset = invocation.places[name]
        arguments[index] = arguments[index][:offset] + value

    # The runtime is in the bundle by the time that it connects to these.
    for socket in ("console-socket", "pidfd-socket"):
        if socket in invocation.places:
            index, offset = invocation.places[socket]
            put(socket, os.path.join(invocation.bundle, arguments[index][offset:]))
    if "bundle" in invocation.places:
        put("bundle", other)
    else:
        behind = invocation.places["subcommand"][0] + 1
        arguments[behind:behind] = ["--bundle", other]
    return arguments
