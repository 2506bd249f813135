"""The environment and annotations of a spec that is too large or too deeply nested to be parsed whole.

runc reads a config.json of any size, nested up to 10,000 deep. Whether the container of such a spec asks for
an XPU must be known all the same, so only these two members are parsed. Imports `re` (7 ms), which only such
specs pay for. Knows nothing of what the variables mean.
"""

from __future__ import annotations

import re

from xpu_runtime import jsonlite
from xpu_runtime.errors import SpecError
from xpu_runtime.linux import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from xpu_runtime.oci.spec import Spec

#: More than runc itself could hold: its own memory is many times the file's size.
_MAX_BYTES = 1 << 30

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}:,]', re.DOTALL)


def read(path: str) -> Spec:
    """A spec with nothing but `process.env` and `annotations`; SpecError where even these cannot be read."""
    try:
        data = files.read(path, _MAX_BYTES)
        top = _members(data, 0)
        spec: Spec = {}
        if "process" in top and _text(data[slice(*top["process"])]).strip() != "null":
            process = _members(data, top["process"][0])
            spec["process"] = {"env": _value(data, process["env"]) if "env" in process else None}
        if "annotations" in top:
            spec["annotations"] = _value(data, top["annotations"])
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SpecError(f"cannot read {path}: {error}") from error
    return spec


def _members(data: bytes, start: int) -> dict[str, tuple[int, int]]:
    """(start, end) of each member's value of the object at `start`; ValueError where there is no object."""
    members: dict[str, tuple[int, int]] = {}
    first = _TOKEN.search(data, start)
    if first is None or first[0] != b"{" or data[start : first.start()].strip(b" \t\n\r"):
        raise ValueError("not JSON, or not an object")
    depth = 0
    name: str | None = None
    begin = 0
    for token in _TOKEN.finditer(data, start):
        kind = data[token.start() : token.start() + 1]
        if kind in b"}],":
            if depth == 1 and name is not None:
                members[name] = (begin, token.start())
                name = None
            depth -= kind != b","
            if depth == 0:
                return members
        elif kind in b"{[":
            depth += 1
        elif depth == 1 and kind == b":":
            begin = token.end()
        elif depth == 1 and name is None:
            name = jsonlite.loads(_text(token[0]))
    raise ValueError("not JSON: an object without its end")


def _value(data: bytes, place: tuple[int, int]) -> Any:
    return jsonlite.loads(_text(data[place[0] : place[1]]))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
