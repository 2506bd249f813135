"""The interposers in a program without a free file descriptor (EMFILE): the refusal ends when one is free."""

from __future__ import annotations

import pytest

from support import GIB, MIB

from .calls import HEAVY, NOT_PERMITTED, OUT, SUCCESS, Start, kinds
from .sandboxes import Make


def test_a_lack_at_the_first_call_is_told_and_no_refusal_for_ever(
    caller: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    user = caller(GIB, topology=HEAVY, device=None)
    assert user.without_descriptors("cuInit", 0)[0] == NOT_PERMITTED
    assert user.start() == SUCCESS
    user.get("cuMemAlloc_v2", OUT, 4 * MIB)
    assert kinds(user.sandbox) == {"linear": 4 * MIB, "overhead": 300 * MIB}
    user.end()
    assert "no file descriptor left: close some or raise `ulimit -n`" in capfd.readouterr().err


def test_a_lack_at_the_first_context_is_no_refusal_for_ever(caller: Start) -> None:
    user = caller(GIB, topology=HEAVY, device=None)
    assert user.code("cuInit", 0) == SUCCESS
    assert user.without_descriptors("cuDevicePrimaryCtxRetain", OUT, 0)[0] == NOT_PERMITTED
    assert user.start() == SUCCESS
    user.get("cuMemAlloc_v2", OUT, 4 * MIB)
    assert kinds(user.sandbox) == {"linear": 4 * MIB, "overhead": 300 * MIB}


def test_nvml_works_again_after_a_lack_of_descriptors(sandbox: Make) -> None:
    script = """
import ctypes, resource
nvml = ctypes.CDLL("libnvidia-ml.so.1")
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
codes = [nvml.nvmlInit_v2()]
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
codes += [nvml.nvmlInit_v2()]
device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
codes += [nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)),
          nvml.nvmlDeviceGetMemoryInfo(device, memory)]
print(codes, memory[0])
"""
    done = sandbox(GIB).python(script)
    no_permission = 4
    assert done.stdout == f"[{no_permission}, 0, 0, 0] {GIB}\n", done.stderr
