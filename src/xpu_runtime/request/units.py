"""Amounts of memory, in and out: the only parser and the only printer of sizes.

Suffixes are binary, as with `docker run -m`: 4G, 4GB, 4Gi and 4GiB are all 4 x 2^30 bytes.
Decimals are exact (1.5G); no floating point takes part.
"""

from __future__ import annotations

from xpu_runtime.value import Value

MIB = 1 << 20

_SHIFTS = {"B": 0, "K": 10, "M": 20, "G": 30, "T": 40}

#: No device comes near it; it keeps a long number from becoming an expensive one.
_MAX_DIGITS = 18


class Memory(Value):
    """An amount of device memory: bytes, or a share of whatever device it lands on."""

    bytes: int | None = None
    #: Millionths of the device, 1 to 1,000,000; set where `bytes` is None.
    millionths: int | None = None

    def on(self, device_bytes: int) -> int:
        """Bytes of a device with `device_bytes`; shares are rounded down to whole MiB, at least one."""
        if self.bytes is not None:
            return self.bytes
        share = device_bytes * (self.millionths or 0) // 1_000_000
        if self.millionths == 1_000_000:
            return device_bytes
        return max(share // MIB, 1) * MIB


def _decimal(text: str) -> tuple[int, int] | None:
    """`text` as (digits, power of ten below the point): 1.50 is (150, 2)."""
    whole, point, fraction = text.partition(".")
    digits = whole + fraction
    if not digits.isascii() or not digits.isdigit() or not whole or (point and not fraction):
        return None
    if len(digits) > _MAX_DIGITS:
        return None
    return int(digits), len(fraction)


def parse_memory(text: str) -> Memory:
    """`4G`, `4096MiB`, `1.5g`, `50%`; ValueError says what is wrong with anything else."""
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
    if not unit:
        raise ValueError("has no unit")
    power = unit[0] if unit[0] in _SHIFTS else ""
    if not power or unit[1:] not in (("",) if power == "B" else ("", "B", "I", "IB")):
        raise ValueError(f"has an unknown unit {unit!r}")
    amount = (number[0] << _SHIFTS[power]) // 10 ** number[1]
    if amount <= 0:
        raise ValueError("is no memory at all")
    return Memory(bytes=amount)


def show(amount: int) -> str:
    """Bytes for people, exact and short: `4096 MiB`, else `4097.5 MiB`-like with one decimal."""
    mib, rest = divmod(amount, MIB)
    if not rest:
        return f"{mib} MiB"
    return f"{mib}.{rest * 10 // MIB} MiB"


def as_variable(amount: int) -> str:
    """Bytes in a form that `parse_memory` reads, never more than `amount` from 1 MiB on: `4G`, `4100M`."""
    if amount >= 1 << 30 and amount % (1 << 30) == 0:
        return f"{amount >> 30}G"
    if amount >= MIB:
        return f"{amount // MIB}M"
    return f"{amount}B"
