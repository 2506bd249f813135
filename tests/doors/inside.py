"""What tests have containers do, and how to read what they said."""

from __future__ import annotations

from typing import Any

_OPEN = """for numbers in "$@"; do
    mknod "/dev/probe-$numbers" c "${numbers%:*}" "${numbers#*:}" || exit 9
    echo "$numbers: $(cat "/dev/probe-$numbers" 2>&1)"
    rm "/dev/probe-$numbers"
done"""

#: How opening a device fails that the cgroup allows and that has no driver; and one that it denies.
ALLOWED = "No such device or address"
DENIED = "Operation not permitted"


def may_mknod(spec: dict[str, Any]) -> None:
    """Gives CAP_MKNOD, as docker does by default."""
    for capabilities in spec["process"]["capabilities"].values():
        capabilities.append("CAP_MKNOD")


def open_devices(*numbers: str) -> list[str]:
    """A command that makes a character device for each `major:minor` and opens it."""
    return ["sh", "-c", _OPEN, "sh", *numbers]


def openings(output: str) -> dict[str, str]:
    """What that command said: for each `major:minor` why it could not be opened."""
    return {
        numbers: reason.rpartition(": ")[2]
        for numbers, _, reason in (line.partition(": ") for line in output.splitlines())
    }
