"""A change of limits in another process, so that a driver which hangs blocks only that process.

A call into a driver can hang for ever (linux/deadline.py). Its last request may still come into force when
the driver answers again: repeating the change corrects that. It knows no driver: any backend's change can run
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from xpu_runtime.errors import DeviceError
from xpu_runtime.limits.backend import Change
from xpu_runtime.linux import child
from xpu_runtime.linux.deadline import HelperProcess

#: Seconds for the driver's start, and for each call from then on, during which other changes wait.
_START_S, _CALL_S = 20.0, 4.0


class SeparateProcess(Change):
    """The calls of `change`, which is entered in the other process, each with an end.

    DeviceError too where they do not end in time.
    """

    def __init__(self, change: Change) -> None:
        self._process = HelperProcess(partial(_open, change))
        self._problem: DeviceError | None = None

    def __enter__(self) -> SeparateProcess:
        try:
            self._ask((), _START_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def set(self, position: int, kind: str, value: int) -> None:
        self._ask((position, kind, value))

    def in_use(self, position: int, kind: str) -> int:
        return int(self._ask((position, kind)))

    def _ask(self, request: tuple[object, ...], seconds: float = _CALL_S) -> Any:
        if self._problem is not None:
            raise self._problem
        self._process.ask(request, seconds)
        answer = self._process.wait()
        assert answer is not None
        if answer.hung:
            self._problem = DeviceError(
                "the driver does not answer (see whether its own tools do)",
                "repeat the change when it does: `xpu inspect` shows what is in force",
            )
        elif answer.died:
            self._problem = DeviceError("the process that asks the driver has died", "repeat the change")
        if self._problem is not None:
            raise self._problem
        if answer.error:
            raise DeviceError(answer.error, answer.todo)
        return answer.values[0]


def _open(change: Change) -> Callable[[tuple[Any, ...]], Iterable[int]]:
    """The function that carries out a request: none, a limit to set, or a question for its use."""
    child.silence()
    change.__enter__()

    def values(request: tuple[Any, ...]) -> Iterable[int]:
        if len(request) == 3:
            change.set(*request)
        yield change.in_use(*request) if len(request) == 2 else 0

    return values
