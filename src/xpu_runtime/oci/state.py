"""The container state that a low-level runtime writes to a hook's standard input.

OCI runtime spec, runtime.md "State". Runtimes before 1.0 wrote `bundlePath` for `bundle`. Only parses and
checks it.
"""

from __future__ import annotations

import os

from xpu_runtime import jsonlite
from xpu_runtime.errors import SpecError
from xpu_runtime.value import Value

#: A state is a few hundred bytes plus the annotations, which Go's encoder can make six times as long as they
#: are in the spec (`<` becomes \\u003c).
MAX_BYTES = 128 << 20


class State(Value):
    """A container as its hooks see it; `pid` is 0 where there is no process (any more)."""

    id: str
    bundle: str
    pid: int


def parse(data: bytes) -> State:
    """The state in `data`; SpecError names a missing part."""
    try:
        value = jsonlite.loads(data.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise SpecError(f"the container state on standard input cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise SpecError("the container state on standard input is not an object")
    identity = value.get("id")
    bundle = value.get("bundle") or value.get("bundlePath")
    pid = value.get("pid", 0)
    if not isinstance(identity, str) or not identity:
        raise SpecError("the container state on standard input has no id")
    try:
        identity.encode()
    except UnicodeEncodeError as error:
        raise SpecError(f"the container state on standard input has no id but {identity!r}") from error
    if not isinstance(bundle, str) or not bundle.startswith("/"):
        raise SpecError(f"the state of container {identity} has no absolute bundle path")
    if not _can_be_a_path(bundle):
        raise SpecError(f"the state of container {identity} has a bundle that is not a path: {bundle!r}")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 0:
        raise SpecError(f"the state of container {identity} has no valid pid")
    return State(identity, bundle, pid)


def _can_be_a_path(text: str) -> bool:
    """Whether it can be passed to the kernel: without a NUL and without a lone surrogate that is no byte."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
