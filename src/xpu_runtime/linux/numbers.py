"""Numbers in the kernel's files, of sysfs and of controllers."""

from __future__ import annotations


def is_number(text: str) -> bool:
    """Whether it is a decimal number of no more than 64 bits."""
    return text.isascii() and text.isdigit() and len(text) <= 20
