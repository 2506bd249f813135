"""The service that shares out devices' time: whether it runs where containers need it."""

from __future__ import annotations

import grp
import os
from collections.abc import Iterator
from typing import Any

from xpu_runtime import finding, paths
from xpu_runtime.agent import metrics_service
from xpu_runtime.config.defaults import Config
from xpu_runtime.doctor.machine import Machine, listed, plural
from xpu_runtime.finding import Finding
from xpu_runtime.ledger import cgroup_records
from xpu_runtime.limits import sharing
from xpu_runtime.linux import lock_holders
from xpu_runtime.observe import agent_status

ORDER = 95
_CHECK = "agent"
_RESTART = "systemctl restart xpu-agent (without systemd: end it, and run `xpu agent`)"


def look(machine: Machine) -> Iterator[Finding]:
    if group := machine.settings.metrics_group:
        try:
            grp.getgrnam(group)
        except KeyError:
            text = f"metrics.group: there is no group {group}: root alone can read {metrics_service.SOCKET}"
            todo = f"groupadd --system {group}, or correct it; then: {_RESTART}"
            yield finding.warning(_CHECK, text, todo)
    running = agent_status.ask()
    if running is None:
        lock = paths.in_run_dir(agent_status.LOCK)
        holding = lock_holders.of(lock) if os.path.exists(lock) else []
        if holding:
            text = f"xpu agent runs ({listed([str(each) for each in holding])}) and does not answer on "
            text += f"{paths.in_run_dir(agent_status.SOCKET)}: it hangs, or that socket is not its own"
            yield finding.problem(_CHECK, text, f"see its log; to start it anew: {_RESTART}")
            return
        grants = [grant for grant in machine.grants or () if sharing.depends_on_others(grant)]
        needing = [grant for grant in grants if cgroup_records.has_processes(grant)]
        if needing:
            names = listed([grant.container_id[:12] for grant in needing])
            text = f"xpu agent does not run: burst, weight and priorities are caps alone for {names}"
            todo = "start it: systemctl start xpu-agent (or run `xpu agent`)"
            yield finding.warning(_CHECK, text, todo)
        elif machine.grants is not None:  # without the right to read them its socket does not answer either
            text = "xpu agent does not run, and no container needs it: starts take longer"
            yield finding.ok(_CHECK, f"{text} (systemctl start xpu-agent, or `xpu agent`)")
        return
    if not machine.complaints:  # otherwise the settings are unknown, also to a new agent
        yield from _not_read_again(machine.settings, running["metrics"])
    held = [each for device in running["devices"] for each in device["slices"] if each["held_strictly"]]
    for each in held:
        yield _strict(each)
    if not held:
        slices = sum(len(device["slices"]) for device in running["devices"])
        text = f"xpu agent {running['version']} runs, for {plural(slices, 'slice')} with pages"
        yield finding.ok(_CHECK, text)


def _not_read_again(config: Config, read: dict[str, str | None]) -> Iterator[Finding]:
    """`read`: the agent's settings of `metrics` since its start."""
    asked = {"listen": config.metrics_listen, "group": config.metrics_group}
    changed = [f"metrics.{key}" for key, value in asked.items() if read.get(key) != value]
    if changed:
        text = f"{' and '.join(changed)}: changed since the start of xpu agent, which reads it only then"
        yield finding.warning(_CHECK, text, f"{_RESTART}: containers do not notice")


def _strict(each: dict[str, Any]) -> Finding:
    name = each["container_id"][:12]
    text = f"container {name} is held more strictly: {each['held_strictly']}"
    return finding.warning(
        _CHECK, text, "its programs bypass the cap, or report less than they use: look at them"
    )
