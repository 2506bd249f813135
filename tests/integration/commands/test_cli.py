"""`xpu`, the entry point for people and scripts: its help, its JSON contracts and its exit statuses."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import GIB

from ..conftest import SLEEP, Bundles, Node
from ..inside import kill
from ..refusals import refused

COMMANDS = """devices|doctor|ps|inspect|set|explain|gc|release|config check|config show|config default|
drain|undrain|reserve|unreserve|events|metrics|
runtime configure|runtime unconfigure|sim up|sim down|sim list"""
#: The commands that print a table, with a member of their JSON object; "" if their JSON is a list.
TABLES = {
    "devices": "",
    "ps": "",
    "gc": "",
    "explain": "granted",
    "config show": "settings",
    "sim list": "topologies",
}


@pytest.mark.parametrize("command", COMMANDS.replace("\n", "").split("|"))
def test_every_command_has_help_with_an_example(node: Node, command: str) -> None:
    told = node.xpu(*command.split(), "--help").stdout
    assert "Example:" in told
    assert f"xpu {command}" in told.partition("Example:")[2]


@pytest.mark.parametrize(("command", "member"), TABLES.items())
def test_commands_with_a_table_print_json_too(node: Node, command: str, member: str) -> None:
    node.sim("1xT4")
    told = node.json(*command.split())
    assert member in told if member else isinstance(told, list)
    with pytest.raises(json.JSONDecodeError):
        json.loads(node.xpu(*command.split()).stdout)


def test_devices_tell_scripts_what_is_there_and_granted(node: Node, bundles: Bundles) -> None:
    node.sim("2xT4")
    node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", args=SLEEP))
    first, second = node.json("devices")
    assert first.pop("uuid").startswith("GPU-")
    assert first == {
        "index": 0,
        "name": "Tesla T4",
        "memory_bytes": 15 * GIB,
        "memory_used_bytes": 0,
        "memory_granted_bytes": 4 * GIB,
        "memory_reserved_bytes": 0,
        "utilization_percent": 0,
        "cores_granted": 30,
        "cores_reserved": 0,
        "slices": 1,
        "healthy": True,
        "drained": None,
        "reserved_for": None,
        "reserved_reason": None,
        "simulated": True,
        "memory_backend": "driver",
        "memory_strength": "hard",
    }
    assert (second["index"], second["slices"]) == (1, 0)


def test_devices_say_for_each_what_would_hold_a_limit_of_its_memory(node: Node) -> None:
    node.sim("2xA100-MIG")
    devices = node.json("devices")
    assert [each["index"] for each in devices][:2] == ["0:0", "0:1"]
    held = {str(each["index"]): (each["memory_backend"], each["memory_strength"]) for each in devices}
    assert held.pop("0:0") == ("library", "soft")
    assert all(held[index] == ("library" if ":" in index else "driver", "soft" if ":" in index else "hard")
               for index in held)  # fmt: skip
    assert "library (soft)" in node.xpu("devices").stdout
    assert "holds memory limits" not in node.xpu("devices").stdout


def test_explain_tells_what_would_be_granted_or_would_fit_and_books_nothing(
    node: Node,
) -> None:
    node.sim("1xT4")
    status, told = node.explained("-e", "XPU_MEM=4G", "-e", "XPU_CORES=30")
    assert status == 0
    assert (told["granted"], told["mode"], told["refusal"]) == (True, "hook", None)
    (part,) = told["slices"]
    assert part["memory_bytes"] == 4 * GIB
    assert node.json("ps") == []
    assert node.explained("--systemd-cgroup", "-e", "XPU_MEM=4G")[1]["mode"] == "spec"
    status, told = node.explained("-e", "XPU_MEM=16G")
    assert status == 3
    assert told["granted"] is False
    refusal = told["refusal"]
    assert isinstance(refusal, dict)
    assert refusal["code"] == "not-enough-memory"
    assert refusal["nearest"] == {"XPU_MEM": "15G"}
    assert refusal["devices"] == [
        {
            "index": 0,
            "free_memory_bytes": 15 * GIB,
            "free_cores": 100,
            "reason": "15G free, 16G requested",
        }
    ]


def test_explain_of_a_wrong_request_has_a_status_of_its_own(node: Node) -> None:
    status, told = node.explained("-e", "XPU_MEN=4G")
    assert status == 2
    assert "did you mean XPU_MEM?" in told["refusal"]["message"]
    for option, form in (("-e", "NAME=VALUE"), ("--annotation", "KEY=VALUE")):
        done = node.xpu("explain", option, "XPU_MEM", check=False)
        assert done.returncode == 2 and f"{option} takes {form}, not 'XPU_MEM'" in done.stderr


def test_explain_names_the_option_that_a_word_lacks(node: Node) -> None:
    for word, option in {
        "XPU_MEM=4G": "-e",
        "yoyoworks.com/xpu=4g": "--device",
        "./a=b": "",
        "XPU_MEM": "",
    }.items():
        done = node.xpu("explain", word, "XPU_CORES=30", check=False)
        assert (done.returncode, done.stdout) == (2, "")
        meant = f"there is no folder '{word}'; did you mean {option} {word}?"
        assert (meant if option else f"Directory '{word}' does not exist.") in done.stderr


def test_explain_reads_a_bundle(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=2G")
    before = (bundle / "config.json").read_bytes()
    status, told = node.explained(bundle)
    assert status == 0
    assert "mount" in " ".join(told["operations"])
    assert (bundle / "config.json").read_bytes() == before


def test_release_gives_a_running_containers_slice_back_only_by_force(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    refused = node.xpu("release", container[:-2], check=False)
    assert refused.returncode == 1
    assert "still runs" in refused.stderr
    assert len(node.json("ps")) == 1
    node.xpu("release", "--force", container[:-2])
    assert node.json("ps") == []
    assert "no container" in node.xpu("release", "nope", check=False).stderr


def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_traceback(node: Node, copy: Path) -> None:
    main = copy / "lib" / "xpu-container-runtime" / "python" / "xpu_runtime" / "cli" / "main.py"
    comes = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nimport click\n"
    main.write_text(main.read_text().replace("import click\n", comes, 1))
    done = subprocess.run(
        [copy / "bin" / "xpu", "ps"],
        env=node.environ,
        capture_output=True,
        text=True,
        # A program that a shell starts in the background ignores SIGINT, and these tests' children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_an_index_is_not_the_start_of_an_id(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    for start in ("", container[:1], container[:2]):
        for command in (["set", start, "--mem", "3G"], ["release", "--force", start], ["inspect", start]):
            done = node.xpu(*command, check=False)
            assert done.returncode == 1
            assert "give at least 3 characters" in done.stderr
    (entry,) = node.json("ps")
    assert entry["memory_bytes"] == 4 * GIB


def test_set_says_what_is_wrong_with_its_arguments(node: Node) -> None:
    for words, told in [
        ((), "Give at least one of --mem, --cores, --sched and --priority."),
        (("--mem", "6"), "'6' has no unit; write 6G, 6144M or 50%"),
        (("--cores", "33"), "'33' must be a percentage from 5 to 100 in steps of 5; did you mean 35?"),
        (("--cores", "many"), "'many' must be a percentage from 5 to 100 in steps of 5"),
        (("--cores", "30", "--device", ""), "'' names no device; give an index or a UUID (see `xpu ps`)"),
    ]:
        done = node.xpu("set", "abc", *words, check=False)
        assert done.returncode == 2
        assert told in done.stderr


def test_a_cap_on_cores_that_nothing_holds_cannot_be_changed(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    node.configure("enforcement: {allow_unenforced: [memory, cores]}")
    variables = ("XPU_MEM=4G", "XPU_CORES=30", "XPU_CAPABILITIES=compute,graphics")
    container = node.start(bundles(*variables, args=SLEEP))
    done = node.xpu("set", container, "--mem", "2G", "--cores", "50", check=False)
    assert done.returncode == 1
    assert "the cap of 30% on the cores of GPU 0 is booked and nothing on this node holds it" in done.stderr
    (entry,) = node.json("ps")
    assert (entry["memory_bytes"], entry["cores"]) == (4 * GIB, 30)
    uncapped = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    done = node.xpu("set", uncapped, "--cores", "50", check=False)
    assert done.returncode == 1
    assert "the container has no cap on the cores of GPU 0: start it again with XPU_CORES" in done.stderr


def test_a_container_runs_as_long_as_any_of_its_processes(node: Node, bundles: Bundles) -> None:
    """In the host's PID namespace the first one's end does not end the others."""
    node.sim("1xT4")

    def share(spec: dict[str, Any]) -> None:
        spaces = spec["linux"]["namespaces"]
        spec["linux"]["namespaces"] = [space for space in spaces if space["type"] != "pid"]

    script = "sleep 1000 & echo ready; exec sleep 1000"
    bundle = bundles("XPU_MEM=4G", args=["sh", "-c", script], change=share)
    container = node.start(bundle)
    while "ready" not in (bundle / "output").read_text():
        pass  # the test's own time limit ends this
    kill(node.grants()[0].pid)
    refused = node.xpu("release", container, check=False)
    assert refused.returncode == 1
    assert "still runs" in refused.stderr
    assert [entry["state"] for entry in node.json("ps")] == ["running"]


def test_a_limit_for_32_bit_programs_that_the_interposers_would_hold_is_refused_in_words(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4-R580")
    wanted = ("XPU_MEM=4G", "XPU_CAPABILITIES=compute,utility,compat32")
    assert "XPU_CAPABILITIES asks for compat32 (32-bit programs), whose memory" in refused(
        node, bundles(*wanted)
    )
    # A whole device needs no limit.
    assert node.xpu("explain", "-e", wanted[1]).stdout.startswith("granted")
