"""Names of containers that are remembered: no more of them than there is use for, however long one looks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from xpu_runtime.ledger.grants import Grant
from xpu_runtime.linux import bounded
from xpu_runtime.observe import names


def test_a_long_watch_remembers_only_the_latest_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_REMEMBERED", 10)

    def together(calls: list[object], _: float) -> list[bounded.Answer]:
        """A bundle's name is asked of containerd, all others of docker."""
        return [bounded.Answer(tuple(_named(number))), bounded.Answer(((f"{number:064x}", f"d{number}"),))]

    monkeypatch.setattr(bounded, "together", together)
    known = names.Names()
    for number in range(100):
        known.learn([_grant(number)], [f"{number:064x}"])
    assert [known.of_id(f"{number:064x}") for number in (89, 90, 99)] == [None, "d90", "d99"]
    assert [known.of(_grant(number)) for number in (89, 90, 99)] == [None, "k8s.io/90", "k8s.io/99"]
    sizes = [len(each) for each in vars(known).values() if isinstance(each, dict)]
    assert max(sizes) == 10 and len(sizes) == 4


def _grant(number: int) -> Grant:
    return Grant(number, f"c{number}", f"/bundle/{number}", 1, 1, "", "running", "hook", 0.0, ())


def _named(number: int) -> Iterator[tuple[str, str]]:
    yield f"/bundle/{number}", f"k8s.io/{number}"
