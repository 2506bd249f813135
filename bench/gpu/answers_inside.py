"""Computes a case of answers.py and writes the results: answers_inside.py CASE FOLDER

It is the same in each place: seeded inputs without zeros, a reference computed by the processor in float64
(or exactly), and outputs in memory that was filled with NaN.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import sys
from pathlib import Path
from typing import Any

import answers_torch
import card
from answers_kept import DEVICE, FLOAT32, SEED, Answers
from answers_torch import inputs, torch_with


def triton(answers: Answers) -> None:
    import answers_triton

    torch = torch_with()
    a, b = inputs(torch, (1 << 20,), (1 << 20,))
    on = [each.to(DEVICE) for each in (a, b)]
    answers.keep("a kernel", lambda: answers_triton.fused(*on), (-(a.double() * b).abs()).exp(), FLOAT32)


def cupy(answers: Answers) -> None:
    try:
        import cupy as cp
        import numpy as np
    except ImportError as error:
        card.skip(f"no CuPy in {sys.executable}: {error}")
    source = np.random.default_rng(SEED)
    a, b = (source.standard_normal((512, 512)).astype(np.float32) for _ in range(2))
    on = [cp.asarray(each) for each in (a, b)]
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    answers.keep("product", lambda: on[0] @ on[1], wanted, FLOAT32)
    scale = cp.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = x * y + x", "scale")
    answers.keep("a kernel", lambda: scale(*on), a.astype(np.float64) * b + a, FLOAT32)
    answers.keep("sums", lambda: on[0].sum(axis=1), a.astype(np.float64).sum(axis=1), FLOAT32)


def jax(answers: Answers) -> None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
        import jax.numpy as jnp
        import numpy as np
    except ImportError as error:
        card.skip(f"no JAX in {sys.executable}: {error}")
    if DEVICE == "cuda" and jax.default_backend() != "gpu":
        card.fail(f"this JAX finds no GPU (its backend is {jax.default_backend()})")
    jax.config.update("jax_default_matmul_precision", "highest")
    source = np.random.default_rng(SEED)
    a, b = (source.standard_normal((512, 512)).astype(np.float32) for _ in range(2))
    product, double = jax.jit(jnp.matmul), (a.astype(np.float64), b.astype(np.float64))
    answers.keep("product", lambda: product(a, b), double[0] @ double[1], FLOAT32)
    slope = jax.jit(jax.grad(lambda x, y: jnp.sum(jnp.tanh(x @ y / 32.0) ** 2)))
    inner = np.tanh(double[0] @ double[1] / 32)
    wanted = (2 * inner * (1 - inner**2) / 32) @ double[1].T
    answers.keep("gradient", lambda: slope(a, b), wanted, FLOAT32)


def copies(answers: Answers) -> None:
    """By the driver alone: to the device, within it, and back. A simulated card does this too."""
    cuda, size = card.Cuda(), 8 * card.MIB
    data, back = random.Random(SEED).randbytes(size), ctypes.create_string_buffer(b"\xff" * size, size)
    one, other = (ctypes.c_ulonglong(cuda.plain(size)) for _ in range(2))
    cuda.must("cuMemcpyHtoD_v2", one, data, ctypes.c_size_t(size))
    cuda.must("cuMemsetD8_v2", other, ctypes.c_ubyte(0xFF), ctypes.c_size_t(size))
    cuda.must("cuMemcpyDtoD_v2", other, one, ctypes.c_size_t(size))
    cuda.must("cuMemcpyDtoH_v2", back, other, ctypes.c_size_t(size))
    entry = {"name": "bytes", "kind": "uint8", "shape": [size], "repeats": True, "error": 0.0, "worst": 0.0}
    entry |= {"bound": 0.0, "exact": True, "sha256": hashlib.sha256(back.raw).hexdigest()}
    answers.write({**entry, "holds": back.raw == data, "simulated": True}, back.raw)


OF_PYTORCH = (
    *("matmul", "conv", "attention", "compiled", "graph", "fft", "sort", "training", "streams", "pinned"),
    *("churn", "ipc", "killed", "hold"),
)
CASES: dict[str, Any] = {
    **{each.__name__: each for each in (copies, triton, cupy, jax)},
    **{name: getattr(answers_torch, name) for name in OF_PYTORCH},
}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in CASES:
        sys.exit(__doc__)
    CASES[sys.argv[1]](Answers(sys.argv[1], Path(sys.argv[2])))
    card.end()
