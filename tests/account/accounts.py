"""An account without a device: its pages in a folder of the test session, and processes that use it.

A Process is worker.c, a real process linked with native/account, which looks for the pages in that folder.
Tests send it commands and read its answers.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import REPOSITORY
from xpu_runtime.limits import pages, usage_page

UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
SOURCES = sorted([*(REPOSITORY / "native/account").glob("*.c"), REPOSITORY / "native/clock/clock.c"])
LINEAR, MANAGED, POOL, VMM, ARRAY, GRAPH, EXTERNAL, FREED_EXPORTED, OVERHEAD = range(9)
GRAIN = 512


class Place:
    """A folder for pages that every user may enter, and programs that find them there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages = folder / "pages"
        self.pages.mkdir()

    def build(self, source: str, *options: str, compiler: str = "gcc", name: str = "") -> Path:
        """Compiles tests/account/SOURCE with the account."""
        out = self.folder / (name or Path(source).stem + "".join(options).replace("/", "_"))
        if not out.exists():
            warnings = ["-Wall", "-Wextra", "-Werror", "-Wshadow"]
            subprocess.run(
                [compiler, "-std=c11", "-O2", "-g", *warnings, "-fno-strict-aliasing", "-pthread"]
                + [f'-DXPU_FOLDER="{self.pages}"', f"-I{REPOSITORY}/native", f"-I{REPOSITORY}/native/account"]
                + [*options, "-o", str(out), str(Path(__file__).parent / source), *map(str, SOURCES)],
                check=True,
                timeout=300,
            )
        return out


class Process:
    def __init__(self, arguments: list[str | Path], **options: Any) -> None:
        self.popen = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
            **options,
        )

    def ask(self, *words: object) -> str:
        """The answer to a command."""
        assert self.popen.stdin and self.popen.stdout
        self.popen.stdin.write(" ".join(map(str, words)) + "\n")
        answer: str = self.popen.stdout.readline()
        return answer.rstrip("\n")

    def charge(self, size: int, kind: int = LINEAR, device: int = 0) -> bool:
        """Whether `size` bytes could be charged."""
        answer = self.ask("charge", device, kind, size)
        assert answer in "01" and answer, answer
        return answer == "1"

    def give(self, size: int, kind: int = LINEAR, device: int = 0) -> None:
        """Gives `size` bytes back."""
        assert self.ask("give", device, kind, size) == "ok"

    def used(self, device: int = 0) -> int:
        """The bytes of all processes."""
        return int(self.ask("used", device))

    def own(self, device: int = 0) -> int:
        """The bytes of this process."""
        return int(self.ask("own", device))

    def kind(self, kind: int, device: int = 0) -> int:
        """The bytes of this process that are of one kind."""
        return int(self.ask("kind", device, kind))

    def kill(self) -> None:
        """Kills the process and its children, and waits until they are gone."""
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait(timeout=30)

    def close(self) -> None:
        """Ends the process and closes its pipes."""
        self.kill()
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe:
                pipe.close()


class Account:
    """Fresh pages, and processes that use them."""

    def __init__(self, where: Place) -> None:
        self.place = where
        self.processes: list[Process] = []
        self.slots = pages.SLOTS

    def make(self, *limits: int | None, slots: int = pages.SLOTS, cores: int | None = None) -> None:
        """New pages with a device for each limit, a cap on their cores, and a number of slots."""
        self.slots = slots
        entries = tuple(
            pages.Entry(f"{UUID[:-1]}{at:x}", limit, cores=cores) for at, limit in enumerate(limits)
        )
        for name in (pages.QUOTA, pages.USAGE):
            (self.place.pages / name).unlink(missing_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pages, "SLOTS", slots)
            pages.create(str(self.place.pages), "a-container", entries)

    def start(self, *before: str | Path, program: Path | None = None, **options: Any) -> Process:
        """Starts a worker; `before`: a command that runs it."""
        program = program or self.place.build("worker.c", "-static")
        process = Process([*before, program], **options)
        self.processes.append(process)
        return process

    def set_limit(self, limit: int | None, device: int = 0) -> None:
        """Changes the page as `xpu set` does."""
        with pages.OpenQuota(str(self.place.pages)) as page:
            page.set_limit(device, limit)

    def usage(self) -> list[usage_page.ProcessUsage]:
        """The usage page's entries for device 0."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pages, "SLOTS", self.slots)
            found = [
                each
                for each in usage_page.slots(
                    str(self.place.pages), len(pages.quota(str(self.place.pages)).limits)
                )
                if not each.dead
            ]
        return [entry for entry in found if entry.device == 0]

    def total(self, device: int = 0) -> int:
        """The page's total, without a look for dead processes."""
        page = (self.place.pages / pages.USAGE).read_bytes()
        at = 1024 + 64 * device
        return (int.from_bytes(page[at : at + 8], "little") >> 31) * GRAIN


#: `make(GIB)` is an account of one device with that limit: the fixture `account`.
Make = Callable[..., Account]
