"""Writes the parts of the pages that the code knows: reference.py [--check]

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->` in a page; PARTS has who writes
it. With --check nothing is written, and a part that is not what it would be is an error (lint).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import partial

from parts import commands, errors, events, metrics, outputs, tree, variables

_REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_REFERENCE = ("commands", "configuration", "errors", "events", "json", "metrics", "variables")
_PAGES = ("ARCHITECTURE.md", *(f"docs/reference/{name}.md" for name in _REFERENCE))
_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(is_check: bool) -> int:
    stale = []
    for name in _PAGES:
        path = os.path.join(_REPOSITORY, name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if unknown := errors.unknown_quotations(text):
            print(f"{name} quotes what no source has: {unknown}", file=sys.stderr)
            return 1
        made = _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]().strip()}\n\n{part[3]}", text)
        if made == text:
            continue
        stale.append(name)
        if not is_check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(made)
    if stale and is_check:
        print(f"{', '.join(stale)}: not what the code says: run `make docs`", file=sys.stderr)
        return 1
    return 0


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands.commands,
    "configuration": tree.configuration,
    "errors-codes": errors.codes,
    "errors-lines": errors.lines,
    "errors-refusals": errors.refusals,
    "events-fields-of-journal": events.fields_of_journal,
    "events-kinds": events.kinds,
    "json": outputs.outputs,
    "layers": tree.layers,
    "variables": variables.variables,
    **{f"metrics-of-{kind}": partial(metrics.of, kind) for kind in metrics.KINDS},
}

if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
