"""compute-sanitizer over a first CUDA program in the slice: it finds no fault, and the result is right."""

from __future__ import annotations

import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

import card
import vector_add

TOOL = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")

if __name__ == "__main__":
    card.limit()
    vector_add.main([TOOL or card.skip("no compute-sanitizer on PATH or in /usr/local/cuda/bin")])
