"""A timer of the node's systemd, which finishes the removal after the pod is gone.

Running containers use the installed programs, and when the last of them ends our pods may be gone from the
cluster. The timer asks each minute, over reboots too, and removes itself with the rest. A node without
systemd keeps the tree until packaging/kubernetes/uninstall.yaml is applied when they have ended.
"""

from __future__ import annotations

import contextlib
import os

from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.node_setup.host import has_systemd, run, say
from xpu_runtime.linux import files

_FOLDER = "/etc/systemd/system"
_NAME = "xpu-node-removal"
_SERVICE = """[Unit]
Description=Remove the XPU container runtime when no container calls it any more

[Service]
Type=oneshot
ExecStart={prefix}/bin/xpu kubernetes uninstall-node --finish
"""
_TIMER = """[Unit]
Description=Remove the XPU container runtime when no container calls it any more

[Timer]
OnActiveSec=60
OnUnitInactiveSec=60

[Install]
WantedBy=timers.target
"""


def schedule(prefix: str) -> bool:
    """Has the node's systemd finish the removal when that can be done; False, and says so, where there is
    none."""
    if not has_systemd():
        then = "apply packaging/kubernetes/uninstall.yaml when they have ended"
        say(f"the node has no systemd: {then}", error=True)
        return False
    # systemd knows whether the timer is active. Its file may be the only trace of a call that was killed.
    with contextlib.suppress(ConfigError):
        run("systemctl", "is-active", "--quiet", f"{_NAME}.timer")
        return True
    files.write_atomic(_path("service"), _SERVICE.format(prefix=prefix).encode())
    files.write_atomic(_path("timer"), _TIMER.encode())
    run("systemctl", "daemon-reload")
    run("systemctl", "enable", "--now", f"{_NAME}.timer")
    say(f"{_NAME}.timer of the node removes it then")
    return True


def cancel() -> None:
    """Removes the timer, if there is one; a new installation needs the files that it would remove."""
    if not os.path.exists(_path("timer")):
        return
    # The service is left alone: it may be the caller.
    with contextlib.suppress(ConfigError):
        run("systemctl", "disable", "--now", f"{_NAME}.timer")
    for kind in ("timer", "service"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_path(kind))
    with contextlib.suppress(ConfigError):
        run("systemctl", "daemon-reload")


def _path(kind: str) -> str:
    return os.path.join(_FOLDER, f"{_NAME}.{kind}")
