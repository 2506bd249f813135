"""Requests, for tests that need no spec."""

from __future__ import annotations

from xpu_runtime.request.parse import read, refuse
from xpu_runtime.request.request import Request


def parse(variables: dict[str, str], *, step: int = 5) -> Request:
    """The request in `variables` (XPU_* names); RequestError with all its errors."""
    found, problems = read(variables, step=step)
    refuse(problems)
    return found
