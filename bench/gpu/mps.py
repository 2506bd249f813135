"""Two containers under MPS (XPU_ENFORCE=mps) on one card, and the card without it afterwards.

A fault of ours: a container is refused or its program does not work under MPS, gets more memory than its
slice, the daemon outlives the last container, or a program on the host does not work afterwards. An MPS
server that is killed can leave a card unusable: so this comes late in a run, nothing is killed here, and a
daemon that is still there is told to quit by its own pipe folder. The compute mode is never changed.

`mps.py client SECONDS` is the program in each container, and on the host before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import places
from record import Record, add_options

from share import runfolder

#: Seconds until the daemon must have ended after the last container, and until it must after `quit`.
GONE_S = 20.0
#: Seconds until a program that computes for none has ended.
START_S = 40.0
CORES = (30, 60)
PIPE = "CUDA_MPS_PIPE_DIRECTORY"


def client(seconds: float) -> None:
    """Takes memory to the limit and past it, computes, and says how much."""
    import card
    import kernels

    cuda = card.Cuda()
    free, total = cuda.memory()
    card.report("card as it is seen", f"{card.mib(total)}, {card.mib(free)} free")
    if card.in_slice():
        limit = card.limit()
        card.check(total == limit, f"the card is as large as the slice, {card.mib(limit)}")
        got = cuda.plain(limit + card.MIB)
        card.check(got == -card.OUT_OF_MEMORY, "more than the slice is CUDA_ERROR_OUT_OF_MEMORY")
        half = cuda.plain(limit // 2)
        if card.check(half > 0, "half of the slice is given"):
            cuda.free_plain(half)
    load = kernels.Kernels(cuda, 500)
    card.check_result(load.computes, "a kernel computes what the host does")
    units, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(10):
            load.launch()
        cuda.must("cuCtxSynchronize")
        units += 10
    card.report("kernels of 500 us in a second", f"{units / seconds:.0f}")
    card.check(units > 0, "kernels run")
    card.end()


def daemons(folder: Path) -> dict[int, str]:
    """Daemons and servers of MPS that this run's containers have started, and each one's pipe folder."""
    found = {}
    for pid in runfolder.processes(folder):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().startswith("nvidia-cuda-mps"):
                words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
                variables = dict(word.partition("=")[::2] for word in words if "=" in word)
                found[pid] = variables.get(PIPE, "")
    return found


def program(place: places.Place, seconds: float) -> places.Child:
    words = [place.machine.python, str(places.HERE / "mps.py"), "client", str(seconds)]
    # Its lines are told by this program.
    simulated = {"XPU_GPU_SIMULATED": "1"} if place.machine.is_simulated else {}
    return place.start(words, {"XPU_GPU_JSON": "", **simulated})


def told(record: Record, child: places.Child, where: str, timeout: float) -> None:
    """What a client said, and how it ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout)
    status = child.poll()
    record.relay(where, child.output())
    if status != 0:
        tail = " ".join(child.output().split())[-200:]
        record.check(False, f"{where}: the program ends with {status}: {tail}")


def together(record: Record, folder_of: places.Place, options: argparse.Namespace) -> None:
    """Two containers with a program each at the same time."""
    request = {"XPU_ENFORCE": "mps"}
    with contextlib.ExitStack() as stack:
        found = [
            stack.enter_context(
                places.opened(
                    "container",
                    machine=folder_of.machine,
                    memory=options.mem,
                    cores=cores,
                    beside=folder_of,
                    request=request,
                )
            )
            for cores in CORES
        ]
        children = [program(place, options.seconds) for place in found]
        for cores, child in zip(CORES, children, strict=True):
            told(record, child, f"MPS at {cores}", START_S + options.seconds)
        record.value("MPS processes", len(daemons(folder_of.folder)))
        record.check(bool(daemons(folder_of.folder)), "the containers have an MPS daemon")


def has_ended(folder: Path) -> bool:
    until = time.monotonic() + GONE_S
    while daemons(folder) and time.monotonic() < until:
        time.sleep(0.05)
    return not daemons(folder)


def quit_by_hand(record: Record, machine: places.Machine, folder: Path) -> None:
    for pid, pipe in daemons(folder).items():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            control = os.readlink(f"/proc/{pid}/exe")
            if pipe and control.endswith("nvidia-cuda-mps-control"):
                words = {**machine.environ(), PIPE: pipe}
                done = subprocess.run([control], input="quit\n", env=words, text=True, timeout=60)
                record.value("told to quit", f"status {done.returncode}")
    record.check(has_ended(folder), "the MPS daemon ends when it is told to quit")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--mem", default="4G", help="memory of each of the two slices (4G)")
    parser.add_argument("--seconds", type=float, default=5.0, help="that the clients compute (5)")
    options = parser.parse_args()
    options.seconds = 1.0 if options.small else options.seconds
    with Record(options) as record:
        machine = record.machine()
        nothing = {"XPU_VISIBLE_DEVICES": "none", "XPU_ENFORCE": "auto"}
        with (
            places.opened("native", machine=machine) as host,
            # It has no device, and outlives the others: what they leave is found by its folder.
            places.opened("container", machine=machine, request=nothing) as last,
        ):
            told(record, program(host, 1.0), "host before", START_S)
            try:
                together(record, last, options)
            finally:
                if not record.check(has_ended(last.folder), "the MPS daemon ends with the last container"):
                    quit_by_hand(record, machine, last.folder)
                told(record, program(host, 1.0), "host afterwards", START_S)


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(float(sys.argv[2]))
    else:
        main()
