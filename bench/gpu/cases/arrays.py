"""CuPy or JAX in the slice, to the limit and past it. arrays.py cupy | jax"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

import card


def fill(cuda: card.Cuda, make: Callable[[int], Any], errors: tuple[type[BaseException], ...]) -> None:
    """Makes arrays until one is refused: at the slice's end, not at the library's own limit."""
    limit = card.limit()
    held, chunk, refused = [], limit // 32, ""
    for _ in range(34):
        try:
            held.append(make(chunk))
        except errors as error:
            refused = type(error).__name__
            break
    free, _ = cuda.memory()
    card.report("arrays that fit", card.mib(len(held) * chunk))
    card.check(bool(refused), f"{refused or 'no error'} past the limit")
    card.check(free < limit // 8, f"the slice is full then: {card.mib(free)} free")
    held.clear()


def cupy() -> None:
    try:
        import cupy as cp
    except ImportError as error:
        card.skip(f"no CuPy in {sys.executable}: {error}")
    limit, cuda = card.limit(), card.Cuda()
    card.report("CuPy", cp.__version__)
    card.check(cp.cuda.Device().mem_info[1] == limit, f"mem_info shows a card of {card.mib(limit)}")
    fill(cuda, lambda size: cp.empty(size, dtype=cp.uint8), (cp.cuda.memory.OutOfMemoryError,))
    cp.get_default_memory_pool().free_all_blocks()
    card.check_result(lambda: int(cp.arange(1000).sum()) == 499500, "the program goes on, and computes")


def jax() -> None:
    # By default JAX takes three quarters of the card at its start, and never more. The variable has a newer
    # name, XLA_CLIENT_MEM_FRACTION, which older versions do not know. Newer versions know both, but not
    # together.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if "XLA_CLIENT_MEM_FRACTION" not in os.environ:
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "1.0")
    try:
        import jax
        import jax.numpy as jnp
    except ImportError as error:
        card.skip(f"no JAX in {sys.executable}: {error}")
    card.limit()
    cuda = card.Cuda()
    try:
        backend = jax.default_backend()
    except RuntimeError as error:
        card.missing(f"this JAX has no backend: {error}")
    if backend != "gpu":
        card.missing(f"this JAX {jax.__version__} finds no GPU (its backend is {backend})")
    card.report("JAX", jax.__version__)

    def make(size: int) -> Any:
        return jnp.zeros(size, dtype=jnp.uint8).block_until_ready()

    fill(cuda, make, (jax.errors.JaxRuntimeError, RuntimeError))
    card.check_result(lambda: int(jnp.arange(1000).sum()) == 499500, "the program goes on, and computes")


CASES = {"cupy": cupy, "jax": jax}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in CASES:
        sys.exit(__doc__)
    CASES[sys.argv[1]]()
    card.end()
