"""Protocol Buffers' wire format, for messages that are declared as values.

The kubelet's two interfaces have a few small messages. With google.protobuf for them the plugin would be 3 MB
larger, of the 40 that it may have, and its generated files would bind it to one range of versions of that
package; grpcio itself takes bytes. Only the types of these messages are here: strings, booleans, maps of
strings, and messages in messages.

The format: "Encoding" on protobuf.dev.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from xpu_runtime.value import Value

#: Kinds of fields.
TEXT, FLAG, TEXTS, PAIRS, ONE, MANY = range(6)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: A varint has 64 bits at the most.
_LONGEST_VARINT = 10

_Message = TypeVar("_Message", bound="Message")


class Message(Value):
    """Base of messages. `WIRE` has for each field its number, its kind and, for ONE and MANY, the class of
    its items; every field has its default."""

    #: Without an annotation, or it would be a field.
    WIRE = {}  # type: ignore[var-annotated]

    def encoded(self) -> bytes:
        """The message as bytes; fields that have their default are left out, as proto3 does."""
        out = bytearray()
        for name, (number, kind, *_) in self.WIRE.items():
            for wire_type, data in _pieces(kind, getattr(self, name)):
                _write_varint(out, number << 3 | wire_type)
                if wire_type == _BYTES:
                    _write_varint(out, len(data))
                    out += data
                else:
                    _write_varint(out, data)
        return bytes(out)

    @classmethod
    def decoded(cls: type[_Message], data: bytes) -> _Message:
        """The message in `data`; fields that are not known are skipped. ValueError where it is none."""
        by_number = {number: (name, kind, *of) for name, (number, kind, *of) in cls.WIRE.items()}
        found: dict[str, Any] = {}
        for number, wire_type, value in _fields(data):
            if number in by_number:
                name, kind, *of = by_number[number]
                _add(found, name, kind, of, wire_type, value)
        return cls(**{name: tuple(value) if type(value) is list else value for name, value in found.items()})


def _pieces(kind: int, value: Any) -> Iterator[tuple[int, Any]]:
    """The value of a field, as (wire type, bytes or number) for each time that the field is written."""
    if kind == TEXT:
        if value:
            yield _BYTES, value.encode()
    elif kind == FLAG:
        if value:
            yield _VARINT, 1
    elif kind == TEXTS:
        for each in value:
            yield _BYTES, each.encode()
    elif kind == PAIRS:
        for pair in value.items():
            yield _BYTES, _Pair(*pair).encoded()
    elif kind == MANY:
        for each in value:
            yield _BYTES, each.encoded()
    elif value is not None:
        yield _BYTES, value.encoded()


def _add(found: dict[str, Any], name: str, kind: int, of: list[Any], wire_type: int, value: Any) -> None:
    """Takes a field that was read into `found`; ValueError where it is of another type."""
    if (wire_type == _VARINT) != (kind == FLAG) or wire_type not in (_VARINT, _BYTES):
        raise ValueError(f"the field {name} has the wire type {wire_type}")
    if kind == FLAG:
        found[name] = bool(value)
    elif kind == TEXT:
        found[name] = value.decode()
    elif kind == TEXTS:
        found.setdefault(name, []).append(value.decode())
    elif kind == PAIRS:
        pair = _Pair.decoded(value)
        found.setdefault(name, {})[pair.key] = pair.value
    elif kind == MANY:
        found.setdefault(name, []).append(of[0].decoded(value))
    else:
        found[name] = of[0].decoded(value)


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """(number, wire type, bytes or number) of each field in `data`; ValueError."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, at = _read_varint(data, at)
            yield number, wire_type, value
            continue
        if wire_type == _BYTES:
            length, at = _read_varint(data, at)
        elif wire_type in (_FIXED64, _FIXED32):
            length = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type}")
        if at + length > len(data):
            raise ValueError("cut short")
        yield number, wire_type, data[at : at + length]
        at += length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    for position in range(at, min(at + _LONGEST_VARINT, len(data))):
        byte = data[position]
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found & (1 << 64) - 1, position + 1
        shift += 7
    raise ValueError("a number is cut short, or too long")


def _write_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


class _Pair(Message):
    """An entry of a map."""

    key: str = ""
    value: str = ""
    WIRE = {"key": (1, TEXT), "value": (2, TEXT)}
