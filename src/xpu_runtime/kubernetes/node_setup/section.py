"""The section `kubernetes` of a node's config.yaml, beside the content of the node's owner.

There is one file, and its owner decides about comments and order: the section is a block between two marks at
its end. An owner's own section is kept in that block as comments, and comes back when the block goes. Texts
only: no file is read or written here.
"""

from __future__ import annotations

from typing import Any

import yaml

from xpu_runtime.errors import ConfigError

SECTION = "kubernetes"
BEGIN = "# Begin of what xpu kubernetes install-node has written; do not change it.\n"
END = "# End of what xpu kubernetes install-node has written.\n"
#: Before each line of the owner's own section, while ours is in force.
_WAS = "# was: "


def written(text: str, values: dict[str, Any], path: str) -> str:
    """`text` with the section `values` in force; ConfigError if `text`, which is the content of `path`, does
    not allow it."""
    theirs = without(text, path)
    before, section, after = _split(theirs, path)
    was = "".join(f"{_WAS}{line}" for line in section.splitlines(keepends=True))
    rest = before + after
    if rest and not rest.endswith("\n"):
        rest += "\n"
    return rest + BEGIN + was + yaml.safe_dump({SECTION: values}, sort_keys=False) + END


def without(text: str, path: str) -> str:
    """`text` as it was before `written`; only an owner's own section moves to the end. ConfigError if only
    half of the block is there."""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 and end < 0:
        return text
    if begin < 0 or end < begin:
        raise ConfigError(
            f"{path}: the block of xpu kubernetes install-node is damaged", f"remove {BEGIN!r} to {END!r}"
        )
    block = text[begin + len(BEGIN) : end].splitlines(keepends=True)
    was = "".join(line[len(_WAS) :] for line in block if line.startswith(_WAS))
    return text[:begin] + was + text[end + len(END) :]


def _split(text: str, path: str) -> tuple[str, str, str]:
    """The text before an owner's own section, the section, and the text after it."""
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML ({' '.join(str(error).split())})", "mend it first") from None
    if document is None:
        return text, "", ""
    if not isinstance(document, yaml.MappingNode) or document.flow_style:
        raise ConfigError(
            f"{path} is not a mapping with a key on each line", "write it so, as `xpu config default` is"
        )
    lines = text.splitlines(keepends=True)
    for key, value in document.value:
        if key.value == SECTION:
            # The end of a block is where the next key begins, comments between them included.
            first, last = key.start_mark.line, value.end_mark.line + (value.end_mark.column > 0)
            while last > first + 1 and not lines[last - 1].startswith((" ", "\t", SECTION)):
                last -= 1
            return "".join(lines[:first]), "".join(lines[first:last]), "".join(lines[last:])
    return text, "", ""
