"""Sandboxes with a cap on the device's time, and the program of paced_work.c in them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xpu_runtime.limits import pages

from ..sandboxes import FORK_FENCE, RUNTIMES, Sandbox, compile_c, runtime_of

PARTS = ("work", "ways", "costs", "process_events")
MILLION = 1_000_000


class Paced:
    """A sandbox with a cap in percent on each device (None: no cap), and the program in it."""

    def __init__(self, sandbox: Sandbox, program: Path, *caps: int | None) -> None:
        self.sandbox, self.program = sandbox, program
        for device, cap in enumerate(caps):
            self.set_cores(cap, device)

    def set_cores(self, percent: int | None, device: int = 0) -> None:
        with pages.OpenQuota(str(self.sandbox.pages)) as page:
            page.set_cores(device, percent)

    def compute(self, device: int = 0) -> pages.Compute:
        return pages.compute(str(self.sandbox.pages), device + 1)[device]

    def run(self, *words: str, said: str = "", **options: Any) -> str:
        """The output of the program, which must end well; `said`: words in its one line of stderr."""
        done = self.sandbox.run([str(self.program), *words], **{"timeout": 60, **options})
        assert done.returncode == 0 and done.stderr.count("\n") == bool(said), (done.returncode, done.stderr)
        assert said in done.stderr
        return done.stdout

    def share(self, us: float, *words: str, said: str = "") -> float:
        """The program's percentage of the device's time. It prints `COUNT MICROSECONDS`; a launch takes
        `us`."""
        count, passed = (int(word) for word in self.run(*words, said=said).split())
        return count * us / passed * 100

    @contextmanager
    def running(self, *words: str, ready: bool = False) -> Iterator[subprocess.Popen[str]]:
        """`ready`: the program says so first."""
        pipe = subprocess.PIPE
        one = self.sandbox.start([str(self.program), *words], stdin=pipe, stdout=pipe, text=True)
        try:
            assert one.stdout
            assert not ready or one.stdout.readline() == "ready\n"
            yield one
        finally:
            one.kill()
            one.communicate()

    def used_in(self, seconds: float, device: int = 0) -> float:
        """The time that is charged in the next seconds, in percent of the device's time."""
        began, used = time.monotonic(), self.compute(device).used
        time.sleep(seconds)
        return (self.compute(device).used - used) / 1e7 / (time.monotonic() - began)

    def run_sanitized(self, kind: str, *words: str) -> None:
        """Runs the program. The libraries under test have these sanitizers, which must find nothing."""
        environ = {
            "LD_PRELOAD": runtime_of(kind),
            "ASAN_OPTIONS": "detect_leaks=0",
            # a child starts a thread of ours
            "TSAN_OPTIONS": "exitcode=66 die_after_fork=0",
        }
        # unshare and sh run first, without the sanitizer
        before = ["env", *(f"{name}={value}" for name, value in environ.items())]
        done = self.sandbox.run([*before, str(self.program), *words])
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


Make = Callable[..., Paced]


def compile_paced(library: Path, out: Path, fenced: str = "") -> Path:
    """The program, linked to a libcuda; `fenced`: the sanitizers, see fork_fence.c."""
    here = Path(__file__).parent
    source, *parts = (here / f"paced_{name}.c" for name in PARTS)
    fence: list[str | Path] = [FORK_FENCE, f"-l{RUNTIMES[fenced]}"] if fenced else []
    return compile_c(source, out, "-Wextra", *parts, *fence, library)


def share(line: str) -> float:
    """The share of the device's time in percent, for launches of 1 ms: `COUNT MICROSECONDS`."""
    count, passed = (int(word) for word in line.split())
    return count * 1000 / passed * 100


def asks(one: subprocess.Popen[str], *words: object) -> str:
    """The running program's answer to a line."""
    assert one.stdin and one.stdout
    one.stdin.write(" ".join(str(word) for word in words) + "\n")
    one.stdin.flush()
    return one.stdout.readline()
