"""The interposer: threads with small stacks may make CUDA's calls, even a process's first ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import GIB

from ..sandboxes import FOLDER, Make, Sandbox, compile_c

KIB = 1 << 10
#: PTHREAD_STACK_MIN of x86-64.
SMALLEST = 16 * KIB
#: Bytes that the interposer may need beyond the driver. Most of them are the loader's, which loads NVML.
MORE = 6 * KIB


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("first_call_stack.c")
    return compile_c(source, tmp_path_factory.mktemp("stack") / "program", "-ldl")


def used(
    sandbox: Sandbox, program: Path, library: str, size: int, **environ: str
) -> dict[str, tuple[int, int]]:
    """Bytes of a thread's stack that each call needs, until it returns and until the thread has ended."""
    done = sandbox.run([str(program), library, str(size)], env=environ)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return {name: (returned, ended) for name, (returned, ended) in json.loads(done.stdout).items()}


def test_the_first_calls_need_little_more_stack_than_without_the_interposer(
    sandbox: Make, program: Path
) -> None:
    one = sandbox(GIB)
    alone = used(one, program, f"{FOLDER}/libcuda.real", 1024 * KIB)
    interposed = used(one, program, "libcuda.so.1", 1024 * KIB)
    assert set(alone) == {"cuInit", "cuDevicePrimaryCtxRetain", "cuMemAlloc", "cuMemGetInfo"}
    more = {name: [interposed[name][end] - alone[name][end] for end in (0, 1)] for name in alone}
    assert max(map(max, more.values())) <= MORE, more
    assert min(returned for returned, _ in alone.values()) > 500  # The measurement works.


@pytest.mark.parametrize("log", ["", "debug"])
def test_a_program_with_the_smallest_stacks_runs(sandbox: Make, program: Path, log: str) -> None:
    assert used(sandbox(GIB), program, "libcuda.so.1", SMALLEST, XPU_LOG=log)
