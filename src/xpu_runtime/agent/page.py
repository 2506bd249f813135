"""The page for people: one file, page.html, and what a browser is told of it.

The Content-Security-Policy lets the page's own script and style run, by their hashes, and lets it ask where
it came from; nothing else. So text of a container that got into the page as markup would still do nothing.
"""

from __future__ import annotations

import functools
import os
import re

from xpu_runtime.http_message import Answer

_FILE = os.path.join(os.path.dirname(__file__), "page.html")
_TYPE = "text/html; charset=utf-8"


class BrowserPage:
    """OSError where the file is missing. As it was when the agent was started: an installation may replace
    it, and what it asks for besides."""

    def __init__(self) -> None:
        with open(_FILE, "rb") as file:
            self._content = file.read()

    def answer(self) -> Answer:
        """It, and what the browser is told."""
        policy = f"Content-Security-Policy: {_policy(self._content)}"
        return Answer(200, _TYPE, self._content, (policy,))


@functools.lru_cache(maxsize=1)
def _policy(content: bytes) -> str:
    import base64  # once somebody looks: a node whose page nobody asks for pays nothing
    import hashlib

    sources = ["default-src 'none'", "connect-src 'self'", "img-src data:"]
    for element in ("script", "style"):
        (text,) = re.findall(b"<%s>(.*?)</%s>" % (element.encode(), element.encode()), content, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        sources.append(f"{element}-src 'sha256-{digest}'")
    return "; ".join([*sources, "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"])
