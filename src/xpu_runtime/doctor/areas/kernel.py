"""The kernel: cgroups and seccomp."""

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


def of_cgroups(
    mounted: list[cgroups.Hierarchy], systemd: bool, top: str = _TOP, own: tuple[str, ...] | None = None
) -> Finding:
    """Findings about these hierarchies, and whether systemd runs; runc looks for them in `top`. `own`: the
    controllers of the v1 hierarchies that this process is in, one or more words each ("cpu,cpuacct")."""
    v1 = [each for each in mounted if each.version == 1 and "devices" in each.controllers]
    points = [each.mountpoint for each in mounted if each.version == 2]
    # runc takes `top` for v2 if that is mounted there; otherwise it needs v1's devices hierarchy.
    v2 = top if top in points else points[0] if points else None
    manager = "systemd" if systemd else "no systemd"
    any_v1 = any(each.version == 1 for each in mounted)
    missing = [] if v2 == top else _not_mounted(mounted, cgroups.v1_controllers() if own is None else own)
    if not v1 and v2 != top and not (any_v1 and missing):
        there = "no cgroup hierarchy is mounted" if v2 is None else f"cgroup v2 is at {v2} and not at {top}"
        if any_v1:  # which a mount at `top` would cover
            text = "no cgroup hierarchy for devices is mounted, and v1 has none here: no container can start"
            return finding.problem("cgroups", text, "boot with systemd.unified_cgroup_hierarchy=1")
        sysfs = "" if os.path.isdir(top) else "mount -t sysfs none /sys; "
        todo = f"{sysfs}mount -t cgroup2 none {top}"
        return finding.problem("cgroups", f"{there}: no container can start", todo)
    used = top if v2 == top or not v1 else v1[0].mountpoint
    if os.path.isdir(used) and os.statvfs(used).f_flag & os.ST_RDONLY:
        text = f"{used} is mounted read-only: no container can start"
        return finding.problem("cgroups", text, f"mount -o remount,rw {used}")
    if missing:
        text = f"the cgroup hierarchies {', '.join(missing)} are not mounted: containers do not start"
        # No one can make a folder in the kernel's own one.
        below = any(each.mountpoint.startswith(f"{top}/") for each in mounted)
        before = [] if below else [f"mount -t tmpfs none {top}"]
        todo = "; ".join([*before, *(_mount_v1(name, top) for name in missing)])
        return finding.problem("cgroups", text, todo)
    if v2 is None:
        text = f"v1 only, {manager}: the kernel's and the driver's own memory limits need cgroup v2"
        return finding.warning("cgroups", text, "boot with systemd.unified_cgroup_hierarchy=1")
    dmem = "dmem" in _words(os.path.join(v2, "cgroup.controllers"))
    kind = "hybrid (v1 with v2 beside it)" if v1 else "v2"
    return finding.ok(
        "cgroups", f"{kind} at {v2}, {manager}, {'with' if dmem else 'without'} dmem controller"
    )


def _not_mounted(mounted: list[cgroups.Hierarchy], own: tuple[str, ...]) -> list[str]:
    """The v1 hierarchies of this process that are mounted nowhere; runc needs each."""
    there = {controller for each in mounted for controller in each.controllers}
    return [name for name in own if not there.intersection(name.split(","))]


def _mount_v1(name: str, top: str) -> str:
    folder = f"{top}/{name.removeprefix('name=')}"
    options = f"none,{name}" if name.startswith("name=") else name
    return f"mkdir -p {folder}; mount -t cgroup -o {options} none {folder}"


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
