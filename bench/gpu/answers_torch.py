"""Cases of answers.py with PyTorch: computations, and memory that moves between streams and processes."""

from __future__ import annotations

import importlib
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import card
from answers_kept import BFLOAT16, DEVICE, FLOAT32, SEED, TF32, Answers


def torch_with(**settings: str) -> Any:
    """PyTorch, with its memory full of NaN. `settings`: environment variables that it reads at its start."""
    os.environ.update(settings)
    try:
        import torch
    except ImportError as error:
        card.skip(f"no PyTorch in {sys.executable}: {error}")
    if DEVICE == "cuda" and not torch.cuda.is_available():
        card.fail("this PyTorch finds no GPU")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    if DEVICE == "cuda":
        # The allocator reuses freed memory: large blocks and small ones.
        poison = [torch.full((16 << 20,), math.nan, device="cuda") for _ in range(4)]
        poison += [torch.full((1 << 17,), math.nan, device="cuda") for _ in range(64)]
        del poison
    return torch


def inputs(torch: Any, *shapes: tuple[int, ...]) -> list[Any]:
    """Random numbers, the same everywhere, on the processor."""
    source = torch.Generator().manual_seed(SEED)
    return [torch.randn(shape, generator=source) for shape in shapes]


def matmul(answers: Answers) -> None:
    torch = torch_with()
    a, b = inputs(torch, (1024, 1024), (1024, 1024))
    on = [each.to(DEVICE) for each in (a, b)]
    wanted = a.double() @ b.double()
    answers.keep("float32", lambda: on[0] @ on[1], wanted, FLOAT32)
    torch.set_float32_matmul_precision("high")
    answers.keep("TF32", lambda: on[0] @ on[1], wanted, TF32)
    half = [each.bfloat16() for each in on]
    exact = a.bfloat16().double() @ b.bfloat16().double()
    answers.keep("bfloat16", lambda: half[0] @ half[1], exact, BFLOAT16)


def conv(answers: Answers) -> None:
    torch = torch_with()
    x, w, g = inputs(torch, (8, 16, 64, 64), (32, 16, 3, 3), (8, 32, 64, 64))

    def pair(kind: Any, device: str) -> tuple[Any, Any]:
        image, weight = x.to(device, kind), w.to(device, kind, copy=True).requires_grad_()
        result = torch.nn.functional.conv2d(image, weight, padding=1)
        result.backward(g.to(device, kind))
        return result, weight.grad

    wanted = pair(torch.float64, "cpu")
    # cuDNN's transforms (Winograd, FFT) lose a digit.
    for number, name in enumerate(("forward", "gradient")):
        answers.keep(name, lambda at=number: pair(torch.float32, DEVICE)[at], wanted[number], 10 * FLOAT32)


def attention(answers: Answers) -> None:
    torch = torch_with()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (each.half() for each in inputs(torch, *[(2, 8, 512, 64)] * 3))
    attend = torch.nn.functional.scaled_dot_product_attention
    wanted = attend(q.double(), k.double(), v.double(), is_causal=True)
    on = [each.to(DEVICE) for each in (q, k, v)]
    kinds = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
    if DEVICE == "cuda":
        kinds["efficient"] = SDPBackend.EFFICIENT_ATTENTION

    def attended(kind: Any) -> Any:
        with sdpa_kernel(kind):
            return attend(*on, is_causal=True)

    for name, kind in kinds.items():
        answers.keep(name, lambda kind=kind: attended(kind), wanted, BFLOAT16)


def compiled(answers: Answers) -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        card.skip("no C compiler, which torch.compile calls")
    torch = torch_with(TORCHINDUCTOR_COMPILE_THREADS="1")
    x, w = inputs(torch, (512, 512), (512, 512))

    def layers(x: Any, w: Any) -> Any:
        hidden = torch.nn.functional.gelu(x @ w) + x.sin()
        return torch.nn.functional.layer_norm(hidden, hidden.shape[1:]).softmax(-1) * x

    run, on = torch.compile(layers), [each.to(DEVICE) for each in (x, w)]
    answers.keep("layers", lambda: run(*on), layers(x.double(), w.double()), 3 * FLOAT32)


def graph(answers: Answers) -> None:
    torch = torch_with()
    a, b, *more = inputs(torch, *[(512, 512)] * 5)
    weight, given = b.to(DEVICE), a.to(DEVICE)

    def step(x: Any, w: Any) -> Any:
        return torch.tanh(x @ w / 32) + x

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(given, weight)
    side.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        out = step(given, weight)

    def replayed(x: Any) -> Any:
        out.fill_(math.nan)
        given.copy_(x)
        recorded.replay()
        return out.clone()

    for number, x in enumerate(more):
        wanted = step(x.double(), b.double())
        answers.keep(f"replay {number + 1}", lambda x=x: replayed(x), wanted, FLOAT32)


def fft(answers: Answers) -> None:
    torch = torch_with()
    (x,) = inputs(torch, (64, 4096))
    on = x.to(DEVICE)
    answers.keep("forward", lambda: torch.fft.fft(on), torch.fft.fft(x.double()), FLOAT32)
    answers.keep("there and back", lambda: torch.fft.irfft(torch.fft.rfft(on)), x.double(), FLOAT32)


def sort(answers: Answers) -> None:
    torch = torch_with()
    source = torch.Generator().manual_seed(SEED)
    numbers = torch.randint(1, 1 << 40, (1 << 20,), generator=source)
    on = numbers.to(DEVICE)
    answers.keep("sort", lambda: on.sort().values, numbers.sort().values)
    answers.keep("scan", lambda: on.cumsum(0), numbers.cumsum(0))
    answers.keep("unique", lambda: (on % 9973).unique(), (numbers % 9973).unique())
    answers.keep("histogram", lambda: (on % 997).bincount(), (numbers % 997).bincount())


def training(answers: Answers) -> None:
    """Twenty steps of a small network: the losses, and the final weights."""
    torch = torch_with()
    x, y, *starts = inputs(torch, (256, 64), (256, 8), (64, 128), (128, 8))

    def learn(kind: Any, device: str) -> tuple[Any, Any]:
        weights = [(each / 8).to(device, kind).requires_grad_() for each in starts]
        rule = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
        given, wanted, losses = x.to(device, kind), y.to(device, kind), []
        for _ in range(20):
            rule.zero_grad()
            loss = torch.nn.functional.mse_loss((given @ weights[0]).relu() @ weights[1], wanted)
            loss.backward()
            rule.step()
            losses.append(loss.detach())
        return torch.stack(losses), weights[0].detach()

    wanted = learn(torch.float64, "cpu")
    for number, name in enumerate(("losses", "weights")):
        answers.keep(name, lambda at=number: learn(torch.float32, DEVICE)[at], wanted[number], 10 * FLOAT32)


def streams(answers: Answers) -> None:
    """Steps in turn on four streams, which wait for each other by events. A wrong order changes the
    result."""
    torch = torch_with()
    source = torch.Generator().manual_seed(SEED)
    start = torch.randint(1, 1 << 30, (1 << 20,), generator=source)

    def step(x: Any, number: int) -> Any:
        return (x * (2 * number + 3) + number) % ((1 << 31) - 1)

    def ordered() -> Any:
        several, x = [torch.cuda.Stream() for _ in range(4)], start.to(DEVICE)
        before = torch.cuda.Event()
        before.record()
        kept = [x]
        for number in range(64):
            with torch.cuda.stream(several[number % 4]):
                before.wait()
                kept.append(step(kept[-1], number))
                before = torch.cuda.Event()
                before.record()
        before.synchronize()
        return kept[-1]

    wanted = start
    for number in range(64):
        wanted = step(wanted, number)
    answers.keep("in turn", ordered, wanted)


def pinned(answers: Answers) -> None:
    torch = torch_with()
    source = torch.Generator().manual_seed(SEED)
    numbers = torch.randint(1, 1 << 30, (1 << 22,), generator=source, dtype=torch.int32)

    def there_and_back() -> Any:
        out = torch.full_like(numbers, -1).pin_memory()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            on = numbers.pin_memory().to(DEVICE, non_blocking=True)
            out.copy_(on ^ 0x5A5A5A5A, non_blocking=True)
        side.synchronize()
        return out.clone()

    answers.keep("copies", there_and_back, numbers ^ 0x5A5A5A5A)


def churn(answers: Answers) -> None:
    """Tensors that come and go. Each holds a number of its own everywhere: none may appear in another."""
    torch = torch_with()

    def run() -> Any:
        chance, held = random.Random(SEED), {}
        for number in range(400):
            held[number] = torch.full((chance.randrange(1, 1 << 20),), number, device=DEVICE)
            for gone in [each for each in held if chance.random() < 0.05]:
                del held[gone]
        return torch.stack([torch.stack([each.min(), each.max()]) for each in held.values()])

    chance, living = random.Random(SEED), []
    for number in range(400):
        chance.randrange(1, 1 << 20)
        living.append(number)
        living = [each for each in living if not chance.random() < 0.05]
    answers.keep("each its own", run, torch.tensor([[each, each] for each in living]))


def _double(tensors: Any, done: Any) -> None:
    """Runs in a second process, on memory of the first."""
    tensor = tensors.get()
    tensor.mul_(2).add_(1)
    import torch

    torch.cuda.synchronize()
    done.put(True)
    del tensor


def ipc(answers: Answers) -> None:
    torch = torch_with()
    source = torch.Generator().manual_seed(SEED)
    start = torch.randint(1, 1 << 30, (1 << 20,), generator=source)

    def shared() -> Any:
        context = importlib.import_module("torch.multiprocessing").get_context("spawn")
        tensors, done = context.Queue(), context.Queue()
        other = context.Process(target=_double, args=(tensors, done))
        other.start()
        tensor = start.to(DEVICE)
        tensors.put(tensor)
        done.get(timeout=60)
        other.join(30)
        return tensor

    answers.keep("by another process", shared, start * 2 + 1)


def killed(answers: Answers) -> None:
    """A process is killed during its kernels. Then its memory comes back, and results are right."""
    torch = torch_with()
    a, b = inputs(torch, (1024, 1024), (1024, 1024))
    on = [each.to(DEVICE) for each in (a, b)]
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    words = [sys.executable, os.path.realpath(sys.argv[0]), "hold", "-"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        held = other.stdout is not None and other.stdout.readline() == "held\n"
        less = before - torch.cuda.mem_get_info()[0]
        other.send_signal(signal.SIGKILL)
    until = time.monotonic() + 10
    while torch.cuda.mem_get_info()[0] < before - 32 * card.MIB and time.monotonic() < until:
        time.sleep(0.02)
    missing = before - torch.cuda.mem_get_info()[0]
    card.check(held and less >= 1 << 30, f"another process held {card.mib(less)}")
    card.check(missing <= 32 * card.MIB, f"left by the killed process: {card.mib(max(0, missing))}")
    answers.keep("the next", lambda: on[0] @ on[1], a.double() @ b.double(), FLOAT32)


def hold(_: Answers) -> None:
    torch = torch_with()
    held = torch.full((1 << 28,), 1.0, device=DEVICE)
    a = torch.full((4096, 4096), 0.5, device=DEVICE)
    torch.cuda.synchronize()
    print("held", flush=True)
    while held.numel():
        a = torch.tanh(a * 1.01)
        torch.cuda.synchronize()
