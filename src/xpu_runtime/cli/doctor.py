"""`xpu doctor`: what is missing or wrong on this node, and what to do about it; or a bug report of it.

What is looked at is doctor/'s.
"""

from __future__ import annotations

import click

from xpu_runtime.cli.table import json_option, print_json
from xpu_runtime.doctor import examination
from xpu_runtime.finding import OK, PROBLEM, UNKNOWN, WARNING, Finding


@click.command(short_help="Say what is missing or wrong on this node, and what to do.")
@json_option
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Say what is missing or wrong on this node, and what to do about each, one line each.

    Nothing is changed. A problem keeps something from working; a warning does not, or not yet; unknown is
    what could not be looked at, by another user than root for instance.
    Exit status: 0 no problem (there may be warnings), 1 at least one problem, 2 wrong usage.

    \b
    --json prints one object:
      version, commit, pages_abi, ledger_layout, python, distribution, kernel, root, time
      problems, warnings   how many
      findings   a list of {check, state: ok|warning|problem|unknown, text, todo (null: nothing)}

    \b
    Example:
      xpu doctor
      xpu doctor --json | jq -r '.findings[] | select(.state == "problem").text'
    """
    findings = examination.examine()
    if as_json:
        print_json(examination.document(findings))
    else:
        _print(findings)
    if any(finding.state == PROBLEM for finding in findings):
        context.exit(1)


def _print(findings: list[Finding]) -> None:
    for state in examination.ORDER:
        for finding in findings:
            if finding.state == state:
                todo = f": {finding.todo}" if finding.todo else ""
                click.echo(" ".join(f"{state:<8} {finding.check}: {finding.text}{todo}".splitlines()))
    amounts = {
        state: sum(each.state == state for each in findings) for state in (PROBLEM, WARNING, UNKNOWN, OK)
    }
    click.echo(
        f"{amounts[PROBLEM]} problem(s), {amounts[WARNING]} warning(s), {amounts[UNKNOWN]} not known, "
        f"{amounts[OK]} ok"
    )
