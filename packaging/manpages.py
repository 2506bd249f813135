"""Writes a package's manual pages and completions, from the programs' own help: manpages.py OUT

OUT/man: xpu(8), one page for each command, and xpu-config.yaml(5), which is the default configuration with
its comments. OUT/completion: for bash, zsh and fish. It needs the packages that are installed with ours.
"""

from __future__ import annotations

import inspect
import os
import sys
import time

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from xpu_runtime.cli.main import xpu
from xpu_runtime.version import VERSION

_REPOSITORY = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_DATE = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0")) or None))

_COMPLETIONS = ((BashComplete, "bash/xpu"), (ZshComplete, "zsh/_xpu"), (FishComplete, "fish/xpu.fish"))
# Characters that are special in troff, or that it would print as others.
_ESCAPES = str.maketrans({"\\": "\\e", "-": "\\-", "`": "\\(ga", "'": "\\(aq", "~": "\\(ti"})
_FILES = [
    ".SH FILES",
    ".TP",
    ".I /etc/xpu/config.yaml",
    "The configuration: see",
    ".BR xpu\\-config.yaml (5).",
    ".TP",
    ".I /run/xpu",
    "The ledger and caches; lost at a reboot, as the containers are.",
]


def main(out: str) -> None:
    _write(f"{out}/man/xpu.8", _page(click.Context(xpu, info_name="xpu"), top=True))
    for context in _commands(click.Context(xpu, info_name="xpu")):
        _write(f"{out}/man/{context.command_path.replace(' ', '-')}.8", _page(context))
    with open(f"{_REPOSITORY}/config/config.yaml", encoding="utf-8") as file:
        _write(f"{out}/man/xpu-config.yaml.5", _configuration(file.read()))
    for kind, name in _COMPLETIONS:
        completion = kind(xpu, {}, "xpu", "_XPU_COMPLETE")
        _write(f"{out}/completion/{name}", kind.source_template % completion.source_vars())


def _commands(parent: click.Context) -> list[click.Context]:
    command = parent.command
    if not isinstance(command, click.Group):
        return []
    found = []
    for name in command.list_commands(parent):
        child = command.get_command(parent, name)
        assert child is not None
        if child.hidden:
            continue
        found.append(click.Context(child, info_name=name, parent=parent))
        found += _commands(found[-1])
    return found


def _page(context: click.Context, top: bool = False) -> str:
    command = context.command
    name = context.command_path.replace(" ", "-")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [
        _title(name, 8),
        ".SH NAME",
        f"{_plain(name)} \\- {_plain(command.get_short_help_str(200).rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_plain(usage)}",
        ".SH DESCRIPTION",
        *_text(inspect.cleandoc(command.help or "")),
        ".SH OPTIONS",
    ]
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            lines += [".TP", f".B {_plain(record[0])}", _plain(record[1])]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for child in command.list_commands(context):
            each = command.get_command(context, child)
            assert each is not None
            if each.hidden:
                continue
            lines += [".TP", f".BR {_plain(f'{name}-{child}')} (8)", _plain(each.get_short_help_str(200))]
    lines += _FILES if top else [".SH SEE ALSO", ".BR xpu (8)"]
    return "\n".join(lines) + "\n"


def _configuration(text: str) -> str:
    body = "\n".join(_plain(line) for line in text.splitlines())
    return (
        "\n".join(
            [
                _title("xpu-config.yaml", 5),
                ".SH NAME",
                "xpu\\-config.yaml \\- the configuration of the XPU container runtime",
                ".SH DESCRIPTION",
                "What the file may have, with the value that holds where it is left out:",
                ".PP",
                ".nf",
                body,
                ".fi",
                ".SH SEE ALSO",
                ".BR xpu (8)",
            ]
        )
        + "\n"
    )


def _title(name: str, section: int) -> str:
    return f'.TH {_plain(name).upper()} {section} "{_DATE}" "{VERSION}" "XPU container runtime"'


def _text(text: str) -> list[str]:
    """A help text: paragraphs; lines after a line of one \b (click's mark) stay as they are."""
    lines = []
    for paragraph in text.replace("\f", "").split("\n\n"):
        kept = paragraph.strip().startswith("\b")
        words = [_plain(line) for line in paragraph.strip("\b\n ").splitlines()]
        lines += [".PP", *([".nf", *words, ".fi"] if kept else words)]
    return lines


def _plain(text: str) -> str:
    """Text that troff prints unchanged."""
    text = text.translate(_ESCAPES)
    return "\\&" + text if text.startswith(".") else text


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main(sys.argv[1])
