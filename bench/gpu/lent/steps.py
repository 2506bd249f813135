"""Steps of a run on a machine that is lent for minutes: step(name, seconds, command, fault).

A step runs in a session of its own. At its timeout, and when it has ended, all of its descendants are killed,
including daemons in other sessions: a step's leftovers must hold neither the card's memory nor a pipe of the
next. Its whole output is in log.gz while it runs. A line says at once how it ended, and the next step runs
after any outcome.
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
#: Seconds that a step has after SIGTERM, and that killed processes have to be gone: a driver frees their
#: memory.
GRACE_S, GONE_S = 4.0, 8.0
#: Seconds of a run's time that are reserved for its last lines.
_END_S = 2.0
#: A variable of all programs that a run starts: the run's pid, its start time and its PID namespace.
MARK = "XPU_LEASE_RUN"
_SKIPPED = 77


class Steps:
    """A run. The steps' results are in the folder `out`, and all steps together have `seconds`."""

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
        """The remaining seconds for steps."""
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
        """Runs a command for at most `seconds`, or for the run's rest if that is at least half as long.

        `fault`: the answer that would be a fault of ours. `measures`: its lines are results (card.py).
        `last`: no step comes after it, and it has all of the remaining time. `grace`: seconds that it has
        after SIGTERM.
        """
        outcome = Outcome(name, results.LEFT_OUT, fault=fault, measures=measures)
        self.outcomes.append(outcome)
        limit = self.left() - grace
        limit = limit if last else min(seconds, limit)
        if self._stopped:
            outcome.last = f"not started: {self._stopped}"
        elif limit < seconds / 2:
            outcome.last = f"not started: {max(0.0, limit):.0f} s are left, {seconds:.0f} are needed"
        else:
            self._run(outcome, command, (limit, grace), environ or {})
        words = {"word": outcome.word, "seconds": round(outcome.seconds, 1), "fault": fault}
        self._results.put(step=name, at=self._at(), kind="step", last=outcome.last, **words)
        self._results.sync()
        results.write_summary(self.out / "summary.md", self.title, self.outcomes)
        self._screen.outcome(outcome)
        return outcome

    def finish(self) -> int:
        """Prints the last lines. Returns 1 if anything failed, 77 if nothing was measured, 143 after a
        signal, otherwise 0."""
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
        """Waits until it has ended or its grace is over. True if it got SIGTERM."""
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
        """False: no more output will come."""
        assert child.stdout is not None
        try:
            data = os.read(child.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        self._log.write(data)
        reader.feed(data, self._at())
        return bool(data)

    def _drain(self, child: subprocess.Popen[bytes], reader: results.Reader) -> None:
        """Reads the rest of the pipe. At most a process that cannot be killed still holds its other end."""
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
    """Empties the folder of a run's results, and locks it until this process ends: two runs on one card would
    measure each other. Earlier results move to NAME.before beside it. OSError."""
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
    """Kills all descendants of this process. Returns those that do not end (PID NAME STATE).

    A daemon's children become ours when it ends, because this process is the subreaper.
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
    """Reaps ended processes that became ours, as an init does: a program that waits for one's end would
    otherwise wait for ever. Leaves `but`, the step itself, to its Popen."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == but:
                return
            os.waitpid(ended.si_pid, 0)


def _descendants() -> dict[int, tuple[str, str]]:
    """The name and state of each process below this one that is no zombie (proc_pid_stat(5)).

    A process whose first thread has ended looks like a zombie. While other threads run, it may have the
    card's memory.
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
    """Kills the processes of runs that were killed themselves. Returns their number.

    Leaves those of living runs, and those of runs in other PID namespaces, of which nothing is known.
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
    """The start time in clock ticks since boot; empty: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _namespace() -> str:
    return "".join(filter(str.isdecimal, os.readlink("/proc/self/ns/pid")))
