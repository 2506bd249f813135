"""What a run leaves and what it prints: log.gz, results.jsonl, summary.md, and lines within a budget.

All of it is good after a kill at any second, and small: few files come back from a machine that is lent, and
little of what is printed is seen. Every line is made plain ASCII, so that a character is a byte. A disk that
is full costs what would be on it, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

import card

OK, FAILED, SKIPPED, LATE, LEFT_OUT = "ok", "FAILED", "skipped", "late", "left out"
_MIB = 1 << 20
#: Characters of a result and of a line that says what was seen.
_LONGEST, _SEEN = 500, 160
#: A measuring program's lines, as card.py prints them; a name has no character that plain() has replaced.
_LINE = re.compile(r"(ok|FAILED|skipped): (.*)|([A-Za-z0-9/][^:?]{0,99}): (.+)")
#: What looks like a value and is none: Python's errors, our libraries' words on stderr, where a file went.
_NO_VALUE = re.compile(r"xpu|written|[\w.]*(Error|Exception|Warning|Expired)|/.*[.]py")
#: A line of `xpu doctor` that says why it fails.
_PROBLEM = "problem "
#: More digits of a figure than anybody reads.
_DIGITS = re.compile(r"(?<![\w.])\d+[.]\d{5,}(?![\w.])")
#: Of what the steps before the measuring ones say, the values that are printed at the end.
FACTS: dict[str, tuple[str, ...]] = {
    "facts": ("kernel", "load average", "card", "driver"),
    "set-up": ("the driver", "cgroups", "built here", "not built here", "the packed tree"),
}
#: Of what a step has said, so much is kept for the last lines.
_FAILURES, _VALUES = 40, 200


def plain(text: str, most: int = _LONGEST) -> str:
    """One line of printable ASCII, of at most so many characters."""
    line = "".join(each if " " <= each <= "~" else " " if each == "\t" else "?" for each in text.strip())
    return line if len(line) <= most else line[: max(0, most - 3)] + "..."


def _opened(path: Path) -> FileIO:
    """A new file; where there can be none, one that keeps nothing: what is printed is still seen."""
    try:
        return FileIO(path, "wb")
    except OSError as error:
        print(f"nothing is kept in {path}: {error.strerror}", flush=True)
        return FileIO(os.devnull, "wb")


@dataclass
class Outcome:
    """How a step ended: one of the words above, its seconds, the last line that it printed, how many checks
    held, how many failures there were and how many of these are a check's, why it was late or has skipped
    things; of failures and values the first, each once."""

    step: str
    word: str
    seconds: float = 0.0
    last: str = ""
    fault: str = ""
    held: int = 0
    wrong: int = 0
    judged: int = 0
    measures: bool = False
    late: str = ""
    skipped: list[str] = field(default_factory=list)
    failures: dict[str, None] = field(default_factory=dict)
    values: dict[str, None] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        """A step that was late is a failure if a check of it was, or if it had said nothing by then."""
        nothing = not (self.held or self.values or self.skipped)
        return self.word == FAILED or (self.word == LATE and bool(self.wrong or nothing))

    @property
    def nothing(self) -> bool:
        """Whether it has measured nothing: no check held or failed, and it told what it is tried on alone."""
        told = any(not value.startswith(("card: ", "slice: ")) for value in self.values)
        return not (self.held or self.judged or told)

    @property
    def told(self) -> str:
        """How many checks held, and what was not tried."""
        late = f"{self.late}; at the end: {self.last}" if self.late else ""
        if not self.measures or self.word == LEFT_OUT:
            return late or self.last
        counts = [f"{self.held} held"] if self.held else []
        if self.wrong:
            counts.append(f"{self.wrong} failed")
        if self.skipped:
            counts.append(f"{len(self.skipped)} skipped ({'; '.join(dict.fromkeys(self.skipped))})")
        return ", ".join(filter(None, [*(counts or ["measured only"]), late]))

    def fail(self, text: str, *, judged: bool = False) -> None:
        """`judged`: a check has failed, and not only what it needs."""
        self.wrong += 1
        self.judged += judged
        if len(self.failures) < _FAILURES:
            self.failures[text] = None

    def say(self, value: str) -> None:
        if len(self.values) < _VALUES:
            self.values[_DIGITS.sub(lambda figure: f"{float(figure[0]):.4g}", value)] = None


class Log:
    """Everything that steps print, in one file, a gzip member a step: `zcat log.gz`.

    Of a member that was cut off, zcat shows all up to the last flush, and then says that the file ends early.
    A file a step would be too many to bring back, plain text too large, and a tar archive wants a file's
    length before its bytes. A step that prints too much keeps its begin and its last words.
    """

    MOST, _LAST = 12 * _MIB, 1 << 16

    def __init__(self, path: Path) -> None:
        self._file = _opened(path)
        self._member = zlib.compressobj(6, zlib.DEFLATED, 31)
        self._most, self._begin, self._dropped, self._last = 0, 0, 0, b""
        self._unflushed = False

    def begin(self, title: str) -> None:
        self._member = zlib.compressobj(6, zlib.DEFLATED, 31)
        self._begin = self._file.tell()
        # A third of what is left, so that there is always some for later steps.
        self._most = max(0, self.MOST - self._begin) // 3
        self._dropped, self._last = 0, b""
        self._put(f"===== {title}\n".encode())
        self.flush()

    def write(self, data: bytes) -> None:
        if self._dropped or self._file.tell() - self._begin > self._most:
            self._dropped += len(data)
            self._last = (self._last + data)[-self._LAST :]
        else:
            self._put(data)
            if self._file.tell() - self._begin > self._most:
                self.flush()

    def flush(self) -> None:
        if self._unflushed:
            self._write(self._member.flush(zlib.Z_SYNC_FLUSH))
            self._unflushed = False

    def end(self, title: str) -> None:
        if self._dropped:
            self._put(f"\n[{self._dropped - len(self._last)} bytes left out]\n".encode() + self._last)
        self._put(f"\n----- {title}\n".encode())
        self._write(self._member.flush(zlib.Z_FINISH))
        self._unflushed = False

    def _put(self, data: bytes) -> None:
        self._write(self._member.compress(data))
        self._unflushed = True

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._file.write(data)


class Results:
    """results.jsonl: a line for each result, to be read when `add` returns, on the disk after `sync`."""

    MOST, A_STEP = 8 * _MIB, 2000

    def __init__(self, path: Path) -> None:
        self._file = _opened(path)
        self._most, self._lines, self._synced = 0, 0, 0

    def begin(self) -> None:
        """A step, which may have so many lines, and a third of what is left."""
        self._lines = 0
        self._most = self._file.tell() + max(0, self.MOST - self._file.tell()) // 3

    def add(self, **values: object) -> None:
        self._lines += 1
        if self._lines <= self.A_STEP and self._file.tell() < self._most:
            self.put(**values)

    def put(self, **values: object) -> None:
        """However much there is."""
        with contextlib.suppress(OSError):
            self._file.write((json.dumps(values) + "\n").encode("ascii"))

    def sync(self) -> None:
        if self._file.tell() != self._synced:
            self._synced = self._file.tell()
            with contextlib.suppress(OSError):
                os.fsync(self._file.fileno())


class Reader:
    """The lines of one step as they come, and what they say."""

    def __init__(self, results: Results, outcome: Outcome, measures: bool) -> None:
        self._results, self._outcome, self._measures = results, outcome, measures
        self._rest, self._count = b"", 0
        results.begin()

    def feed(self, data: bytes, at: float) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        # What never ends a line is no line.
        self._rest = self._rest[-(1 << 16) :]
        for line in lines:
            self._line(line[:4096], at)
        # Once for all of them: the program that measures waits meanwhile if its pipe is full.
        self._results.sync()

    def end(self, at: float) -> None:
        self._line(self._rest[:4096], at)
        self._results.sync()

    def _line(self, raw: bytes, at: float) -> None:
        line = plain(raw.decode("ascii", "replace"))
        if not line:
            return
        self._outcome.last = line
        kind, values = self._meaning(line)
        self._count += 1
        if kind:
            self._results.add(step=self._outcome.step, at=round(at, 2), kind=kind, **values)

    def _meaning(self, line: str) -> tuple[str, dict[str, str]]:
        found = _LINE.fullmatch(line) if self._measures else None
        if found is None:
            if not self._measures and line.startswith(_PROBLEM):
                self._outcome.fail(line, judged=True)
            # Of a program that measures nothing, as much as people read.
            return ("line" if self._count < 100 and not self._measures else ""), {"text": line}
        kind, text, name, value = found.groups()
        if kind == FAILED:
            self._outcome.fail(text, judged=not text.startswith(card.NOT_MEASURED))
        elif kind == OK:
            self._outcome.held += 1
        elif kind == SKIPPED:
            self._outcome.skipped.append(text)
        elif _NO_VALUE.fullmatch(name):
            return "", {}
        elif not kind:
            self._outcome.say(f"{name}: {value}")
            return "value", {"name": name, "value": value}
        return kind, {"text": text}


class Screen:
    """What is printed: at most `most` characters in all, the last of them for what matters most."""

    def __init__(self, steps: int, most: int = 11_000) -> None:
        self._left = most
        self._line = max(60, min(_SEEN, most * 2 // 5 // max(1, steps)))

    def say(self, line: str) -> None:
        text = plain(line, self._line)
        if len(text) + 1 <= self._left:
            self._left -= len(text) + 1
            # Whoever reads may be gone; the files are written all the same.
            with contextlib.suppress(OSError, ValueError):
                print(text, flush=True)

    def outcome(self, outcome: Outcome) -> None:
        what = next(iter(outcome.failures), outcome.told)
        self.say(f"{outcome.word:8} {outcome.step:14} {outcome.seconds:6.1f} s  {what}")

    def finish(self, title: str, outcomes: Sequence[Outcome]) -> None:
        """Values as far as there is room, then all steps, then what failed."""
        self._line = _LONGEST
        room = self._left - len(title) - 2
        failures = _failed(room * 3 // 5, [each for each in outcomes if each.bad])
        room -= sum(len(line) + 1 for line in failures)
        table = _within(room, ["", *(_row(each) for each in outcomes), ""])
        room -= sum(len(line) + 1 for line in table)
        for line in [*_step_by_step(room, [_values(each) for each in outcomes]), *table, *failures, title]:
            self.say(line)


def _values(outcome: Outcome) -> list[str]:
    """Of what the machine is, little: it comes back in files."""
    values = list(outcome.values)
    if outcome.step in FACTS:
        values = [value for value in values if value.partition(":")[0] in FACTS[outcome.step]]
    return [plain(f"{outcome.step}: {value}", 120) for value in values]


def _failed(room: int, outcomes: Sequence[Outcome]) -> list[str]:
    """Of each step the first failure at least, as long as there is room for those of all steps."""
    found = [list(each.failures) or [f"{each.word}: {each.told}"] for each in outcomes]
    lines = [[f"FAILED {outcomes[at].step}: {line}" for line in each] for at, each in enumerate(found)]
    width = _LONGEST
    while width > _SEEN and sum(min(len(each[0]), width) + 1 for each in lines) > room:
        width -= 20
    return _within(room, (_ends(line, width) for line in _in_turn(lines)))


def _ends(text: str, most: int) -> str:
    """Its begin and its end, as there it says what to do."""
    line = plain(text, 1 << 16)
    return (
        line if len(line) <= most else f"{line[: most // 2]}...{line[len(line) - (most - most // 2 - 3) :]}"
    )


def _row(outcome: Outcome) -> str:
    said = outcome.told if outcome.word == LEFT_OUT else f"{outcome.seconds:.0f} s"
    if outcome.word not in (LEFT_OUT, FAILED) and outcome.told:
        said += f", {outcome.told}"
    elif outcome.word == FAILED:
        said += f", {outcome.held} held, {outcome.wrong} failed"
    return plain(f"{outcome.word:8} {outcome.step:12} {said}{_our_fault(outcome)}", 2 * _SEEN)


def _our_fault(outcome: Outcome) -> str:
    """For whoever judges a failure: it may as well be the machine's."""
    if outcome.bad and outcome.nothing:
        return "; nothing was measured (set up wrong, or no container starts)"
    return f"; would be our fault: {outcome.fault}" if outcome.bad and outcome.fault else ""


def _step_by_step(room: int, groups: Sequence[Sequence[str]]) -> list[str]:
    """In the order of the groups; where there is no room for all, as many of each as of the others."""
    kept: list[list[str]] = [[] for _ in groups]
    for place in range(max(map(len, groups), default=0)):
        for group, chosen in zip(groups, kept, strict=True):
            line = group[place] if place < len(group) else None
            if line is not None and len(line) + 1 <= room:
                room -= len(line) + 1
                chosen.append(line)
    return [line for chosen in kept for line in chosen]


def _in_turn(groups: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first of each group, the second of each, and so on: no group hides another."""
    for place in range(max((len(group) for group in groups), default=0)):
        for group in groups:
            if place < len(group):
                yield group[place]


def _within(room: int, lines: Iterator[str] | Sequence[str]) -> list[str]:
    kept = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept


def write_summary(path: Path, title: str, outcomes: Sequence[Outcome]) -> None:
    """summary.md as of now, whole at any time."""
    lines = [f"### {title}", "", "| step | outcome | seconds | held | seen |", "|---|---|---|---|---|"]
    for each in outcomes:
        seen = "; ".join(list(each.failures)[:10]) or each.told
        seen = seen.replace("|", "/")
        lines.append(f"| {each.step} | {each.word} | {each.seconds:.0f} | {each.held} | {seen} |")
    lines += ["", *(f"{each.step}{_our_fault(each)}" for each in outcomes if _our_fault(each))]
    for each in outcomes:
        lines += ["", f"{each.step}:", "", *(f"    {value}" for value in each.values)] if each.values else []
    aside = path.with_suffix(".new")
    with contextlib.suppress(OSError):
        aside.write_text("\n".join(lines) + "\n", encoding="ascii")
        aside.rename(path)
