"""The storm's program, an observer of the driver from outside, and runs of several processes.

The reference is the simulated driver's own NVML, read on the host: the memory of each process and of the
card.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import MIB

from ..sandboxes import Sandbox, compile_c

CONTEXT = 24 * MIB
#: Contexts take CONTEXT each. The card is larger than all limits.
TOPOLOGY = {"driver": "R580", "gpus": [{"model": "T4", "context_mib": CONTEXT // MIB}]}
PARTS = ("storm_memory.c", "storm_work.c", "storm_share.c")
#: Memory that a thread may have taken and that is charged only after the call: a module of 1.5 MiB, a heap of
#: 12 MiB in place of 8, and the unused parts of small allocations' steps (8 MiB a process).
UNASKED = 8 * MIB
#: Memory that a call may take before it gives it back and refuses: a pool's growth, by steps of 32 MiB.
UNDONE = 64 * MIB
#: Places for processes on the board of storm_share.c.
_PROCESSES = 64
#: Seconds between two pauses, and the longest wait in one until no operation is under way. (An operation may
#: have failed and ended its process; the test then says so.)
_BETWEEN, _PATIENCE = 0.1, 10
_MAX_PROCESSES = 1024
#: All processes must end within these seconds. Then they are killed, and the test fails.
_HANG = 120


def build_storm(folder: Path, library: Path, kind: str = "") -> Path:
    """Compiles the program into a folder that sandboxes can read; `kind`: sanitizers."""
    here = Path(__file__).parent
    out = folder / f"storm{kind and '-'}{kind.replace(',', '-')}"
    if not out.exists():
        parts = [here / part for part in PARTS]
        sanitize = [f"-fsanitize={kind}"] if kind else []
        compile_c(
            here / "storm.c",
            out,
            *parts,
            "-Wextra",
            "-Wno-unused-parameter",
            "-Wshadow",
            library,
            "-ldl",
            *sanitize,
        )
    return out


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("ids", ctypes.c_uint * 2)]


class Card:
    """The card as the driver reports it to the host."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._nvml = ctypes.CDLL(str(sandbox.driver / "libnvidia-ml.so.1"))
        self._device = ctypes.c_void_p()
        self._found = (_Process * _MAX_PROCESSES)()
        assert self._nvml.nvmlInit_v2() == 0
        assert self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device)) == 0

    def used(self) -> int:
        """Bytes of the card that are in use."""
        memory = _Memory()
        assert self._nvml.nvmlDeviceGetMemoryInfo(self._device, ctypes.byref(memory)) == 0
        return int(memory.used)

    def processes(self) -> dict[int, int]:
        """Bytes of each process that has a context, by its pid."""
        count = ctypes.c_uint(_MAX_PROCESSES)
        ask = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3
        assert ask(self._device, ctypes.byref(count), self._found) == 0
        return {one.pid: int(one.used) for one in self._found[: count.value]}


class Board:
    """The observer's view of the file that the storm's processes share (storm_share.c)."""

    class _Head(ctypes.Structure):
        _fields_ = [("pause", ctypes.c_uint32), ("under_way", ctypes.c_uint32 * _PROCESSES)]

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(ctypes.sizeof(self._Head)))
        with path.open("r+b") as file:
            self._head = self._Head.from_buffer(mmap.mmap(file.fileno(), 0))

    def pause(self, wanted: bool) -> None:
        """Stops operations from beginning, or lets them begin again."""
        self._head.pause = wanted

    def forget(self, process: int) -> None:
        """Clears the operations of a process that has ended."""
        self._head.under_way[process] = 0

    def quiet(self, but: set[int]) -> bool:
        """Whether no process has an operation under way, except those with these numbers."""
        return not any(count for process, count in enumerate(self._head.under_way) if process not in but)


class Watch(threading.Thread):
    """Asks the driver all the time for the used memory, and keeps the maximum.

    Nobody can say how long an operation takes, or how much it gives back at its end. So now and then all
    operations end and none begins, and the driver is asked then. Memory that is in use in two such pauses in
    a row lasts: a pool that has grown too much while its stream had work is made smaller later.

    When a process is killed, the kernel drops the lock of its slot before it closes its descriptors. The
    driver hears of the end only after that. So the memory of such a process is not counted until it is gone,
    and neither is the card's total.
    """

    def __init__(self, card: Card, board: Board) -> None:
        super().__init__(daemon=True)
        self._card = card
        self._board = board
        self._done = threading.Event()
        self._lock = threading.Lock()
        #: The number on the board of each process that is being killed, by its pid.
        self._ending: dict[int, int] = {}
        #: Bytes: the maximum of all samples, and the maximum that was there in two pauses in a row.
        self.most = self.lasting = 0
        self.samples = self.pauses = 0
        self._in_last_pause = 0

    @contextmanager
    def leaving_out(self, pid: int, process: int) -> Iterator[None]:
        """Samples leave out this process until the return. The process must be gone then."""
        with self._lock:
            self._ending[pid] = process
        yield
        with self._lock:
            self._card.used()  # The driver hears of the end before it answers this.
            del self._ending[pid]
            self._board.forget(process)

    def run(self) -> None:
        while not self._done.is_set():
            until = time.monotonic() + _BETWEEN
            while time.monotonic() < until and not self._done.is_set():
                with self._lock:
                    self.most = max(self.most, self._used())
                    self.samples += 1
                time.sleep(0.0002)
            self._board.pause(True)
            try:
                self._quiet_sample()
            finally:
                self._board.pause(False)

    def _quiet_sample(self) -> None:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            # The sleep is also a system call, which orders the pause before the look.
            time.sleep(0.0005)
            with self._lock:
                if self._board.quiet(set(self._ending.values())):
                    now = self._used()
                    self.lasting = max(self.lasting, min(now, self._in_last_pause))
                    self._in_last_pause = now
                    self.pauses += 1
                    return

    def _used(self) -> int:
        there = self._card.processes()
        counted = sum(used for pid, used in there.items() if pid not in self._ending)
        return counted if self._ending else max(counted, self._card.used())

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()


class Storm:
    """Several processes of the storm in one sandbox, and checks of what they leave behind."""

    def __init__(self, sandbox: Sandbox, folder: Path, limit: int, seed: int, kind: str = "") -> None:
        self.sandbox, self.limit, self.seed = sandbox, limit, seed
        self.program = build_storm(folder, sandbox.driver / "libcuda.so.1", kind)
        self.board = Board(folder / "board")
        self.card = Card(sandbox)
        self.random = random.Random(seed)
        self.operations = self.given = self.refused = self.killed = self.processes = 0
        self.most = self.lasting = 0
        #: The number on the board of each process, by its pid.
        self._numbers: dict[int, int] = {}

    def start(self, threads: int, rounds: int, *options: str, **environ: str) -> Any:
        self.processes += 1
        number = self.seed * 1000 + self.processes
        numbers = (self.processes, number, threads, rounds, self.limit)
        arguments = map(str, (self.program, self.board.path, *numbers))
        one = self.sandbox.start(
            [*arguments, *options],
            env={"CUDA_MODULE_LOADING": "EAGER", "XPU_LOG": "off", **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._numbers[one.pid] = self.processes
        return one

    def finished(self, one: Any) -> None:
        """Waits until it has freed all of its memory."""
        line = one.stdout.readline()
        assert line, f"seed {self.seed}: {one.wait(60)}: {one.stderr.read()}"
        operations, given, refused = (int(word) for word in line.split())
        self.operations += operations
        self.given += given
        self.refused += refused

    def look(self, one: Any) -> int:
        """The used bytes by cuMemGetInfo, in a process that waits."""
        one.stdin.write("\n")
        one.stdin.flush()
        return int(one.stdout.readline())

    def run(
        self, together: int, threads: int, rounds: int, *options: str, kills: int = 0, **environ: str
    ) -> None:
        """Runs the storm. On return all processes are gone and all checks have passed."""
        running: list[Any] = []
        guard = threading.Timer(_HANG, self._kill, [running])
        guard.daemon = True
        guard.start()
        try:
            with Watch(self.card, self.board) as watch:
                running += [self.start(threads, rounds, *options, **environ) for _ in range(together)]
                for _ in range(kills):
                    at = self.random.randrange(together)
                    running[at] = self._replace(watch, running[at], threads, rounds, *options, **environ)
                for one in running:
                    self.finished(one)
            self._never_passed(watch, together * threads)
            self._account_is_exact(running)
            self._nothing_left(running)
        finally:
            guard.cancel()
            self._kill(running)

    def _never_passed(self, watch: Watch, threads: int) -> None:
        self.most = max(self.most, watch.most)
        self.lasting = max(self.lasting, watch.lasting)
        seen = f"seed {self.seed}: {watch.lasting >> 20} and {watch.most >> 20} MiB of {self.limit >> 20}"
        asked = self.limit + threads * UNASKED
        assert watch.samples > 10 and watch.pauses > 1
        assert watch.lasting <= asked, seen
        assert watch.most <= asked + threads * UNDONE, seen

    def _account_is_exact(self, running: list[Any]) -> None:
        """All processes have freed their memory. After a look of each the account equals the driver's
        report."""
        said = f"seed {self.seed}"
        looks = [self.look(one) for one in running]
        assert looks[-1] == self.card.used() == self.sandbox.total(), (said, looks, self.sandbox.usage())
        for one in running:
            output, errors = one.communicate("\n", timeout=60)
            assert (one.returncode, output, errors) == (0, "", ""), f"{said}: {one.returncode}: {errors}"

    def _replace(
        self, watch: Watch, one: Any, threads: int, rounds: int, *options: str, **environ: str
    ) -> Any:
        """Kills a process after a short time, and starts another."""
        deadline = time.monotonic() + self.random.uniform(0.05, 0.5)
        while time.monotonic() < deadline and one.poll() is None:
            time.sleep(0.005)
        with watch.leaving_out(one.pid, self._numbers[one.pid]):
            one.kill()
            one.communicate()
        self.killed += 1
        return self.start(threads, rounds, *options, **environ)

    def _nothing_left(self, running: list[Any]) -> None:
        said = f"seed {self.seed}"
        deadline = time.monotonic() + 10
        while self.card.processes() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.card.used() == 0, said
        last = self.start(0, 0)
        running.append(last)
        self.finished(last)
        assert self.look(last) == self.card.used() == self.sandbox.total() == CONTEXT, said
        last.communicate("\n", timeout=60)
        assert last.returncode == 0

    @staticmethod
    def _kill(running: list[Any]) -> None:
        for one in running:
            one.kill()
