"""Ends of containers that the hook in C has entered: what the ledger makes of them, whoever opens it next."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xpu_runtime.ledger import ends, events, store
from xpu_runtime.ledger.grants import Grant, Holding, Slice, Use
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.ledger.waiting import LedgerError
from xpu_runtime.linux import files, proc

GIB = 1 << 30
CAPACITY = 15 * GIB

Holds = Callable[..., Grant]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
def holds(path: str) -> Iterator[Holds]:
    """Gives a container with a process a slice, as a start does; `holds("c1")`."""
    processes = []

    def give(name: str = "c1", memory: int = GIB) -> Grant:
        process = subprocess.Popen(["/bin/sleep", "600"])
        processes.append(process)
        wanted = Grant(
            0, name, f"/b/{name}", process.pid, proc.start_time(process.pid) or 0, "", "", "hook", 0, ()
        )
        with Ledger(path) as ledger:
            granted, dead = ledger.grant(wanted, lambda uses: take(memory, uses))
            assert granted is not None and dead == []
            ledger.bind(granted)
            ledger.leave_end_to_hook(granted)
        return granted

    yield give
    for process in processes:
        process.kill()
        process.wait()


def take(memory: int, uses: dict[str, Use]) -> tuple[Slice, ...] | None:
    if uses.get("GPU-0", Use()).memory_bytes + memory > CAPACITY:
        return None
    return (Slice("0", "GPU-0", memory, True, None, Holding()),)


def kill(grant: Grant) -> None:
    os.kill(grant.pid, 9)
    while proc.is_alive(grant.pid, grant.start_time):
        pass  # the test's own time limit ends this


def end(grant: Grant, path: str, when: float | None = None) -> None:
    """What the hook does."""
    kill(grant)
    folder = Path(path).parent
    note = folder / "running" / grant.container_id
    if when is not None:
        os.utime(note, (when, when))
    else:
        os.utime(note)
    note.rename(folder / "ended" / grant.name)


def left(path: str) -> list[str]:
    """The notes that are there, and the ends that no ledger has."""
    return [str(each.relative_to(Path(path).parent)) for each in sorted(Path(path).parent.glob("*ed/*"))] + [
        each.name for each in sorted(Path(path).parent.glob("running/*"))
    ]


READS: list[Callable[[Ledger], object]] = [
    Ledger.grants,
    Ledger.uses,
    lambda ledger: ledger.of_container("c1"),
    lambda ledger: ledger.counted("q"),
    Ledger.history,
    Ledger.totals,
]


@pytest.mark.parametrize("as_is", [False, True])
@pytest.mark.parametrize("read", READS)
def test_whoever_reads_sees_the_slice_free_and_when_it_was_given_back(
    path: str, holds: Holds, read: Callable[[Ledger], object], as_is: bool
) -> None:
    grant, other = holds("c1"), holds("c2")
    when = time.time()
    end(grant, path, when)
    time.sleep(0.01)
    with Ledger(path, as_is=as_is) as ledger:
        read(ledger)
        assert left(path) == ["c2"]
        assert ledger.grants() == [other]
        assert ledger.uses() == {"GPU-0": Use(GIB, 0, 1, False)}
        told = ledger.history()
        assert [(each.kind, each.container_id) for each in told] == [
            (events.GRANTED, "c1"),
            (events.GRANTED, "c2"),
            (events.RELEASED, "c1"),
        ]
        assert told[-1].time == pytest.approx(when, abs=1e-6)
        assert ledger.totals().kinds == {events.GRANTED: 2, events.RELEASED: 1}


def test_the_next_start_has_what_was_given_back_and_reaps_nothing(path: str, holds: Holds) -> None:
    end(holds("c1", CAPACITY), path)
    holds("c2", CAPACITY)
    with Ledger(path) as ledger:
        assert [each.container_id for each in ledger.grants()] == ["c2"]
        assert [each.kind for each in ledger.history()] == [events.GRANTED, events.RELEASED, events.GRANTED]


def test_ends_are_told_in_their_order_however_many_there_are(path: str, holds: Holds) -> None:
    grants = [holds(f"c{number}", 1) for number in range(40)]
    now = time.time()
    for number, grant in enumerate(grants):
        end(grant, path, now + (number * 7 % 40) / 1000)
    time.sleep(0.05)
    with Ledger(path) as ledger:
        assert ledger.grants() == []
        times = [each.time for each in ledger.history() if each.kind == events.RELEASED]
    assert len(times) == 40 and times == sorted(times)
    assert left(path) == []


@pytest.mark.parametrize("off", [-(10**6), 10**6])
def test_a_clock_that_was_set_makes_no_event_of_another_time(path: str, holds: Holds, off: float) -> None:
    grant = holds()
    end(grant, path, time.time() + off)
    with Ledger(path) as ledger:
        released = ledger.history()[-1]
    assert released.kind == events.RELEASED
    assert grant.created <= released.time <= time.time()


def test_what_fails_leaves_the_end_for_the_next(path: str, holds: Holds) -> None:
    grant = holds()
    end(grant, path)

    def fails(uses: dict[str, Use]) -> None:
        assert uses == {}
        raise RuntimeError

    with Ledger(path) as ledger:
        with pytest.raises(RuntimeError):
            ledger.grant(grant.replace(id=0, container_id="c2"), fails)
        assert left(path) == [f"ended/{grant.name}"]
        assert ledger.grants() == []
        assert left(path) == []


def test_one_that_is_killed_before_it_has_removed_the_notes_has_done_no_harm(
    path: str, holds: Holds, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = holds()
    end(grant, path)
    with monkeypatch.context() as patch:
        patch.setattr(ends, "take_in", lambda *_: None)
        with Ledger(path) as ledger:
            assert ledger.grants() == []
    assert left(path) == [f"ended/{grant.name}"]
    with Ledger(path) as ledger:
        assert [each.kind for each in ledger.history()] == [events.GRANTED, events.RELEASED]
    assert left(path) == []


def test_the_slice_of_a_process_that_lives_is_its_own_whatever_was_entered(path: str, holds: Holds) -> None:
    grant = holds()
    folder = Path(path).parent / "ended"
    for name in (grant.name, f"{grant.id}-1", "7-7", "nonsense", "1", "1; DROP TABLE grants"):
        (folder / name).touch()
    with Ledger(path) as ledger:
        assert ledger.grants() == [grant]
    assert left(path) == ["c1"]
    # Nor is one that has ended meant by the number of another ledger's.
    kill(grant)
    (folder / f"{grant.id}-1").touch()
    with Ledger(path) as ledger:
        assert ledger.grants() == [grant]
    assert left(path) == ["c1"]


def test_an_end_of_a_ledger_that_was_lost_says_nothing_of_the_next(path: str, holds: Holds) -> None:
    end(holds(), path)
    os.unlink(path)
    second = holds("c1")
    with Ledger(path) as ledger:
        assert ledger.grants() == [second]
        assert [each.kind for each in ledger.history()] == [events.GRANTED]


def test_from_another_pid_namespace_nothing_is_taken_in(
    path: str, holds: Holds, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = holds()
    end(grant, path)
    with monkeypatch.context() as patch:
        patch.setattr(proc, "pid_namespace", lambda: 4026532000)
        with Ledger(path) as ledger:
            assert ledger.grants() == [grant]
            ledger.release([])
    assert left(path) == [f"ended/{grant.name}"]
    with Ledger(path) as ledger:
        assert ledger.grants() == []


def test_who_reads_does_not_wait_for_one_that_hangs(
    path: str, holds: Holds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_TAKE_IN_S", 0.05)
    grant = holds()
    end(grant, path)
    with Ledger(path) as ledger:
        with files.Lock(path + ".lock"):
            began = time.monotonic()
            assert ledger.grants() == [grant]
            assert time.monotonic() - began < 10
        assert ledger.grants() == []


def test_on_a_full_disk_what_is_there_is_read(tmp_path: Path, holds: Holds, path: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", tmp_path], check=True)
    try:
        grant = holds()
        end(grant, path)
        filler = tmp_path / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))
        with Ledger(path) as ledger:
            assert ledger.grants() in ([grant], [])
            with pytest.raises(LedgerError, match="free space"):
                for number in range(1000):
                    ledger.note(events.DRAINED, f"x{number}")
        filler.unlink()
        with Ledger(path) as ledger:
            assert ledger.grants() == []
        assert left(path) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


# The notes.


def test_a_grant_that_is_taken_out_has_no_note(path: str, holds: Holds) -> None:
    released, reaped, stays = holds("c1"), holds("c2"), holds("c3")
    kill(reaped)
    with Ledger(path) as ledger:
        ledger.release([released])
        assert left(path) == ["c2", "c3"]
        (Path(path).parent / "running" / "of-a-lost-ledger").touch()
        ledger.reap()
        assert left(path) == ["c3"]
        assert ledger.grants() == [stays]
    os.unlink(path)
    with Ledger(path):
        assert left(path) == []


@pytest.mark.parametrize(
    "odd", ["", ".", "..", ".hidden", "../ledger.db", "a/b", "ä", "a b", "a\n", "x" * 201, "٣"]
)
def test_a_container_whose_id_is_no_files_name_has_no_note(path: str, holds: Holds, odd: str) -> None:
    grant = holds().replace(container_id=odd)
    ends.note(grant, path, 1)
    ends.forget(grant, path)
    assert left(path) == ["c1"]
    assert os.path.exists(path)


@pytest.mark.parametrize("name", ["a", "x" * 200, "0123456789abcdef", "A_b+c-d.e", "___"])
def test_any_other_has_one_with_all_that_must_be_gone(path: str, holds: Holds, name: str) -> None:
    grant = holds(name).replace(bundle="/b/ä b=\udcff", cgroup="/sys/fs/cgroup/x")
    ends.note(grant, path, 4026531836)
    note = Path(path).parent / "running" / name
    assert os.fsdecode(note.read_bytes()) == (
        f"format=1\ngrant={grant.name}\nprocess={grant.pid} {grant.start_time}\n"
        "pid_namespace=4026531836\nbundle=/b/ä b=\udcff\ncgroup=/sys/fs/cgroup/x\n"
    )
    assert note.stat().st_mode & 0o777 == 0o600 and note.parent.stat().st_mode & 0o777 == 0o700


def test_a_note_that_cannot_be_said_in_lines_or_written_is_none(path: str, holds: Holds) -> None:
    grant = holds()
    ends.note(grant.replace(container_id="c2", bundle="/b\ncgroup="), path, 1)
    assert left(path) == ["c1"]
    # One of an earlier life does not stay in its place.
    note = Path(path).parent / "running" / "c1"
    note.unlink()
    note.symlink_to("/etc/passwd")
    ends.note(grant, path, 1)
    assert left(path) == []
