"""Writes the parts of the pages that come from the code: reference.py [--check]

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->` in a page, on lines of its own
or within one; PARTS has the functions that write it. With --check nothing is written, and three things are
errors (lint): a part that is out of date, a sentence whose value is not the code's (parts.sentences), and a
line of any page over WIDTH columns, unless a program has printed it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

from parts import commands, engines, errors, events, kubernetes, metrics, outputs, sentences, tree, variables
from parts.markdown import WIDTH, code

from xpu_runtime.request import require

_REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_REFERENCE = ("commands", "configuration", "errors", "events", "json", "kubernetes", "metrics", "variables")
_PAGES = ("ARCHITECTURE.md", "docs/how-to/engines.md", *(f"docs/reference/{name}.md" for name in _REFERENCE))
_PART = re.compile(r"(<!-- generated: ([\w-]+) -->)(\n?).*?(<!-- end -->)", re.DOTALL)


def main(is_check: bool) -> int:
    stale = []
    for name in _PAGES:
        path = os.path.join(_REPOSITORY, name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if unknown := errors.unknown_quotations(text):
            print(f"{name} quotes what no source has: {unknown}", file=sys.stderr)
            return 1
        if within := re.search(r"^ *<!-- generated: ([\w-]+) -->[^\n]", text, re.MULTILINE):
            # Markdown ends a paragraph there.
            print(f"{name}: the part {within[1]} begins a line and is not a line of its own", file=sys.stderr)
            return 1
        made = _PART.sub(_made, text)
        if made == text:
            continue
        stale.append(name)
        if not is_check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(made)
    if not is_check:
        return 0
    if stale:
        print(f"{', '.join(stale)}: not what the code says: run `make docs`", file=sys.stderr)
    wrong = list(sentences.missing())
    for name, sentence in wrong:
        print(f"{name}: no {sentence!r}, as parts/sentences.py has it by the code", file=sys.stderr)
    long = list(_too_long())
    for place in long:
        print(f"{place}: over {WIDTH} columns", file=sys.stderr)
    return 1 if stale or wrong or long else 0


def _made(part: re.Match[str]) -> str:
    begin, name, is_block, end = part.groups()
    made = PARTS[name]().strip()
    return f"{begin}\n\n{made}\n\n{end}" if is_block else f"{begin}{made}{end}"


def _too_long() -> Iterator[str]:
    """The places of too long lines. Output is in blocks of the language `console`, below a command."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    for name in subprocess.check_output(listed, cwd=_REPOSITORY, text=True).split():
        with open(os.path.join(_REPOSITORY, name), encoding="utf-8") as file:
            is_output = False
            for number, line in enumerate(file, 1):
                if line.startswith("```"):
                    is_output = line == "```console\n"
                if len(line.rstrip("\n")) > WIDTH and not (is_output and not line.startswith("# ")):
                    yield f"{name}:{number}"


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands.commands,
    "configuration": tree.configuration,
    "engines": engines.table,
    "errors-codes": errors.codes,
    "errors-lines": errors.lines,
    "errors-refusals": errors.refusals,
    "errors-statuses": commands.statuses,
    "events-fields-of-journal": events.fields_of_journal,
    "events-kinds": events.kinds,
    "json": outputs.outputs,
    "kubernetes-events": kubernetes.events,
    "kubernetes-labels": kubernetes.labels,
    "layers": tree.layers,
    "variables": variables.variables,
    "variables-priorities": partial(variables.words_of, "PRIORITIES"),
    "variables-require": lambda: code(require.SUBJECTS),
    "variables-scheds": partial(variables.words_of, "SCHEDS"),
    "port-of-node": partial(kubernetes.port, "node"),
    "port-of-extender": partial(kubernetes.port, "extender"),
    **{f"metrics-of-{kind}": partial(metrics.of, kind) for kind in metrics.KINDS},
}

if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
