"""Time that the driver counts for a container and its account lacks: shown, and told of once."""

from __future__ import annotations

import re
import socket

from support.sharing_time import until

from ..conftest import Bundles, Node
from .test_inspect import of_slice, old_driver


def test_time_that_goes_round_the_cap_is_marked_and_told_of(
    node: Node, bundles: Bundles, system_log: socket.socket
) -> None:
    old_driver(node)
    script = "LD_PRELOAD=/usr/lib/xpu/libcuda.real exec cuda-probe busy"
    container = node.start(bundles("XPU_MEM=1G", "XPU_CORES=30", args=["sh", "-c", script]))
    # The driver takes samples each sixth of a second to each second: until it has one it tells nothing.
    until(lambda: (node.json("ps")[0]["cores_unaccounted_percent"] or 0) > 80, "it is counted")
    line = f"container {container}: the driver counts "
    assert line in system_log.recv(4096).decode()
    assert node.json("ps")[0]["cores_got_percent"] == 0
    shown = node.xpu("ps")
    assert re.search(r" 0% \(\d+% unaccounted\) ", shown.stdout)
    assert line in shown.stderr and "of the time of GPU 0 that its account lacks" in shown.stderr
    told = node.json("inspect", container)
    assert any(line in problem for problem in told["problems"])
    assert of_slice(node, container)["cores_unaccounted_percent"] > 80
    assert re.search(r", got 0% \(\d+% unaccounted\)", node.xpu("inspect", container).stdout)


def test_time_that_the_account_has_is_not_marked(node: Node, bundles: Bundles) -> None:
    old_driver(node)
    node.start(bundles("XPU_MEM=1G", "XPU_CORES=30", args=["cuda-probe", "busy"]))
    until(lambda: node.json("ps")[0]["cores_got_percent"] > 20, "it works")
    until(lambda: node.json("ps")[0]["cores_unaccounted_percent"] is not None, "the driver tells of it")
    for _ in range(3):
        assert node.json("ps")[0]["cores_unaccounted_percent"] == 0
    shown = node.xpu("ps")
    assert "unaccounted" not in shown.stdout + shown.stderr
