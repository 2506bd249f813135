"""python3 -m share PREFIX: runs scenarios on a card; prints and writes a table, JSON and a picture.

PREFIX is the product's installation (make root: build/root). Needs root, runc and busybox on PATH, and a
quiet machine. It uses a simulated card unless --real is given. Exit status 1: something could not be run;
figures do not change the status. SIGINT, SIGTERM and SIGHUP end it and leave nothing. After SIGKILL the next
run removes the leftovers.
"""

from __future__ import annotations

import argparse
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import timing

from share import picture, runs, scenarios, table
from share.loads import LOADS, Load
from share.measure import Native, Result
from share.node import Node, NodeError
from share.scenarios import Scenario
from xpu_runtime.limits import pages

NATIVE_SECONDS = (5.0, 2.0)
T = TypeVar("T")


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m share", description="Measures how well limits on compute hold."
    )
    parser.add_argument("prefix", type=Path, help="where the product is installed")
    parser.add_argument("--quick", action="store_const", const="quick", dest="set", help="a minute or two")
    parser.add_argument("--set", choices=scenarios.SETS, help="which scenarios (full)")
    # of both: argparse takes an option's own default from the first of a name
    parser.set_defaults(set="full")
    parser.add_argument("--only", metavar="TEXT", help="only scenarios with TEXT in their names")
    parser.add_argument(
        "--part",
        type=_part,
        metavar="K/N",
        default=(1, 1),
        help="only the K-th of N parts of equal length (--set full: 4 for 8 minutes each)",
    )
    parser.add_argument(
        "--within",
        type=float,
        metavar="SECONDS",
        help="leave out scenarios that would end later, and name them",
    )
    parser.add_argument("--law", choices=runs.LAWS, default="ours", help="the control law of the caps (ours)")
    parser.add_argument("--real", action="store_true", help="this machine's card, not a simulated one")
    parser.add_argument("--topology", default="4xT4-R580", help="the simulated cards (4xT4-R580)")
    parser.add_argument("--cards", type=int, help="the number of cards that are used at once")
    parser.add_argument(
        "--seconds", type=float, help="seconds of each load alone without a limit (5; --quick: 2)"
    )
    parser.add_argument("--out", type=Path, help="a folder for table.md, results.json and overview.svg")
    parser.add_argument(
        "--page", type=Path, help="a page with comments `share: LAW`; a summary goes between them"
    )
    return parser.parse_args(words)


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text} is not a part such as 2/4")
    return int(number), int(count)


class Session:
    """One node, the loads alone, and the scenarios, one after another or on cards of their own."""

    def __init__(
        self,
        node: Node,
        law: str,
        cards: int,
        seconds: float,
        keep: Callable[[Sequence[tuple[Scenario, Result]]], None] = lambda judged: None,
        end: float = math.inf,
    ) -> None:
        """After each scenario `keep` gets all results so far; `end`: all must be over by then."""
        self._end = end
        self._node, self._law, self._seconds, self._keep = node, law, seconds, keep
        self._keeping = threading.Lock()
        #: Scenarios that were not run: they would have ended too late.
        self.left_out: list[str] = []
        self._cards: queue.SimpleQueue[int] = queue.SimpleQueue()
        for card in range(cards):
            self._cards.put(card)
        self._side_by_side = cards
        self.natives: dict[str, Native] = {}

    def measure_natives(self, loads: Sequence[Load]) -> None:
        def one(load: Load) -> None:
            card = self._cards.get()
            try:
                self.natives[load.name] = runs.run_native(self._node, load, card, self._seconds)
            finally:
                self._cards.put(card)
            native = self.natives[load.name]
            said = "" if native.busy else f", {native.demand:.1f} % of the card"
            if load.saturates and not native.busy:
                said += " (it waits for this host: be careful with its figures)"
            print(
                f"{load.name} alone: {native.rate:.4f} s of work a second{said}, "
                f"p99 of a launch {table.duration(native.p99_ns)}",
                flush=True,
            )

        self._each(one, [load for load in loads if load.light], [load for load in loads if not load.light])

    def measure(self, wanted: Sequence[Scenario]) -> list[tuple[Scenario, Result]]:
        """Results in the order of `wanted`. A scenario that cannot be run is reported and left out."""
        results: dict[str, Result] = {}

        def one(scenario: Scenario) -> None:
            card = self._cards.get()
            try:
                if time.monotonic() + runs.length(scenario) > self._end:
                    self.left_out.append(scenario.name)
                    print(f"{scenario.name}: left out: it would end too late", file=sys.stderr, flush=True)
                    return
                natives = [self.natives[container.load.name] for container in scenario.containers]
                with self._agent_for(scenario):
                    result = runs.run(self._node, scenario, card, natives, self._law)
                with self._keeping:
                    results[scenario.name] = result
                    self._keep(_in_order(wanted, results))
            except NodeError as error:
                self._node.pause(0)
                print(f"{scenario.name}: {error}", file=sys.stderr, flush=True)
                return
            finally:
                self._cards.put(card)
            got = ", ".join(
                f"{each.got:.1f} of {each.expected:.1f} %" for each in results[scenario.name].outcomes
            )
            print(f"{scenario.name}: {got}", flush=True)

        self._each(one, [each for each in wanted if each.light], [each for each in wanted if not each.light])
        return _in_order(wanted, results)

    @contextmanager
    def _agent_for(self, scenario: Scenario) -> Iterator[None]:
        """NodeError if the scenario needs the agent, and the agent does not run all the time."""
        if _needs_agent(scenario):
            self._node.check_agent()
        yield
        if _needs_agent(scenario):
            self._node.check_agent()

    def _each(self, call: Callable[[T], None], light: Sequence[T], heavy: Sequence[T]) -> None:
        with ThreadPoolExecutor(self._side_by_side) as pool:
            list(pool.map(call, light))
        for each in heavy:
            call(each)


def _in_order(wanted: Sequence[Scenario], results: Mapping[str, Result]) -> list[tuple[Scenario, Result]]:
    return [(each, results[each.name]) for each in wanted if each.name in results]


class Signals:
    """The first signal that asks for the end. It interrupts nothing: waits on the node see it."""

    def __init__(self) -> None:
        self.came, self.number = threading.Event(), 0
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) != signal.SIG_IGN:  # as under nohup
                signal.signal(each, self._end)

    def _end(self, number: int, _: object) -> None:
        if not self.came.is_set():
            self.number = number
            print("stopped: the containers and the node are removed", file=sys.stderr, flush=True)
        self.came.set()


def main(words: Sequence[str]) -> int:
    signals = Signals()
    begin = time.monotonic()
    try:
        return _run(words, begin, signals.came)
    except NodeError as error:
        if not signals.number:
            raise SystemExit(f"FAILED: not measured: {' '.join(str(error).split())}") from error
        return 128 + signals.number
    except BaseException:
        # Not Stopped alone: Ctrl-C also ends the running programs, which then have failed.
        if not signals.number:
            raise
        return 128 + signals.number


def _run(words: Sequence[str], begin: float, stop: threading.Event) -> int:
    options = arguments(words)
    wanted = [each for each in scenarios.SETS[options.set]() if not options.only or options.only in each.name]
    if options.law != "ours":
        wanted = [each for each in wanted if not each.change]  # `xpu set` changes only the product's caps
    if not wanted:
        raise SystemExit(f"no scenario of the set {options.set} has {options.only!r} in its name")
    wanted = scenarios.part(wanted, *options.part)
    cards = options.cards or (1 if options.real else int(options.topology.split("x")[0]))
    quiet, command = timing.busy(), _command(words[1:])
    card = "a real card" if options.real else f"{options.topology}, simulated"
    with Node(options.prefix, options.topology, real=options.real, stop=stop) as node:
        node.host_pids = options.real and options.law == "tokens"
        if options.real:
            node.calibrate(0)
        said = f"{card}; {node.call(str(node.xpu), '--version').strip()}; {quiet}"

        def keep(judged: Sequence[tuple[Scenario, Result]]) -> None:
            if options.out:
                text = table.markdown(judged, command, said)
                _write(options.out, text, table.document(judged, session.natives, command, said))

        seconds = options.seconds or NATIVE_SECONDS[options.set == "quick"]
        session = Session(node, options.law, cards, seconds, keep, begin + (options.within or math.inf))
        names = {container.load.name for scenario in wanted for container in scenario.containers}
        session.measure_natives([load for name, load in LOADS.items() if name in names])
        if (
            options.law == "ours"
            and any(_needs_agent(scenario) for scenario in wanted)
            and not node.start_agent()
        ):
            print("there is no `xpu agent`: burst and weight hold as fixed", file=sys.stderr)
        judged = session.measure(wanted)
    print(f"\n{table.markdown(judged, command, said)}")
    if options.out:
        (options.out / "overview.svg").write_text(picture.overview(_title(options.law), judged))
    if options.page:
        text = table.summary(judged, session.natives, command, said)
        page = table.put_into(options.page.read_text(), options.law, text)
        options.page.write_text(page)
    if not judged:
        print("nothing was judged: give it more time (--within)", file=sys.stderr)
        return 1
    return 0 if len(judged) + len(session.left_out) == len(wanted) else 1


def _command(words: Sequence[str]) -> str:
    """The command that makes the same figures again, for any caller: without the output's place."""
    kept: list[str] = []
    given = iter(words)
    for word in given:
        if word in ("--out", "--page"):
            next(given)
        else:
            kept.append(f"'{word}'" if " " in word else word)
    return "make bench-share" + (f' SHARE="{" ".join(kept)}"' if kept else "")


def _needs_agent(scenario: Scenario) -> bool:
    return any(pages.needs_agent(container.sched, container.priority) for container in scenario.containers)


def _write(folder: Path, text: str, document: str) -> None:
    """Each file is whole at any moment: a killed run leaves its results."""
    os.makedirs(folder, exist_ok=True)
    for name, content in (("table.md", text), ("results.json", document)):
        new = folder / f".{name}.new"
        new.write_text(content)
        new.rename(folder / name)


def _title(law: str) -> str:
    title = {"ours": "Shares under XPU_CORES", "none": "Shares without a limit"}
    return title.get(law, "Shares under a token bucket fed by NVML, every 120 ms")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
