"""The results of a case of answers.py on disk: the error, digest and bytes of each.

FOLDER/CASE.json has the results so far, FOLDER/CASE.NAME the bytes of each.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: `cpu` rehearses the arithmetic without a card. Some cases need a card.
DEVICE = os.environ.get("XPU_GPU_ON", "cuda")
SEED = 20260727
#: The bounds of the error against float64, as a part of the reference's norm. A product of matrices of 1024
#: is about 3e-7 off in float32; TF32 has 10 bits after the first, bfloat16 7.
FLOAT32, TF32, BFLOAT16 = 1e-5, 2e-3, 1e-2
#: One element may be this many times as far off, in terms of the root mean square: a single wrong one is
#: found.
WORST = 30


class Answers:
    """The results of one case."""

    def __init__(self, case: str, folder: Path) -> None:
        self._case, self._folder = case, folder
        self._entries: list[dict[str, Any]] = []

    def keep(self, name: str, make: Callable[[], Any], reference: Any, bound: float = 0.0) -> None:
        """The result of `make`, called twice, against the reference; `bound` 0: bit for bit."""
        first, again = (_on_host(make()) for _ in range(2))
        data, wanted = first.tobytes(), _on_host(reference)
        error, worst = _distance(first, wanted)
        entry = {
            "name": name,
            "kind": str(first.dtype),
            "shape": list(first.shape),
            "sha256": hashlib.sha256(data).hexdigest(),
            "repeats": data == again.tobytes(),
            "error": error,
            "worst": worst,
            "bound": bound,
            "exact": bound == 0.0,
            "holds": data == wanted.tobytes() if bound == 0.0 else error <= bound and worst <= WORST * bound,
        }
        self.write(entry, data)

    def write(self, entry: dict[str, Any], data: bytes) -> None:
        (self._folder / f"{self._case}.{entry['name']}").write_bytes(data)
        self._entries.append(entry)
        (self._folder / f"{self._case}.json").write_text(json.dumps(self._entries))


def _on_host(value: Any) -> Any:
    """A numpy array of a tensor or array of any library."""
    import numpy

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) in ("torch.bfloat16", "torch.float16") else value).numpy()
    elif hasattr(value, "get"):
        value = value.get()
    return numpy.ascontiguousarray(value)


def _distance(value: Any, wanted: Any) -> tuple[float, float]:
    """The norm of the difference as a part of the reference's, and its largest element as a part of the root
    mean square. Infinite if anything is NaN or the shape differs."""
    import numpy

    if value.shape != wanted.shape:
        return math.inf, math.inf
    kind = numpy.complex128 if numpy.iscomplexobj(wanted) else numpy.float64
    wanted, difference = wanted.astype(kind), value.astype(kind) - wanted.astype(kind)
    norm = float(numpy.linalg.norm(wanted.ravel()))
    error = float(numpy.linalg.norm(difference.ravel())) / norm if norm else math.inf
    worst = float(numpy.abs(difference).max()) / (norm / math.sqrt(wanted.size)) if norm else math.inf
    return (error, worst) if math.isfinite(error) and math.isfinite(worst) else (math.inf, math.inf)
