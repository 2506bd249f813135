"""The account itself: charges, limits, memory that is given back, and pages that cannot be trusted."""

from __future__ import annotations

import random
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from support import GIB, MIB
from xpu_runtime.limits import pages

from .accounts import ARRAY, FREED_EXPORTED, GRAIN, LINEAR, OVERHEAD, POOL, VMM, Make, Process

LARGEST = (1 << 64) - 1


def test_memory_is_charged_up_to_the_last_byte_and_comes_back(account: Make) -> None:
    process = account(MIB).start()
    assert process.charge(MIB - 4096)
    assert not process.charge(4097)
    assert process.charge(4096)
    assert process.used() == process.own() == MIB
    assert not process.charge(1)
    process.give(4096)
    assert process.used() == process.own() == MIB - 4096
    assert process.charge(1)
    assert process.used() == MIB - 4096 + GRAIN


@pytest.mark.parametrize("size", [LARGEST, LARGEST - GRAIN + 1, 1 << 63, 1 << 42, (1 << 42) - GRAIN + 1])
def test_no_size_overflows_the_total(account: Make, size: int) -> None:
    process = account(None).start()
    assert process.charge(GRAIN)
    assert not process.charge(size)
    assert process.used() == process.own() == process.kind(LINEAR) == GRAIN
    process.ask("give", 0, LINEAR, size)
    assert process.used() == process.own() == process.kind(LINEAR) == 0


def test_a_size_of_zero_charges_nothing(account: Make) -> None:
    process = account(0).start()
    assert process.charge(0)
    assert not process.charge(1)
    assert process.used() == 0


def test_a_process_gives_back_no_more_than_it_holds_of_the_kind(account: Make) -> None:
    here = account()
    process, other = here.start(), here.start()
    assert process.charge(4096, VMM) and process.charge(8192, POOL) and other.charge(MIB, VMM)
    process.give(8192, VMM)
    assert (process.kind(VMM), process.kind(POOL), process.own()) == (0, 8192, 8192)
    process.give(4096, ARRAY)
    assert process.own() == 8192
    assert other.used() == MIB + 8192


def test_kinds_add_up_and_bytes_move_between_them(account: Make) -> None:
    here = account()
    process = here.start()
    assert process.charge(4096, VMM) and process.charge(1024, POOL)
    process.ask("move", 0, VMM, ARRAY, 1000)
    process.ask("move", 0, POOL, ARRAY, MIB)
    (entry,) = here.usage()
    assert entry.kinds == {"vmm": 3072, "array": 2048}
    assert entry.used == 5120 == here.total()


def test_devices_have_accounts_of_their_own(account: Make) -> None:
    process = account(MIB, 2 * MIB, None).start()
    assert process.charge(MIB, device=0) and not process.charge(1, device=0)
    assert process.charge(2 * MIB, device=1) and not process.charge(1, device=1)
    assert process.charge(GIB, device=2)
    assert [process.used(device) for device in range(3)] == [MIB, 2 * MIB, GIB]
    for beyond in (3, 16, -1):
        assert not process.charge(1, device=beyond)
        assert process.used(beyond) == 0 == int(process.ask("limit", beyond))


def test_a_limit_changes_under_running_processes(account: Make) -> None:
    here = account(MIB)
    process = here.start()
    assert process.charge(MIB)
    here.set_limit(4096)
    assert not process.charge(1)
    assert process.used() == MIB
    process.give(MIB - 2048)
    assert process.charge(2048) and not process.charge(1)
    here.set_limit(None)
    assert process.charge(GIB)
    assert int(process.ask("limit", 0)) == pages.NO_LIMIT


def test_memory_that_the_driver_took_is_charged_beyond_the_limit(account: Make) -> None:
    process = account(MIB).start()
    process.ask("anyway", 0, OVERHEAD, 2 * MIB)
    assert process.used() == process.kind(OVERHEAD) == 2 * MIB
    assert not process.charge(1)
    process.give(MIB + 1024, OVERHEAD)
    assert process.charge(1024) and not process.charge(1)


def test_exported_memory_outlives_its_owner_while_it_is_open(account: Make) -> None:
    here = account(MIB)
    exporter, importer, third = here.start(), here.start(), here.start()
    assert exporter.charge(MIB // 2, VMM) and exporter.charge(MIB // 4, POOL)
    exporter.ask("exported", 0, MIB // 2)
    importer.ask("imported", 1)
    exporter.kill()
    assert third.used() == MIB // 2
    assert third.charge(MIB // 2) and not third.charge(1)
    assert len(third.ask("each").split()) == 2
    importer.ask("imported", -1)
    assert third.used() == MIB // 2
    assert third.charge(MIB // 2)


def test_exported_memory_outlives_its_release_while_it_is_open(account: Make) -> None:
    here = account(MIB)
    exporter, importer, third = here.start(), here.start(), here.start()
    assert exporter.charge(MIB, VMM)
    exporter.ask("exported", 0, MIB)
    importer.ask("imported", 2)
    exporter.ask("free-exported", 0, VMM, MIB // 2)
    exporter.ask("free-exported", 0, VMM, MIB // 4)
    assert exporter.own() == MIB // 4
    assert third.used() == MIB
    importer.ask("imported", -1)
    assert not third.charge(1)
    # The exporter does nothing more. The next process that asks finds that no process has it open.
    importer.kill()
    assert third.charge(MIB * 3 // 4) and not third.charge(1)
    exporter.kill()
    assert third.used() == MIB * 3 // 4
    assert len(here.usage()) == 1


def test_allocations_that_are_freed_while_open_share_one_place(account: Make) -> None:
    here = account(MIB, MIB, slots=4)
    exporter, importer = here.start(), here.start()
    importer.ask("imported", 1)
    for _ in range(10):
        for device in (0, 1):
            assert exporter.charge(512, VMM, device)
            exporter.ask("exported", device, 512)
            exporter.ask("free-exported", device, VMM, 512)
    third = here.start()
    assert third.charge(512)
    assert third.used() == 11 * 512 and third.used(1) == 10 * 512
    importer.ask("imported", -1)
    assert third.used() == 512 and third.used(1) == 0


def test_exported_memory_that_is_open_nowhere_comes_back_at_once(account: Make) -> None:
    here = account(MIB)
    exporter = here.start()
    assert exporter.charge(MIB, VMM)
    exporter.ask("exported", 0, MIB)
    exporter.ask("free-exported", 0, VMM, MIB)
    assert exporter.used() == exporter.own() == exporter.kind(FREED_EXPORTED) == 0


def test_processes_are_listed_with_pid_name_and_use(account: Make) -> None:
    here = account()
    first, second = here.start(), here.start()
    assert first.charge(MIB) and second.charge(2 * MIB) and first.charge(MIB)
    said = sorted(first.ask("each").split())
    assert said == sorted(
        [f"{first.popen.pid}:{_name(first)}:{2 * MIB}", f"{second.popen.pid}:{_name(second)}:{2 * MIB}"]
    )
    second.kill()
    assert first.ask("each") == f"{first.popen.pid}:{_name(first)}:{2 * MIB}"


def _name(process: Process) -> str:
    return Path("/proc", str(process.popen.pid), "comm").read_text().strip()


# ---- pages that cannot be trusted ----


def change(file: Path, at: int, new: bytes, mend: bool = False) -> None:
    """Writes into a page; `mend`: also corrects its checksum."""
    page = bytearray(file.read_bytes())
    page[at : at + len(new)] = new
    if mend:
        page[12:16] = bytes(4)
        page[12:16] = zlib.crc32(page[:2048]).to_bytes(4, "little")
    file.write_bytes(page)


def cut(file: Path, size: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(size)


def replace_with_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES: dict[str, Callable[[Path, Path], None]] = {
    "quota is missing: this container has no slice": lambda quota, usage: quota.unlink(),
    "usage is missing: this container has no slice": lambda quota, usage: usage.unlink(),
    "quota is cut off (4095 bytes of 4096)": lambda quota, usage: cut(quota, 4095),
    "quota is cut off (0 bytes of 4096)": lambda quota, usage: cut(quota, 0),
    "usage is cut off (0 bytes of": lambda quota, usage: cut(usage, 0),
    "usage is cut off (10000 bytes of": lambda quota, usage: cut(usage, 10000),
    "quota is no quota page": lambda quota, usage: change(quota, 0, b"XPUQUOTE", True),
    "usage is no usage page": lambda quota, usage: change(usage, 0, b"\0"),
    "quota was written by a newer XPU runtime": lambda quota, usage: change(quota, 8, b"\xff", True),
    "usage was written by a newer XPU runtime": lambda quota, usage: change(usage, 8, b"\xff"),
    "quota was written by an older XPU runtime": lambda quota, usage: change(quota, 8, b"\0", True),
    "quota is damaged (its checksum is wrong)": lambda quota, usage: change(quota, 2047, b"\1"),
    "quota contradicts itself: ": lambda quota, usage: change(quota, 16, b"\x11", True),
    "quota contradicts itself:": lambda quota, usage: change(quota, 20, (4096).to_bytes(4, "little"), True),
    "quota contradicts itself": lambda quota, usage: change(quota, 24, bytes(8), True),
    "quota cannot be examined|quota is cut off": lambda quota, usage: replace_with_folder(quota),
    "usage cannot be opened for writing (errno 21)": lambda quota, usage: replace_with_folder(usage),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_container_without_valid_pages_has_no_device(account: Make, place: object, reason: str) -> None:
    here = account()
    folder = here.place.pages
    try:
        DAMAGES[reason](folder / "quota", folder / "usage")
        process = here.start()
        said = process.ask("open")
        assert any(part in said for part in reason.split("|"))
        assert "start the container anew" in said
        assert process.ask("take") == said
        assert not process.charge(1)
        assert (process.used(), process.own(), process.ask("limit", 0)) == (0, 0, "0")
    finally:
        for name in ("quota", "usage"):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)


def test_a_refusal_is_one_line_once(account: Make) -> None:
    process = account().start(stderr=subprocess.PIPE)
    process.ask("refuse", "because")
    process.ask("refuse", "again")
    assert process.popen.stdin and process.popen.stderr
    process.popen.stdin.close()
    assert process.popen.stderr.read() == "xpu: the device is refused: because\n"


def test_a_log_names_refusals_and_dead_processes(account: Make, tmp_path: Path) -> None:
    here = account(MIB)
    log = tmp_path / "log"
    victim = here.start()
    assert victim.charge(MIB)
    process = here.start(env={"XPU_LOG": f"debug:{log}"})
    assert not process.charge(MIB)
    process.ask("refused", 0, MIB)
    victim.kill()
    assert process.charge(MIB)
    lines = log.read_text().splitlines()
    assert all(line.startswith(f"xpu[{process.popen.pid}]: ") for line in lines)
    text = "\n".join(lines)
    assert "device 0: refused 1 MiB: 0 MiB free of 1 MiB" in text
    assert f"its process {victim.popen.pid} is dead" in text


@pytest.mark.parametrize("wanted", ["", "info", "debugger", "debug:" + "x" * 600])
def test_other_words_in_xpu_log_change_nothing(account: Make, tmp_path: Path, wanted: str) -> None:
    process = account(0).start(env={"XPU_LOG": wanted}, cwd=tmp_path, stderr=subprocess.PIPE)
    assert not process.charge(1)
    assert process.popen.stdin and process.popen.stderr
    process.popen.stdin.close()
    assert process.popen.stderr.read() == ""
    assert list(tmp_path.iterdir()) == []


# ---- a process of the container writes into the page, for harm ----


@pytest.mark.parametrize("seed", range(12))
def test_garbage_in_the_usage_page_neither_hangs_nor_crashes(account: Make, seed: int) -> None:
    """Only its own container is harmed. The header stays: without it nothing is granted at all."""
    here = account(GIB, GIB)
    process = here.start()
    assert process.charge(4096)
    file = here.place.pages / "usage"
    garbage = random.Random(seed)
    size = file.stat().st_size
    with file.open("r+b") as page:
        for _ in range(20):
            at = 1024 if seed < 4 else garbage.randrange(1024, size - 4096)
            length = 8 if seed < 4 else garbage.randrange(4096)
            page.seek(at)
            page.write(garbage.randbytes(length))
            page.flush()
            fresh = here.start()
            for one in (process, fresh):
                one.ask("charge", 0, LINEAR, 8192)
                one.ask("give", 0, LINEAR, 4096)
                one.ask("used", 0)
                one.ask("each")
                one.ask("free-exported", 1, VMM, 1 << 20)
                assert one.popen.poll() is None
            fresh.kill()
            assert process.ask("used", 0).isdigit()


def test_a_process_whose_slot_was_wiped_is_not_listed_and_goes_on(account: Make) -> None:
    here = account(GIB)
    process = here.start()
    assert process.charge(MIB)
    with (here.place.pages / "usage").open("r+b") as page:
        page.seek(4096)
        page.write(bytes(1024))
    assert process.ask("each") == ""
    assert process.charge(MIB)
    assert process.used() == 2 * MIB


def test_slots_that_never_had_an_owner_are_cleaned_like_dead_ones(account: Make) -> None:
    here = account(GIB)
    process = here.start()
    assert process.charge(MIB)
    with (here.place.pages / "usage").open("r+b") as page:
        page.seek(4096)
        page.write(b"\1" * 64)
    assert process.used() == MIB
    assert [entry.used for entry in here.usage()] == [MIB]
