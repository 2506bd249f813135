"""`xpu metrics`: devices, slices and events in Prometheus' format."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from support import GIB
from support.sharing_time import Make

from ..conftest import SLEEP, Bundles, Node
from ..refusals import refused


class Figures:
    """The output of `xpu metrics`."""

    def __init__(self, text: str) -> None:
        self.families = {each.name: each for each in text_string_to_metric_families(text)}
        self.text = text

    @property
    def names(self) -> set[str]:
        """Those that have no value now too: their help is there."""
        return set(re.findall(r"^# HELP (\S+)", self.text, re.MULTILINE))

    def of(self, name: str, /, **labels: str) -> dict[tuple[str, ...], float]:
        """The values of a metric by those labels that are not given."""
        found = {}
        for family in self.families.values():
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    rest = tuple(value for key, value in sample.labels.items() if key not in labels)
                    assert rest not in found
                    found[rest] = sample.value
        return found

    def one(self, name: str, /, **labels: str) -> float:
        (value,) = self.of(name, **labels).values()
        return value


def figures(node: Node) -> Figures:
    return Figures(node.xpu("metrics").stdout)


def test_a_node_whose_driver_is_missing_is_not_up(node: Node) -> None:
    node.sim("1xT4")
    node.xpu("sim", "down")
    done = node.xpu("metrics", check=False)
    assert done.returncode == 1
    assert "xpu_up 0.0\n" in done.stdout
    assert "xpu: no NVIDIA driver found: " in done.stderr
    assert "no NVIDIA driver found: " in node.xpu("top", "--once", "--interval", "0.1").stdout


def test_devices_slices_and_refusals_are_told(node: Node, bundles: Bundles) -> None:
    node.sim("2xT4-R580")
    container = node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", "XPU_VISIBLE_DEVICES=1", args=SLEEP))
    refused(node, bundles("XPU_MEM=12G", "XPU_VISIBLE_DEVICES=1"))
    refused(node, bundles("XPU_MEM=4"))
    node.xpu("drain", "0")
    found = figures(node)
    assert (found.one("xpu_up"), found.one("xpu_agent_up")) == (1, 0)
    assert len(found.of("xpu_device_healthy")) == 2
    assert found.one("xpu_device_info", index="1", name="Tesla T4", vendor="nvidia") == 1
    assert (found.one("xpu_device_drained", index="0"), found.one("xpu_device_drained", index="1")) == (1, 0)
    expected = {
        "healthy": 1,
        "slices": 1,
        "memory_bytes": 15 * GIB,
        "memory_granted_bytes": 4 * GIB,
        "cores_granted_ratio": 0.3,
        "temperature_celsius": 30,
    }
    told = {name: found.one(f"xpu_device_{name}", index="1") for name in expected}
    assert told == expected
    assert 5 < found.one("xpu_device_power_watts", index="1") < 100
    uuid = node.json("devices")[1]["uuid"]
    theirs = {"container_id": container, "uuid": uuid, "index": "1"}
    assert found.one("xpu_slice_memory_granted_bytes", **theirs) == 4 * GIB
    assert found.one("xpu_slice_memory_limit_bytes", **theirs) == 4 * GIB
    assert found.one("xpu_slice_memory_used_bytes", **theirs) == 0
    assert found.one("xpu_slice_cores_granted_ratio", **theirs) == 0.3
    assert found.one("xpu_slice_cores_got_ratio", **theirs) == 0
    assert found.one("xpu_slice_device_seconds_total", **theirs) == 0
    assert found.one("xpu_slice_info", memory_backend="library", cores_strength="soft", **theirs) == 1
    counted = {event: number for (event,), number in found.of("xpu_events_total").items()}
    assert (counted["granted"], counted["refused"], counted["drained"], counted["reaped"]) == (1, 2, 1, 0)
    codes = {code: number for (code,), number in found.of("xpu_refused_total").items()}
    assert {code for code, number in codes.items() if number} == {"not-enough-memory", "wrong-request"}
    assert codes["not-enough-devices"] == 0  # there before the first


def test_of_a_device_that_is_gone_its_slices_are_told_and_nothing_is_made_up(
    node: Node, bundles: Bundles
) -> None:
    node.sim("2xT4-R580")
    gone = node.json("devices")[1]["uuid"]
    node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", "XPU_VISIBLE_DEVICES=1", args=SLEEP))
    node.xpu("drain", gone)
    node.xpu("sim", "down")
    node.sim("1xT4-R580")
    node.xpu("devices")
    found = figures(node)
    expected = {"healthy": 0, "slices": 1, "memory_granted_bytes": 4 * GIB, "cores_granted_ratio": 0.3}
    assert {name: found.one(f"xpu_device_{name}", uuid=gone) for name in expected} == expected
    for name in ("drained", "reserved", "memory_bytes", "memory_used_bytes", "temperature_celsius"):
        assert len(found.of(f"xpu_device_{name}")) == 1
        assert found.of(f"xpu_device_{name}", uuid=gone) == {}, name
    (told,) = (each for each in node.json("top", "--interval", "0.1")["devices"] if each["uuid"] == gone)
    assert (told["index"], told["name"]) == ("?", "not on this node (any more)")
    assert (told["memory_bytes"], len(told["containers"])) == (None, 1)


def test_starts_are_told_by_how_long_they_took(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    found = figures(node)
    for mode in ("hook", "spec"):
        assert found.one("xpu_start_seconds_count", mode=mode) == 0
        assert len(found.of("xpu_start_seconds_bucket", mode=mode)) == 13
    for mode in ("hook", "hook", "spec"):
        node.configure(f"mode: {mode}")
        node.start(bundles("XPU_MEM=1G", args=SLEEP))
    refused(node, bundles("XPU_MEM=100G"))
    found = figures(node)
    assert found.of("xpu_start_seconds_count") == {("hook",): 2, ("spec",): 1}
    for mode, number in (("hook", 2), ("spec", 1)):
        buckets = list(found.of("xpu_start_seconds_bucket", mode=mode).values())
        assert buckets == sorted(buckets) and buckets[-1] == number
        # No interpreter is there in less; and a start that waits for nobody does not wait long.
        assert 0.001 * number < found.one("xpu_start_seconds_sum", mode=mode) < 25 * number


def test_metrics_report_the_use_of_slices(node: Node, capped: Make) -> None:
    one, two = capped(30, "burst"), capped(50)
    with one.waiting():
        found = figures(node)
    assert 0 < found.one("xpu_slice_cores_got_ratio", container_id=one.id) <= 0.25
    assert found.one("xpu_slice_device_seconds_total", container_id=one.id) > 0
    with (Path(one.folder) / "usage").open("r+b") as page:
        page.seek(2048 + 40)
        page.write((500_000_000).to_bytes(8, "little"))
    assert figures(node).one("xpu_slice_held_back_seconds_total", container_id=one.id) == 0.5
    waits = [found.one("xpu_slice_waiting", container_id=each.id) for each in (one, two)]
    assert waits == [1, 0]


def test_a_hostile_page_makes_no_wrong_lines_and_no_amount_beyond_what_there_is(
    node: Node, capped: Make
) -> None:
    one, two = capped(30), capped(20)
    usage = Path(one.folder) / "usage"
    for content in (b"\xff" * usage.stat().st_size, os.urandom(usage.stat().st_size)):
        with usage.open("r+b") as page:
            page.write(content)
        found = figures(node)
        assert found.one("xpu_slice_memory_used_bytes", container_id=one.id) <= 16 * GIB
        assert found.one("xpu_slice_device_seconds_total", container_id=one.id) < 3600
        assert found.one("xpu_slice_held_back_seconds_total", container_id=one.id) < 3600 * 4095
        assert 0 <= found.one("xpu_slice_cores_got_ratio", container_id=one.id) <= 1
        assert found.one("xpu_slice_cores_got_ratio", container_id=two.id) == 0
    with usage.open("r+b") as page:
        page.truncate(100)
    found = figures(node)
    assert found.of("xpu_slice_cores_got_ratio", container_id=one.id) == {}
    assert found.one("xpu_slice_memory_granted_bytes", container_id=one.id) == GIB


def test_ids_that_are_the_same_or_hostile_are_told_apart_and_break_no_line(
    node: Node, bundles: Bundles
) -> None:
    """As another low-level runtime may let them be, and containers of runtimes with different --root."""
    node.sim("1xT4")
    for _ in range(3):
        node.start(bundles("XPU_MEM=1G", args=SLEEP))
    one, two, three = (grant.id for grant in node.grants())
    evil = 'a"} 1\nxpu_up 7\r\x1b[2J\\' + "x" * 500
    ids_now = [(evil, one), (evil, two), ("\N{SNOWMAN}", three)]
    node.change_ledger("UPDATE grants SET container_id = ? WHERE id = ?", *ids_now)
    found = figures(node)
    assert found.one("xpu_up") == 1
    ids = [identity[0] for identity in found.of("xpu_slice_memory_granted_bytes")]
    assert len(ids) == len(set(ids)) == 3 and "?" in ids
    assert all(each.isascii() and each.isprintable() and len(each) < 150 for each in ids)
    assert "\x1b" not in found.text and "\r" not in found.text


def test_a_file_for_node_exporter_is_whole_and_takes_no_devices_place(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    path = node.folder / "xpu.prom"
    path.write_text("before")
    old = os.umask(0o077)
    try:
        node.xpu("metrics", "--output", path)
    finally:
        os.umask(old)
    assert Figures(path.read_text()).one("xpu_up") == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    # Metrics report sources that cannot be read, too.
    node.configure("mode: wrong")
    done = node.xpu("metrics", "--output", path, check=False)
    assert done.returncode == 1 and "mode:" in done.stderr
    found = Figures(path.read_text())
    assert found.one("xpu_up") == 0 and found.of("xpu_device_healthy") == {}
    assert found.one("xpu_events_total", event="granted") == 0
    link, device = node.folder / "link.prom", node.folder / "device"
    link.symlink_to(path)
    node.xpu("metrics", "--output", link, check=False)
    assert link.is_symlink()
    os.mkfifo(device)
    done = node.xpu("metrics", "--output", device, check=False)
    assert done.stderr == f"xpu: {device} is not a regular file: give another path; nothing was written\n"
    assert device.is_fifo()
    done = node.xpu("metrics", "--output", "", check=False)
    assert done.stderr == "xpu: '' is not a regular file: give another path; nothing was written\n"
    done = node.xpu("metrics", "--output", node.folder / "missing" / "xpu.prom", check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "missing" in done.stderr
