"""Pods on a thousand nodes that are objects of the API alone: each slice is found, none is given twice."""

from __future__ import annotations

from support import GIB

from .conftest import Pods
from .objects import container, pod
from .services import Extender
from .simulated import ONLY, SimulatedNodes, create_pods, given

NODES = 1000


def test_a_thousand_nodes_are_filled_to_the_last_slice_and_no_further(
    extender: Extender, simulated: SimulatedNodes, pods: Pods
) -> None:
    # The sum of its cards would be enough for three pods on each node.
    simulated.create(NODES, (6, 6))
    wanted = container(limits={"yoyoworks.com/xpu-mem": 4, "yoyoworks.com/xpu-cores": 50})
    create_pods(pods.api, [pod(f"filling-{at}", wanted, nodeSelector=ONLY) for at in range(2 * NODES + 1)])
    bound = pods.wait_until_bound(2 * NODES, 240)
    (waiting,) = (each["metadata"]["name"] for each in pods.api.pods() if "nodeName" not in each["spec"])
    pods.wait_for_reason(waiting, "4 GiB and 50 percent of its cores asked")
    memory, cores = given(bound)
    assert len(memory) == 2 * NODES
    assert set(memory.values()) == {4 * GIB} and set(cores.values()) == {50}
