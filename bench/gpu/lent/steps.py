"""Steps of a run on a machine that is lent for minutes: step(name, seconds, command, fault).

A step runs in a session of its own. At its time, or when it has ended, all that descends from it is killed,
daemons in other sessions too: what one step leaves must hold neither the card's memory nor a pipe of the
next. Its whole output is in log.gz while it runs, a line says at once how it ended, and the next step goes on
whatever came.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import results
from results import Outcome

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
#: Seconds that a step has after SIGTERM, and killed processes to be gone: a driver frees what they had.
GRACE_S, GONE_S = 4.0, 8.0
#: Seconds that are kept of a run's time for its last lines.
_END_S = 2.0
#: In the environment of all that a run starts: the run's pid, its start time and its PID namespace.
MARK = "XPU_LEASE_RUN"
_SKIPPED = 77


class Steps:
    """A run: what its steps leave is in the folder `out`, and all of them together have `seconds`."""

    def __init__(self, title: str, out: Path, seconds: float, steps: int) -> None:
        self.title, self.out = title, out
        self._lock = take_folder(out)
        self._begin = time.monotonic()
        self._end = self._begin + seconds
        self._log, self._results = results.Log(out / "log.gz"), results.Results(out / "results.jsonl")
        self._screen = results.Screen(steps)
        self.outcomes: list[Outcome] = []
        self.environ: dict[str, str] = {MARK: f"{os.getpid()}-{_started(os.getpid())}-{_namespace()}"}
        self._stopped = ""
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        self.say(title)

    def say(self, line: str) -> None:
        self._screen.say(line)

    def left(self) -> float:
        """Seconds for steps."""
        return self._end - _END_S - time.monotonic()

    def step(
        self,
        name: str,
        seconds: float,
        command: Sequence[str],
        fault: str,
        *,
        measures: bool = False,
        last: bool = False,
        grace: float = GRACE_S,
        environ: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Runs a command for at most so many seconds, or what is left of the run's if that is half of it.

        `fault`: which answer would be a fault of ours. `measures`: its lines are results (card.py). `last`:
        none comes after it, and it has all that is left. `grace`: seconds that it has after SIGTERM.
        """
        outcome = Outcome(name, results.LEFT_OUT, fault=fault, measures=measures)
        self.outcomes.append(outcome)
        limit = self.left() - grace
        limit = limit if last else min(seconds, limit)
        if self._stopped:
            outcome.last = f"not started: {self._stopped}"
        elif limit < seconds / 2:
            outcome.last = f"not started: {max(0.0, limit):.0f} s are left, and it wants {seconds:.0f}"
        else:
            self._run(outcome, command, (limit, grace), environ or {})
        words = {"word": outcome.word, "seconds": round(outcome.seconds, 1), "fault": fault}
        self._results.put(step=name, at=self._at(), kind="step", last=outcome.last, **words)
        self._results.sync()
        results.write_summary(self.out / "summary.md", self.title, self.outcomes)
        self._screen.outcome(outcome)
        return outcome

    def finish(self) -> int:
        """The last lines. 1 if anything failed, 77 if nothing was measured, else 0; 143 after a signal."""
        untried = [each for each in self.outcomes if each.word in (results.SKIPPED, results.LEFT_OUT)]
        title = f"{self.title}: {self._at():.0f} s{self._stopped and ', ' + self._stopped}; in {self.out}"
        if untried:
            title += f"; not tried: {', '.join(each.step for each in untried)}"
        results.write_summary(self.out / "summary.md", self.title, self.outcomes)
        self._screen.finish(title, self.outcomes)
        if self._stopped:
            return 143
        if any(each.bad for each in self.outcomes):
            return 1
        measuring = [each for each in self.outcomes if each.measures and each.step not in results.FACTS]
        return _SKIPPED if measuring and all(each in untried for each in measuring) else 0

    def _at(self) -> float:
        return round(time.monotonic() - self._begin, 1)

    def _stop(self, number: int, _frame: object) -> None:
        self._stopped = self._stopped or f"stopped by {signal.Signals(number).name}"

    def _run(
        self, outcome: Outcome, command: Sequence[str], times: tuple[float, float], more: Mapping[str, str]
    ) -> None:
        """`times`: its seconds, and those after SIGTERM."""
        limit, grace = times
        begin = time.monotonic()
        self._log.begin(f"{outcome.step}, {self._at():.1f} s: {' '.join(command)}")
        reader = results.Reader(self._results, outcome, outcome.measures)
        try:
            child = subprocess.Popen(
                command,
                env={**os.environ, **self.environ, **more},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            outcome.word = results.FAILED
            outcome.fail(results.plain(f"not started: {error}"))
        else:
            late = self._follow(child, begin + limit, grace, reader)
            left = end_descendants(child)
            self._drain(child, reader)
            if late:
                outcome.late = self._stopped or f"no end within {limit:.0f} s"
            if left:
                outcome.fail(f"processes that SIGKILL does not end: {', '.join(left)}")
            if child.returncode not in (0, _SKIPPED, None) and not late and not outcome.wrong:
                outcome.fail(f"exit status {child.returncode}; at the end: {outcome.last}")
            outcome.word = results.LATE if late else _word(child.returncode, outcome.wrong)
        outcome.seconds = time.monotonic() - begin
        self._log.end(f"{outcome.step}: {outcome.word}, {outcome.seconds:.1f} s")

    def _follow(
        self, child: subprocess.Popen[bytes], until: float, grace: float, reader: results.Reader
    ) -> bool:
        """Until it has ended, or would not; whether it was told to, at its time or with the run."""
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        told, flush_at = False, 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while child.poll() is None:
                if selector.select(0.1) and not self._read(child, reader):
                    # It has closed its output and runs on: from here on `select` only lets time pass.
                    selector.unregister(child.stdout)
                _reap(but=child.pid)
                now = time.monotonic()
                if now > flush_at:
                    self._log.flush()
                    flush_at = now + 1
                if not told and (now > until or self._stopped):
                    told, until = True, now + grace
                    _signal_group(child, signal.SIGTERM)
                elif told and now > until:
                    break
        return told

    def _read(self, child: subprocess.Popen[bytes], reader: results.Reader) -> bool:
        """False: there is nothing more to come."""
        assert child.stdout is not None
        try:
            data = os.read(child.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        self._log.write(data)
        reader.feed(data, self._at())
        return bool(data)

    def _drain(self, child: subprocess.Popen[bytes], reader: results.Reader) -> None:
        """What is still in the pipe, which nobody holds any more, or somebody who cannot be killed."""
        assert child.stdout is not None
        until = time.monotonic() + 1
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while selector.select(0) and self._read(child, reader) and time.monotonic() < until:
                pass
        child.stdout.close()
        reader.end(self._at())


def _word(status: int | None, wrong: int) -> str:
    if status == _SKIPPED and not wrong:
        return results.SKIPPED
    return results.FAILED if status or wrong else results.OK


def take_folder(out: Path) -> int:
    """The folder of a run's results, empty, and locked as long as this process lives: two runs on one card
    would measure each other. What an earlier run has left is beside it in NAME.before. OSError."""
    out.mkdir(parents=True, exist_ok=True)
    lock = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if earlier := os.listdir(out):
        before = out.with_name(f"{out.name}.before")
        shutil.rmtree(before, ignore_errors=True)
        before.mkdir(exist_ok=True)
        for name in earlier:
            os.rename(out / name, before / name)
    return lock


# ---- processes ----


_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def end_descendants(child: subprocess.Popen[bytes] | None = None) -> list[str]:
    """Kills all that descends from this process, wherever it is; those that do not go (PID NAME STATE).

    What a daemon forks is left to us when its parent ends, as we are the subreaper.
    """
    until = time.monotonic() + GONE_S
    while True:
        alive = _descendants()
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap(but=child.pid if child is not None and child.poll() is None else 0)
        if not alive:
            return []
        if time.monotonic() > until:
            return [f"{pid} {name} {state}" for pid, (name, state) in alive.items()]
        time.sleep(0.02)


def _reap(but: int) -> None:
    """Takes leave of those that ended and were left to us, as an init does: who waits until a process is gone
    would wait for ever. Not of `but`, the step itself, whose status its Popen is to have."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == but:
                return
            os.waitpid(ended.si_pid, 0)


def _descendants() -> dict[int, tuple[str, str]]:
    """Name and state of each process below this one that is no zombie (proc_pid_stat(5)).

    One whose first thread has ended is shown as one; while others of its threads run, it may have the card's
    memory.
    """
    parents, said = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                head, _, rest = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")
                fields = rest.split()
                state = fields[0] if int(fields[17]) < 2 else f"{fields[0]}, {fields[17]} threads"
                parents[int(entry)], said[int(entry)] = int(fields[1]), (head.partition("(")[2], state)
    below, own = set(), {os.getpid()}
    while own:
        own = {pid for pid, parent in parents.items() if parent in own and pid not in below}
        below |= own
    return {pid: said[pid] for pid in sorted(below) if said[pid][1] not in ("Z", "X")}


def end_earlier_runs() -> int:
    """Kills what runs have left that were killed themselves, and so could not; how many processes.

    Not those of a run that lives, nor of one in another PID namespace, of which nothing is known.
    """
    found = 0
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            words = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            mark = next((word for word in words if word.startswith(MARK.encode() + b"=")), b"")
            pid, started, namespace = mark.decode().rpartition("=")[2].split("-")
            if namespace == _namespace() and _started(int(pid)) != started:
                os.kill(int(entry), signal.SIGKILL)
                found += 1
    return found


def _started(pid: int) -> str:
    """In clock ticks since boot; empty: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _namespace() -> str:
    return "".join(filter(str.isdecimal, os.readlink("/proc/self/ns/pid")))
