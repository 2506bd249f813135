"""The page for people: one file, page.html, and its HTTP headers.

The Content-Security-Policy allows only the page's own script and style, by their hashes, and requests to its
own server. So a container's text that got into the page as markup would still do nothing.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable

from xpu_runtime.http_message import Answer

_FILE = os.path.join(os.path.dirname(__file__), "page.html")
_TYPE = "text/html; charset=utf-8"


def browser_page() -> Callable[[], Answer]:
    """Makes the page with its headers. OSError if the file is missing. The page stays as it was at the
    agent's start: an installation may replace the file, and the data that it asks for."""
    with open(_FILE, "rb") as file:
        content = file.read()
    return lambda: Answer(200, _TYPE, content, (f"Content-Security-Policy: {_policy(content)}",))


@functools.lru_cache(maxsize=1)
def _policy(content: bytes) -> str:
    import base64  # at the first request: a node without viewers pays nothing
    import hashlib

    sources = ["default-src 'none'", "connect-src 'self'", "img-src data:"]
    for element in ("script", "style"):
        (text,) = re.findall(b"<%s>(.*?)</%s>" % (element.encode(), element.encode()), content, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        sources.append(f"{element}-src 'sha256-{digest}'")
    return "; ".join([*sources, "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"])
