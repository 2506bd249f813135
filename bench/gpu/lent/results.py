"""The results and the output of a run: log.gz, results.jsonl, summary.md, and lines within a budget.

All files are valid after a kill at any second, and small: few files come back from a lent machine, and little
of the output is seen. Every line is made plain ASCII, so that a character is a byte. On a full disk only the
files suffer.
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
#: The most characters of a result, and of a printed line.
_LONGEST, _SEEN = 500, 160
#: A measuring program's lines, as card.py prints them. A name has no character that plain() replaces.
_LINE = re.compile(r"(ok|FAILED|skipped): (.*)|([A-Za-z0-9/][^:?]{0,99}): (.+)")
#: Lines that look like values and are none: Python's errors, our libraries' lines on stderr, a file's place.
_NO_VALUE = re.compile(r"xpu|written|[\w.]*(Error|Exception|Warning|Expired)|/.*[.]py")
#: A line of `xpu doctor` with a problem.
_PROBLEM = "problem "
#: More digits of a figure than a reader needs.
_DIGITS = re.compile(r"(?<![\w.])\d+[.]\d{5,}(?![\w.])")
#: The values of the steps before the measuring ones that are printed at the end.
FACTS: dict[str, tuple[str, ...]] = {
    "facts": ("kernel", "load average", "card", "driver"),
    "set-up": ("the driver", "cgroups", "built here", "not built here", "the packed tree"),
}
#: The most failures and values of a step that are kept for the last lines.
_FAILURES, _VALUES = 40, 200


def plain(text: str, most: int = _LONGEST) -> str:
    """One line of printable ASCII, of at most that many characters."""
    line = "".join(each if " " <= each <= "~" else " " if each == "\t" else "?" for each in text.strip())
    return line if len(line) <= most else line[: max(0, most - 3)] + "..."


def _opened(path: Path) -> FileIO:
    """A new file. If it cannot be made, a file that keeps nothing: the output is still printed."""
    try:
        return FileIO(path, "wb")
    except OSError as error:
        print(f"nothing is kept in {path}: {error.strerror}", flush=True)
        return FileIO(os.devnull, "wb")


@dataclass
class Outcome:
    """The end of a step: one of the words above, its seconds, its last line, the number of checks that held,
    of failures and of failed checks, and why it was late or has skipped things. Failures and values are the
    first ones, each once."""

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
        """A late step has failed if one of its checks did, or if it had printed nothing by then."""
        nothing = not (self.held or self.values or self.skipped)
        return self.word == FAILED or (self.word == LATE and bool(self.wrong or nothing))

    @property
    def nothing(self) -> bool:
        """Whether it has measured nothing: no check held or failed, and only the card or slice was
        printed."""
        told = any(not value.startswith(("card: ", "slice: ")) for value in self.values)
        return not (self.held or self.judged or told)

    @property
    def told(self) -> str:
        """The number of checks that held, and the skipped parts."""
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
        """`judged`: a check has failed, and not only a precondition."""
        self.wrong += 1
        self.judged += judged
        if len(self.failures) < _FAILURES:
            self.failures[text] = None

    def say(self, value: str) -> None:
        if len(self.values) < _VALUES:
            self.values[_DIGITS.sub(lambda figure: f"{float(figure[0]):.4g}", value)] = None


class Log:
    """All output of the steps in one file, with a gzip member for each step: `zcat log.gz`.

    Of a member that was cut off, zcat shows all up to the last flush, and then reports that the file ends
    early. A file for each step would be too many to bring back, plain text would be too large, and a tar
    archive needs a file's length before its bytes. A step that prints too much keeps its begin and its end.
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
        # At most a third of the rest, so that later steps always have some.
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
    """results.jsonl: a line for each result, readable when `add` returns, on the disk after `sync`."""

    MOST, A_STEP = 8 * _MIB, 2000

    def __init__(self, path: Path) -> None:
        self._file = _opened(path)
        self._most, self._lines, self._synced = 0, 0, 0

    def begin(self) -> None:
        """Begins a step, which may have a limited number of lines, and a third of the rest."""
        self._lines = 0
        self._most = self._file.tell() + max(0, self.MOST - self._file.tell()) // 3

    def add(self, **values: object) -> None:
        self._lines += 1
        if self._lines <= self.A_STEP and self._file.tell() < self._most:
            self.put(**values)

    def put(self, **values: object) -> None:
        """Writes it, whatever the limits."""
        with contextlib.suppress(OSError):
            self._file.write((json.dumps(values) + "\n").encode("ascii"))

    def sync(self) -> None:
        if self._file.tell() != self._synced:
            self._synced = self._file.tell()
            with contextlib.suppress(OSError):
                os.fsync(self._file.fileno())


class Reader:
    """Reads the lines of one step as they come."""

    def __init__(self, results: Results, outcome: Outcome, measures: bool) -> None:
        self._results, self._outcome, self._measures = results, outcome, measures
        self._rest, self._count = b"", 0
        results.begin()

    def feed(self, data: bytes, at: float) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        # An endless line is cut.
        self._rest = self._rest[-(1 << 16) :]
        for line in lines:
            self._line(line[:4096], at)
        # One sync for all of them: the measuring program waits meanwhile if its pipe is full.
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
            # A program that measures nothing has only its first lines kept.
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
    """The printed output: at most `most` characters in all. The end is reserved for what matters most."""

    def __init__(self, steps: int, most: int = 11_000) -> None:
        self._left = most
        self._line = max(60, min(_SEEN, most * 2 // 5 // max(1, steps)))

    def say(self, line: str) -> None:
        text = plain(line, self._line)
        if len(text) + 1 <= self._left:
            self._left -= len(text) + 1
            # The reader may be gone. The files are written all the same.
            with contextlib.suppress(OSError, ValueError):
                print(text, flush=True)

    def outcome(self, outcome: Outcome) -> None:
        what = next(iter(outcome.failures), outcome.told)
        self.say(f"{outcome.word:8} {outcome.step:14} {outcome.seconds:6.1f} s  {what}")

    def finish(self, title: str, outcomes: Sequence[Outcome]) -> None:
        """Prints values as far as there is room, then all steps, then the failures."""
        self._line = _LONGEST
        room = self._left - len(title) - 2
        failures = _failed(room * 3 // 5, [each for each in outcomes if each.bad])
        room -= sum(len(line) + 1 for line in failures)
        table = _within(room, ["", *(_row(each) for each in outcomes), ""])
        room -= sum(len(line) + 1 for line in table)
        for line in [*_step_by_step(room, [_values(each) for each in outcomes]), *table, *failures, title]:
            self.say(line)


def _values(outcome: Outcome) -> list[str]:
    """Few of the machine's facts: they come back in files."""
    values = list(outcome.values)
    if outcome.step in FACTS:
        values = [value for value in values if value.partition(":")[0] in FACTS[outcome.step]]
    return [plain(f"{outcome.step}: {value}", 120) for value in values]


def _failed(room: int, outcomes: Sequence[Outcome]) -> list[str]:
    """At least the first failure of each step, if there is room for those of all steps."""
    found = [list(each.failures) or [f"{each.word}: {each.told}"] for each in outcomes]
    lines = [[f"FAILED {outcomes[at].step}: {line}" for line in each] for at, each in enumerate(found)]
    width = _LONGEST
    while width > _SEEN and sum(min(len(each[0]), width) + 1 for each in lines) > room:
        width -= 20
    return _within(room, (_ends(line, width) for line in _in_turn(lines)))


def _ends(text: str, most: int) -> str:
    """The begin and the end of a text: the end has the remedy."""
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
    """The fault to consider for a failure, which may as well be the machine's."""
    if outcome.bad and outcome.nothing:
        return "; nothing was measured (set up wrong, or no container starts)"
    return f"; our fault would be: {outcome.fault}" if outcome.bad and outcome.fault else ""


def _step_by_step(room: int, groups: Sequence[Sequence[str]]) -> list[str]:
    """The lines in the order of the groups. Without room for all, each group gets as many lines."""
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
    """Writes summary.md as of now. It is whole at any time."""
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
