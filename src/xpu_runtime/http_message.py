"""Requests and answers of HTTP/1.1 as values, and their heads as bytes. Independent of the pages that are
served."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from xpu_runtime.value import Value

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
#: Prometheus' text format.
METRICS = "text/plain; version=0.0.4; charset=utf-8"


class Request(Value):
    """A client's request."""

    method: str
    #: Without the query.
    path: str
    #: The head's fields, by their names in lower case.
    fields: Mapping[str, list[str]]
    #: Whether the client wants to keep the connection.
    keeps: bool = False
    body: bytes = b""


class Answer(Value):
    status: int
    content_type: str
    content: bytes
    #: Fields of the head besides.
    fields: tuple[str, ...] = ()


def parse_head(head: str, longest_body: int, advice: str) -> tuple[Request, int] | Answer:
    """The request and its body's length, or the answer to a request that is refused at once. `longest_body` 0
    allows GET and HEAD only, without a body; a longer body is answered with `advice`."""
    line, *rest = head.split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return text(400, "not HTTP/1")
    method, target, version = words
    fields: dict[str, list[str]] = {}
    for each in rest:
        name, _, value = each.partition(":")
        fields.setdefault(name.lower(), []).append(value.strip())
    methods = ("GET", "HEAD", "POST") if longest_body else ("GET", "HEAD")
    if method not in methods:
        return text(405, f"there is {', '.join(methods)}", f"Allow: {', '.join(methods)}")
    length = _length(method, fields, longest_body, advice) if longest_body else 0
    if isinstance(length, Answer):
        return length
    keeps = version != "HTTP/1.0" and "close" not in ",".join(fields.get("connection", [])).lower()
    return Request(method, target.partition("?")[0], fields, keeps), length


def _length(method: str, fields: Mapping[str, list[str]], longest_body: int, advice: str) -> int | Answer:
    lengths = fields.get("content-length", [])
    if not lengths and method != "POST" and "transfer-encoding" not in fields:
        return 0
    words = f"a body of at most {longest_body >> 20} MiB with Content-Length{advice}"
    if not lengths or "transfer-encoding" in fields:
        return text(411, words)
    is_number = lengths[0].isascii() and lengths[0].isdigit() and len(lengths[0]) < 12
    if len(lengths) != 1 or not is_number or int(lengths[0]) > longest_body:
        return text(413, words)
    return int(lengths[0])


def text(status: int, words: str, *fields: str) -> Answer:
    """An answer of one line."""
    return Answer(status, TEXT, words.encode() + b"\n", fields)


def head_of(answer: Answer, *, keeps: bool) -> bytes:
    lines = (
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.content)}",
        *answer.fields,
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
        "Cross-Origin-Resource-Policy: same-origin",
        f"Connection: {'keep-alive' if keeps else 'close'}",
    )
    return "\r\n".join((*lines, "\r\n")).encode()
