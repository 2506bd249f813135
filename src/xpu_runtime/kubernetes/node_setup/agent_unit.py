"""The node's `xpu agent`: a unit of the node's systemd, which the tree brings.

It cannot run in a container of the pod. Its workers do starts for the node's engine, and decline callers in
other namespaces; and a device's daemon that a start began (MPS) has to outlive an update of the DaemonSet. A
node without it starts containers all the same, so nothing here fails an installation.
"""

from __future__ import annotations

import contextlib

from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.node_setup.host import has_systemd, run, say

_UNIT = "xpu-agent.service"


def start(prefix: str, *, is_new: bool) -> None:
    """Has the node's systemd run the agent of the tree at `prefix`, now and at each boot. `is_new`: another
    tree was there before, or none."""
    without = "starts take longer, and burst, weight and priorities are caps alone"
    if not has_systemd():
        say(f"the node has no systemd: while nothing runs `{prefix}/bin/xpu agent`, {without}", error=True)
        return
    try:
        run("systemctl", "enable", f"{prefix}/lib/systemd/system/{_UNIT}")
        run("systemctl", "restart" if is_new else "start", _UNIT)
    except ConfigError as error:
        say(f"{_UNIT} of the node does not run: {without}: {error}", error=True)


def stop() -> None:
    """Ends it, and takes the unit from the node."""
    with contextlib.suppress(ConfigError):
        run("systemctl", "disable", "--now", _UNIT)
