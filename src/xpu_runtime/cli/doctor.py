"""`xpu doctor`: the problems of this node with their remedies, or a bug report.

doctor/ has the checks.
"""

from __future__ import annotations

import os
import sys
from typing import TypedDict

import click

from xpu_runtime.cli.terminal.table import json_option, print_json
from xpu_runtime.doctor import bundle, examination, report
from xpu_runtime.finding import OK, PROBLEM, UNKNOWN, WARNING, Finding


class ReportJson(TypedDict):
    """A bug report that was written (`--bundle`)."""

    #: Its path.
    file: str
    #: Names of the texts in it.
    parts: list[str]


@click.command(short_help="Check this node: each problem, with its remedy.")
@json_option
@click.option(
    "--bundle", "file", type=click.Path(dir_okay=False), help="Write a bug report to FILE.", metavar="FILE"
)
@click.pass_context
def doctor(context: click.Context, as_json: bool, file: str | None) -> None:
    """Check this node: each problem on a line, with its remedy.

    Nothing is changed. A problem keeps something from working. A warning does not, or not yet. Unknown means
    that xpu could not look, for example because you are not root.
    Exit status: 0 no problem (there may be warnings), 1 at least one problem, 2 wrong usage; with --bundle:
    0 written, with problems or without, 1 not written.

    --bundle collects a bug report: the findings, the output of xpu's commands, versions, the engines'
    configuration, the specs of containers with slices, the log. It leaves out arguments, and the values of
    variables and annotations. From other programs' files it keeps only values that are known to be harmless.
    FILE, a .tar.gz, must not exist yet.

    \b
    Example:
      xpu doctor
      xpu doctor --bundle /root/xpu.tar.gz
      xpu doctor --json | jq -r '.findings[] | select(.state == "problem").text'
    """
    if file is not None:
        _write(file, as_json)
        return
    findings = examination.examine()
    if as_json:
        print_json(examination.document(findings))
    else:
        _print(findings)
    if any(finding.state == PROBLEM for finding in findings):
        context.exit(1)


def _write(file: str, as_json: bool) -> None:
    bundle.check(file)  # before a minute's work
    names = bundle.write(file, report.parts(examination.examine()))
    if as_json:
        written: ReportJson = {"file": file, "parts": names}
        print_json(written)
        return
    _echo(f"{file}: {len(names)} texts, {os.stat(file).st_size} bytes")
    _echo(f"look through it before you send it: tar -xzf {file}, then about.txt")


def _echo(line: str) -> None:
    """With `?` for letters that the locale's encoding lacks: a path's letter must not end the command."""
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(line.encode(encoding, "replace").decode(encoding))


def _print(findings: list[Finding]) -> None:
    for state in examination.ORDER:
        for finding in findings:
            if finding.state == state:
                todo = f": {finding.todo}" if finding.todo else ""
                _echo(f"{state:<8} {finding.check}: {finding.text}{todo}")
    amounts = {
        state: sum(each.state == state for each in findings) for state in (PROBLEM, WARNING, UNKNOWN, OK)
    }
    click.echo(
        f"{amounts[PROBLEM]} problem(s), {amounts[WARNING]} warning(s), {amounts[UNKNOWN]} not known, "
        f"{amounts[OK]} ok"
    )
