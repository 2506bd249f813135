"""JSON for the path of a container's start: the C scanner and encoder of the standard library.

`import json` costs about as much as starting the interpreter (it brings `re` and `enum`); `_json`, the C
module behind it, costs a tenth. Where an interpreter has no `_json`, or one that is called otherwise, the
`json` package is used, with the same results. Knows nothing of the documents.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WHITESPACE = " \t\n\r"


def loads(text: str) -> Any:
    """The value of one JSON document; ValueError, and no other exception, says where it is malformed."""
    value, end = _scan(text)
    if text[end:].strip(_WHITESPACE):
        raise ValueError(f"not JSON: more text after the value, at character {end}")
    return value


def loads_first(text: str) -> Any:
    """The first value in `text`, ignoring the rest, as Go's json.Decoder and so runc does."""
    return _scan(text)[0]


def _scan(text: str) -> tuple[Any, int]:
    """The first value and the index behind it; ValueError."""
    start = 0
    while start < len(text) and text[start] in _WHITESPACE:
        start += 1
    try:
        try:
            found: tuple[Any, int] = _scan_once(text, start)
        except SystemError:
            # Up to Python 3.12 the C scanner looks for its JSONDecodeError among the modules that are
            # loaded, and where json.decoder is not (as under -IS) it returns NULL without an exception.
            import json.decoder  # noqa: F401 - what it looks for; 6 ms, for malformed text only

            found = _scan_once(text, start)
    except StopIteration as stop:
        raise ValueError(f"not JSON: no value at character {stop.value}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except (SystemError, ImportError):
        raise ValueError("not JSON") from None
    return found


def dumps(value: Any, ascii_only: bool = True) -> str:
    """`value` as compact JSON; keys keep their order. ValueError where it is nested too deeply."""
    try:
        return _encode(value, ascii_only)
    except RecursionError:
        raise ValueError("nested too deeply for JSON") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} has no JSON form")


try:
    import _json

    class _Context:
        """The values that json.decoder.JSONDecoder passes to the C scanner."""

        strict = True
        object_hook = None
        object_pairs_hook = None
        parse_float = float
        parse_int = int
        parse_string = staticmethod(_json.scanstring)
        parse_constant = staticmethod(_no_constant)
        memo: dict[str, str] = {}

    _make_scanner: Any = _json.make_scanner
    _scan_once: Any = _make_scanner(_Context)

    def _encode(value: Any, ascii_only: bool) -> str:
        encode_text = _json.encode_basestring_ascii if ascii_only else _json.encode_basestring
        encoder: Any = _json.make_encoder
        return "".join(encoder(None, _refuse, encode_text, None, ":", ",", False, False, False)(value, 0))

    # _json is private, and another version of Python may change its calls or its answers.
    if _scan_once('["\\u00e9"]', 0) != (["é"], 10) or _encode({"a": [1, "é"]}, True) != '{"a":[1,"\\u00e9"]}':
        raise TypeError("_json is not the one that we know")
except (ImportError, AttributeError, TypeError, ValueError):
    import json

    _scan_once = json.JSONDecoder(parse_constant=_no_constant).raw_decode

    def _encode(value: Any, ascii_only: bool) -> str:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=ascii_only)
