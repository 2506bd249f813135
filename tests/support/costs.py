"""The time of a run: seconds of each folder's tests, and the slowest files; printed at its end."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

#: How many files are listed. Runs of fewer seconds print nothing.
_FILES = 12
_LEAST_S = 20.0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The wait for a test's turn is not counted; a fixture's time counts for its first test."""
    folders: defaultdict[str, float] = defaultdict(float)
    files: defaultdict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            file = report.nodeid.partition("::")[0]
            folder = file.rpartition("/")[0]
            folders[folder] += report.duration
            files[file] += report.duration
            tests[folder] += report.when == "call"
    if sum(folders.values()) < _LEAST_S:
        return
    terminalreporter.section("seconds of tests, by folder and in the slowest files")
    for folder, seconds in sorted(folders.items(), key=_longest_first):
        terminalreporter.write_line(f"{seconds:7.0f} {tests[folder]:6} tests  {folder}")
    for file, seconds in sorted(files.items(), key=_longest_first)[:_FILES]:
        terminalreporter.write_line(f"{seconds:7.0f}  {file}")


def _longest_first(each: tuple[str, float]) -> float:
    return -each[1]
