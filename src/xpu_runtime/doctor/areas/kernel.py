"""What the kernel gives: cgroups and seccomp."""

from __future__ import annotations

import os
from collections.abc import Iterator

from xpu_runtime import finding
from xpu_runtime.doctor.machine import Machine
from xpu_runtime.finding import Finding
from xpu_runtime.linux import cgroups

ORDER = 40
_TOP = "/sys/fs/cgroup"


def look(machine: Machine) -> Iterator[Finding]:
    yield of_cgroups(cgroups.mounted(), os.path.isdir("/run/systemd/system"))
    yield seccomp("/proc/sys/kernel/seccomp/actions_avail")


def of_cgroups(mounted: list[cgroups.Hierarchy], systemd: bool, top: str = _TOP) -> Finding:
    """What these hierarchies, and whether systemd runs, mean for us; runc looks for them in `top`."""
    v1 = [each for each in mounted if each.version == 1 and "devices" in each.controllers]
    v2 = next((each.mountpoint for each in mounted if each.version == 2), None)
    manager = "systemd" if systemd else "no systemd"
    if not v1 and v2 != top:
        # runc takes `top` for v2 if that is mounted there, else needs v1's devices hierarchy.
        there = "no cgroup hierarchy is mounted" if v2 is None else f"cgroup v2 is at {v2} and not at {top}"
        return finding.problem("cgroups", f"{there}: no container can start", f"mount -t cgroup2 none {top}")
    if v2 is None:
        text = f"v1 only, {manager}: the kernel's and the driver's own memory limits need cgroup v2"
        return finding.warning("cgroups", text, "boot with systemd.unified_cgroup_hierarchy=1")
    dmem = "dmem" in _words(os.path.join(v2, "cgroup.controllers"))
    kind = "hybrid (v1 with v2 beside it)" if v1 else "v2"
    return finding.ok(
        "cgroups", f"{kind} at {v2}, {manager}, {'with' if dmem else 'without'} dmem controller"
    )


def _words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(1 << 16).split()
    except OSError:
        return []


def seccomp(path: str) -> Finding:
    """Seccomp, by the file of the kernel that lists its actions."""
    if _words(path):
        return finding.ok("seccomp", "the kernel has it")
    text = f"the kernel has none ({path} is missing): the engines' profiles hold nothing back"
    return finding.warning("seccomp", text, "use a kernel with CONFIG_SECCOMP_FILTER")
