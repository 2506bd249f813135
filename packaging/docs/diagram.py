"""Diagrams of the site: a mermaid fence becomes an SVG as the page is built, so reading it fetches nothing.

The function is a custom fence's `format` of pymdownx.superfences (zensical.toml names it).
"""

from __future__ import annotations

from typing import Any

import merm


def svg(source: str, *_: Any, **__: Any) -> str:
    """The fence's text as an SVG element; merm.ParseError where it is no diagram that merm knows."""
    return f'<div class="diagram">{merm.render_diagram(source)}</div>'
