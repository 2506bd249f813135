"""XPU_REQUIRE: conditions on driver and device, in the notation of NVIDIA's runtime.

Spaces separate alternatives. Commas separate the conditions of an alternative: `brand=tesla,driver>=450
cuda>=12.0` holds on a Tesla with driver 450 or, on any card, with CUDA 12. The caller passes the facts to
compare with; no driver is asked here.
"""

from __future__ import annotations

from xpu_runtime.request.request import Condition

SUBJECTS = ("cuda", "driver", "arch", "brand", "vendor")
#: The conditions on names; the others are on versions.
_NAMES = ("brand", "vendor")
_OPERATORS = (">=", "<=", "!=", "=", ">", "<")
_MAX_LENGTH = 8192


def parse(text: str) -> tuple[tuple[Condition, ...], ...]:
    """The alternatives in `text`; ValueError names the condition that is wrong."""
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"is longer than {_MAX_LENGTH} characters")
    return tuple(tuple(_condition(each) for each in group.split(",")) for group in text.split())


def _condition(text: str) -> Condition:
    for operator in _OPERATORS:
        subject, separator, wanted = text.partition(operator)
        if not separator:
            continue
        if subject not in SUBJECTS:
            raise ValueError(f"{text!r}: unknown property {subject!r}; known are {', '.join(SUBJECTS)}")
        if subject in _NAMES:
            if operator not in ("=", "!=") or not wanted:
                raise ValueError(f"{text!r}: a {subject} can only be compared with = or !=, and with a name")
        elif version(wanted) is None:
            raise ValueError(f"{text!r}: {wanted!r} is not a version, such as 12.0")
        return Condition(subject, operator, wanted)
    raise ValueError(f"{text!r} is not a condition; write for example cuda>=12.0 or brand=tesla")


def version(text: str) -> tuple[int, ...] | None:
    """`12.0` as (12, 0); None if it is no version. At most six numbers of nine digits."""
    numbers = text.split(".")
    if len(numbers) > 6 or any(not n.isascii() or not n.isdigit() or len(n) > 9 for n in numbers):
        return None
    return tuple(int(number) for number in numbers)


def _compare(have: tuple[int, ...], want: tuple[int, ...]) -> int:
    # 12 equals 12.0; but `driver<451` must not hold for 451.10: compare at full length.
    length = max(len(have), len(want))
    left, right = have + (0,) * (length - len(have)), want + (0,) * (length - len(want))
    return (left > right) - (left < right)


def holds(condition: Condition, facts: dict[str, str]) -> bool:
    """Whether a device with these facts (text by subject) meets the condition. An unknown fact meets none."""
    have = facts.get(condition.subject)
    if not have:
        return False
    if condition.subject in _NAMES:
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
    """The first requirement that does not hold, as text with the known facts; None if all hold."""
    for alternatives in requirements:
        if not any(all(holds(condition, facts) for condition in group) for group in alternatives):
            wanted = " or ".join(",".join(str(condition) for condition in group) for group in alternatives)
            have = ", ".join(f"{name} {value}" for name, value in facts.items() if value)
            asked = dict.fromkeys(condition.subject for group in alternatives for condition in group)
            unknown = [subject for subject in asked if not facts.get(subject)]
            return f"requires {wanted[:200]}, and has {have}{_and_no(unknown)}"
    return None


def _and_no(unknown: list[str]) -> str:
    return (
        f"; its {' and '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} not known" if unknown else ""
    )


def vendors(requirements: tuple[tuple[tuple[Condition, ...], ...], ...], known: list[str]) -> list[str]:
    """The `known` vendors that the conditions on `vendor` allow; all of them without such a condition."""
    return [name for name in known if all(_allows(alternatives, name) for alternatives in requirements)]


def _allows(alternatives: tuple[tuple[Condition, ...], ...], vendor: str) -> bool:
    facts = {"vendor": vendor}
    return any(
        all(holds(condition, facts) for condition in group if condition.subject == "vendor")
        for group in alternatives
    )


def names_vendor(requirements: tuple[tuple[tuple[Condition, ...], ...], ...]) -> bool:
    conditions = (each for alternatives in requirements for group in alternatives for each in group)
    return any(condition.subject == "vendor" for condition in conditions)
