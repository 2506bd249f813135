"""What a run has cost: seconds of each folder's tests, and the files that took longest, at its end."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

#: Files that are named; and a run of fewer seconds says nothing.
_FILES = 12
_LEAST_S = 20.0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Waits for a test that is to be alone are not counted, and fixtures count where they are made first."""
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
