"""CuPy or JAX in the slice, to the limit and past it. arrays.py cupy | jax"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import card


def fill(make: Callable[[int], Any], errors: tuple[type[BaseException], ...], limit: int) -> None:
    held, chunk = [], limit // 32
    refused = ""
    for _ in range(34):
        try:
            held.append(make(chunk))
        except errors as error:
            refused = type(error).__name__
            break
    card.report("arrays that fit", card.mib(len(held) * chunk))
    card.check(bool(refused), f"{refused or 'no error'} past the limit")
    held.clear()


def cupy() -> None:
    try:
        import cupy as cp
    except ImportError as error:
        card.skip(f"no CuPy in {sys.executable}: {error}")
    limit = card.limit()
    card.Cuda()
    card.report("CuPy", cp.__version__)
    card.check(cp.cuda.Device().mem_info[1] == limit, f"mem_info shows a card of {card.mib(limit)}")
    fill(lambda size: cp.empty(size, dtype=cp.uint8), (cp.cuda.memory.OutOfMemoryError,), limit)
    cp.get_default_memory_pool().free_all_blocks()
    card.check(int(cp.arange(1000).sum()) == 499500, "the program goes on, and computes")


def jax() -> None:
    # Else it takes three quarters of the card at its start.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
        import jax.numpy as jnp
    except ImportError as error:
        card.skip(f"no JAX in {sys.executable}: {error}")
    limit = card.limit()
    card.Cuda()
    if jax.default_backend() != "gpu":
        card.skip(f"this JAX finds no GPU (its backend is {jax.default_backend()})")
    card.report("JAX", jax.__version__)

    def make(size: int) -> Any:
        return jnp.zeros(size, dtype=jnp.uint8).block_until_ready()

    fill(make, (jax.errors.JaxRuntimeError, RuntimeError), limit)
    card.check(int(jnp.arange(1000).sum()) == 499500, "the program goes on, and computes")


CASES = {"cupy": cupy, "jax": jax}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in CASES:
        sys.exit(__doc__)
    CASES[sys.argv[1]]()
    card.end()
