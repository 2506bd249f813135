"""XPU_REQUIRE: conditions on driver and device, in the reference runtime's notation.

Alternatives are parted by spaces, the conditions of an alternative by commas:
`brand=tesla,driver>=450 cuda>=12.0` holds on a Tesla with driver 450 or, on any card, with CUDA 12.
"""

from __future__ import annotations

from xpu_runtime.request.request import Condition

SUBJECTS = ("cuda", "driver", "arch", "brand")
_OPERATORS = (">=", "<=", "!=", "=", ">", "<")
_MAX_LENGTH = 8192


def parse(text: str) -> tuple[tuple[Condition, ...], ...]:
    """The alternatives in `text`; ValueError names the part that is wrong."""
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"is longer than {_MAX_LENGTH} characters")
    return tuple(tuple(_condition(part) for part in group.split(",")) for group in text.split())


def _condition(text: str) -> Condition:
    for operator in _OPERATORS:
        subject, separator, wanted = text.partition(operator)
        if not separator:
            continue
        if subject not in SUBJECTS:
            raise ValueError(f"{text!r} asks for {subject!r}; known are {', '.join(SUBJECTS)}")
        if subject == "brand":
            if operator not in ("=", "!=") or not wanted:
                raise ValueError(f"{text!r}: a brand is compared with = or != to a name")
        elif version(wanted) is None:
            raise ValueError(f"{text!r}: {wanted!r} is no version; write {subject}>=12.0")
        return Condition(subject, operator, wanted)
    raise ValueError(f"{text!r} is no condition; write e.g. cuda>=12.0 or brand=tesla")


def version(text: str) -> tuple[int, ...] | None:
    """`12.0` as (12, 0), None if it is no version; at most six parts of nine digits."""
    parts = text.split(".")
    if len(parts) > 6 or any(not p.isascii() or not p.isdigit() or len(p) > 9 for p in parts):
        return None
    return tuple(int(part) for part in parts)


def _compare(have: tuple[int, ...], want: tuple[int, ...]) -> int:
    # 12 equals 12.0; but `driver<451` must not hold for 451.10: compare at full length.
    length = max(len(have), len(want))
    left, right = have + (0,) * (length - len(have)), want + (0,) * (length - len(want))
    return (left > right) - (left < right)


def holds(condition: Condition, facts: dict[str, str]) -> bool:
    """Whether a device with these facts (subject to text) meets the condition; unknown facts meet none."""
    have = facts.get(condition.subject)
    if not have:
        return False
    if condition.subject == "brand":
        return (have.lower() == condition.wanted.lower()) == (condition.operator == "=")
    left, right = version(have), version(condition.wanted)
    if left is None or right is None:
        return False
    order = _compare(left, right)
    return {
        ">=": order >= 0,
        "<=": order <= 0,
        ">": order > 0,
        "<": order < 0,
        "=": order == 0,
        "!=": order != 0,
    }[condition.operator]


def unmet(requirements: tuple[tuple[tuple[Condition, ...], ...], ...], facts: dict[str, str]) -> str | None:
    """The first requirement that does not hold, as text with what there is instead; None if all hold."""
    for alternatives in requirements:
        if not any(all(holds(condition, facts) for condition in group) for group in alternatives):
            wanted = " or ".join(",".join(str(condition) for condition in group) for group in alternatives)
            have = ", ".join(f"{name} {value}" for name, value in facts.items() if value)
            return f"needs {wanted[:200]}; here is {have}"
    return None
