"""Whether programs in a slice compute the same results as on the host: each case runs in both, and is
compared.

A fault of ours: a result that is right on the host and wrong in the slice (further from a float64 reference
than its bound, or not exact where it must be); a result that repeats bit for bit in each place and differs
between them; a case that ends with an error, or not at all, in the slice alone.

Cases are processes of their own (answers_inside.py), several side by side. A case that hangs is ended at its
timeout. At SIGTERM this program names the cases that it has not compared.
"""

from __future__ import annotations

import argparse
import array
import dataclasses
import json
import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import card
import host
import places

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
#: For JAX: by default XLA takes the fastest kernels, which differ from process to process.
_NOT_BY_TIMING = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0".strip()


@dataclasses.dataclass(frozen=True)
class Case:
    """`program`: its name in answers_inside.py; `alone`: no other case may take memory meanwhile;
    `by_timing`: the fastest kernels are chosen, so that results may repeat in each place and still differ."""

    name: str
    program: str = ""
    environ: dict[str, str] = dataclasses.field(default_factory=dict)
    alone: bool = False
    by_timing: bool = False


#: The first runs alone. Of the rest the longest come first, and those that users need most.
CASES = (
    Case("killed", alone=True),
    *(Case(name) for name in ("copies", "matmul", "conv")),
    Case("compiled", by_timing=True),
    *(Case(name) for name in ("triton", "graph", "fft")),
    Case("jax", environ={"XLA_FLAGS": _NOT_BY_TIMING}),
    Case("cupy"),
    *(Case(name) for name in ("attention", "training", "sort", "streams", "pinned", "ipc", "churn")),
    Case("cudaMallocAsync", "churn", {ALLOCATOR: "backend:cudaMallocAsync"}),
    Case("expandable segments", "churn", {ALLOCATOR: "expandable_segments:True"}),
    Case("cudaMallocAsync, training", "training", {ALLOCATOR: "backend:cudaMallocAsync"}),
    Case("expandable segments, training", "training", {ALLOCATOR: "expandable_segments:True"}),
)
_ARRAYS = {"float32": "f", "float64": "d", "complex64": "f", "int64": "q", "int32": "i", "uint8": "B"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    places.add_options(parser)
    parser.add_argument(
        "--place",
        choices=places.KINDS[1:],
        default="container",
        help="the place to compare with the host (container)",
    )
    parser.add_argument("--mem", default="16G", help="the slice's memory, at most half of the card (16G)")
    parser.add_argument("--json", metavar="FILE", help="a line of JSON for each result as it comes")
    parser.add_argument(
        "--only", action="append", metavar="WORD", help="only cases with this word in their names"
    )
    parser.add_argument("--timeout", type=int, default=45, help="seconds for each case in each place (45)")
    parser.add_argument("--jobs", type=int, default=6, help="cases side by side (6)")
    parser.add_argument(
        "--cpu", action="store_true", help="compute on the processor, to rehearse the comparison"
    )
    parser.add_argument("--keep", metavar="FOLDER", help="the folder for the output of failed cases")
    return parser.parse_args()


@dataclasses.dataclass
class Ran:
    """A case in one place: its results by name, its exit status, its output."""

    status: int
    output: str
    folder: Path
    results: dict[str, dict[str, Any]]
    #: Lines of its output: failed checks, and the reason if it was skipped.
    said: list[str]

    @property
    def last(self) -> str:
        return (self.said or self.output.strip().split("\n"))[-1].strip()[:300]


def run(place: places.Place, case: Case, options: argparse.Namespace) -> Ran:
    folder = place.shared / case.name.replace(" ", "-")
    folder.mkdir()
    program = case.program or case.name
    words = [options.python, str(places.HERE / "answers_inside.py"), program, str(folder)]
    environ = {**case.environ, "XPU_GPU_JSON": ""}
    if options.cpu:
        environ["XPU_GPU_ON"] = "cpu"
    elif place.machine.is_simulated:
        environ["XPU_GPU_SIMULATED"] = "1"
    done = place.run(words, options.timeout, environ)
    file = folder / f"{program}.json"
    entries = json.loads(file.read_text()) if file.exists() else []
    lines = [line for line in done.stdout.split("\n") if line.startswith(("FAILED: ", "skipped: "))]
    return Ran(done.returncode, done.stdout, folder, {each["name"]: each for each in entries}, lines)


# ---- the comparison ----


def compare(case: Case, native: Ran, inside: Ran | None, *, simulated: bool) -> None:
    """Prints the results of the comparison."""
    if inside is None:
        last = native.last.removeprefix("FAILED: ")
        card.check(False, f"{case.name}: not run in the slice, it does not end natively: {last}")
        return
    if native.status == inside.status == card.SKIPPED:
        card.report("skipped", f"{case.name}: {native.last.removeprefix('skipped: ')}")
        return
    for name in {**native.results, **inside.results}:
        if simulated and not native.results.get(name, {}).get("simulated"):
            continue
        compare_result(case, name, native, inside)
    if simulated and native.status + inside.status:
        card.not_checked(
            f"{case.name}: it ends with {inside.status} in the slice: {inside.last}; natively {native.last}"
        )
    elif native.status:
        card.check(
            False,
            f"{case.name}: no comparison, it ends natively with {native.status}: {native.last}",
        )
    elif inside.status:
        card.check(False, f"{case.name}: ends with {inside.status} in the slice alone: {inside.last}")
    elif simulated and not any(each.get("simulated") for each in native.results.values()):
        card.not_checked(f"{case.name}: ran in both places; a simulated card computes nothing")


def compare_result(case: Case, name: str, native: Ran, inside: Ran) -> None:
    what = f"{case.name}, {name}"
    if name not in native.results or name not in inside.results:
        missing = "in the slice" if name in native.results else "natively"
        card.check(False, f"{what}: no result {missing}")
        return
    ours, theirs = inside.results[name], native.results[name]
    bound = "exact" if ours["exact"] else f"{ours['error']:.1e} off (at most {ours['bound']:.0e})"
    same = ours["sha256"] == theirs["sha256"]
    if not theirs["holds"]:
        card.check(
            False, f"{what}: wrong natively too, {theirs['error']:.1e} off, worst {theirs['worst']:.1e}"
        )
    elif not ours["holds"]:
        wrong = f"{ours['error']:.1e} off, worst {ours['worst']:.1e}, bound {ours['bound']:.0e}"
        card.check(False, f"{what}: wrong in the slice alone: {wrong}; {differing(name, native, inside)}")
    elif not same and case.by_timing:
        card.check(True, f"{what}: {bound}, other bits, because timing chooses its kernels")
    elif not same and ours["repeats"] and theirs["repeats"]:
        card.check(
            False, f"{what}: {bound}, repeats itself in each place, and {differing(name, native, inside)}"
        )
    else:
        card.check(True, f"{what}: {bound}, {'the same bits' if same else 'bits that do not repeat'}")


def differing(name: str, native: Ran, inside: Ran) -> str:
    """The number of different elements, and the differences."""
    kind, code = native.results[name]["kind"], _ARRAYS.get(native.results[name]["kind"])
    if code is None or native.results[name]["shape"] != inside.results[name]["shape"]:
        return f"it is of another shape or of {kind}"
    one, other = (array.array(code) for _ in range(2))
    for values, ran in ((one, native), (other, inside)):
        (file,) = ran.folder.glob(f"*.{name}")
        values.frombytes(file.read_bytes())
    # By bytes: NaN does not equal itself.
    size, a, b = one.itemsize, one.tobytes(), other.tobytes()
    unequal = [
        at for at in range(len(one)) if a[at * size : at * size + size] != b[at * size : at * size + size]
    ]
    if not unequal:
        return "no element differs"
    largest = max((abs(one[at] - other[at]) for at in unequal), default=0)
    return (
        f"{len(unequal)} of {len(one)} elements differ, the first at {unequal[0]}, by at most {largest:.3g}"
    )


def keep(folder: str, case: Case, native: Ran, inside: Ran | None) -> None:
    for kind, ran in {"native": native, **({"slice": inside} if inside else {})}.items():
        path = Path(folder, f"{case.name.replace(' ', '-')}-{kind}.log")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ran.output)


def fit(options: argparse.Namespace, memory: int) -> None:
    """A smaller card gets a smaller slice, and fewer cases side by side. The host's take as much memory."""
    room, wanted = memory // 2, places.bytes_of(options.mem)
    if wanted > room:
        options.jobs = max(1, options.jobs * room // wanted)
        given = f"{room // card.MIB} MiB, not {options.mem}: half of this card"
        card.report("slice", f"{given}; {options.jobs} cases side by side")
        options.mem = f"{room // card.MIB}M"


def main() -> None:
    options = arguments()
    names = card.chosen([case.name for case in CASES], options.only)
    machine = host.begin(options, options.json)
    fit(options, machine.memory())
    cases = [case for case in CASES if case.name in names]
    with (
        # This ends last: its threads wait for programs, which end with the places.
        ThreadPoolExecutor(options.jobs) as pool,
        places.opened("native", machine=machine) as native,
        places.opened(options.place, machine=machine, memory=options.mem) as inside,
    ):

        def both(case: Case) -> tuple[Case, Ran, Ran | None]:
            ran = run(native, case, options)
            # The case would take its timeout again in the slice, from the time of others.
            late = ran.status == places.TIMED_OUT
            return case, ran, None if late else run(inside, case, options)

        open_ = {case.name: None for case in cases}
        try:
            for case in cases:
                if case.alone:
                    tell(options, machine, *both(case))
                    del open_[case.name]
            for done in as_completed([pool.submit(both, case) for case in cases if not case.alone]):
                tell(options, machine, *done.result())
                del open_[done.result()[0].name]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # This comes before the places are closed, which takes some of the remaining time.
            for name in open_:
                card.report("not run", f"{name}: the run ended before both places")
            raise
    card.end()


def tell(
    options: argparse.Namespace, machine: places.Machine, case: Case, native: Ran, inside: Ran | None
) -> None:
    compare(case, native, inside, simulated=machine.is_simulated and not options.cpu)
    if options.keep and (native.status or inside is None or inside.status):
        keep(options.keep, case, native, inside)


if __name__ == "__main__":
    try:
        main()
    except places.PlaceError as error:
        card.not_measured(str(error))
        card.end()
