"""JSON for the path of a container's start: the C scanner and encoder of the standard library.

`import json` costs about as much as starting the interpreter (it brings `re` and `enum`);
`_json`, the accelerator behind it, costs a tenth. Where an interpreter has no `_json`, the
`json` package is used, with the same results.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    import _json as _c
except ImportError:  # an interpreter without the accelerator
    _c = None  # type: ignore[assignment]

_WHITESPACE = " \t\n\r"


if _c is None:
    import json as _json_package

    def loads(text: str) -> Any:
        return _json_package.loads(text)

    def dumps(value: Any) -> str:
        return _json_package.dumps(value, separators=(",", ":"), allow_nan=False)

else:

    class _Context:
        """What json.decoder.JSONDecoder passes to the C scanner."""

        strict = True
        object_hook = None
        object_pairs_hook = None
        parse_float = float
        parse_int = int
        parse_string = staticmethod(_c.scanstring)
        memo: dict[str, str] = {}

        @staticmethod
        def parse_constant(name: str) -> Any:
            raise ValueError(f"{name} is not JSON")

    _SCANNER: Any = _c.make_scanner
    _ENCODER: Any = _c.make_encoder

    def loads(text: str) -> Any:
        """The value of one JSON document; ValueError says where it is malformed."""
        start = 0
        while start < len(text) and text[start] in _WHITESPACE:
            start += 1
        try:
            value, end = _SCANNER(_Context)(text, start)
        except StopIteration as stop:
            raise ValueError(f"not JSON: no value at character {stop.value}") from None
        except RecursionError:
            raise ValueError("not JSON: nested too deeply") from None
        if text[end:].strip(_WHITESPACE):
            raise ValueError(f"not JSON: more text after the value, at character {end}")
        return value

    def _refuse(value: object) -> Any:
        raise TypeError(f"{type(value).__name__} has no JSON form")

    def dumps(value: Any) -> str:
        """`value` as compact ASCII JSON; keys keep their order."""
        encode = _ENCODER(None, _refuse, _c.encode_basestring_ascii, None, ":", ",", False, False, False)
        return "".join(encode(value, 0))
