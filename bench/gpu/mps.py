"""Two containers under MPS (XPU_ENFORCE=mps) on one card, and the card without it afterwards.

A fault of ours: under MPS a container is refused or its program does not work, it gets more memory than its
slice or more of the multiprocessors than its part, the daemon outlives the last container, or a program on
the host does not work afterwards. An MPS server that is killed can leave a card unusable. So this step comes
late in a run and kills nothing. A daemon that is still there gets `quit` by its own pipe folder; at SIGTERM
all daemons get it at once. The compute mode is never changed.

`mps.py client SECONDS [ITERATIONS]` is the program in each container, and on the host before and after. The
first one on the host measures how many iterations take 500 us, and the others compute as many.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import places
from record import Record, add_options

from share import runfolder

#: Seconds that the daemon has to end after the last container, and after `quit`.
GONE_S = 20.0
#: Seconds until a program with no time to compute has ended.
START_S = 20.0
CORES = (30, 60)
#: Percent that a container may have beyond its part: the driver gives out multiprocessors by twos, and a
#: card's clock is higher when less of it works.
MORE = 15.0
#: The kept lines of each of the daemon's logs, and the characters of an error, which has their ends as well.
LINES, MOST = 40, 3000
#: Blocks of a kernel: several rounds on each multiprocessor, so that fewer of them take longer in proportion.
BLOCKS = 8448
RATE, ITERATIONS = "kernels in a second", "iterations of a kernel"
PIPE = "CUDA_MPS_PIPE_DIRECTORY"


def client(seconds: float, iterations: int = 0) -> None:
    """Takes memory to the limit and past it, computes, and prints how much. It ends at SIGTERM."""
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
    load = kernels.Kernels(cuda, 500, BLOCKS, iterations)
    card.check_result(load.computes, "a kernel computes what the host does")
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    units, begin = 0, time.monotonic()
    while time.monotonic() < begin + seconds and not told:
        for _ in range(10):
            load.launch()
        cuda.must("cuCtxSynchronize")
        units += 10
    card.report(ITERATIONS, load.iterations)
    card.report(RATE, f"{units / (time.monotonic() - begin):.1f}")
    card.check(units > 0, "kernels run")
    card.end()


def daemons(folder: Path) -> dict[int, str]:
    """The daemons and servers of MPS that this run's containers have started, and each one's pipe folder."""
    found = {}
    for pid in runfolder.processes(folder):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().startswith("nvidia-cuda-mps"):
                words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
                variables = dict(word.partition("=")[::2] for word in words if "=" in word)
                found[pid] = variables.get(PIPE, "")
    return found


def program(place: places.Place, seconds: float, iterations: str = "0") -> places.Child:
    words = [place.machine.python, str(places.HERE / "mps.py"), "client", str(seconds), iterations]
    # This program prints its lines.
    simulated = {"XPU_GPU_SIMULATED": "1"} if place.machine.is_simulated else {}
    return place.start(words, {"XPU_GPU_JSON": "", **simulated})


def told(record: Record, child: places.Child, where: str, until: float) -> dict[str, str]:
    """Prints a client's lines and its end. Returns its values by name."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(max(0.0, until - time.monotonic()))
    status = child.poll()
    record.relay(where, child.output())
    if status != 0:
        tail = " ".join(child.output().split())[-200:]
        ended = "does not end" if status is None else f"ends with {status}"
        record.check(False, f"{where}: the program {ended}: {tail}")
    lines = (line.partition(": ") for line in child.output().splitlines())
    return {name: value for name, found, value in lines if found}


def on_host(record: Record, host: places.Place, where: str, seconds: float) -> dict[str, str]:
    return told(record, program(host, seconds), where, time.monotonic() + START_S + seconds)


def together(
    record: Record, folder_of: places.Place, options: argparse.Namespace, host: dict[str, str]
) -> None:
    """Runs two containers with a program each at the same time."""
    request = {"XPU_ENFORCE": "mps"}
    children: list[places.Child] = []
    with contextlib.ExitStack() as stack:
        slice_ = {
            "machine": folder_of.machine,
            "memory": options.mem,
            "beside": folder_of,
            "request": request,
        }
        try:
            found = [
                stack.enter_context(places.opened("container", cores=cores, **slice_)) for cores in CORES
            ]
            children += [program(place, options.seconds, host.get(ITERATIONS, "0")) for place in found]
            until = time.monotonic() + START_S + options.seconds
            for cores, child in zip(CORES, children, strict=True):
                said = told(record, child, f"MPS at {cores}", until)
                judge(record, cores, said, host, simulated=folder_of.machine.is_simulated)
            record.value("MPS processes", len(daemons(folder_of.folder)))
            record.check(bool(daemons(folder_of.folder)), "the containers have an MPS daemon")
            if any(child.poll() != 0 for child in children):
                logs(record, folder_of.folder)
        except SystemExit:
            logs(record, folder_of.folder)
            end_at_once(record, folder_of, children)
            raise
        except BaseException:
            logs(record, folder_of.folder)
            raise


def logs(record: Record, folder: Path) -> None:
    """Prints the logs of daemons and servers while a container runs: they are removed with the last one."""
    found = sorted((folder / "run/devices/mps").glob("*/log/*"))
    for path in found:
        with contextlib.suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()
            for number, line in enumerate(lines[-LINES:], max(0, len(lines) - LINES) + 1):
                record.value(f"MPS {path.name} {number}", " ".join(line.split()))
    if not found:
        record.value("MPS logs", "they are removed; the error has their last lines")


def judge(record: Record, cores: int, said: dict[str, str], host: dict[str, str], *, simulated: bool) -> None:
    """Checks that a container has at most its part of the host's work alone."""
    if RATE not in said or not float(host.get(RATE, "0")):
        return  # its program has failed, which is reported already
    part = 100 * float(said[RATE]) / float(host[RATE])
    record.value(f"MPS at {cores}, percent of the host's kernels", f"{part:.1f}")
    most = cores * (1 + MORE / 100)
    what = f"MPS at {cores}: {part:.1f} % of the host's kernels, at most {most:.1f}"
    if simulated:
        record.value("not checked", f"{what}: a simulated card has no multiprocessors")
    else:
        record.check(part <= most, what)


def end_at_once(record: Record, folder_of: places.Place, children: Sequence[places.Child]) -> None:
    """Ends the clients and then the daemons in their own ways, before a kill can come."""
    record.value("told to end", "the clients, and the MPS daemon by quit")
    for child in children:
        if child.poll() is None:
            child.signal(signal.SIGTERM)
    quit_by_hand(record, folder_of.machine, folder_of.folder)


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
                done = subprocess.run([control], input="quit\n", env=words, text=True, timeout=GONE_S)
                record.value("told to quit", f"status {done.returncode}")
    record.check(has_ended(folder), "the MPS daemon ends when it is told to quit")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--mem", default="4G", help="memory of each of the two slices (4G)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds that the clients compute (5)")
    options = parser.parse_args()
    options.seconds = 1.0 if options.small else options.seconds
    with Record(options) as record:
        machine = record.machine()
        nothing = {"XPU_VISIBLE_DEVICES": "none", "XPU_ENFORCE": "auto"}
        with (
            places.opened("native", machine=machine) as host,
            # It has no device, and outlives the others. Its folder shows what they leave.
            places.opened("container", machine=machine, request=nothing) as last,
        ):
            before = on_host(record, host, "host before", 2.0)
            try:
                together(record, last, options, before)
            except (places.PlaceError, subprocess.SubprocessError, OSError) as error:
                record.check(False, " ".join(str(error).split())[:MOST])
            if not record.check(has_ended(last.folder), "the MPS daemon ends with the last container"):
                logs(record, last.folder)
                quit_by_hand(record, machine, last.folder)
            on_host(record, host, "host afterwards", 1.0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(float(sys.argv[2]), *map(int, sys.argv[3:4]))
    else:
        main()
