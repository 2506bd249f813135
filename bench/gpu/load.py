"""load.py KIND NAME FOLDER keeps a card busy as real programs do, and logs when work was completed.

matmul   products of matrices of 8192 x 8192 in bf16, launched ahead
decode   a decoder's step for a small batch as one CUDA graph, which each step waits for, as a server does
eager    the same for a small model without a graph: short kernels, launched more slowly than they run
train    a training step of a multi-layer perceptron in bf16 with Adam, batches copied from the host
spin     kernels of 500 us by the driver API: no framework is needed
short    kernels of 3 us by the driver API, launched more slowly than they run

It knows nothing of limits. caps.py controls it by a byte in FOLDER/NAME.control: `p` to pause, `r` to run,
`b` to run in bursts that keep the device busy for the percentage in the next byte, `c` to measure the
device's time for a unit of work, `q` to end. FOLDER/NAME.log has a line for each event: `ready`, `on TIME`,
`done TIME UNITS SECONDS OF` (all units completed by then, and the device's time for OF of them, if it is
known), `off TIME`, `unit SECONDS`. Times are seconds of CLOCK_MONOTONIC. The log adds no wait: events show
the completion of work that is launched ahead. The time between two events is the device's time for the units
between them, if these were launched before the first event came.
"""

from __future__ import annotations

import argparse
import collections
import mmap
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SKIPPED = 77
#: Seconds of work between two events, unless a unit is longer, and events that may be under way.
WINDOW_S, AHEAD = 0.002, 16
#: Seconds between two lines of work that is waited for, and the seconds of work that measure a unit.
LINE_S, UNIT_S = 0.005, 0.3
PAUSE, RUN, BURSTS, CALIBRATE, QUIT = b"prbcq"
#: Events in a burst.
BURST = 4


# ---- kinds: `unit` launches one unit, `event` makes an event; `waits`: each unit is waited for ----


class Torch:
    """The base of kinds with PyTorch."""

    waits = False

    def __init__(self, tiny: bool) -> None:
        try:
            import torch
        except ImportError as error:
            print(f"skipped: no PyTorch in {sys.executable}: {error}")
            sys.exit(SKIPPED)
        self.torch, self.tiny = torch, tiny
        torch.manual_seed(0)
        self.prepare()

    def prepare(self) -> None:
        raise NotImplementedError

    def event(self) -> Any:
        return self.torch.cuda.Event(enable_timing=True, blocking=True)

    def finish(self) -> None:
        self.torch.cuda.synchronize()

    def random(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device="cuda", dtype=self.torch.bfloat16)


class Matmul(Torch):
    def prepare(self) -> None:
        size = 1024 if self.tiny else 8192
        self.one, self.other, self.product = (self.random(size, size) for _ in range(3))

    def unit(self) -> None:
        self.torch.mm(self.one, self.other, out=self.product)


class Decode(Torch):
    """Four layers of a decoder. Each token reads 1.6 GB of weights, as with any small batch."""

    waits = True
    BATCH, LAYERS, LENGTH = 8, 4, 1024

    def prepare(self) -> None:
        torch, self.width = self.torch, self.wide()
        inner, heads = self.width * 11 // 4, self.width // 128
        shapes = ((self.width, 3 * self.width), (self.width, self.width), (self.width, 2 * inner))
        self.layers = [
            [*(self.random(*shape) for shape in shapes), self.random(inner, self.width)]
            for _ in range(self.LAYERS)
        ]
        self.caches = [self.random(2, self.BATCH, heads, self.LENGTH, 128) for _ in range(self.LAYERS)]
        self.tokens = self.random(self.BATCH, self.width)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            for _ in range(3):
                self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph), torch.no_grad():
            self.chosen = self.step()
        self.answer = torch.empty(self.BATCH, dtype=self.chosen.dtype, pin_memory=True)

    def wide(self) -> int:
        return 512 if self.tiny else 4096

    def step(self) -> Any:
        torch, x = self.torch, self.tokens
        functional = torch.nn.functional
        for (attention, out, up, down), cache in zip(self.layers, self.caches, strict=True):
            q, k, v = functional.layer_norm(x, (self.width,)).mm(attention).chunk(3, dim=-1)
            cache[0, :, :, -1], cache[1, :, :, -1] = k.view(self.BATCH, -1, 128), v.view(self.BATCH, -1, 128)
            q = q.view(self.BATCH, -1, 1, 128)
            seen = functional.scaled_dot_product_attention(q, cache[0], cache[1])
            x = x + seen.reshape(self.BATCH, self.width).mm(out) * 0.01
            gate, inner = functional.layer_norm(x, (self.width,)).mm(up).chunk(2, dim=-1)
            x = x + (functional.silu(gate) * inner).mm(down) * 0.01
        return x.argmax(dim=-1)

    def unit(self) -> None:
        self.graph.replay()
        self.answer.copy_(self.chosen, non_blocking=True)


class Eager(Decode):
    """The host launches one kernel after another, and the device waits for it in between."""

    waits = False
    LENGTH = 128

    def wide(self) -> int:
        return 512

    def unit(self) -> None:
        with self.torch.no_grad():
            self.step()

    def device_seconds(self) -> float:
        """Seconds of a unit: as a graph its kernels follow each other."""
        return measured_seconds(self, self.graph.replay)


class Train(Torch):
    LOSS_EACH = 10

    def prepare(self) -> None:
        torch, width = self.torch, 256 if self.tiny else 4096
        rows = 512 if self.tiny else 16384
        linear = torch.nn.Linear
        layers = (
            linear(1024, width),
            torch.nn.GELU(),
            linear(width, width),
            torch.nn.GELU(),
            linear(width, 1024),
        )
        self.model = torch.nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(rows, 1024, device="cuda")
        self.fresh = torch.randn(512, 1024).pin_memory()  # a batch of tokens is no larger
        self.steps = 0

    def unit(self) -> None:
        torch = self.torch
        self.batch[:512].copy_(self.fresh, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(self.model(self.batch), self.batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        if self.steps % self.LOSS_EACH == 0:
            loss.item()


class Spin:
    waits = False
    MICROSECONDS = 500

    def __init__(self, tiny: bool) -> None:
        del tiny
        import card
        import kernels

        self.cuda = card.Cuda()
        self.unit = kernels.Kernels(self.cuda, self.MICROSECONDS).launch
        self._event = kernels.Event

    def event(self) -> Any:
        return self._event(self.cuda)

    def finish(self) -> None:
        self.cuda.must("cuCtxSynchronize")


class Short(Spin):
    MICROSECONDS, PAUSE_NS = 3, 6000

    def __init__(self, tiny: bool) -> None:
        super().__init__(tiny)
        self._launch, self.unit = self.unit, self._launch_and_pause

    def _launch_and_pause(self) -> None:
        until = time.perf_counter_ns() + self.PAUSE_NS
        self._launch()
        while time.perf_counter_ns() < until:
            pass

    def device_seconds(self) -> float:
        return self.MICROSECONDS / 1e6


KINDS: dict[str, Callable[[bool], Any]] = {
    "matmul": Matmul,
    "decode": Decode,
    "eager": Eager,
    "train": Train,
    "spin": Spin,
    "short": Short,
}


# ---- running ----


class Journal:
    """The files between this program and caps.py."""

    def __init__(self, folder: Path, name: str) -> None:
        self._log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        with (folder / f"{name}.control").open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), 2)

    @property
    def wanted(self) -> int:
        return self._control[0]

    @property
    def busy(self) -> int:
        """The percentage of busy time in bursts."""
        return self._control[1]

    def pause(self) -> None:
        """Reports that a command is done."""
        self._control[0] = PAUSE

    def write(self, *words: object) -> None:
        line = " ".join(f"{word:.6f}" if isinstance(word, float) else str(word) for word in words)
        os.write(self._log, f"{line}\n".encode())


@dataclass
class Launched:
    """An event, all units before it, and whether the event before it was still pending then."""

    event: Any
    units: int
    behind: bool


class Ahead:
    """Runs work that is launched ahead of the device."""

    def __init__(self, load: Any, journal: Journal) -> None:
        self._load, self._journal = load, journal
        self._every = 1  # units between two events
        self._spare: list[Any] = []
        self._seconds, self._of = 0.0, 0
        self._under_way: collections.deque[Launched] = collections.deque()

    def run(self, units: int) -> int:
        """Runs until another command comes. Returns all completed units, `units` of them before."""
        wanted, busy = self._journal.wanted, self._journal.busy
        base = self._load.event()
        base.record()
        base.synchronize()
        self._base, self._at, self._last = base, time.monotonic(), time.monotonic()
        self._units, begun = units, time.monotonic()
        while self._journal.wanted == wanted:
            units = self._launch(units)
            if len(self._under_way) > AHEAD:
                self._completed()
            if wanted == BURSTS and len(self._under_way) == BURST:
                self._drain()
                time.sleep((time.monotonic() - begun) * (100 / busy - 1))
                begun = time.monotonic()
        self._drain()
        return units

    def _launch(self, units: int) -> int:
        for _ in range(self._every):
            self._load.unit()
        units += self._every
        event = self._spare.pop() if self._spare else self._load.event()
        event.record()
        behind = bool(self._under_way) and not self._under_way[-1].event.query()
        self._under_way.append(Launched(event, units, behind))
        return units

    def _drain(self) -> None:
        while self._under_way:
            self._completed()

    def _completed(self) -> None:
        one = self._under_way.popleft()
        one.event.synchronize()
        # The device's completion time, not the time when a busy host sees it.
        at = self._at + self._base.elapsed_time(one.event) / 1000
        taken, self._last = at - self._last, at
        if one.behind:
            self._seconds, self._of = self._seconds + taken, self._of + one.units - self._units
        self._units = one.units
        self._journal.write("done", at, one.units, self._seconds, self._of)
        self._spare.append(one.event)
        if taken < WINDOW_S / 2 and self._every < 1024:
            self._every *= 2
        elif taken > 4 * WINDOW_S and self._every > 1:
            self._every //= 2


def run_waiting(load: Any, journal: Journal, units: int) -> int:
    written = 0.0
    while journal.wanted == RUN:
        load.unit()
        load.finish()
        units, now = units + 1, time.monotonic()
        if now - written > LINE_S:
            journal.write("done", now, units)
            written = now
    journal.write("done", time.monotonic(), units)
    return units


def measured_seconds(load: Any, launch: Callable[[], object]) -> float:
    """The device's seconds for one call of `launch`, when many follow each other."""
    start, end, count = load.event(), load.event(), 4
    while True:
        load.finish()
        start.record()
        for _ in range(count):
            launch()
        end.record()
        end.synchronize()
        taken = float(start.elapsed_time(end)) / 1000
        if taken > UNIT_S or count > 100000:
            return taken / count
        count *= 2


def unit_seconds(load: Any) -> float:
    """The device's seconds for one unit. A kind that the host slows down has its own way."""
    known = getattr(load, "device_seconds", None)
    return float(known()) if known else measured_seconds(load, load.unit)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true", help="tiny matrices, for a simulated card")
    options = parser.parse_args()
    journal = Journal(options.folder, options.name)
    load = KINDS[options.kind](options.tiny)
    for _ in range(3):
        load.unit()
    load.finish()
    ahead, units = Ahead(load, journal), 0
    journal.write("ready")
    while (wanted := journal.wanted) != QUIT:
        if wanted == BURSTS and load.waits:
            sys.exit(f"{options.kind} waits for each unit: it has no bursts")
        if wanted in (RUN, BURSTS):
            journal.write("on", time.monotonic())
            units = run_waiting(load, journal, units) if load.waits else ahead.run(units)
            journal.write("off", time.monotonic())
        elif wanted == CALIBRATE:
            seconds = unit_seconds(load)
            # The pause comes first: the next command comes as soon as the line is there.
            journal.pause()
            journal.write("unit", seconds)
        else:
            time.sleep(0.002)


if __name__ == "__main__":
    main()
