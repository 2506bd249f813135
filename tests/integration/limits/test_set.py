"""`xpu set`: the memory limit of a running container, seen at once inside and booked in the ledger."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support import GIB, MIB
from xpu_runtime.ledger.store import Ledger

from ..conftest import Bundles, Node

#: The driver of each topology, and the backend that holds a memory limit there.
TOPOLOGY = {"driver": "2xT4", "library": "2xT4-R580"}
BOOKED_ONLY = "enforcement: {allow_unenforced: [memory, cores]}"


def change(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    return node.xpu("set", *words, check=False)


def sleeper(node: Node, bundles: Bundles, *env: str) -> str:
    return node.start(bundles(*env, args=["sleep", "1000"]))


def seen(node: Node, container: str) -> str:
    """A program's view of its device in the container."""
    return node.oci("exec", container, "cuda-probe", "info").stdout


def booked(node: Node) -> int:
    """The granted part of the node's first device, by the ledger."""
    amount: int = node.json("devices")[0]["memory_granted_bytes"]
    return amount


def wait_for(output: Path, text: str) -> None:
    """Waits until a container has said something; the test's own time limit ends this."""
    while text not in output.read_text():
        time.sleep(0.01)


def holder(node: Node, bundles: Bundles, limit: str, amount: int) -> tuple[str, Path]:
    """A container that holds `amount` MiB; its id and its output."""
    bundle = bundles(f"XPU_MEM={limit}", args=["cuda-probe", "alloc", str(amount), "--hold"])
    container = node.start(bundle)
    output = bundle / "output"
    wait_for(output, "free of")
    return container, output


@pytest.fixture(params=list(TOPOLOGY))
def backend(request: pytest.FixtureRequest, node: Node) -> str:
    name: str = request.param
    node.sim(TOPOLOGY[name])
    return name


def test_a_running_container_sees_its_new_limit_at_once(node: Node, bundles: Bundles, backend: str) -> None:
    container = sleeper(node, bundles, "XPU_MEM=4G")
    assert seen(node, container) == "device 0: 4096 MiB free of 4096 MiB\n"
    for amount, mib in (("6G", 6144), ("512M", 512), ("50%", 7680), ("15G", 15360)):
        shown = "7.5G" if amount == "50%" else amount
        told = node.xpu("set", container, "--mem", amount).stdout
        assert told == f"{container}: {shown} of GPU 0\n"
        assert seen(node, container) == f"device 0: {mib} MiB free of {mib} MiB\n"
        assert booked(node) == mib * MIB
    (entry,) = node.json("ps")
    assert (entry["memory_bytes"], entry["memory_backend"]) == (15 * GIB, backend)
    # For scripts it prints the new entry. The beginning of the id is enough.
    (printed,) = node.json("set", container[:-1], "--mem", "6G")
    assert printed == node.json("ps")[0] == {**printed, "memory_bytes": 6 * GIB}


def test_a_program_that_runs_sees_its_new_limit_at_once(node: Node, bundles: Bundles, backend: str) -> None:
    bundle = bundles("XPU_MEM=4G", args=["cuda-probe", "alloc", "1024", "--watch"])
    container = node.start(bundle)
    totals = (4096, 6144, 1500, 4097)
    wait_for(bundle / "output", "of 4096 MiB\n")
    for total in totals[1:]:
        node.xpu("set", container, "--mem", f"{total}M")
        wait_for(bundle / "output", f"of {total} MiB\n")
    lines = [line.split() for line in (bundle / "output").read_text().splitlines()[1:]]
    assert [int(words[6]) for words in lines] == list(totals)
    # The same is in use all the time.
    assert len({int(words[6]) - int(words[2]) for words in lines}) == 1


def test_a_program_that_allocates_meanwhile_never_has_more_than_a_limit_that_was_accepted(
    node: Node, bundles: Bundles, backend: str
) -> None:
    for _ in range(3):
        bundle = bundles("XPU_MEM=4G", args=["cuda-probe", "alloc", *["16"] * 150, "--hold"])
        container = node.start(bundle)
        wait_for(bundle / "output", "CUDA_SUCCESS")
        outcome = change(node, container, "--mem", "1G")
        wait_for(bundle / "output", "free of")
        (entry,) = node.json("ps")
        if outcome.returncode == 0:
            assert entry["memory_used_bytes"] <= entry["memory_bytes"] == GIB
        else:
            assert outcome.returncode == 3
            assert entry["memory_used_bytes"] > GIB
            assert entry["memory_bytes"] == 4 * GIB
        node.remove(container)


def test_more_than_is_free_is_refused_with_what_would_fit(node: Node, bundles: Bundles, backend: str) -> None:
    container = sleeper(node, bundles, "XPU_MEM=4G")
    sleeper(node, bundles, "XPU_MEM=8G")
    refused = change(node, container, "--mem", "8G")
    assert refused.returncode == 3
    assert refused.stderr == (
        "xpu: refused: GPU 0 does not have enough free memory for a limit of 8G (GPU 0: 3G free and "
        "4G already its own, 8G requested); the nearest request that fits now: --mem 7G\n"
    )
    assert seen(node, container).endswith("of 4096 MiB\n")
    assert booked(node) == 12 * GIB
    assert change(node, container, "--mem", "7G").returncode == 0
    assert booked(node) == 15 * GIB


def test_a_limit_below_the_use_needs_force(node: Node, bundles: Bundles, backend: str) -> None:
    container, _ = holder(node, bundles, "4G", 2048)
    (used,) = (entry["memory_used_bytes"] for entry in node.json("ps"))
    assert used >= 2 * GIB
    refused = change(node, container, "--mem", "1G")
    assert refused.returncode == 3
    assert "the container uses more of GPU 0 than that" in refused.stderr
    shown = "2G" if used == 2 * GIB else f"{used * 10 // GIB / 10}G"
    assert f"{shown} in use, 1G requested" in refused.stderr
    assert "or give --force" in refused.stderr
    assert booked(node) == 4 * GIB
    # The amount that the refusal offers is accepted.
    assert change(node, container, "--mem", f"{-(-used // MIB)}M").returncode == 0
    node.xpu("set", container, "--mem", "1G", "--force")
    assert booked(node) == GIB
    assert node.oci("exec", container, "cuda-probe", "alloc", "100").returncode != 0
    # More than the limit, but still less than the use: this is allowed.
    node.xpu("set", container, "--mem", "1536M")
    assert booked(node) == 1536 * MIB


def test_each_of_several_devices_or_one_that_is_named(node: Node, bundles: Bundles, backend: str) -> None:
    container = sleeper(node, bundles, "XPU_MEM=4G", "XPU_COUNT=2")
    node.xpu("set", container, "--mem", "6G")
    assert [device["memory_granted_bytes"] for device in node.json("devices")] == [6 * GIB, 6 * GIB]
    node.xpu("set", container, "--mem", "2G", "--device", "1")
    uuid = node.json("devices")[0]["uuid"]
    node.xpu("set", container, "--mem", "5G", "--device", uuid)
    node.xpu("set", container, "--mem", "3G", "--device", uuid[:12])
    assert [device["memory_granted_bytes"] for device in node.json("devices")] == [3 * GIB, 2 * GIB]
    assert seen(node, container) == (
        "device 0: 3072 MiB free of 3072 MiB\ndevice 1: 2048 MiB free of 2048 MiB\n"
    )
    assert "it has one of 0, 1" in change(node, container, "--mem", "2G", "--device", "7").stderr


def test_the_policy_binds_containers_and_not_the_operator(node: Node, bundles: Bundles, backend: str) -> None:
    node.configure("policy: {max_memory: 4G}")
    container = sleeper(node, bundles, "XPU_MEM=4G")
    node.xpu("set", container, "--mem", "6G")
    assert booked(node) == 6 * GIB


def test_a_part_of_a_mig_device_has_a_limit_that_can_change(node: Node, bundles: Bundles) -> None:
    node.sim("2xA100-MIG-R580")
    container = sleeper(node, bundles, "XPU_MEM=2G")
    (before,) = node.json("ps")
    assert before["memory_backend"] == "library"
    node.xpu("set", container, "--mem", "3G", "--device", str(before["device_index"]))
    assert seen(node, container) == "device 0: 3072 MiB free of 3072 MiB\n"


def test_a_limit_that_the_driver_does_not_take_is_told_and_mended_by_repeating_it(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4")
    container = sleeper(node, bundles, "XPU_MEM=4G")
    (grant,) = node.grants()

    def bind(cgroup: str) -> None:
        with Ledger(str(node.run_dir / "ledger.db")) as ledger:
            ledger.bind(grant.replace(cgroup=cgroup))

    bind(grant.cgroup + "/not-there")
    failed = change(node, container, "--mem", "2G", "--force")
    assert failed.returncode == 1
    assert "setting a memory limit" in failed.stderr
    assert booked(node) == 4 * GIB
    failed = change(node, container, "--mem", "6G", "--force")
    assert failed.returncode == 1
    assert "the larger limit is booked and not yet in force" in failed.stderr
    assert "run the same command again" in failed.stderr
    assert booked(node) == 6 * GIB
    bind(grant.cgroup)
    assert seen(node, container).endswith("of 4096 MiB\n")
    node.xpu("set", container, "--mem", "6G")
    assert seen(node, container).endswith("of 6144 MiB\n")


# Cases without a limit to change.


def test_a_limit_that_nothing_holds_is_booked_and_said_to_be(node: Node, bundles: Bundles) -> None:
    node.configure(BOOKED_ONLY)
    node.sim("2xT4-R580")
    container = sleeper(node, bundles, "XPU_MEM=4G", "XPU_ENFORCE=none")
    told = node.xpu("set", container, "--mem", "6G").stdout
    assert told == f"{container}: 6G of GPU 0 (booked only: nothing on this node holds it)\n"
    assert booked(node) == 6 * GIB


def test_a_whole_device_has_no_limit_to_change(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = sleeper(node, bundles, "XPU_COUNT=1")
    failed = change(node, container, "--mem", "4G")
    assert (failed.returncode, failed.stderr) == (
        1,
        "xpu: the container has no memory limit on GPU 0: the whole device is its own: "
        "start it again with XPU_MEM\n",
    )
    assert booked(node) == 15 * GIB


def test_the_memory_of_a_mig_device_is_the_hardwares(node: Node, bundles: Bundles) -> None:
    node.sim("2xA100-MIG")
    container = sleeper(node, bundles, "XPU_COUNT=1")
    failed = change(node, container, "--mem", "4G")
    assert failed.returncode == 1
    assert "all of MIG device" in failed.stderr
    assert "whose memory the hardware fixes" in failed.stderr


def test_a_missing_or_ambiguous_container_is_reported(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    first = sleeper(node, bundles, "XPU_MEM=1G")
    sleeper(node, bundles, "XPU_MEM=1G")
    assert "no container 'nope' holds a slice" in change(node, "nope", "--mem", "4G").stderr
    # A script's empty variable means no container, be there only one.
    assert "'' is not a container's id" in change(node, "", "--mem", "4G").stderr
    assert "give more of it" in change(node, first[:-1], "--mem", "4G").stderr
    assert change(node, first, "--mem", "4G").returncode == 0


# At once, and cut short.


def test_changes_and_starts_at_once_never_book_more_than_there_is(
    node: Node, bundles: Bundles, backend: str
) -> None:
    containers = [sleeper(node, bundles, "XPU_MEM=1G", "XPU_VISIBLE_DEVICES=0") for _ in range(3)]
    more = [bundles("XPU_MEM=3G", "XPU_VISIBLE_DEVICES=0", args=["sleep", "1000"]) for _ in range(3)]

    def start(bundle: Path) -> int:
        with (bundle / "output").open("wb") as output:
            command = node.command("create", "--bundle", bundle, bundle.name)
            done = subprocess.run(command, env=node.environ, stdout=output, stderr=output, timeout=60)
        return 0 if done.returncode == 0 else 3

    with ThreadPoolExecutor(12) as at_once:
        changes = [
            at_once.submit(change, node, container, "--mem", amount)
            for container in containers
            for amount in ("5G", "2G", "6G")
        ]
        starts = [at_once.submit(start, bundle) for bundle in more]
        assert {each.result().returncode for each in changes} <= {0, 3}
        assert {each.result() for each in starts} <= {0, 3}
    granted = sum(part.memory_bytes for grant in node.grants() for part in grant.slices)
    assert granted == booked(node) <= 15 * GIB
    for grant in node.grants():
        if grant.container_id in containers:
            (part,) = grant.slices
            assert seen(node, grant.container_id).endswith(f"of {part.memory_bytes // MIB} MiB\n")


def test_a_container_that_is_being_created_is_left_alone(node: Node, bundles: Bundles, backend: str) -> None:
    container = sleeper(node, bundles, "XPU_MEM=1G")
    (grant,) = node.grants()
    with Ledger(str(node.run_dir / "ledger.db")) as ledger:
        # As spec mode books it, before there is a cgroup.
        ledger.bind(grant.replace(cgroup="", state="pending"))
    failed = change(node, container, "--mem", "2G")
    assert failed.returncode == 1
    assert "is still being created: try again when it runs" in failed.stderr
    assert booked(node) == GIB
