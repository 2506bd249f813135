"""`xpu top`: devices and containers at work, on a terminal and for scripts."""

from __future__ import annotations

import functools
import os
import re
from typing import Any

import pytest

from support.sharing_time import Bundles, Make, Serve, until

from ..conftest import SLEEP, Node
from ..findings import examine
from ..terminal import Terminal


@pytest.mark.alone  # readings must differ within seconds
def test_a_full_screen_is_drawn_live_and_the_terminal_is_given_back(
    node: Node, capped: Make, start_agent: Serve
) -> None:
    one, two = capped(30, "burst high"), capped(50, "fixed low")
    start_agent()
    with Terminal(node) as terminal:
        with one.waiting(4_500_000):
            until(lambda: any("●" in line for line in terminal.page()), "who waits is shown")
            (line,) = [line for line in terminal.page() if re.match(rf"  {one.id[:12]} +30% ", line)]
            assert "burst" in line and "high" in line and "/1G" in line
            assert re.search(r" \d+\.\d% .* 100% ", line)  # got, and may
            (other,) = [line for line in terminal.page() if re.match(rf"  {two.id[:12]} +50% ", line)]
            assert " 0.0% " in other and "low" in other and "●" not in other
            assert "\x1b[36m" in terminal.text  # more than its cap: it was lent
        until(lambda: not any("●" in line for line in terminal.page()), "and who waits no more is not")
        terminal.press("s")
        until(lambda: any("by asked" in line for line in terminal.page()), "another order")
        terminal.resize(40, 6)
        until(lambda: len(terminal.page()) == 6 and max(map(len, terminal.page())) <= 40, "the new size")
        terminal.press("q")
        assert terminal.ended() == 0
        assert terminal.text.startswith("\x1b[?1049h") and terminal.text.endswith("\x1b[?1049l")


def test_it_ends_cleanly_when_it_is_told_to(node: Node, capped: Make) -> None:
    capped(30)
    with Terminal(node) as terminal:
        until(lambda: len(terminal.page()) > 3, "a page")
        terminal.process.terminate()
        assert terminal.ended() == 0


def test_for_scripts_with_and_without_an_agent(node: Node, capped: Make, start_agent: Serve) -> None:
    one, two = capped(30, "burst"), capped(50)
    with one.waiting():
        told = node.json("top", "--interval", "0.3")
        assert told["agent_runs"] is False
        (device,) = told["devices"]
        first, second = device["containers"]
        assert [first["container_id"], second["container_id"]] == [one.id, two.id]
        assert (first["cores"], first["cores_sched"], first["cores_priority"]) == (30, "burst", "normal")
        # It writes 1 ms each 5 ms or a little more.
        assert 0 < first["cores_got_percent"] <= 25
        assert (first["waits"], second["waits"]) == (True, False)
        assert (second["cores_got_percent"], first["cores_allowed_percent"]) == (0, None)
        assert device["busy_percent"] >= first["cores_got_percent"]
        text = node.xpu("top", "--once", "--interval", "0.3").stdout
        assert "agent: does not run, so all have only their caps" in text
        assert "\x1b" not in text
        start_agent()
        until(lambda: one.share == 100, "it is lent what others leave")
        (device,) = node.json("top", "--interval", "0.3")["devices"]
        assert device["containers"][0]["cores_allowed_percent"] == 100


def test_80_columns_have_all_and_a_narrower_window_says_what_it_lacks(
    node: Node, capped: Make, start_agent: Serve
) -> None:
    one = capped(30, "burst high")
    heads = ["CONTAINER", "ASKED", "GOT", "MAY", "SCHED", "PRIO", "WAITS", "MEMORY"]

    def head(terminal: Terminal) -> list[str]:
        return next((line.split() for line in terminal.page() if line.startswith("  CONTAINER")), [])

    with Terminal(node, 80, 24) as terminal:
        until(lambda: head(terminal) == heads, "all columns")
        page = terminal.page()
        assert max(map(len, page)) <= 80
        (line,) = [line for line in page if line.startswith(f"  {one.id[:12]}")]
        assert " 30% " in line and " burst " in line and " high " in line and line.rstrip().endswith("/1G")
        assert any(line.rstrip().endswith("all have only their caps") for line in page)
        assert any("% asked   memory " in line and line.rstrip().endswith("G") for line in page)
        assert not any("wider" in line for line in page)
        for columns, lacks in ((74, 1), (58, 3), (40, 4)):
            terminal.resize(columns, 24)
            left_out = ["PRIO", "SCHED", "MAY", "ASKED"][:lacks]
            shown = [each for each in heads if each not in left_out]
            until(functools.partial(lambda shown: head(terminal) == shown, shown), f"{columns} columns")
            page = terminal.page()
            assert max(map(len, page)) <= columns
            assert f"make the window wider for {' '.join(left_out)} " in " ".join(" ".join(page).split())


def test_in_a_window_of_few_rows_containers_go_before_hints(node: Node, capped: Make) -> None:
    starts = tuple(f"  {capped(cores, 'burst').id[:12]} " for cores in (10, 20, 30))

    def shown(terminal: Terminal) -> int:
        return sum(line.startswith(starts) for line in terminal.page())

    with Terminal(node, 40, 8) as terminal:
        until(lambda: shown(terminal) == 3, "all containers")
        page = terminal.page()
        assert len(page) <= 8
        assert not any("wider" in line or "higher" in line or "agent" in line for line in page)
        terminal.resize(40, 6)
        until(lambda: shown(terminal) == 2 and len(terminal.page()) == 6, "as many as fit")
        assert terminal.page()[-1].startswith("1 more line: make the window higher")
        terminal.resize(40, 24)
        until(lambda: any("make the window wider" in line for line in terminal.page()), "there is room")
        assert shown(terminal) == 3


def test_containers_without_a_cap_show_what_the_driver_tells(node: Node, with_load: Bundles) -> None:
    node.sim("1xT4-R580")
    words = ["/load/share-load", "async", "kernel=5ms", "seconds=600", "log=/log"]
    idle = node.start(with_load("XPU_MEM=1G", args=SLEEP))

    def got() -> dict[str, float | None]:
        (device,) = node.json("top", "--interval", "0.5")["devices"]
        shares = {each["container_id"]: each["cores_got_percent"] for each in device["containers"]}
        assert [each["note"] for each in device["containers"]] == [None] * len(shares)
        return {"the card": device["busy_percent"], **shares}

    assert got() == {"the card": 0, idle: 0}  # the driver reports no work
    one = node.start(with_load("XPU_MEM=1G", args=words))
    until(lambda: (got()[one] or 0) > 80, "it has the card", 30)
    two = node.start(with_load("XPU_MEM=1G", args=words))
    until(lambda: 30 < (got()[two] or 0) < 70, "equal turns", 30)
    shares = got()
    assert shares[idle] == 0
    assert shares[one] == pytest.approx(50, abs=15)
    assert (shares["the card"] or 0) > 80
    # However short the time: the driver's last sample.
    (device,) = node.json("top", "--interval", "0.1")["devices"]
    assert [each["cores_got_percent"] == 0 for each in device["containers"]] == [True, False, False]


def test_use_that_the_driver_cannot_tell_apart_is_unknown_and_not_zero(
    node: Node, with_load: Bundles
) -> None:
    node.sim("1xT4-R580")
    words = ["/load/share-load", "async", "kernel=5ms", "seconds=600", "log=/log"]
    node.start(with_load("XPU_ENFORCE=mps", "XPU_MEM=1G", args=words))

    def device() -> Any:
        (found,) = node.json("top", "--interval", "0.5")["devices"]
        return found

    until(lambda: device()["busy_percent"] > 80, "the card is busy", 30)
    (row,) = device()["containers"]
    assert row["cores_got_percent"] is None
    assert row["note"] == "its share is not known: to the driver all containers under MPS are one"
    text = node.xpu("top", "--once", "--interval", "0.1").stdout
    assert re.search(rf"{row['container_id'][:12]} +- +- ", text)
    assert row["note"] in text


@pytest.mark.parametrize(
    ("fails", "got", "told"),
    [
        (
            "nvmlDeviceGetProcessUtilization: NVML_ERROR_NO_PERMISSION",
            None,
            "does not report the use of each process",
        ),
        ("nvmlDeviceGetProcessUtilization: NVML_ERROR_NOT_FOUND", 0, None),  # the card is idle
        ("nvmlDeviceGetUtilizationRates: NVML_ERROR_NOT_SUPPORTED", None, "has no sample of this device's"),
        ("", None, "does not report the use of each process"),  # the process is gone
    ],
)
def test_what_the_driver_does_not_tell_is_a_dash_with_the_reason(
    node: Node, bundles: Bundles, fails: str, got: float | None, told: str | None
) -> None:
    topology = node.folder / "silent.yaml"
    topology.write_text(f"driver: R580\ngpus: [{{model: T4, fail: {{{fails}}}}}]")
    node.sim(topology)
    container = node.start(bundles("XPU_MEM=1G", args=SLEEP))
    if not fails:
        node.xpu("sim", "down")
    rows = [row for each in node.json("top", "--interval", "0.1")["devices"] for row in each["containers"]]
    assert [(row["container_id"], row["cores_got_percent"]) for row in rows] == [(container, got)]
    assert rows[0]["note"] is None if told is None else told in rows[0]["note"]


@pytest.mark.parametrize("page", ["quota", "usage"])
def test_a_page_that_is_cut_off_is_told(node: Node, capped: Make, page: str) -> None:
    whole, cut = capped(30), capped(50, "burst")
    path = os.path.join(cut.folder, page)
    size = os.stat(path).st_size
    os.truncate(path, 1000)
    what = f"its {page} page is cut off ({path}: 1000 bytes of {size}): "
    todo = ", and programs that start in it cannot use CUDA: start the container again"
    (line,) = [line for line in node.xpu("ps").stderr.splitlines() if "no agent" not in line]
    assert line.startswith(f"xpu: container {cut.id}: {what}") and line.endswith(todo)
    (device,) = node.json("top", "--interval", "0.1")["devices"]
    notes = {each["container_id"]: each["note"] for each in device["containers"]}
    assert notes[whole.id] is None
    assert notes[cut.id].startswith(what) and notes[cut.id].endswith(todo)
    assert notes[cut.id] in node.xpu("top", "--once", "--interval", "0.1").stdout
    (problem,) = node.json("inspect", cut.id)["problems"]
    assert problem == notes[cut.id]
    (finding,) = [each for each in examine(node)[0] if what in each["text"]]
    assert finding["todo"] == "start the container again"


def test_a_node_without_containers_shows_its_devices_and_why_not_everybody_gets_them(node: Node) -> None:
    node.sim("2xT4")
    node.xpu("drain", "0", "--reason", "fan")
    node.xpu("reserve", "1", "--for", "team-a")
    text = node.xpu("top", "--once", "--interval", "0.1").stdout
    assert "2 GPUs   0 containers   0 waiting" in text
    assert text.count("in use") == 2
    assert [line for line in text.splitlines() if line.startswith("    ")] == [
        "    drained: fan",
        "    reserved for team-a",
    ]
