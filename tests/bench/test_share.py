"""The accuracy harness (bench/share): its arithmetic on made-up logs, and its loads on a simulated card."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from share import logs, measure, picture, runfolder, runs, scenarios, table
from share import node as node_module
from share.__main__ import Session, arguments
from share.loads import LOADS, Load
from share.logs import Log
from share.measure import Native, Result
from share.node import Node, NodeError
from share.scenarios import Container, Scenario
from support import REPOSITORY, timing
from support.sharing_time import until
from xpu_simulator.simulator import SimState

NATIVE = Native(rate=1.0, saturates=True, p99_ns=5000.0)
BEGIN = 100.0


def log(*rates: tuple[float, float], phases: tuple[tuple[float, bool], ...] = ((0.0, True),)) -> Log:
    """A process that works at each rate for that many seconds, and completes something every 2 ms."""
    times, work = [BEGIN], [0.0]
    for rate, seconds in rates:
        for _ in range(round(seconds / 0.002)):
            times.append(times[-1] + 0.002)
            work.append(work[-1] + 0.002 * rate)
    on = [(BEGIN + time, state) for time, state in phases]
    return Log(logs.DONE, BEGIN, "", (0,) * 320, times, work, on)


def scenario(*caps: int | None, **how: str) -> Scenario:
    containers = tuple(Container(LOADS["async-1ms"], cap, **how) for cap in caps)
    return Scenario("a scenario", containers, least=8.0)


def test_a_cap_that_holds_has_no_error() -> None:
    result = measure.judge(scenario(30, 70), [[log((0.3, 11))], [log((0.7, 11))]], [NATIVE, NATIVE])
    for one, share in zip(result.outcomes, (30, 70), strict=True):
        assert one.expected == pytest.approx(share)
        assert one.got == pytest.approx(share)
        assert one.worst < 0.01 and one.mean_error < 0.01
        assert one.given_back is None
    assert result.idle < 0.01 and result.jain == pytest.approx(1.0)
    assert picture.holds(result)


def test_naive_charging_shows_as_too_little_work_and_an_idle_card() -> None:
    result = measure.judge(scenario(30, 70), [[log((0.15, 11))], [log((0.55, 11))]], [NATIVE, NATIVE])
    low, high = result.outcomes
    assert [low.mean_error, high.mean_error] == pytest.approx([15, 15])
    assert low.throughput == pytest.approx(50) and result.idle == pytest.approx(30)
    assert result.jain == pytest.approx((0.5 + 55 / 70) ** 2 / (2 * (0.25 + (55 / 70) ** 2)))
    assert not picture.holds(result)


def test_a_share_that_swings_is_found_though_its_mean_is_right() -> None:
    swinging = log(*[(0.9, 1.5), (0.1, 1.5)] * 4)
    (one,) = measure.judge(scenario(50), [[swinging]], [NATIVE]).outcomes
    assert one.got == pytest.approx(50, abs=6)
    assert one.worst > 15 and one.mean_error > 5


def test_a_starved_container_is_not_judged_by_its_earlier_work() -> None:
    (one,) = measure.judge(scenario(50), [[log((0.5, 5))]], [NATIVE]).outcomes
    assert one.got == pytest.approx(50 * 3 / 8, abs=0.1)


def test_the_due_share_follows_the_containers_with_work() -> None:
    owner = log((1e-9, 4), (0.7, 4), (1e-9, 4), phases=((4.0, True), (8.0, False)))
    late = log((1.0, 4.1), (0.3, 3.9), (1.0, 3))
    wanted = scenario(30, 70, sched="burst")
    borrower, lender = measure.judge(wanted, [[late], [owner]], [NATIVE, NATIVE]).outcomes
    assert borrower.expected == pytest.approx(100 * 4 / 8 + 30 * 4 / 8, abs=0.5)
    assert lender.expected == pytest.approx(70 * 4 / 8, abs=0.5)
    # The owner had its 70 % at once. The other worked on for 0.1 s beside it.
    assert lender.given_back == pytest.approx(0, abs=0.02)
    assert borrower.worst == pytest.approx(70 * 0.1 / 2, abs=0.5)


def test_the_due_share_changes_with_the_cap() -> None:
    pair = Scenario("changed", scenario(60, 40).containers, 8.0, scenarios.Change(4.0, 0, 20))
    found = [[log((0.6, 6), (0.2, 5))], [log((0.4, 11))]]
    one, other = measure.judge(pair, found, [NATIVE, NATIVE], changed=BEGIN + 6).outcomes
    assert one.expected == pytest.approx(40, abs=0.2) and one.worst < 0.5
    assert other.expected == pytest.approx(40) and other.worst < 0.1


def test_the_time_until_a_share_was_given_back_is_reported() -> None:
    found = [[log((1.0, 4.3), (0.3, 6.7))], [log((1e-9, 4.3), (0.7, 6.7), phases=((4.0, True),))]]
    wanted = scenario(30, 70, sched="burst")
    borrower, lender = measure.judge(wanted, found, [NATIVE, NATIVE]).outcomes
    assert lender.given_back == pytest.approx(0.29, abs=0.02)
    assert borrower.given_back is None


@pytest.mark.parametrize(
    ("containers", "demands", "due"),
    [
        (scenario(30, 70), {0: 100, 1: 100}, (30, 70)),
        (scenario(30, 70), {0: 100, 1: 50}, (30, 50)),
        (scenario(30, None), {0: 100, 1: 100}, (30, 70)),
        (scenario(None, None), {0: 100, 1: 100}, (50, 50)),
        (scenario(30, 70, sched="burst"), {0: 100}, (100, 0)),
        (scenario(30, 60, sched="burst"), {0: 100, 1: 100}, (35, 65)),
        (scenario(30, 60, sched="weight"), {0: 100, 1: 100}, (30 + 10 / 3, 60 + 20 / 3)),
        (scenario(25, 75, sched="weight"), {0: 100, 1: 100}, (25, 75)),
        (scenario(20, 20, sched="weight"), {0: 100, 1: 30}, (70, 30)),
        (scenario(25, 25, sched="weight"), {0: 20, 1: 100}, (20, 80)),
    ],
)
def test_how_a_card_should_be_shared(
    containers: Scenario, demands: dict[int, float], due: tuple[float, float]
) -> None:
    found = scenarios.shares(containers.containers, demands)
    assert tuple(found.get(i, 0) for i in range(2)) == pytest.approx(due)


def test_a_higher_priority_is_served_first_and_a_low_one_does_not_starve() -> None:
    load = LOADS["async-1ms"]
    pair = [Container(load, 50, "burst", "high"), Container(load, 50, "burst", "low")]
    found = scenarios.shares(pair, {0: 100.0, 1: 100.0})
    assert found[1] == scenarios.LOW_FLOOR and found[0] == 100 - scenarios.LOW_FLOOR
    assert scenarios.shares(pair, {1: 100.0})[1] == 100


def test_every_scenario_has_a_name_of_its_own_and_asks_for_no_more_than_a_card() -> None:
    for choose in scenarios.SETS.values():
        names = [one.name for one in choose()]
        assert len(set(names)) == len(names)
    for one in scenarios.full():
        assert sum(each.cores or 0 for each in one.containers) <= 100, one.name
    assert {one.name for one in scenarios.quick()} >= set(scenarios.QUICK)
    used = {each.load.name for one in scenarios.full() for each in one.containers}
    assert used == set(LOADS)


def test_all_scenarios_are_run_unless_some_are_asked_for() -> None:
    assert arguments(["prefix"]).set == "full"
    assert arguments(["prefix", "--quick"]).set == arguments(["prefix", "--set", "quick"]).set == "quick"


@pytest.mark.parametrize("count", [1, 2, 4])
def test_parts_cover_each_scenario_once_and_take_about_as_long(count: int) -> None:
    full = scenarios.full()
    parts = [scenarios.part(full, number, count) for number in range(1, count + 1)]
    assert [one.name for part in parts for one in part] == [one.name for one in full]
    lengths = [sum(one.warm_up + one.seconds for one in part) for part in parts]
    longest = max(one.warm_up + one.seconds for one in full)
    assert max(lengths) - min(lengths) <= longest


def test_an_invalid_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("0/4", "5/4", "2", "x/y"):
        with pytest.raises(SystemExit):
            arguments(["prefix", "--part", word])
        assert f"{word} is not a part such as 2/4" in capsys.readouterr().err
    assert arguments(["prefix", "--part", "2/4"]).part == (2, 4)


def test_a_scenario_that_would_end_too_late_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def run(_: Node, one: Scenario, *__: object) -> Result:
        ran.append(one.name)
        return measure.judge(scenario(30), [[log((0.3, 11))]], [NATIVE])

    monkeypatch.setattr(runs, "run", run)
    node = Node(tmp_path, "1xT4-R580")
    try:
        session = Session(node, "ours", 1, 1.0, end=time.monotonic() + 60)
        session.natives = {"async-1ms": NATIVE}
        short, long = scenario(30), replace(scenario(30), name="long", least=600.0)
        judged = session.measure([long, short])
    finally:
        node.__exit__()
    assert ran == [short.name] and session.left_out == ["long"]
    assert [one.name for one, _ in judged] == [short.name]
    assert "long: left out: it would end too late" in capsys.readouterr().err


#: The environment of a run that is started as a program.
_ENVIRON = {
    **os.environ,
    "PYTHONPATH": ":".join(f"{REPOSITORY}/{name}" for name in ("bench", "src", "packaging")),
}


def _run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "share", *words]
    return subprocess.run(command, env=_ENVIRON, capture_output=True, text=True, timeout=100)


def test_a_run_without_time_for_a_scenario_has_failed(installed: Path) -> None:
    words = ["--topology", "1xT4-R580", "--quick", "--only", "at 30 %", "--seconds", "0.5", "--within", "0.1"]
    done = _run(installed, *words)
    assert done.returncode == 1 and "nothing was judged" in done.stderr, done.stdout + done.stderr


def test_a_killed_run_leaves_its_results(installed: Path, tmp_path: Path) -> None:
    """The files are whole, and have each scenario that was judged before the kill."""
    words = ["--topology", "1xT4-R580", "--set", "beside", "--only", "two", "--seconds", "0.5"]
    command = [sys.executable, "-m", "share", str(installed), *words, "--out", str(tmp_path / "out")]
    script = f"""
import sys
from dataclasses import replace
from share import __main__ as main, scenarios
two = replace(scenarios.beside()[-1], least=0.5)
names = ("first", "second", "third")
scenarios.SETS["beside"] = lambda: [replace(two, name=f"two {{name}}") for name in names]
sys.exit(main.main({command[3:]}))
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], env=_ENVIRON, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        try:
            for line in run.stdout:
                if line.startswith("two second: "):
                    break
        finally:
            run.kill()
            run.wait()
            for left in runfolder.dead():
                runfolder.remove(left, installed)
    kept = json.loads((tmp_path / "out/results.json").read_text())
    assert [one["name"] for one in kept["scenarios"]] == ["two first", "two second"]
    assert "two second" in (tmp_path / "out/table.md").read_text()


def test_a_page_gets_the_summary_in_its_place_and_nowhere_else() -> None:
    judged = [
        (one, measure.judge(one, [[log((0.29, 13))]], [NATIVE]))
        for one in (
            Scenario("at 30", (Container(LOADS["async-1ms"], 30),)),
            Scenario("graphs at 50", (Container(LOADS["graphs"], 50),)),
        )
    ]
    pair = scenario(30, 70)
    judged.append((pair, measure.judge(pair, [[log((0.3, 11))], [log((0.7, 11))]], [NATIVE] * 2)))
    natives = {"async-1ms": NATIVE, "graphs": replace(NATIVE, p99_ns=6000.0)}
    text = table.summary(judged, natives, "a command", "a card")
    assert "| async-1ms | 29.0 (1.0) |  |" in text
    assert "| async-1ms | 1.00 | 5 us |  |  |" in text
    assert "| graphs |  | 29.0 (21.0) |" in text
    assert "| graphs | 21.00 | 6 us |  | 0 ns |" in text
    assert "| a scenario | 30/70 | 30.0/70.0 | 0.0/0.0 | 0.0/0.0 | 0.0 | 1.000 |  |" in text
    page = "before\n<!-- share: ours -->\nold\n<!-- end of share: ours -->\nafter\n"
    found = table.put_into(page, "ours", text)
    assert found == f"before\n<!-- share: ours -->\n\n{text}\n<!-- end of share: ours -->\nafter\n"
    assert table.put_into(found, "ours", text) == found
    with pytest.raises(ValueError, match="share: tokens"):
        table.put_into(page, "tokens", text)


def test_loads_on_a_card_are_measured_and_drawn(installed: Path, tmp_path: Path) -> None:
    """Alone a load that saturates uses all of the card. Two share it by halves. The picture is valid."""
    with Node(installed, "1xT4-R580") as node:
        native = runs.run_native(node, LOADS["async-1ms"], 0, 1.0)
        assert native.rate == pytest.approx(1.0, abs=0.03)
        pair = Scenario("two without a cap", (Container(LOADS["async-1ms"]),) * 2, least=3.0)
        result = runs.run(node, pair, 0, [native, native], "none")
        for one in result.outcomes:
            assert one.got == pytest.approx(50, abs=5)
        assert result.idle < 5
        drawn = xml.etree.ElementTree.fromstring(picture.overview("Shares", [(pair, result)]))
        assert sum(1 for each in drawn.iter() if each.tag.endswith("polyline")) == 2
        assert "two without a cap" in table.markdown([(pair, result)], "a command", "a card")
        # The peer's law holds back plain launches, and lets graphs pass.
        loads = (Container(LOADS["async-1ms"], 10), Container(LOADS["graphs"], 10))
        limited = Scenario("a law", loads, least=3.0)
        plain, graphs = runs.run(node, limited, 0, [native, native], "tokens").outcomes
        assert plain.got < 30 and graphs.got > 1.5 * plain.got
        with pytest.raises(NodeError, match="a load ended: share-load: never: no duration"):
            runs.run(node, Scenario("of no length", (Container(_wrong()),)), 0, [native], "none")
        assert _log_of_a_stopped_one(node, tmp_path) == logs.DONE
    assert not node.folder.exists()


def _install_agent(prefix: Path, life: str) -> None:
    """An installation of an agent alone, which runs `life`."""
    (prefix / "bin").mkdir()
    program = prefix / "bin" / "xpu"
    program.write_text(f'#!/bin/sh\n[ "$2" = --help ] && exit\n{life}\n')
    program.chmod(0o755)


def test_a_scenario_that_needs_the_agent_is_not_run_without_it_and_not_judged_if_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _install_agent(tmp_path, "echo gone >&2; exec sleep 600")
    node = Node(tmp_path, "1xT4-R580")
    try:
        assert node.start_agent()
        until(lambda: (node.folder / "agent.log").read_text() == "gone\n", "the agent runs")
        session = Session(node, "ours", 1, 1.0)
        session.natives = {"async-1ms": NATIVE}
        ran: list[str] = []

        def run(_: Node, one: Scenario, *__: object) -> Result:
            ran.append(one.name)
            if one.name == "ends":
                for pid in runfolder.processes(node.folder):
                    os.kill(pid, signal.SIGKILL)
                assert node._agent is not None
                node._agent.wait(10)
            return measure.judge(scenario(30), [[log((0.3, 11))]], [NATIVE])

        monkeypatch.setattr(runs, "run", run)
        wanted = [
            scenario(30, sched=sched) if name == "fixed" else replace(scenario(30, sched=sched), name=name)
            for name, sched in (
                ("first", "burst"),
                ("ends", "burst"),
                ("later", "weight"),
                ("fixed", "fixed"),
            )
        ]
        judged = [one.name for one, _ in session.measure(wanted)]
    finally:
        node.__exit__()
    assert ran == ["first", "ends", "a scenario"] and judged == ["first", "a scenario"]
    assert capsys.readouterr().err.count("xpu agent has ended: gone") == 2


def test_an_agent_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install_agent(tmp_path, "trap '' TERM; touch $XPU_RUN_DIR.ready; while :; do sleep 0.1; done")
    monkeypatch.setattr(node_module, "_END_S", 0.2)
    node = Node(tmp_path, "1xT4-R580")
    node.start_agent()
    until((node.folder / "run.ready").exists, "the agent runs")
    node.__exit__()
    assert not node.folder.exists()
    # The shell's sleep ends by itself.
    until(lambda: runfolder.processes(node.folder) == [], "it has ended")


def _log_of_a_stopped_one(node: Node, shared: Path) -> int:
    words = ["/usr/bin/share-load", "sync", "kernel=1ms", "seconds=100", "processes=2", "log=/share/log"]
    with node.start(0, words, {}, shared) as container:
        log = shared / "log.1"
        until(lambda: logs.state(log)[0] >= logs.RUNNING and any(logs.read(log).work), "it works", 30)
        container.terminate()
        container.wait(10)
    return logs.read(log).state


def test_a_running_simulation_stands_in_for_the_machines_card_and_stays_up(
    up: Callable[..., SimState], installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(up("1xT4-R580").root)
    monkeypatch.setenv("XPU_GPU_ROOT", str(root))
    with Node(installed, "", real=True) as node:
        node.calibrate(0)
    assert (root / "dev/nvidia0").exists()


def test_a_machine_that_starts_no_container_is_reported_in_one_line(installed: Path) -> None:
    (line,) = _run(installed, "--real", "--quick", "--only", "at 30 %").stderr.splitlines()
    assert line.startswith("FAILED: not measured: a container with XPU_VISIBLE_DEVICES=0 was not created: ")
    assert "no NVIDIA driver found" in line


def _wrong() -> Load:
    return Load("wrong", ("async", "kernel=never"), 1)


@pytest.mark.alone  # shares of time are measured
def test_caps_hold_beside_each_other(installed: Path) -> None:
    """The bounds are wide, because the machine may be busy. Without a limit it is 49/49."""
    # The caps are 30 and 60: when two share a card, switching takes 2 %, which no container gets.
    with Node(installed, "1xT4-R580") as node:
        loads = (LOADS["async-1ms"], LOADS["graphs"])
        natives = [runs.run_native(node, load, 0, 1.0) for load in loads]
        pair = Scenario("30/60", (Container(loads[0], 30), Container(loads[1], 60)), least=4.0)

        def held() -> tuple[list[float], bool]:
            result = runs.run(node, pair, 0, natives, "ours")
            return [one.got for one in result.outcomes], result.idle <= 4

        timing.equals((pytest.approx([30, 60], abs=6), True), held)
