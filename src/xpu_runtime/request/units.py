"""Amounts of memory: the only parser and the only printer of sizes.

Suffixes are binary, as with `docker run -m`: 4G, 4GB, 4Gi and 4GiB are all 4 x 2^30 bytes. Decimals are exact
(1.5G), without floating point. Sizes are printed in the form of XPU_MEM (20G, 512M). A refusal prints them in
the unit of the request: 15.9G for a request of 20G, not 16281.5 MiB. Nothing here knows a variable or a
device.
"""

from __future__ import annotations

from xpu_runtime.value import Value

MIB = 1 << 20

_SHIFTS = {"B": 0, "K": 10, "M": 20, "G": 30, "T": 40}

#: More than any amount needs: very long numbers are expensive to parse.
_MAX_DIGITS = 18


class Memory(Value):
    """An amount of device memory: bytes, or a share of the granted device."""

    bytes: int | None = None
    #: Millionths of the device, 1 to 1,000,000; set if `bytes` is None.
    millionths: int | None = None
    #: The unit in which it was written, a key of _SHIFTS ("" for a share): only for printing.
    unit: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Memory) and self._amount() == other._amount()

    def __hash__(self) -> int:
        return hash(self._amount())

    def _amount(self) -> tuple[int | None, int | None]:
        return self.bytes, self.millionths

    def text(self) -> str:
        """For people: `20G`, `4100M`, `50%`."""
        if self.bytes is None:
            return f"{(self.millionths or 0) / 10_000:g}%"
        return show_exactly(self.bytes, self.unit)

    def on(self, device_bytes: int) -> int:
        """The bytes on a device with `device_bytes`; share_of computes those of a share."""
        if self.bytes is not None:
            return self.bytes
        return share_of(device_bytes, self.millionths or 0)


def share_of(device_bytes: int, millionths: int) -> int:
    """The bytes of so many millionths of a device: whole MiB, rounded down, at least one. The whole device is
    not rounded."""
    if millionths == 1_000_000:
        return device_bytes
    return max(device_bytes * millionths // 1_000_000 // MIB, 1) * MIB


def _decimal(text: str) -> tuple[int, int] | None:
    """`text` as (digits, power of ten below the point): 1.50 is (150, 2)."""
    whole, point, fraction = text.partition(".")
    digits = whole + fraction
    if not digits.isascii() or not digits.isdigit() or not whole or (point and not fraction):
        return None
    if len(digits) > _MAX_DIGITS:
        return None
    return int(digits), len(fraction)


class NearMiss(ValueError):
    """A value that is not allowed; `nearest` is the nearest one that is."""

    def __init__(self, text: str, nearest: str) -> None:
        super().__init__(text)
        self.nearest = nearest


def parse_cores(text: str, step: int) -> int:
    """The percentage in `30` or `30%`, a multiple of `step` from 1 to 100.

    ValueError names the allowed values; it is a NearMiss for a number outside of them.
    """
    digits = text.strip().removesuffix("%").strip()
    allowed = f"must be a percentage from {step} to 100 in steps of {step}"
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
        raise ValueError(allowed)
    number = int(digits)
    if 1 <= number <= 100 and not number % step:
        return number
    raise NearMiss(allowed, str(min(max((number + step // 2) // step * step, step), 100)))


def parse_memory(text: str) -> Memory:
    """`4G`, `4096MiB`, `1.5g`, `50%`; ValueError, with the reason, for anything else."""
    text = text.strip()
    if text.endswith("%"):
        number = _decimal(text[:-1].strip())
        if number is None:
            raise ValueError("is not a percentage")
        millionths = number[0] * 10_000 // 10 ** number[1]
        if not 0 < millionths <= 1_000_000:
            raise ValueError("is not between 0% and 100%")
        return Memory(millionths=millionths)
    body = text.upper()
    unit = "".join(letter for letter in body if letter.isalpha())
    number = _decimal(body[: len(body) - len(unit)].strip() if unit and body.endswith(unit) else body)
    if number is None:
        raise ValueError("is not an amount of memory")
    if not number[0]:
        raise ValueError("is zero")
    if not unit:
        raise ValueError("has no unit")
    power = unit[0] if unit[0] in _SHIFTS else ""
    if not power or unit[1:] not in (("",) if power == "B" else ("", "B", "I", "IB")):
        raise ValueError(f"has an unknown unit {unit!r}")
    amount = (number[0] << _SHIFTS[power]) // 10 ** number[1]
    if amount <= 0:
        raise ValueError("is zero")
    return Memory(bytes=amount, unit=power)


def show(amount: int, unit: str = "", decimals: int = 1) -> str:
    """Bytes for people, rounded down to a decimal of `unit`, or of the next smaller unit that they fill.

    Without a unit: `4G`, `1.5G` and `4100M` if that is exact; otherwise rounded down, such as `15.9G`.
    """
    if not unit:
        unit = "G" if amount >= 1 << 30 and (amount % MIB or not amount % (1 << 29)) else "M"
    if not amount:
        return f"0{unit}"
    shift = max(s for s in _SHIFTS.values() if s <= _SHIFTS[unit] and amount >> s)
    letter = next(letter for letter, power in _SHIFTS.items() if power == shift)
    whole, rest = amount >> shift, amount & ((1 << shift) - 1)
    if not rest or not decimals:
        return f"{whole}{letter}"
    # 15.9G is no whole number of bytes: parsing rounds it down, and it must not print as 15.8G.
    fraction = (rest * 10**decimals + 10**decimals - 1) >> shift
    return f"{whole}.{fraction:0{decimals}}{letter}"


def show_exactly(amount: int, unit: str = "") -> str:
    """Requested bytes, with as many decimals as necessary: `1.25G`."""
    texts = [show(amount, unit, decimals) for decimals in range(4)]
    return next((text for text in texts if _shown(text) == amount), texts[1])


def _shown(text: str) -> int:
    """The bytes in a text of `show`, which can be larger than parse_memory accepts."""
    whole, _, fraction = text[:-1].partition(".")
    amount: int = (int(whole + fraction) << _SHIFTS[text[-1]]) // 10 ** len(fraction)
    return amount


def show_apart(amount: int, requested: int, unit: str = "") -> tuple[str, str]:
    """The available and the requested amount in one unit. It is a smaller unit if both would look the
    same."""
    first, second = show(amount, unit), show_exactly(requested, unit)
    for smaller in ("M", "K", "B"):
        if first != second or amount == requested:
            break
        first, second = show(amount, smaller), show_exactly(requested, smaller)
    return first, second


def as_variable(amount: int) -> str:
    """Bytes in a form that XPU_MEM takes, at most `amount` and less than 1 MiB below it: `4G`, `1.5G`,
    `4100M`."""
    if amount >= 1 << 30 and amount % (1 << 29) == 0:
        return show(amount, "G")
    if amount >= MIB:
        return f"{amount // MIB}M"
    return f"{amount}B"
