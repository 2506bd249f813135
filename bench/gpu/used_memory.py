"""The memory that a card has lost, by NVML from outside a container, against the container's account.

Programs in a container take memory in the ways of frameworks. Each time the card's used memory and the
account are read before, with, and after. A fault of ours: the card has lost more than the account has (some
memory is not counted), the account is far above it (available memory is refused), or memory stays after a
program's end; a program gets 5 GiB in a slice of 4, or sees another card than its slice.

used_memory.py take | past CASE is the program in the container.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import card
from nvml import Nvml

GIB = 1 << 30
#: MiB that the account may have less than the card has lost, MiB that it may have more, and MiB that may
#: stay.
BELOW, ABOVE, LEFT = 64, 256, 16
#: Seconds until a driver has taken back a program's memory.
PATIENCE_S = 5.0
READY = "ready"


# ---- inside ----


def context() -> Any:
    return card.Cuda()


def allocated() -> Any:
    cuda = card.Cuda()
    if cuda.plain(GIB) < 0:
        card.fail("1 GiB was refused")
    return cuda


def pooled() -> Any:
    cuda = card.Cuda()
    if cuda.pooled(GIB) < 0 or cuda.call("cuStreamSynchronize", None):
        card.fail("1 GiB of a pool was refused")
    return cuda


def pytorch() -> Any:
    """Includes the memory that cuBLAS and cuDNN take at their first use."""
    torch = _torch()
    a = torch.randn(2048, 2048, device="cuda")
    image, weight = torch.randn(8, 16, 64, 64, device="cuda"), torch.randn(32, 16, 3, 3, device="cuda")
    # On a simulated card some calls fail after they have taken memory.
    for name, use in {
        "cuBLAS": lambda: a @ a,
        "cuBLASLt": lambda: torch.nn.functional.linear(a.half(), a.half(), a.half()[0]),
        "cuDNN": lambda: torch.nn.functional.conv2d(image, weight),
    }.items():
        _used(name, use)
    torch.cuda.synchronize()
    return a


def jax() -> Any:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    jax, jnp = _jax()
    a = jnp.ones((2048, 2048), jnp.float32).block_until_ready()
    _used("jit", lambda: jax.jit(jnp.matmul)(a, a).block_until_ready())
    return a


def two_processes() -> Any:
    words = [sys.executable, os.path.realpath(__file__), "take", "1 GiB by cuMemAlloc"]
    other = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    mine = allocated()
    if not other.stdout or other.stdout.readline().strip() != READY:
        card.fail("the second process does not get 1 GiB")
    return mine, other


def ended() -> None:
    """A process that ends by itself, without freeing its memory."""
    allocated()


#: The ways to take memory, by name. The last has ended when the card is read.
TAKERS: dict[str, Callable[[], Any]] = {
    "a bare context": context,
    "1 GiB by cuMemAlloc": allocated,
    "1 GiB by cuMemAllocAsync": pooled,
    "PyTorch, cuBLAS, cuDNN": pytorch,
    "JAX": jax,
    "two processes, 1 GiB each": two_processes,
    "nothing after exit": ended,
}


def past_pytorch(settings: str) -> None:
    if settings:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = settings
    torch, limit = _torch(), card.limit()
    shown = torch.cuda.mem_get_info()[1]
    card.check(shown == limit, f"torch.cuda.mem_get_info() shows {card.mib(shown)} of {card.mib(limit)}")
    refused(lambda: torch.empty(limit + GIB, dtype=torch.uint8, device="cuda"), torch.cuda.OutOfMemoryError)
    goes_on(lambda: int(torch.full((1 << 20,), 2, device="cuda").sum()), 2 << 20)


def past_cupy() -> None:
    try:
        import cupy
    except ImportError as error:
        card.skip(f"no CuPy in {sys.executable}: {error}")
    limit = card.limit()
    refused(lambda: cupy.empty(limit + GIB, dtype=cupy.uint8), cupy.cuda.memory.OutOfMemoryError)
    goes_on(lambda: int(cupy.full(1 << 20, 2).sum()), 2 << 20)


def past_jax(allocator: str) -> None:
    """In parts: JAX's own allocator refuses an array that is larger than its fraction of the card, which is
    all of it here, without asking the driver."""
    os.environ.update(XLA_PYTHON_CLIENT_PREALLOCATE="false", XLA_PYTHON_CLIENT_ALLOCATOR=allocator)
    if "XLA_CLIENT_MEM_FRACTION" not in os.environ:  # its newer name; both together are an error
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "1.0"
    jax, jnp = _jax()
    limit, held = card.limit(), []
    part = limit // 32

    def more_than_the_slice() -> None:
        for _ in range((limit + GIB) // part):
            held.append(jnp.zeros(part, jnp.uint8).block_until_ready())

    refused(more_than_the_slice, (jax.errors.JaxRuntimeError, RuntimeError))
    taken = len(held) * part
    card.check(taken > limit // 2, f"refused after {card.mib(taken)} of {card.mib(limit)}")
    held.clear()
    goes_on(lambda: int(jnp.full(1 << 20, 2, jnp.int32).sum()), 2 << 20)


def past_driver() -> None:
    cuda, limit = card.Cuda(), card.limit()
    status = cuda.plain(limit + GIB)
    card.check(status == -card.OUT_OF_MEMORY, f"cuMemAlloc of {card.mib(limit + GIB)}: {cuda.name(-status)}")
    card.check(cuda.plain(64 * card.MIB) > 0, "the program goes on")


def nvidia_smi() -> None:
    program = shutil.which("nvidia-smi") or card.missing("no nvidia-smi, which the runtime brings")
    words = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    shown, limit = done.stdout.strip(), card.limit() // card.MIB
    card.check(done.returncode == 0 and shown == str(limit), f"nvidia-smi shows {shown} MiB of {limit}")


#: The programs that are refused past the limit, and the one that shows the slice.
PAST: dict[str, Callable[[], None]] = {
    "nvidia-smi": nvidia_smi,
    "cuMemAlloc": past_driver,
    "PyTorch": lambda: past_pytorch(""),
    "PyTorch, cudaMallocAsync": lambda: past_pytorch("backend:cudaMallocAsync"),
    "PyTorch, expandable segments": lambda: past_pytorch("expandable_segments:True"),
    "CuPy": past_cupy,
    "JAX": lambda: past_jax("default"),
    "JAX, platform's allocator": lambda: past_jax("platform"),
}


def refused(make: Callable[[], Any], errors: Any) -> None:
    try:
        make()
    except errors as error:
        card.check(True, f"{type(error).__name__} for more than the slice")
    else:
        card.check(False, "more than the slice was granted")


def goes_on(compute: Callable[[], int], wanted: int) -> None:
    card.check_result(lambda: compute() == wanted, "the program goes on, and computes")


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        card.skip(f"no PyTorch in {sys.executable}: {error}")
    if not torch.cuda.is_available():
        card.missing("this PyTorch finds no GPU")
    return torch


def _jax() -> tuple[Any, Any]:
    try:
        import jax
        import jax.numpy as jnp
    except ImportError as error:
        card.skip(f"no JAX in {sys.executable}: {error}")
    if jax.default_backend() != "gpu":
        card.missing(f"this JAX finds no GPU (its backend is {jax.default_backend()})")
    return jax, jnp


def _used(name: str, use: Callable[[], Any]) -> None:
    try:
        use()
    except Exception as error:
        what = f"{name} cannot be used: {type(error).__name__}: {str(error).split(chr(10))[0][:200]}"
        card.not_checked(what) if card.is_simulated() else card.check(False, what)


def inside(group: str, case: str) -> None:
    if group == "past":
        PAST[case]()
    elif (held := TAKERS[case]()) is not None:
        print(READY, flush=True)
        signal.pause()
        del held
    card.end()


# ---- outside ----


@dataclasses.dataclass(frozen=True)
class Seen:
    """Bytes on the card and in the account."""

    card: int
    account: int


def arguments(words: list[str]) -> argparse.Namespace:
    import places

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    places.add_options(parser)
    parser.add_argument(
        "--place", choices=places.KINDS[1:], default="container", help="the slice's place (container)"
    )
    parser.add_argument("--mem", default="4G", help="the slice's memory (4G)")
    parser.add_argument("--json", metavar="FILE", help="a line of JSON for each result as it comes")
    parser.add_argument(
        "--only", action="append", metavar="WORD", help="only programs with this word in their names"
    )
    parser.add_argument("--timeout", type=int, default=60, help="seconds for each program (60)")
    parser.add_argument(
        "--jobs", type=int, default=4, help="slices side by side, when nothing is measured (4)"
    )
    return parser.parse_args(words)


def words_of(options: argparse.Namespace, group: str, case: str) -> list[str]:
    return [options.python, os.path.realpath(__file__), group, case]


def environ_of(options: argparse.Namespace, machine: Any, **more: str) -> dict[str, str]:
    import places

    environ = {card.LIMIT_VARIABLE: str(places.bytes_of(options.mem)), "XPU_GPU_JSON": "", **more}
    return {**environ, **({"XPU_GPU_SIMULATED": "1"} if machine.is_simulated else {})}


def take(options: argparse.Namespace, place: Any, nvml: Nvml, case: str) -> None:
    """Runs one program that takes memory: before, with, and after it."""

    def look() -> Seen:
        used = nvml.used()
        if used is None:
            card.fail(f"nvmlDeviceGetMemoryInfo outside the container: error {nvml.status}")
        return Seen(used, place.used_memory())

    before = look()
    child = place.start(words_of(options, "take", case), environ_of(options, place.machine))
    until = time.monotonic() + options.timeout
    while READY not in child.output().split("\n") and child.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    status, with_it = child.poll(), look()
    output = child.output()
    alive = child.kill()
    after, until = look(), time.monotonic() + PATIENCE_S
    while after.card - before.card > LEFT * card.MIB and time.monotonic() < until:
        time.sleep(0.05)
        after = look()
    for line in output.split("\n"):
        if line.startswith(("FAILED: ", "not checked: ")):
            word, _, rest = line.partition(": ")
            card.check(False, f"{case}: {rest}") if word == "FAILED" else card.report(word, f"{case}: {rest}")
    if status == card.SKIPPED:
        card.report("skipped", f"{case}: {output.strip().rpartition('skipped: ')[2]}")
    elif status not in (None, 0) or (READY not in output and TAKERS[case] is not ended):
        last = output.strip().split("\n")[-1][:300]
        card.check(False, f"{case}: the program does not get its memory ({status}): {last}")
    else:
        judge(case, before, with_it, after)
    card.check(not alive, f"{case}: the program is gone")


def judge(case: str, before: Seen, with_it: Seen, after: Seen) -> None:
    lost, counted = (with_it.card - before.card) // card.MIB, (with_it.account - before.account) // card.MIB
    left = Seen((after.card - before.card) // card.MIB, (after.account - before.account) // card.MIB)
    card.report(f"{case}, MiB", f"card {lost:+}, account {counted:+}, difference {counted - lost:+}")
    card.check(counted >= lost - BELOW, f"{case}: the account misses at most {BELOW} MiB of the card's loss")
    card.check(
        counted <= lost + ABOVE, f"{case}: the account has at most {ABOVE} MiB more than the card's loss"
    )
    held = left.card <= LEFT and left.account <= LEFT
    card.check(
        held, f"{case}: afterwards {left.card} MiB stay on the card, {left.account} MiB in the account"
    )


def refuse(options: argparse.Namespace, machine: Any, first: Any, case: str) -> tuple[str, str, str]:
    """Runs one program that must be refused, in its own slice. Returns its outcome, results and last line."""
    import places

    try:
        with places.opened(options.place, machine=machine, memory=options.mem, beside=first) as place:
            file = place.shared / "results"
            environ = environ_of(options, machine, XPU_GPU_JSON=str(file))
            done = place.run(words_of(options, "past", case), options.timeout, environ)
            results = file.read_text() if file.exists() else ""
    except (places.PlaceError, OSError, subprocess.SubprocessError) as error:
        return "FAILED", "", " ".join(str(error).split())[:300]
    outcome = {0: "ok", card.SKIPPED: "skipped"}.get(done.returncode, "FAILED")
    return outcome, results, done.stdout.strip().rpartition("\n")[2][:300]


def tell(case: str, outcome: str, results: str, last: str) -> None:
    told = [json.loads(line) for line in results.splitlines()]
    for each in told:
        if each["name"] in ("ok", "FAILED"):
            card.check(each["name"] == "ok", f"past the limit, {case}: {each['value']}")
        else:
            card.report(each["name"], f"past the limit, {case}: {each['value']}")
    if outcome == "FAILED" and not any(each["name"] == "FAILED" for each in told):
        card.check(False, f"past the limit, {case}: {last}")


def main(words: list[str]) -> None:
    from concurrent.futures import ThreadPoolExecutor, as_completed

    import host
    import places

    options = arguments(words)
    names = card.chosen([*TAKERS, *PAST], options.only)
    machine = host.begin(options, options.json)
    nvml = Nvml(machine.driver.path_of("libnvidia-ml.so.1"), machine.query("uuid")[0])
    # One slice exists all the time.
    room = machine.memory() // places.bytes_of(options.mem) - 1
    with (
        ThreadPoolExecutor(max(1, min(options.jobs, room))) as pool,
        places.opened(options.place, machine=machine, memory=options.mem) as place,
    ):
        for case in [case for case in TAKERS if case in names]:
            try:
                take(options, place, nvml, case)
            except (places.PlaceError, OSError, subprocess.SubprocessError) as error:
                card.check(False, f"{case}: {' '.join(str(error).split())[:300]}")
        cases = [case for case in PAST if case in names]
        running = {pool.submit(refuse, options, machine, place, case): case for case in cases}
        for done in as_completed(running):
            tell(running[done], *done.result())
    card.end()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    if sys.argv[1:2] in (["take"], ["past"]):
        inside(*sys.argv[1:3])
    from host import PlaceError

    try:
        main(sys.argv[1:])
    except PlaceError as error:
        card.not_measured(str(error))
        card.end()
