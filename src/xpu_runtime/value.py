"""Small immutable values without the start-up cost of `dataclasses`.

The shim and the hook run once or more for every container, and importing `dataclasses` costs more than all of
their own work (`inspect`, `re`, `ast` come with it). `Value` has the parts that they need: positional and
keyword construction, defaults, equality, hash, repr, `replace`. mypy sees it as a frozen dataclass through
`dataclass_transform`. Independent of the values' meaning.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Self, dataclass_transform

    @dataclass_transform(frozen_default=True)
    class Value:
        _fields: tuple[str, ...]

        def replace(self, **changes: Any) -> Self: ...
        def as_dict(self) -> dict[str, Any]: ...

else:

    class Value:
        """Base of immutable values; subclasses annotate their fields, with defaults last."""

        _fields = ()

        def __init_subclass__(cls):
            own = tuple(cls.__dict__.get("__annotations__", ()))  # noqa: RUF063 - inspect is the cost to avoid
            cls._fields = cls._fields + tuple(name for name in own if name not in cls._fields)

        def __init__(self, *args, **kwargs):
            fields = self._fields
            if len(args) == len(fields) and not kwargs:  # most of the hundred that a start makes
                self.__dict__.update(zip(fields, args))
                return
            if len(args) > len(fields):
                raise TypeError(f"{type(self).__name__} takes {len(fields)} values, not {len(args)}")
            given = dict(zip(fields, args))
            for name, value in kwargs.items():
                if name not in fields:
                    raise TypeError(f"{type(self).__name__} has no field {name!r}")
                if name in given:
                    raise TypeError(f"{type(self).__name__} was given {name!r} twice")
                given[name] = value
            for name in fields:
                if name not in given:
                    try:
                        given[name] = getattr(type(self), name)
                    except AttributeError:
                        raise TypeError(f"{type(self).__name__} needs {name!r}") from None
            self.__dict__.update(given)

        def __setattr__(self, name, value):
            raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name!r}")

        __delattr__ = None

        def _values(self):
            return tuple(self.__dict__[name] for name in self._fields)

        def __eq__(self, other):
            return type(self) is type(other) and self._values() == other._values()

        def __hash__(self):
            return hash((type(self), self._values()))

        def __repr__(self):
            inner = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._fields)
            return f"{type(self).__name__}({inner})"

        def replace(self, **changes):
            """A copy with the named fields changed."""
            for name in changes:
                if name not in self._fields:
                    raise TypeError(f"{type(self).__name__} has no field {name!r}")
            return type(self)(*{**self.as_dict(), **changes}.values())

        def as_dict(self):
            """The fields by name, in order; nested values stay values."""
            return {name: self.__dict__[name] for name in self._fields}
