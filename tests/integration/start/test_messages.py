"""Messages for people: on the node, in an engine's error line, by `xpu explain`."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from ..conftest import Bundles, Node
from ..refusals import log_entries, refused


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_limits_that_may_go_unheld_are_told_to_the_user_and_to_the_administrator(
    node: Node, bundles: Bundles, system_log: socket.socket, mode: str
) -> None:
    node.sim("4xT4-R580")
    node.configure(f"mode: {mode}\nenforcement: {{allow_unenforced: [memory, cores]}}\n")
    variables = ("XPU_MEM=1G", "XPU_CORES=30", "XPU_CAPABILITIES=compute,graphics")
    bundle = bundles(*variables, args=["sleep", "1000"])
    log = bundle / "log"
    node.start(bundle, "--log", log, "--log-format", "json")
    (warning,) = [entry["msg"] for entry in log_entries(log, "json") if entry["level"] == "warning"]
    unheld = (
        f"container {bundle.name}: its limit on memory of GPU 0, cores of GPU 0 is booked and not enforced"
    )
    assert unheld in warning
    told = system_log.recv(4096).decode()
    assert told.startswith("<28>") and unheld in told
    (entry,) = node.json("ps")
    assert (entry["memory_strength"], entry["cores_strength"]) == ("unenforced", "unenforced")
    assert "unenforced" in node.xpu("ps").stdout


def test_a_debug_log_that_nobody_writes_is_told(node: Node, bundles: Bundles, any_mode: str) -> None:
    """R615 holds limits itself: there are no interposers in the container."""
    node.sim("1xT4-R615")
    bundle = bundles("XPU_MEM=4G", "XPU_LOG=debug")
    log = node.folder / "log.json"
    done = node.oci("--log", log, "--log-format", "json", "run", "--bundle", bundle, bundle.name)
    assert done.returncode == 0, done.stderr
    told = [entry["msg"] for entry in log_entries(log, "json")]
    assert [line for line in told if "XPU_LOG=debug writes no log" in line and "driver" in line]
    variables = asked("XPU_MEM=4G", "XPU_LOG=debug")
    assert "note: XPU_LOG=debug writes no log" in explained(node, *variables)[1]
    node.sim("1xT4-R580")
    assert "writes no log" not in explained(node, *variables)[1]


def explained(node: Node, *words: str) -> tuple[int, str]:
    done = node.xpu("explain", *words, check=False)
    return done.returncode, done.stdout


def asked(*variables: str) -> list[str]:
    return [word for variable in variables for word in ("-e", variable)]


@pytest.mark.parametrize(
    "variables",
    [
        ["XPU_MEM=1G", "XPU_REQUIRE=driver>=900"],
        ["XPU_MEM=1G", "XPU_ENFORCE=hard", "XPU_CORES=30"],
    ],
)
def test_less_is_offered_only_if_room_is_missing(node: Node, variables: list[str]) -> None:
    node.sim("4xT4-R580")
    status, told = explained(node, *asked(*variables))
    assert status == 3
    assert "GPU 0-3: " in told
    assert "smaller" not in told


@pytest.mark.parametrize(
    ("annotations", "variables", "nearest"),
    [
        (["mem=40G"], ["XPU_LOG=debug"], "yoyoworks.com/xpu-mem=15G"),
        (["enforce=auto"], ["XPU_MEM=40G"], "XPU_MEM=15G"),
        (["cores=30"], ["XPU_MEM=40G"], "XPU_MEM=15G yoyoworks.com/xpu-cores=30"),
        (["mem=40G"], ["XPU_MEM=1G"], "yoyoworks.com/xpu-mem=15G"),
        (
            ["cores=30"],
            ["NVIDIA_GPU_MEMORY_LIMIT=40960"],
            "yoyoworks.com/xpu-mem=15G yoyoworks.com/xpu-cores=30",
        ),
    ],
)
def test_the_nearest_request_is_written_as_the_refused_one_was(
    node: Node, bundles: Bundles, annotations: list[str], variables: list[str], nearest: str
) -> None:
    node.sim("1xT4-R580")

    def change(spec: dict[str, Any]) -> None:
        spec["annotations"] = dict(f"yoyoworks.com/xpu-{each}".split("=") for each in annotations)

    bundle = bundles(*variables, change=change)
    wanted = f"; the nearest request that fits now: {nearest}"
    assert refused(node, bundle).rstrip().endswith(wanted)
    assert explained(node, "--wide", str(bundle))[1].rstrip().endswith(wanted)


def test_cores_alone_book_the_whole_memory_and_say_so(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    status, told = explained(node, *asked("XPU_CORES=30"))
    assert status == 0
    assert "XPU_MEM is not set: all memory of GPU 0 is booked" in told
    assert "(a device is shared only where XPU_MEM is set)" in told
    container = node.start(bundles("XPU_CORES=30", args=["sleep", "1000"]))
    told = refused(node, bundles("XPU_MEM=1G"))
    assert f"GPU 0: all of it is held by container {container[:12]} (XPU_CORES=30, no XPU_MEM)" in told


def test_values_that_are_not_asked_for_come_from_the_configuration(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    node.configure("defaults: {memory: 4G, cores: 20}\npolicy: {max_cores: 50}\n")
    node.start(bundles("XPU_COUNT=1", args=["sleep", "1000"]))
    node.start(bundles("XPU_MEM=2G", args=["sleep", "1000"]))
    first, second = node.json("ps")
    assert (first["memory_bytes"], first["cores"], first["memory_backend"]) == (4 << 30, 20, "driver")
    assert (second["memory_bytes"], second["cores"]) == (2 << 30, 20)
    told = explained(node, *asked("XPU_POLICY=spread"))[1]
    assert "XPU_MEM is not set: 4G of GPU 0 comes from defaults.memory" in told
    assert "XPU_CORES is not set: 20% comes from defaults.cores" in told


def test_a_maximum_caps_what_is_not_asked_for(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    node.configure("policy: {max_cores: 50, max_memory: 50%}\n")
    node.start(bundles("XPU_COUNT=1", args=["sleep", "1000"]))
    (entry,) = node.json("ps")
    assert (entry["memory_bytes"], entry["cores"]) == (7680 << 20, 50)
    told = explained(node, *asked("XPU_COUNT=1"))[1]
    assert "7.5G of GPU 0 comes from policy.max_memory" in told
    assert "50% comes from policy.max_cores" in told


def test_a_maximum_of_devices_holds_for_all(node: Node) -> None:
    node.sim("2xT4")
    node.configure("policy: {max_count: 1}\n")
    status, told = explained(node, *asked("NVIDIA_VISIBLE_DEVICES=all"))
    assert status == 3
    assert "all 2 devices are requested, and policy.max_count allows 1" in told


def test_none_with_an_amount_says_that_there_is_no_device(node: Node) -> None:
    node.sim("1xT4")
    status, told = explained(node, *asked("XPU_VISIBLE_DEVICES=none", "XPU_MEM=4G"))
    assert status == 0
    assert told.startswith("granted, without a device\n")
    assert "no device: XPU_VISIBLE_DEVICES is none, which overrides the rest of the request" in told


def test_a_device_that_is_not_there_is_told_by_the_name_under_which_it_was_asked(node: Node) -> None:
    node.sim("1xT4")
    known = "which is not on this node; it has 0 (GPU-"
    for variable in ("XPU_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        status, told = explained(node, *asked(f"{variable}=3"))
        assert status == 3
        assert told.startswith(f"refused: {variable} names '3', {known}")
    told = explained(node, *asked("XPU_VISIBLE_DEVICES=GPU-06"))[1]
    assert "names 'GPU-06', which is too short: the start of a UUID needs at least 8 characters" in told
    told = explained(node, *asked("NVIDIA_VISIBLE_DEVICES=none"))[1]
    assert "no device: NVIDIA_VISIBLE_DEVICES is none" in told


def test_another_view_of_the_machines_devices_refuses_no_start(node: Node, bundles: Bundles) -> None:
    """In a container the driver may seem not loaded, though all its files are there."""
    node.sim("1xT4")
    other_dev = 'mount -t tmpfs dev /dev && mknod -m 666 /dev/null c 1 3 && exec "$@"'
    node.view = ["unshare", "--mount", "sh", "-ec", other_dev, "sh"]
    done = node.xpu("devices", check=False)
    assert "is not loaded" in done.stderr, done
    node.view = []
    status, told = explained(node, *asked("XPU_MEM=1G"))
    assert status == 0, told
    node.remove(node.start(bundles("XPU_MEM=1G", args=["sleep", "1000"])))


def test_the_card_that_is_named_the_other_way_is_the_one_that_is_given(node: Node, bundles: Bundles) -> None:
    node.sim("4xT4-R580")
    second = node.json("devices")[1]["uuid"]
    node.start(bundles(f"NVIDIA_VISIBLE_DEVICES={second}", "XPU_MEM=4G", args=["sleep", "1000"]))
    assert [entry["device_uuid"] for entry in node.json("ps")] == [second]


def test_the_first_value_is_of_the_first_device_that_the_container_sees(node: Node, bundles: Bundles) -> None:
    node.sim("2xT4")
    query = ["nvidia-smi", "--query-gpu=index,memory.total", "--format=csv,noheader"]
    done = node.run(bundles("XPU_MEM=1G,2G", args=query))
    assert done.stdout.split() == ["0,", "1024", "MiB", "1,", "2048", "MiB"]
    node.start(bundles("XPU_MEM=4G", "XPU_VISIBLE_DEVICES=1", args=["sleep", "1000"]))
    # Device 1 is now the fuller one, and comes first in binpack's order.
    done = node.run(bundles("XPU_MEM=1G,2G", args=query))
    assert done.stdout.split() == ["0,", "1024", "MiB", "1,", "2048", "MiB"]
    # With a list of names the values go with the names.
    done = node.run(bundles("XPU_MEM=1G,2G", "XPU_VISIBLE_DEVICES=1,0", args=query))
    assert done.stdout.split() == ["0,", "2048", "MiB", "1,", "1024", "MiB"]


def test_the_devices_of_the_policy_hold_for_the_privileged_too(node: Node) -> None:
    node.sim("2xT4")
    node.configure("policy: {devices: [1]}\n")
    status, told = explained(node, "--privileged", *asked("XPU_VISIBLE_DEVICES=0", "XPU_MEM=1G"))
    assert status == 3
    assert "policy.devices does not list it" in told
    assert explained(node, "--privileged", *asked("XPU_VISIBLE_DEVICES=1", "XPU_MEM=1G"))[0] == 0


def test_check_finds_devices_of_the_policy_that_the_node_has_not(node: Node) -> None:
    node.sim("2xT4")
    node.configure("mode: auto\npolicy:\n  devices: [1, 7]\n")
    done = node.xpu("config", "check", check=False)
    assert done.returncode == 1
    assert (
        done.stdout == f"{node.config}:3:1: policy.devices: 7 is not a device of this node, which has 0, 1\n"
    )
    node.configure("policy:\n  devices: [1, 0]\n")
    assert node.xpu("config", "check").stdout == f"{node.config}: ok\n"


def test_a_gpu_of_the_policy_stands_for_its_mig_devices(node: Node) -> None:
    node.sim("2xA100-MIG")
    node.configure("policy:\n  devices: [0]\n")
    assert node.xpu("config", "check").stdout == f"{node.config}: ok\n"
    assert explained(node, *asked("XPU_VISIBLE_DEVICES=0:0"))[0] == 0


def admin(spec: dict[str, Any]) -> None:
    for names in spec["process"]["capabilities"].values():
        names.append("CAP_SYS_ADMIN")


def test_a_limit_that_the_container_could_lift_is_recorded_and_shown_as_soft(
    node: Node, bundles: Bundles, mode: str
) -> None:
    node.start(bundles("XPU_MEM=4G", args=["sleep", "1000"], change=admin))
    node.start(bundles("XPU_MEM=4G", args=["sleep", "1000"]))
    strengths = [(entry["memory_backend"], entry["memory_strength"]) for entry in node.json("ps")]
    assert strengths == [("driver", "soft"), ("driver", "hard")]
    told = explained(node, "--privileged", *asked("XPU_MEM=1G"))[1]
    assert "memory: held by driver (soft)" in told
    assert "the container has CAP_SYS_ADMIN, and could lift the limit that the driver holds" in told
