"""The account under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import GIB, MIB
from xpu_runtime.limits import pages

from .accounts import ARRAY, LINEAR, VMM, Account, Make, Process

KINDS = ("address,undefined", "thread")


def build(here: Account, source: str, kind: str) -> Path:
    return here.place.build(source, f"-fsanitize={kind}", "-fno-sanitize-recover=all")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(account: Make, kind: str, tmp_path: Path) -> Iterator[Callable[[Account], Process]]:
    """Workers whose sanitizers have found nothing at the end, killed ones and children included."""
    log = tmp_path / "report"

    def begin(here: Account) -> Process:
        program = build(here, "worker.c", kind)
        options = f"log_path={log}:die_after_fork=0:handle_segv=1"
        env = {"ASAN_OPTIONS": options, "UBSAN_OPTIONS": f"log_path={log}", "TSAN_OPTIONS": options}
        return here.start(program=program, env=env)

    yield begin
    for report in tmp_path.glob("report*"):
        pytest.fail(report.read_text())


def test_threads_forks_and_signals(account: Make, start: Callable[[Account], Process], kind: str) -> None:
    here = account(GIB)
    process, other = start(here), start(here)
    assert process.charge(MIB, ARRAY)
    assert process.ask("threads", 8, 2000) == "0"
    assert process.ask("forks", 2, 20) == "0"
    if kind != "thread":  # ThreadSanitizer delays handlers until the program waits
        assert int(process.ask("signals", 200)) >= 200
    assert process.own() == other.used() == MIB
    assert process.ask("fork", "charge", 0, LINEAR, 4096) == "1"
    other.kill()
    assert process.used() == MIB


def test_threads_that_make_the_first_call_together(
    account: Make, start: Callable[[Account], Process]
) -> None:
    """The threads open the pages and take the slot together. There is no slot for another process."""
    here = account(GIB, slots=1)
    process = start(here)
    assert process.ask("threads", 16, 50) == "0"
    assert len(here.usage()) == 1
    assert not start(here).charge(1)


def test_exports_imports_and_dead_processes(account: Make, start: Callable[[Account], Process]) -> None:
    here = account(MIB, 2 * MIB)
    exporter, importer, third = (start(here) for _ in range(3))
    assert exporter.charge(MIB, VMM, device=1) and third.charge(0)
    exporter.ask("exported", 1, MIB)
    importer.ask("imported", 1)
    exporter.ask("free-exported", 1, VMM, MIB // 2)
    exporter.kill()
    assert third.used(1) == MIB
    importer.kill()
    assert third.used(1) == 0
    assert third.ask("each").count(":") == 2


def test_garbage_in_the_page(account: Make, start: Callable[[Account], Process]) -> None:
    here = account(GIB, GIB)
    process = start(here)
    assert process.charge(4096)
    garbage = random.Random(1)
    file = here.place.pages / pages.USAGE
    size = file.stat().st_size
    with file.open("r+b", buffering=0) as page:
        for _ in range(40):
            page.seek(garbage.randrange(1024, size - 4096))
            page.write(garbage.randbytes(garbage.randrange(4096)))
            for words in (
                ("charge", 0, LINEAR, 8192),
                ("give", 0, LINEAR, 4096),
                ("used", 0),
                ("each",),
                ("move", 0, LINEAR, VMM, 4096),
                ("free-exported", 0, VMM, MIB),
            ):
                process.ask(*words)
                assert process.popen.poll() is None


@pytest.mark.parametrize("damage", [0, 100, 4095])
def test_a_page_that_is_cut_off(account: Make, start: Callable[[Account], Process], damage: int) -> None:
    here = account(GIB)
    for name in (pages.QUOTA, pages.USAGE):
        with (here.place.pages / name).open("r+b") as page:
            page.truncate(damage)
    assert "is cut off" in start(here).ask("open")


@pytest.mark.parametrize("mode", ["fits", "kills"])
def test_a_race(account: Make, kind: str, mode: str) -> None:
    here = account(6 * MIB)
    program = build(here, "race.c", kind)
    ran = subprocess.run(
        [program, mode, "6", str(MIB), "1000"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0 and "Sanitizer" not in ran.stderr, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["refused"] == 0 and seen["left"] == 0
    assert seen["most"] <= seen["limit"]
