"""The security modules that can deny containers the files that we give them: SELinux and AppArmor."""

from __future__ import annotations

import os
from collections.abc import Iterator

from xpu_runtime import finding
from xpu_runtime.doctor.machine import Machine
from xpu_runtime.finding import Finding

ORDER = 50
_SELINUX = "/sys/fs/selinux/enforce"
_APPARMOR = "/sys/module/apparmor/parameters/enabled"


def look(machine: Machine) -> Iterator[Finding]:
    yield selinux(_SELINUX)
    yield apparmor(_APPARMOR)


def selinux(path: str) -> Finding:
    """SELinux, by its file that says whether it enforces."""
    state = _text(path)
    if state is None:
        return finding.ok("selinux", "off")
    if state != "1":
        return finding.ok("selinux", "permissive")
    text = "enforcing, which was not tried with us: confined containers may be denied the devices"
    todo = "if `ausearch -m avc` shows denials: setsebool -P container_use_devices on"
    return finding.warning("selinux", text, f"{todo}, or --security-opt label=disable for that container")


def apparmor(path: str) -> Finding:
    """AppArmor, by the parameter of its kernel module."""
    if _text(path) != "Y":
        return finding.ok("apparmor", "off")
    text = "on; the engines' default profile lets containers use their devices"
    return finding.ok("apparmor", text)


def _text(path: str) -> str | None:
    try:
        with open(os.path.join(path), encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return None
