"""The driver's own memory: it counts as no container's use, and slices that fill a card fit on it."""

from __future__ import annotations

import pytest

from support import MIB

from ..conftest import Bundles, Node
from ..inside import allocated

#: MiB of the simulated H200: all that containers can have together, half of it, and a context's memory.
TOGETHER, HALF, CONTEXT = 143156, 71578, 518


def test_an_idle_card_has_nothing_in_use(node: Node) -> None:
    node.sim("2xH200-R580")
    told = [(each["memory_bytes"], each["memory_used_bytes"]) for each in node.json("devices")]
    assert told == [(TOGETHER * MIB, 0)] * 2
    shown = node.xpu("devices", "--format", "{{.Memory}} {{.Used}}").stdout
    assert shown == f"{TOGETHER}M 0M\n" * 2


@pytest.mark.parametrize("topology", ["2xH200", "2xH200-R580"], ids=["driver", "library"])
@pytest.mark.parametrize("asked", ["50%", f"{HALF}M"])
def test_two_slices_that_fill_a_card_can_both_be_filled(
    node: Node, bundles: Bundles, topology: str, asked: str
) -> None:
    node.sim(topology)
    fill = ["cuda-probe", "alloc", str(HALF - CONTEXT), "--hold"]
    both = [bundles(f"XPU_MEM={asked}", "XPU_VISIBLE_DEVICES=0", args=fill) for _ in range(2)]
    for bundle in both:
        allocated(node, bundle)
        told = (bundle / "output").read_text()
        assert f"allocating {HALF - CONTEXT} MiB: CUDA_SUCCESS\n" in told
        assert f"device 0: 0 MiB free of {HALF} MiB\n" in told
    first, second = node.json("devices")
    assert first["memory_used_bytes"] == first["memory_granted_bytes"] == TOGETHER * MIB
    assert second["memory_used_bytes"] == 0
    refused = node.run(bundles("XPU_MEM=1M", "XPU_VISIBLE_DEVICES=0"))
    assert refused.returncode != 0 and "free" in refused.stderr


def test_a_whole_card_without_a_limit_is_as_the_driver_tells_it(node: Node, bundles: Bundles) -> None:
    node.sim("2xH200-R580")
    query = ["nvidia-smi", "--query-gpu=memory.total,memory.reserved,memory.used", "--format=csv,noheader"]
    done = node.run(bundles("XPU_VISIBLE_DEVICES=0", args=query))
    assert done.stdout == "143771 MiB, 615 MiB, 0 MiB\n", done.stderr
    done = node.run(bundles("XPU_VISIBLE_DEVICES=0", args=["cuda-probe", "info"]))
    assert f"of {TOGETHER} MiB" in done.stdout, done.stderr
