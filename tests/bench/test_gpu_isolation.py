"""The script that watches a container's work while another container fails, on a simulated card."""

from __future__ import annotations

from typing import Any

import card
import isolation
import pytest

from .scripts import RECORD, failures


class Child:
    """A program that has printed `said`, and has ended if it has a `status`."""

    def __init__(self, said: str, status: int | None = None) -> None:
        self._said, self._status = said, status

    def output(self) -> str:
        return self._said

    def poll(self) -> int | None:
        return self._status

    def kill(self) -> list[int]:
        return []


@pytest.mark.parametrize(
    ("rate", "status", "used", "wrong"),
    [
        (90.0, None, [0, 0], ""),
        (30.0, None, [0, 0], "the first container goes on, with 30 % of its kernels alone"),
        (90.0, 1, [0, 0], "the first container goes on"),
        (90.0, None, [0, 64 << 20], "+64 MiB of the card stay"),
    ],
)
def test_a_lack_of_isolation_is_found(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rate: float,
    status: int | None,
    used: list[int],
    wrong: str,
) -> None:
    monkeypatch.setattr(card, "_failed", [])
    monkeypatch.setattr(isolation, "BACK_S", 0.1)
    monkeypatch.setattr(isolation, "rate", lambda _: rate)
    started = iter([Child(isolation.READY, status), Child(isolation.READY)])
    monkeypatch.setattr(isolation, "program", lambda *_: next(started))
    amounts: list[int] = list(used)
    place: Any = None
    trial = isolation.Trial(RECORD, place, place, lambda: amounts.pop(0) if len(amounts) > 1 else amounts[0])
    trial.alone = 100.0
    trial.goes_wrong("killed amid kernels", ends=False)
    failed = failures(capsys.readouterr().out)
    assert len(failed) == bool(wrong) and wrong in "".join(failed)
