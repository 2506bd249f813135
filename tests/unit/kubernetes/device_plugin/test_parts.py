"""The plugin's smaller parts: asking the drivers, finding the owner of an ID, metrics."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.stand_in_kubelet import until
from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.device_plugin import driver, metrics
from xpu_runtime.kubernetes.device_plugin.allocated_ids import AllocatedIds
from xpu_runtime.kubernetes.device_plugin.driver import DriverPoller
from xpu_runtime.kubernetes.device_plugin.metrics import Metrics, Snapshot
from xpu_runtime.kubernetes.device_plugin.offering import key_ids
from xpu_runtime.kubernetes.device_plugin.shared_ledger import SharedLedger
from xpu_runtime.kubernetes.resources import MEMORY
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import proc

GIB = 1 << 30

# The drivers


def asked(look: DriverPoller) -> bool:
    """Steps until something is new."""
    return bool(until(look.step, "the drivers answer"))


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A driver root with nothing in it."""
    (tmp_path / "root").mkdir()
    (tmp_path / "config.yaml").write_text(f"driver: {{root: {tmp_path}/root}}\n")
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XPU_CONFIG", str(tmp_path / "config.yaml"))
    return tmp_path


def test_a_driver_that_hangs_is_told_and_asked_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = DriverPoller(0.0, 20)
    look.step()
    monkeypatch.setattr(look, "_answer_s", 0.0)
    os.kill(look._process.pid, signal.SIGSTOP)
    look._process.until = 0.0
    assert asked(look)
    assert look.problem.startswith("the driver does not answer: it did not end within")
    look._answer_s = 20
    until(lambda: look.step() and not look.problem, "it answers again")
    look.close()


def test_a_driver_that_fails_is_told_and_asked_again(root: Path) -> None:
    look = DriverPoller(0.0, 20)
    look.step()
    os.kill(look._process.pid, signal.SIGSEGV)
    assert asked(look)
    assert look.problem.startswith("the drivers cannot be asked: its process died") and not look.inventory
    assert asked(look)
    assert look.problem == "" and look.inventory is not None
    (root / "config.yaml").write_text("driver: [wrong]\n")
    assert asked(look)
    assert "config.yaml" in look.problem and "cannot be asked" not in look.problem
    look.close()


def test_a_reader_takes_back_the_slices_of_a_dead_container(root: Path) -> None:
    slice_ = Slice("0", "GPU-0", GIB, True, None, Holding("none", "unenforced"))
    (root / "run").mkdir(exist_ok=True)
    with subprocess.Popen(["sleep", "60"]) as lives, subprocess.Popen(["sleep", "60"]) as dies:
        for name, container in (("a", lives), ("b", dies)):
            started = proc.start_time(container.pid) or 0
            wanted = Grant(0, name, f"/{name}", container.pid, started, "", "running", "hook", 0.0, ())
            with Ledger() as ledger:
                assert ledger.grant(wanted, lambda _: (slice_,))[0] is not None
        driver._ask()
        assert SharedLedger().read(5).others["GPU-0"].memory_bytes == 2 * GIB
        dies.kill()
        dies.wait()
        driver._ask()
        assert SharedLedger().read(5).others["GPU-0"].memory_bytes == GIB
        lives.kill()
    driver._ask()
    assert SharedLedger().read(5).others == {}


def test_the_node_tells_the_keys_that_are_in_the_file_now(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    assert key_ids(str(keys)) == []
    keys.write_text(f"k1 {'ab' * 32}\nnew {'cd' * 32}\n")
    assert key_ids(str(keys)) == ["k1", "new"]


# IDs that the kubelet has given


def test_the_owner_of_ids_is_the_pod_that_has_some_of_them() -> None:
    of_memory = {
        ("ns", "a", "main"): frozenset("x"),
        ("ns", "a", "side"): frozenset("y"),
        ("ns", "b", "main"): frozenset("z"),
    }
    given = AllocatedIds(True, {MEMORY: of_memory})
    assert given.owner(MEMORY, ["x"]) == ("ns", "a")
    # Of an init container the kubelet reports only IDs that a regular container has, too.
    assert given.owner(MEMORY, ["x", "i"]) == ("ns", "a")
    assert given.owner(MEMORY, ["x", "y"]) == ("ns", "a")
    assert given.owner(MEMORY, ["x", "z"]) is None
    assert given.owner(MEMORY, []) is None
    assert given.owner("other", ["x"]) is None
    assert given.ids(MEMORY) == frozenset("xyz")
    assert given.ids(MEMORY, {("ns", "b")}) == frozenset("z")
    assert given.ids("other") == frozenset()
    assert AllocatedIds().ids(MEMORY) is None
    assert given.by_pod(MEMORY) == {("ns", "a"): 2, ("ns", "b"): 1}
    assert given.ids_of(MEMORY, [("ns", "a", "side"), ("ns", "b", "main")]) == frozenset("yz")
    assert given.ids_of("other", [("ns", "a", "side")]) == frozenset()


# Metrics


def test_the_page_is_prometheus_text() -> None:
    snapshot = Snapshot(
        {MEMORY: {"healthy": 56, "unhealthy": 4, "given": 4}, 'odd"\\\n': {"healthy": 1}},
        {"reserved": 2},
        {"GPU-a": (True, False)},
        registrations=4,
        registered=True,
        ledger_answers=True,
    )
    page = Metrics(lambda: snapshot)
    page.observe("allocate", "ok", 0.25)
    page.observe("allocate", "refused", 0.5)
    text = page.page().decode()
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    of = "xpu_kubernetes_"
    assert found[f"{of}ids", ("resource", MEMORY), ("state", "unhealthy")] == 4
    assert found[f"{of}ids", ("resource", 'odd"\\\n'), ("state", "healthy")] == 1
    assert (f"{of}ids", ("resource", 'odd"\\\n'), ("state", "given")) not in found
    assert found[f"{of}calls_total", ("call", "allocate"), ("outcome", "refused")] == 1
    assert found[f"{of}call_seconds_sum", ("call", "allocate")] == 0.75
    assert found[f"{of}call_seconds_count", ("call", "allocate")] == 2
    assert found[f"{of}device_healthy", ("uuid", "GPU-a")] == 1
    assert found[f"{of}device_offered", ("uuid", "GPU-a")] == 0
    assert found[f"{of}registrations_total",] == 4
    assert (found[f"{of}up", ("part", "api")], found[f"{of}up", ("part", "ledger")]) == (0, 1)
    assert all(line.startswith(("# HELP ", "# TYPE ", of)) for line in text.splitlines())


@pytest.mark.parametrize(
    "listen", ["9402", "localhost:9402", "127.0.0.1:x", "127.0.0.1:99999", "192.0.2.1:80"]
)
def test_where_nothing_can_listen_it_is_said(listen: str) -> None:
    with pytest.raises(ConfigError):
        metrics.server(listen, Metrics(Snapshot), str)


def test_a_ledger_that_has_just_changed_may_change_in_the_same_tick(run_dir: Path) -> None:
    with Ledger() as ledger:
        ledger.note("drained", "")
    path = run_dir / "ledger.db"
    assert SharedLedger.stamp() == ()
    os.utime(path, (1000, 1000))
    calm = SharedLedger.stamp()
    assert calm == SharedLedger.stamp() != ()
    path.unlink()
    assert SharedLedger.stamp() == ()
