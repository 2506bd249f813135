"""The loads of one of caps.py's phases, and its measurements besides the loads' logs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import places
from runner import Runner


class Group:
    """One container (or the host) with its loads; `cap`: its current cap, 0 for none."""

    def __init__(
        self, place: places.Place, kinds: Sequence[str], options: argparse.Namespace, cap: int = 0
    ) -> None:
        self.place, self.cap = place, cap
        more = ["--tiny"] if options.tiny else []
        self.loads = {kind: Runner(place, kind, more) for kind in kinds}


@dataclass(frozen=True)
class Asked:
    """A load that runs in a phase, and its cap."""

    group: Group
    kind: str
    cap: int

    @property
    def runner(self) -> Runner:
        return self.group.loads[self.kind]


@dataclass(frozen=True)
class Phase:
    """The begin of judging (CLOCK_MONOTONIC), its length, the card's clock meanwhile, and the driver's
    samples: the percentage of busy time, in all and for each process."""

    since: float
    seconds: float
    clock: float
    busy: float | None
    of: list[float | None]

    @property
    def until(self) -> float:
        return self.since + self.seconds

    @property
    def said(self) -> str:
        """The driver's figures as text."""
        of = "/".join("?" if each is None else f"{each:.0f}" for each in self.of)
        busy = "?" if self.busy is None else f"{self.busy:.1f}"
        return f"{self.clock:.0f} MHz, NVML: busy {busy} %, processes {of}"


def joined(numbers: Sequence[float]) -> str:
    return "/".join(f"{each:.1f}" for each in numbers)
