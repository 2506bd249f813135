"""Lets every area look at the node, and sorts their findings; the head names the node and versions.

The folder areas/ has the areas.
"""

from __future__ import annotations

import importlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypedDict

from xpu_runtime import extensions
from xpu_runtime.doctor.machine import Machine, ask
from xpu_runtime.finding import OK, PROBLEM, UNKNOWN, WARNING, Finding, printable, unknown
from xpu_runtime.ledger.layout import VERSION as LEDGER_LAYOUT
from xpu_runtime.limits import pages
from xpu_runtime.linux import deadline
from xpu_runtime.version import COMMIT, VERSION

#: Seconds for all areas, which look at the same time.
_AREAS_S = 30.0

_Look = Callable[[Machine], Iterator[Finding]]
#: The worst comes first.
ORDER = (PROBLEM, WARNING, UNKNOWN, OK)


def examine() -> list[Finding]:
    """All findings, in the order of their areas; ends within two minutes even if areas hang."""
    machine = ask()
    areas, findings = _areas()
    answers = deadline.together([partial(look, machine) for _, look in areas], _AREAS_S)
    for position, answer in enumerate(answers):
        name, _ = areas[position]
        findings += answer.values
        if answer.error:
            findings.append(unknown(name, f"this check failed: {answer.error}", answer.todo or None))
    return [_printable(each) for each in findings]


def _printable(finding: Finding) -> Finding:
    """The one place where the texts of others, which are in many findings, are made fit to be printed."""
    todo = None if finding.todo is None else printable(finding.todo)
    return finding.replace(text=printable(finding.text), todo=todo)


def _areas() -> tuple[list[tuple[str, _Look]], list[Finding]]:
    """(name, look) of each area in its order, and a finding for each that cannot be loaded."""
    found: list[tuple[int, str, _Look]] = []
    broken = []
    for name in extensions.names("doctor/areas"):
        try:
            module = importlib.import_module(f"{__package__}.areas.{name}")
            found.append((module.ORDER, name, module.look))
        except Exception as error:  # any error of a module that someone has put there
            broken.append(unknown(name, f"this check cannot be loaded: {error!r}", "install again"))
    return [(name, look) for _, name, look in sorted(found, key=lambda each: each[:2])], broken


class HeadJson(TypedDict):
    """The node, the versions, the user and the time."""

    version: str
    #: The commit that it was built from; null: not known.
    commit: str | None
    #: Layout of the pages that host and container share.
    pages_abi: int
    #: Layout of the ledger's file.
    ledger_layout: int
    #: Version of Python.
    python: str
    #: As /etc/os-release calls it; empty: it does not.
    distribution: str
    #: Release of the kernel, and the machine's architecture.
    kernel: str
    #: Whether root has looked.
    root: bool
    #: RFC 3339, UTC.
    time: str


class FindingJson(TypedDict):
    """One line of the findings."""

    #: Name of the check.
    check: str
    #: `ok`, `warning`, `problem` or `unknown`.
    state: str
    #: The finding, with its place.
    text: str
    #: The remedy; null: none is needed.
    todo: str | None


class DoctorJson(HeadJson):
    """The findings of `xpu doctor`."""

    #: The number of problems.
    problems: int
    #: The number of warnings.
    warnings: int
    findings: list[FindingJson]


def head() -> HeadJson:
    """The node, the versions, the user and the time."""
    return {
        "version": VERSION,
        "commit": COMMIT or None,
        "pages_abi": pages.ABI,
        "ledger_layout": LEDGER_LAYOUT,
        "python": platform.python_version(),
        "distribution": printable(_distribution()),
        "kernel": f"{os.uname().release} {os.uname().machine}",
        "root": os.geteuid() == 0,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _distribution() -> str:
    """The name in /etc/os-release (os-release(5)); "" if it has none."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            with open(path, encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if line.startswith("PRETTY_NAME="):
                        return line.partition("=")[2].strip().strip("\"'")
        except OSError:
            continue
    return ""


def document(findings: list[Finding]) -> DoctorJson:
    states = [finding.state for finding in findings]
    return {
        **head(),
        "problems": states.count(PROBLEM),
        "warnings": states.count(WARNING),
        "findings": [
            {"check": each.check, "state": each.state, "text": each.text, "todo": each.todo}
            for each in findings
        ],
    }
