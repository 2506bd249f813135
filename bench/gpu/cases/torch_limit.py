"""PyTorch in the slice, to the limit and past it: torch_limit.py CASE, which is one of

caching      its caching allocator        expandable   the same with expandable_segments:True
graphs       a CUDA graph is captured, and replayed when memory is short
processes    several processes share the limit; one is killed, and its memory comes back
nccl         all_reduce over all devices of the slice
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

import card

PROCESSES = 4


def load() -> Any:
    try:
        import torch
    except ImportError as error:
        card.skip(f"no PyTorch in {sys.executable}: {error}")
    if not torch.cuda.is_available():
        card.missing(f"this PyTorch {torch.__version__} finds no GPU: {no_gpu(torch)}")
    return torch


def no_gpu(torch: Any) -> str:
    """PyTorch's own error."""
    try:
        torch.cuda.init()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "torch.cuda.is_available() is False"


def fill(torch: Any, most: int) -> tuple[list[Any], bool]:
    """Makes tensors of 1/32 of the limit until one is refused (then True), or `most` bytes are reached."""
    held, chunk = [], most // 32
    for _ in range(34):
        try:
            held.append(torch.empty(chunk, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            return held, True
    return held, False


def allocator() -> None:
    torch, limit = load(), card.limit()
    card.report("PyTorch", torch.__version__)
    _, total = torch.cuda.mem_get_info()
    card.check(total == limit, f"torch.cuda.mem_get_info() shows a card of {card.mib(limit)}")
    held, refused = fill(torch, limit)
    free, _ = torch.cuda.mem_get_info()
    card.report("tensors that fit", card.mib(sum(one.numel() for one in held)))
    card.check(refused and free < limit // 8, f"OutOfMemoryError past the limit, with {card.mib(free)} free")
    card.check(torch.cuda.memory_reserved() <= limit, "the allocator has no more than the limit")
    del held
    torch.cuda.empty_cache()
    a = torch.ones(1024, 1024, device="cuda")
    card.check_result(lambda: float((a @ a).sum()) == 1024.0**3, "the program goes on, and computes")
    # A tensor of half the limit fits again.
    half = torch.empty(limit // 2, dtype=torch.uint8, device="cuda")
    card.check(half.numel() == limit // 2, "what was freed comes back")


def expandable() -> None:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    allocator()


def graphs() -> None:
    torch, limit = load(), card.limit()
    stream = torch.cuda.Stream()
    a = torch.ones(512, 512, device="cuda")
    with torch.cuda.stream(stream):
        for _ in range(3):
            a @ a
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (a @ a) * 2
    graph.replay()
    held, refused = fill(torch, limit)
    card.check(refused, "OutOfMemoryError past the limit, beside a graph")
    result.zero_()
    for _ in range(100):
        graph.replay()
    card.check_result(lambda: float(result[0, 0]) == 1024.0, "the graph is replayed when memory is short")
    del held


def hold() -> None:
    """One of several processes: takes memory to the limit, prints how much, and holds it."""
    torch = load()
    held, refused = fill(torch, card.limit())
    print(f"{sum(one.numel() for one in held)} {int(refused)}", flush=True)
    signal.pause()


def processes() -> None:
    torch, limit = load(), card.limit()
    torch.ones(1, device="cuda")
    before, _ = torch.cuda.mem_get_info()
    words = [sys.executable, os.path.realpath(__file__), "hold"]
    started = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
    try:
        said = [one.stdout.readline().split() for one in started if one.stdout]
        amounts = [int(words[0]) for words in said if len(words) == 2]
        card.report("held by each", ", ".join(card.mib(amount) for amount in amounts) or "nothing")
        card.check(len(amounts) > 0, "at least one of the processes works")
        card.check(sum(amounts) <= limit, f"together no more than {card.mib(limit)}")
        card.check(any(words[1:] == ["1"] for words in said), "OutOfMemoryError past the common limit")
        free, _ = torch.cuda.mem_get_info()
        card.check(free < before - sum(amounts) + 2 * card.MIB, "each process sees what the others hold")
    finally:
        for one in started:
            one.kill()
            one.wait()
    deadline = time.monotonic() + 10
    while torch.cuda.mem_get_info()[0] < before - 2 * card.MIB and time.monotonic() < deadline:
        time.sleep(0.05)
    free, _ = torch.cuda.mem_get_info()
    card.check(free >= before - 2 * card.MIB, "what killed processes held comes back")


def rank(number: str, world: str, port: str) -> None:
    torch = load()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=number, WORLD_SIZE=world)
    torch.cuda.set_device(int(number))
    torch.distributed.init_process_group("nccl")
    amounts = torch.full((16 << 20,), float(number), device="cuda")
    for _ in range(10):
        torch.distributed.all_reduce(amounts, op=torch.distributed.ReduceOp.AVG)
    expected = (int(world) - 1) / 2
    if abs(float(amounts[0]) - expected) > 1e-3 and not card.is_simulated():
        sys.exit(1)
    torch.distributed.destroy_process_group()


def nccl() -> None:
    torch = load()
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        card.skip("this PyTorch has no NCCL")
    world, port = torch.cuda.device_count(), str(20000 + os.getpid() % 20000)
    words = [sys.executable, os.path.realpath(__file__), "rank"]
    started = [subprocess.Popen([*words, str(number), str(world), port]) for number in range(world)]
    try:
        statuses = [one.wait(timeout=240) for one in started]
    except subprocess.TimeoutExpired:
        statuses = []
    finally:
        for one in started:
            one.kill()
            one.wait()
    card.report("devices", world)
    card.check(statuses == [0] * world, f"all_reduce over {world} device(s)")


CASES = {
    "caching": allocator,
    "expandable": expandable,
    "graphs": graphs,
    "processes": processes,
    "nccl": nccl,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["hold"]:
        hold()
    elif sys.argv[1:2] == ["rank"]:
        rank(*sys.argv[2:5])
    elif len(sys.argv) == 2 and sys.argv[1] in CASES:
        CASES[sys.argv[1]]()
        card.end()
    else:
        sys.exit(__doc__)
