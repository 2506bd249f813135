"""JSON for the path of a container's start: the C scanner and encoder of the standard library.

`import json` costs about as much as starting the interpreter (it brings `re` and `enum`); `_json`, the C
module behind it, costs a tenth. Where an interpreter has no `_json`, the `json` package is used, with the
same results. Knows nothing of the documents.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    import _json as _c
except ImportError:  # an interpreter without the C module
    _c = None  # type: ignore[assignment]

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


if _c is None:
    import json as _json_package

    def _scan_once(text: str, start: int) -> tuple[Any, int]:
        return _json_package.JSONDecoder(parse_constant=_no_constant).raw_decode(text, start)

    def _encode(value: Any, ascii_only: bool) -> str:
        return _json_package.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=ascii_only)

else:

    class _Context:
        """What json.decoder.JSONDecoder passes to the C scanner."""

        strict = True
        object_hook = None
        object_pairs_hook = None
        parse_float = float
        parse_int = int
        parse_string = staticmethod(_c.scanstring)
        parse_constant = staticmethod(_no_constant)
        memo: dict[str, str] = {}

    _SCANNER: Any = _c.make_scanner
    _ENCODER: Any = _c.make_encoder

    def _scan_once(text: str, start: int) -> tuple[Any, int]:
        found: tuple[Any, int] = _SCANNER(_Context)(text, start)
        return found

    def _refuse(value: object) -> Any:
        raise TypeError(f"{type(value).__name__} has no JSON form")

    def _encode(value: Any, ascii_only: bool) -> str:
        encode_text = _c.encode_basestring_ascii if ascii_only else _c.encode_basestring
        return "".join(_ENCODER(None, _refuse, encode_text, None, ":", ",", False, False, False)(value, 0))
