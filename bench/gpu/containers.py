"""Whether a container that the installed runtime starts with runc sees its slice, and gets no more.

The slice has 4 GiB and 30 % of the cores. A fault of ours: the container does not start; nvidia-smi, libcuda
or PyTorch show a card of another size; 5 GiB are granted or 1 GiB is not; the slice outlives its container.
"""

from __future__ import annotations

import argparse
import json
import time

import places
from record import Record, add_options

MEMORY, SLICE_MIB = "4G", 4096
PROBE = places.REPOSITORY / "build/probe/cuda-probe"
#: Prints PyTorch's view and its allocations, a word and a value a line. The random numbers are the host's,
#: because a simulated card computes none.
_TORCH = """
import sys, torch
print("version", torch.__version__)
print("total", torch.cuda.mem_get_info()[1] >> 20)
for gib in (5, 1):
    try:
        held = torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
        print(gib, "granted")
    except torch.OutOfMemoryError:
        print(gib, "refused")
a = torch.randn(512, 512, dtype=torch.float64)
there = a.cuda()
print("copied", bool((there.cpu() == a).all()))
"""
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
_ALLOCATORS = {"caching": {}, "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    return parser.parse_args()


def _one_line(output: str) -> str:
    """The end of the output, on one line."""
    return " ".join(output[-300:].split())


def started(record: Record, place: places.Place, began: float) -> None:
    record.value("seconds until the container runs", time.monotonic() - began)
    done = place.run(["uname", "-r"], timeout=30)
    record.check(done.returncode == 0, f"a program runs in it: {_one_line(done.stdout)}")


def smi(record: Record, place: places.Place) -> None:
    words = ["nvidia-smi", "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader"]
    done = place.run(words, timeout=60)
    sees = done.returncode == 0 and f"{SLICE_MIB} MiB" in done.stdout
    record.check(sees, f"nvidia-smi in it, status {done.returncode}: {_one_line(done.stdout)}")


def driver(record: Record, place: places.Place) -> None:
    """Runs cuda-probe: 5 GiB are refused, and the program goes on."""
    if not PROBE.exists():
        record.value("skipped", f"cuda-probe: {PROBE} is not there")
        return
    done = place.run([str(PROBE), "info"], timeout=60)
    record.check(f"of {SLICE_MIB} MiB" in done.stdout, f"libcuda in it: {_one_line(done.stdout)}")
    done = place.run([str(PROBE), "alloc", "5120", "2000", "500"], timeout=60)
    for amount, answer in (
        ("5120", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("2000", "CUDA_SUCCESS"),
        ("500", "CUDA_SUCCESS"),
    ):
        wanted = f"allocating {amount} MiB: {answer}"
        holds = wanted in done.stdout
        record.check(holds, wanted if holds else f"{wanted}: {_one_line(done.stdout)}")


def torch(record: Record, place: places.Place) -> None:
    python = place.machine.python
    if place.run([python, "-c", _HAS_TORCH], timeout=30).returncode:
        record.value("skipped", f"PyTorch: none in {python}")
        return
    for name, environ in _ALLOCATORS.items():
        done = place.run([python, "-c", _TORCH], timeout=90, environ=environ)
        said = dict(line.split(None, 1) for line in done.stdout.splitlines() if len(line.split()) == 2)
        wanted = {"total": str(SLICE_MIB), "5": "refused", "1": "granted", "copied": "True"}
        wrong = {word: said.get(word) for word, value in wanted.items() if said.get(word) != value}
        last = _one_line(done.stdout) if wrong else said.get("version", "")
        record.check(
            not wrong and done.returncode == 0, f"PyTorch, {name}: {wrong or 'as it should be'}; {last}"
        )


def main() -> None:
    options = arguments()
    with Record(options) as record:
        machine, began = record.machine(), time.monotonic()
        with places.opened("container", machine=machine, memory=MEMORY, cores=30) as outer:
            with places.opened("container", machine=machine, memory=MEMORY, cores=30, beside=outer) as place:
                started(record, place, began)
                for tried in (smi, driver, torch):
                    tried(record, place)
            held = json.loads(outer.xpu("ps", "--json"))
            record.check(len(held) == 1, f"{len(held)} slices are held when one of two containers is gone")


if __name__ == "__main__":
    main()
