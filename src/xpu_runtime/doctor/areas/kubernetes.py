"""A node of a Kubernetes cluster: whether assignments can be verified, and only root can sign one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from xpu_runtime import finding
from xpu_runtime.doctor.machine import Machine, plural
from xpu_runtime.finding import Finding
from xpu_runtime.request.assignment import AssignmentError, read_keys

ORDER = 15
_CHECK = "kubernetes"


def look(machine: Machine) -> Iterator[Finding]:
    settings = machine.settings
    if not settings.kubernetes_require_assignment and settings.kubernetes_node_name is None:
        return  # of no cluster
    path = settings.kubernetes_keys
    if not machine.is_root:
        yield finding.unknown(_CHECK, f"{path} can be read by root only", "run it as root")
        return
    try:
        keys = read_keys(path)
        found = os.stat(path)
    except AssignmentError as error:
        if settings.kubernetes_placement == "node" and not os.path.lexists(path):
            text = (
                f"{path} is missing: a scheduler's assignments are refused, and this node places pods itself"
            )
            yield finding.ok(_CHECK, text)
        else:
            todo = error.todo
            if not os.path.lexists(path):
                todo += "; nothing if the runtime is being removed: the rest goes with the last container"
            yield finding.problem(_CHECK, error.what, todo)
        return
    except OSError as error:
        yield finding.problem(_CHECK, f"{path}: {error.strerror}", "find out why it is gone")
        return
    if found.st_uid or stat.S_IMODE(found.st_mode) & 0o077:
        text = f"users other than root can read {path}, and sign assignments with it"
        yield finding.problem(_CHECK, text, f"chown 0:0 {path}; chmod 600 {path}; and have new keys made")
        return
    required = "required" if settings.kubernetes_require_assignment else "not required"
    name = settings.kubernetes_node_name
    yield finding.ok(_CHECK, f"node {name}: assignments are {required}, {plural(len(keys), 'key')}")
