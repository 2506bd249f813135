"""The budget of a device's time: a container's processes share one word, which says what they may launch.

Times are given, not measured: each command of a worker has the time.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from xpu_runtime.limits import pages

from .accounts import Account, Make, Process

MS, S = 1_000_000, 1_000_000_000
#: From native/account/budget.h and native/abi/page.h.
CREDIT, IDLE_CREDIT, UNMEASURED, AGENT_LOST = 50 * MS, 20 * MS, 5 * MS, 500 * MS
COMPUTE_AT, COMPUTE_SIZE, WHOLE = 2048, 128, 10000
NOW = 1000 * S


def started(account: Account) -> Process:
    """A process that has read its pages, as one that may launch."""
    process = account.start()
    assert process.ask("take") == "1"
    return process


def launch(process: Process, share: int, ns: int, now: int, device: int = 0) -> int:
    """0: it may launch, and is charged. Otherwise the nanoseconds that it has to wait."""
    may, until = process.ask("launch", device, share, ns, now).split()
    return 0 if may == "1" else int(until) - now


def words(account: Account, device: int = 0) -> tuple[int, ...]:
    """paid, paid_cap, used, waits, guesses."""
    page = (account.place.pages / pages.USAGE).read_bytes()
    return struct.unpack_from("<5Q", page, COMPUTE_AT + device * COMPUTE_SIZE)


def write(folder: Path, at: int, value: int) -> None:
    with (folder / pages.USAGE).open("r+b") as page:
        page.seek(at)
        page.write(value.to_bytes(8, "little"))


def adjust(account: Account, adjusted: int, device: int = 0) -> None:
    """Writes a share as the agent does."""
    with (account.place.pages / pages.QUOTA).open("r+b") as page:
        page.seek(2048 + 64 * device + 16)
        page.write(adjusted.to_bytes(8, "little"))


def test_a_launch_is_paid_for_at_the_share_before_the_next_may_go(account: Make) -> None:
    one = started(account(cores=30))
    assert launch(one, 3000, 60 * MS, NOW) == 0
    # 20 ms of credit, then 60 ms at 30 %.
    paid = NOW + 200 * MS - IDLE_CREDIT
    assert launch(one, 3000, 1, paid - 1) == 1
    assert launch(one, 3000, 1, paid) == 0


@pytest.mark.parametrize(("late", "credit"), [(CREDIT, CREDIT), (CREDIT + MS, IDLE_CREDIT)])
def test_a_late_launch_loses_nothing_and_a_longer_pause_leaves_less_credit(
    account: Make, late: int, credit: int
) -> None:
    one = started(account(cores=50))
    assert launch(one, 5000, 100 * MS, NOW) == 0
    comes = NOW + 200 * MS - IDLE_CREDIT + late
    assert launch(one, 5000, 100 * MS, comes) == 0
    assert launch(one, 5000, 1, comes) == 200 * MS - credit


def test_time_of_the_containers_other_processes_does_not_count_as_kept_from_the_device(account: Make) -> None:
    here = account(cores=50)
    first, second = started(here), started(here)
    assert launch(first, 5000, 1, NOW) == 0
    assert launch(second, 5000, 100 * MS, NOW) == 0
    # The second process had the device for 100 of these 400 ms.
    assert first.ask("settle", 0, 0, 0, 400 * MS, NOW + 500 * MS) == "ok"
    assert launch(first, 5000, 160 * MS, NOW + 500 * MS) == 0
    assert launch(first, 5000, 1, NOW + 500 * MS) == 2, "320 ms since what was launched was paid for"


def test_a_process_that_others_kept_from_the_device_catches_up(account: Make) -> None:
    one = started(account(cores=50))
    assert launch(one, 5000, 1, NOW) == 0
    assert one.ask("settle", 0, 0, 0, 400 * MS, NOW + 500 * MS) == "ok"
    # 20 ms of credit, and the 400 ms.
    assert launch(one, 5000, 210 * MS, NOW + 500 * MS) == 0
    assert launch(one, 5000, 10 * MS, NOW + 500 * MS) == 0
    assert launch(one, 5000, 1, NOW + 500 * MS) == 20 * MS
    assert launch(one, 5000, 10 * MS, NOW + S) == 0, "only once: it has caught up"
    assert launch(one, 5000, 10 * MS, NOW + S) == 0
    assert launch(one, 5000, 1, NOW + S) == 20 * MS


def test_it_catches_up_on_a_second_at_most(account: Make) -> None:
    one = started(account(cores=50))
    assert one.ask("settle", 0, 0, 0, 9 * S, NOW) == "ok"
    assert launch(one, 5000, 510 * MS, NOW) == 0
    assert launch(one, 5000, 10 * MS, NOW) == 0
    assert launch(one, 5000, 1, NOW) == 20 * MS


def test_it_does_not_catch_up_on_time_missed_at_another_share(account: Make) -> None:
    one = started(account(cores=50))
    assert launch(one, 5000, 1, NOW) == 0
    assert one.ask("settle", 0, 0, 0, 400 * MS, NOW + 500 * MS) == "ok"
    assert launch(one, 2000, 20 * MS, NOW + 500 * MS) == 0
    assert launch(one, 2000, 1, NOW + 500 * MS) == 100 * MS - IDLE_CREDIT


def test_all_processes_have_one_budget_for_each_device(account: Make) -> None:
    here = account(None, None, cores=50)
    first, second = started(here), started(here)
    assert launch(first, 5000, 100 * MS, NOW) == 0
    assert launch(second, 5000, 1, NOW) == 200 * MS - IDLE_CREDIT
    assert launch(second, 5000, 1, NOW, device=1) == 0


@pytest.mark.parametrize("share", [100, 1000, 3000, 5000, 9000, WHOLE])
@pytest.mark.parametrize("seed", range(3))
def test_over_any_time_it_gives_the_share_however_long_launches_are(
    account: Make, share: int, seed: int
) -> None:
    one, noise = started(account(cores=share // 100)), random.Random(seed)
    now, used, began = NOW, 0, NOW
    for _ in range(300):
        predicted, real = (int(10 ** noise.uniform(4, 8.5)) for _ in range(2))
        while wait := launch(one, share, predicted, now):
            now += min(wait, 20 * MS)
        used += real
        assert one.ask("settle", 0, real - predicted, predicted, 0, now) == "ok"
    while wait := launch(one, share, 1, now):
        now += wait
    allowed = (now - began + CREDIT) * share / WHOLE
    # Credit that is not used within 50 ms is lost. Here each launch comes at once.
    assert allowed * 0.999 - CREDIT <= used <= allowed * 1.001 + 1000


def test_an_overcharge_comes_back_and_an_undercharge_is_owed(account: Make) -> None:
    here = account(cores=50)
    one = started(here)
    assert launch(one, 5000, 100 * MS, NOW) == 0
    assert one.ask("settle", 0, -90 * MS, 100 * MS, 0, NOW) == "ok"
    assert launch(one, 5000, 200 * MS, NOW) == 0
    assert words(here)[2] == 210 * MS
    assert one.ask("settle", 0, 300 * MS, 200 * MS, 0, NOW) == "ok"
    assert launch(one, 5000, 1, NOW) == 2 * 510 * MS - IDLE_CREDIT
    assert words(here)[2] == 510 * MS


def test_an_earlier_time_in_the_page_does_not_free_a_process_that_owes(account: Make) -> None:
    here = account(cores=50)
    one, two = started(here), started(here)
    assert launch(one, 5000, 100 * MS, NOW) == 0
    write(here.place.pages, COMPUTE_AT, 0)
    assert launch(one, 5000, 1, NOW) == 200 * MS - IDLE_CREDIT
    assert launch(two, 5000, 1, NOW) == 0, "a process knows what it owes itself"


def test_a_debt_is_recalculated_at_another_share(account: Make) -> None:
    here = account(cores=10)
    one, two = started(here), started(here)
    assert launch(one, 1000, 102 * MS, NOW) == 0
    assert launch(two, 1000, 1, NOW) == S
    assert launch(two, 5000, 1, NOW) == 200 * MS
    assert launch(one, 2500, 1, NOW) == 400 * MS


def test_a_dead_process_is_charged_its_measured_time_and_little_more(account: Make) -> None:
    here = account(cores=50)
    first, second = started(here), started(here)
    assert launch(first, 5000, 400 * MS, NOW) == 0
    assert first.ask("settle", 0, 0, 100 * MS, 0, NOW) == "ok"
    first.kill()
    assert second.used() == 0  # this looks for the dead
    assert words(here)[2] == 100 * MS + UNMEASURED
    assert launch(second, 5000, 1, NOW) == 2 * (100 * MS + UNMEASURED) - IDLE_CREDIT


def test_a_dead_process_that_owes_more_than_it_was_charged_gives_nothing_back(account: Make) -> None:
    here = account(cores=50)
    first, second = started(here), started(here)
    assert launch(first, 5000, 4 * MS, NOW) == 0
    first.kill()
    assert second.used() == 0
    assert words(here)[2] == 4 * MS


def test_launches_are_paced_only_with_a_cap_on_some_device(account: Make) -> None:
    assert started(account(None, None)).ask("capped") == "0"
    assert started(account(None, None, cores=100)).ask("capped") == "1"


def test_the_share_is_the_cap_and_none_without_one(account: Make) -> None:
    assert started(account(cores=35)).ask("share", 0, NOW) == "3500"
    assert started(account(cores=100)).ask("share", 0, NOW) == "10000"
    assert started(account()).ask("share", 0, NOW) == "-1"


def test_the_agents_share_holds_while_its_rounds_go_on(account: Make) -> None:
    here = account(cores=30)
    one = started(here)
    adjust(here, 6 << 32 | 8000)
    assert one.ask("share", 0, NOW) == "3000", "it may be the last word of one that was killed"
    adjust(here, 7 << 32 | 8000)
    assert one.ask("share", 0, NOW) == "8000"
    assert one.ask("share", 0, NOW + AGENT_LOST - 1) == "8000"
    assert one.ask("share", 0, NOW + AGENT_LOST) == "3000", "it was killed: the cap alone holds"
    adjust(here, 8 << 32)
    assert one.ask("share", 0, NOW + S) == "0", "it is back, and nothing may be launched for now"
    adjust(here, 9 << 32 | 0xFFFFFFFF)
    assert one.ask("share", 0, NOW + S) == "10000", "never more than the device"
    adjust(here, 8000)
    assert one.ask("share", 0, NOW + S) == "3000", "without a number it is not the agent's"


def test_a_killed_agents_last_word_gives_a_new_process_no_more_than_the_cap(account: Make) -> None:
    here = account(cores=30)
    adjust(here, 7 << 32 | 8000)
    for at in range(3):
        assert started(here).ask("share", 0, NOW + at * S) == "3000"
    adjust(here, 8 << 32 | 100)
    one = started(here)
    assert one.ask("share", 0, NOW) == "100", "less may be because it is held strictly"
    assert one.ask("share", 0, NOW + AGENT_LOST) == "3000"


@pytest.mark.parametrize("seed", range(12))
def test_garbage_in_the_page_harms_no_other_and_crashes_nothing(account: Make, seed: int) -> None:
    here = account(cores=50)
    one, noise = started(here), random.Random(seed)
    assert one.charge(512)
    for _ in range(200):
        word = noise.getrandbits(noise.choice((8, 40, 64)))
        write(here.place.pages, COMPUTE_AT + 8 * noise.randrange(16), word)
        write(here.place.pages, 4096 + 64 + 64 + 128 + 8 * noise.randrange(8), noise.getrandbits(64))
        now = noise.choice((NOW, 1, 1 << 62))
        assert launch(one, noise.randrange(1, WHOLE), noise.getrandbits(noise.choice((10, 40, 63))), now) >= 0
        ns, settled = noise.randrange(-(1 << 62), 1 << 62), noise.getrandbits(63)
        assert one.ask("settle", 0, ns, settled, 0, now) == "ok"
    assert one.used() == 512


def test_time_on_a_part_of_a_device_counts_as_that_part(account: Make) -> None:
    mine = account(cores=10)
    one = started(mine)
    assert one.ask("part", 0, 3000) == "ok"
    assert launch(one, 1000, 200 * MS, NOW) == 0
    # 20 ms of credit, then 60 ms of the device at 10 %.
    assert launch(one, 1000, 1, NOW) == 600 * MS - IDLE_CREDIT
    assert words(mine)[2] == 60 * MS
    assert one.ask("settle", 0, -100 * MS, 200 * MS, 0, NOW) == "ok"
    assert launch(one, 1000, 1, NOW) == 300 * MS - IDLE_CREDIT
    assert words(mine)[2] == 30 * MS


def test_parts_within_the_share_are_not_held_back(account: Make) -> None:
    mine, now = account(cores=30), NOW
    one, two = started(mine), started(mine)
    assert one.ask("fits", 0, WHOLE, now) == "0"  # not under MPS: nothing is known
    assert one.ask("part", 0, 2000) == two.ask("part", 0, 1500) == "ok"
    assert (one.ask("fits", 0, 3000, now), one.ask("fits", 0, 1999, now)) == ("1", "0")
    assert (two.ask("fits", 0, 3500, now), two.ask("fits", 0, 3499, now)) == ("1", "0")
    now += 20 * MS  # the first has seen the other
    assert one.ask("fits", 0, 3000, now) == "0"
    two.kill()
    assert one.used() == 0  # this looks for the dead
    assert one.ask("fits", 0, 3000, now + 20 * MS) == "1"


def test_parts_beyond_the_device_leave_at_most_a_second_of_debt(account: Make) -> None:
    mine = account(cores=100)
    one = started(mine)
    assert one.ask("part", 0, WHOLE) == "ok"
    for _ in range(30):
        assert one.ask("launch-anyway", 0, WHOLE, 100 * MS, NOW) == "ok"
    assert launch(one, WHOLE, 1, NOW) == 1100 * MS - IDLE_CREDIT
    assert words(mine)[2] == 3000 * MS


@pytest.mark.parametrize("ahead", [24 * 3600 * S, 1 << 62])
def test_a_debt_that_no_work_can_have_made_is_ignored(account: Make, ahead: int) -> None:
    here = account(cores=50)
    one = started(here)
    assert launch(one, 5000, 100 * MS, NOW) == 0
    write(here.place.pages, COMPUTE_AT, NOW + ahead)
    another = started(here)
    assert launch(another, 5000, 1, NOW + 200 * MS) == 0


def test_a_debt_that_work_has_made_counts_however_large(account: Make) -> None:
    here = account(cores=50)
    one = started(here)
    assert launch(one, 5000, 1800 * S, NOW) == 0
    another = started(here)
    assert launch(another, 5000, 1, NOW + S) == 3600 * S - IDLE_CREDIT - S
    assert launch(another, 2500, 1, NOW + S) == 2 * (3600 * S - IDLE_CREDIT - S)
