"""Diagrams of the site: each mermaid fence becomes an SVG when the page is built, so that readers fetch
nothing.

The function is a custom fence's `format` of pymdownx.superfences (zensical.toml names it).
"""

from __future__ import annotations

from typing import Any

import merm


def svg(source: str, *_: Any, **__: Any) -> str:
    """The fence's text as an SVG element; merm.ParseError if it is no diagram that merm knows."""
    return f'<div class="diagram">{merm.render_diagram(source)}</div>'
