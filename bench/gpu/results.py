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
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

OK, FAILED, SKIPPED, LATE, LEFT_OUT = "ok", "FAILED", "skipped", "late", "left out"
_MIB = 1 << 20
#: Characters of a result and of a line that says what was seen.
_LONGEST, _SEEN = 500, 160
#: A measuring program's lines, as card.py prints them; a name has no character that plain() has replaced.
_LINE = re.compile(r"(ok|FAILED|skipped): (.*)|([A-Za-z/][^:?]{0,99}): (.+)")
#: Of what a step has said, so much is kept for the last lines.
_FAILURES, _VALUES = 40, 200


def plain(text: str, most: int = _LONGEST) -> str:
    """One line of printable ASCII, of at most so many characters."""
    line = "".join(each if " " <= each <= "~" else " " if each == "\t" else "?" for each in text.strip())
    return line if len(line) <= most else line[: max(0, most - 3)] + "..."


@dataclass
class Outcome:
    """How a step ended: one of the words above, its seconds, the last line that it printed, how many checks
    held and failed; of failures and values the first, each once."""

    step: str
    word: str
    seconds: float = 0.0
    last: str = ""
    fault: str = ""
    held: int = 0
    wrong: int = 0
    failures: dict[str, None] = field(default_factory=dict)
    values: dict[str, None] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        return self.word in (FAILED, LATE)

    def fail(self, text: str) -> None:
        self.wrong += 1
        if len(self.failures) < _FAILURES:
            self.failures[text] = None

    def say(self, value: str) -> None:
        if len(self.values) < _VALUES:
            self.values[value] = None


class Log:
    """Everything that steps print, in one file, a gzip member a step: `zcat log.gz`.

    Of a member that was cut off, zcat shows all up to the last flush, and then says that the file ends early.
    A file a step would be too many to bring back, plain text too large, and a tar archive wants a file's
    length before its bytes. A step that prints too much keeps its begin and its last words.
    """

    MOST, _LAST = 12 * _MIB, 1 << 16

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
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
        self._file = path.open("wb", buffering=0)
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
            # Of a program that measures nothing, as much as people read.
            return ("line" if self._count < 100 and not self._measures else ""), {"text": line}
        kind, text, name, value = found.groups()
        if kind == FAILED:
            self._outcome.fail(text)
        elif kind == OK:
            self._outcome.held += 1
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
        what = next(iter(outcome.failures), outcome.last)
        self.say(f"{outcome.word:8} {outcome.step:14} {outcome.seconds:6.1f} s  {what}")

    def finish(self, title: str, outcomes: Sequence[Outcome]) -> None:
        """Values as far as there is room, then all steps, then what failed."""
        self._line = _SEEN
        room = self._left - len(title) - 2
        failures = _within(room * 3 // 5, _in_turn([_failures(each) for each in outcomes if each.bad]))
        room -= sum(len(line) + 1 for line in failures)
        table = _within(room, ["", *(_row(each) for each in outcomes), ""])
        room -= sum(len(line) + 1 for line in table)
        # What the machine is comes back in files, if there is no room for it here.
        measured = sorted(outcomes, key=lambda each: each.step in ("facts", "set-up"))
        values = [line for each in (measured[:-2], measured[-2:]) for line in _in_turn(_values(each))]
        for line in [*_within(room, (plain(each, 120) for each in values)), *table, *failures, title]:
            self.say(line)


def _values(outcomes: Sequence[Outcome]) -> list[list[str]]:
    return [[f"{each.step}: {line}" for line in each.values] for each in outcomes]


def _failures(outcome: Outcome) -> list[str]:
    lines = list(outcome.failures) or [f"{outcome.word}: {outcome.last}"]
    return [plain(f"FAILED {outcome.step}: {line}", _SEEN) for line in lines]


def _row(outcome: Outcome) -> str:
    if outcome.word == LEFT_OUT:
        said = outcome.last
    else:
        said = f"{outcome.seconds:.0f} s, {outcome.held} held, {outcome.wrong} failed"
    why = f"; a fault of ours: {outcome.fault}" if outcome.bad else ""
    return plain(f"{outcome.word:8} {outcome.step:12} {said}{why}", _SEEN)


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
        seen = "; ".join(list(each.failures)[:10]) or each.last
        seen = seen.replace("|", "/")
        lines.append(f"| {each.step} | {each.word} | {each.seconds:.0f} | {each.held} | {seen} |")
    lines += ["", *(f"A fault of ours in {each.step}: {each.fault}" for each in outcomes if each.bad)]
    for each in outcomes:
        lines += ["", f"{each.step}:", "", *(f"    {value}" for value in each.values)] if each.values else []
    aside = path.with_suffix(".new")
    with contextlib.suppress(OSError):
        aside.write_text("\n".join(lines) + "\n", encoding="ascii")
        aside.rename(path)
