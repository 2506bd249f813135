"""A rule of a cgroup that lets its processes use a device (cgroups(7); in v1's spelling of devices.allow).

A value; other modules put it into force.
"""

from __future__ import annotations

from xpu_runtime.value import Value


class DeviceRule(Value):
    """One device that may be used: `kind` is "c" or "b", `access` one or more of "r", "w" and "m" (mknod)."""

    kind: str
    major: int
    minor: int
    access: str = "rw"

    def __str__(self) -> str:
        return f"{self.kind} {self.major}:{self.minor} {self.access}"
