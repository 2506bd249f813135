"""A first CUDA program (vector_add.cu), with libcudart static and shared, in the slice.

vector_add.py [COMMAND...]: COMMAND runs the program (sanitizer.py's tool).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

import card

HERE = os.path.dirname(os.path.realpath(__file__))
NVCC = shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")


def build(folder: str, cudart: str) -> str:
    program = os.path.join(folder, f"vector-add-{cudart}")
    source = os.path.join(HERE, "vector_add.cu")
    words = [NVCC or "", "-cudart", cudart, "-o", program, source]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if done.returncode:
        card.missing(f"nvcc cannot build {source}: {done.stderr.strip()[-300:]}")
    return program


def run(command: list[str], program: str) -> subprocess.CompletedProcess[str]:
    paths = [os.environ.get("LD_LIBRARY_PATH", ""), *_cudart_folders()]
    environ = {**os.environ, "LD_LIBRARY_PATH": ":".join(path for path in paths if path)}
    return subprocess.run([*command, program], env=environ, capture_output=True, text=True, timeout=300)


def _cudart_folders() -> list[str]:
    top = os.path.dirname(os.path.dirname(os.path.realpath(NVCC or "")))
    return [path for path in (f"{top}/lib64", f"{top}/targets/x86_64-linux/lib") if os.path.isdir(path)]


def main(command: list[str]) -> None:
    limit = card.limit()
    if not NVCC:
        card.skip("no nvcc on PATH or in /usr/local/cuda/bin")
    if not (shutil.which("g++") or shutil.which("gcc")):
        card.skip("no gcc on PATH, which nvcc calls for the host's part")
    card.Cuda()
    with tempfile.TemporaryDirectory() as folder:
        for cudart in ("static", "shared"):
            done = run(command, build(folder, cudart))
            if done.returncode == card.SKIPPED:
                card.missing(f"this toolkit's program finds no driver for it: {done.stderr.strip()[-200:]}")
            if card.is_simulated() and done.stderr.startswith("cudaMalloc: "):
                card.skip(f"{done.stderr.strip()}: was this simulator built with CUDART=1 (sim/README.md)?")
            right = f"total: {limit}" in done.stdout
            card.check(done.returncode == 0 and right, f"vectorAdd with {cudart} libcudart")
            summed = "sum: 150000" in done.stdout
            card.check_result(lambda summed=summed: summed, f"its sum with {cudart} libcudart")
            if done.returncode or not right:
                print(done.stdout[-2000:], done.stderr[-2000:])
            if command:
                errors = [line for line in (done.stdout + done.stderr).split("\n") if "ERROR SUMMARY" in line]
                clean = bool(errors) and "SUMMARY: 0 errors" in errors[-1]
                card.check(
                    clean,
                    f"{os.path.basename(command[0])}: {errors[-1].strip('= ') if errors else 'no summary'}",
                )
    card.end()


if __name__ == "__main__":
    main(sys.argv[1:])
