"""The CUDA interposer in programs that look for leaks: a forked child leaks nothing of its parent's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import GIB

from ..sandboxes import Sandbox, compile_c

#: A card that supports multicast objects.
CARD: dict[str, Any] = {"driver": "R580", "gpus": [{"model": "H200", "multicast": True}]}
#: Leaks of the simulated driver are ignored.
SUPPRESSIONS = "leak:libcuda.real\nleak:libnvidia-ml.real\n"
#: In a child LeakSanitizer still knows its parent's threads, which the driver's libraries have started.
OF_PARENTS_THREADS = re.compile(r"==\d+==Running thread \d+ was not suspended. False leaks are possible.\n")


@pytest.mark.parametrize("interposed", [False, True])
def test_children_of_a_program_with_address_sanitizer_end_in_good_order(
    sandbox: Callable[..., Sandbox], tmp_path: Path, interposed: bool
) -> None:
    one = sandbox(4 * GIB, topology=CARD)
    source, library = Path(__file__).with_name("leak_fork.c"), one.driver / "libcuda.so.1"
    program = compile_c(source, tmp_path / "program", "-fsanitize=address", library)
    (tmp_path / "suppressions").write_text(SUPPRESSIONS)
    environ = {
        "ASAN_OPTIONS": "detect_leaks=1",
        "LSAN_OPTIONS": f"suppressions={tmp_path}/suppressions:print_suppressions=0",
    }
    if not interposed:
        environ["LD_LIBRARY_PATH"] = "/mnt/usr/lib/real"
    done = one.run([str(program)], env=environ)
    found = OF_PARENTS_THREADS.sub("", done.stderr)
    assert (done.returncode, done.stdout, found) == (0, "0 0 0\n", "")
