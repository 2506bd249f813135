"""Parts that come from the repository's files: the default configuration, the order of layers."""

from __future__ import annotations

import tomllib
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[3]


def configuration() -> str:
    """The default file, with its comments."""
    return f"```yaml\n{(_REPOSITORY / 'config/config.yaml').read_text(encoding='utf-8')}```"


def layers() -> str:
    """The order that packaging/lint checks, as a picture."""
    project = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["xpu_runtime"])
    # Below `linux` there are only errors, paths and the like.
    shown = layers[: layers.index("linux") + 1]
    rows = [" > ".join(shown[at : at + 4]).replace(" | ", ", ") for at in range(0, len(shown), 4)]
    boxes = [f'    row{number}["{row}"]' for number, row in enumerate(rows)]
    chain = " --> ".join(f"row{number}" for number in range(len(rows)))
    return "\n".join(["```mermaid", "flowchart TD", *boxes, f"    {chain}", "```"])
