"""Programs of the CUDA runtime API, with the real libcudart, on simulated devices."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.cudart import CHECKS, PROGRAM, Runtime, runtimes
from support.simulation import Up, build, libraries


@pytest.fixture(scope="session")
def native(native_with_cudart: Path) -> Path:
    """A simulator that answers the runtime's question whether its driver is NVIDIA's."""
    return native_with_cudart


def run(program: Path, check: str, root: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs one check of program.c with the libraries of a driver root."""
    return subprocess.run(
        [program, check],
        env={**os.environ, "LD_LIBRARY_PATH": str(libraries(root)), **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("check", CHECKS)
def test_a_program_of_the_runtime_api_runs(up: Up, runtime_program: Path, check: str) -> None:
    done = run(runtime_program, check, up("1xT4").root)
    assert (done.returncode, done.stdout.splitlines()[-1:], done.stderr) == (0, ["ok"], ""), done.stdout


def test_a_mig_device_runs_the_program_like_any_other_device(up: Up, runtime_program: Path) -> None:
    done = run(runtime_program, "devices", up("2xA100-MIG").root)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "ok")
    assert " MIG " in done.stdout


def test_code_takes_device_memory_at_its_first_use(up: Up, runtime_program: Path) -> None:
    root = up("1xT4").root
    lazy = run(runtime_program, "kernel", root)
    eager = run(runtime_program, "kernel", root, CUDA_MODULE_LOADING="EAGER")
    # 3 MiB of code, in whole steps of 2 MiB.
    assert lazy.stdout == f"module {4 << 20}\nok\n"
    assert eager.stdout.endswith("\nok\n")


def test_a_runtime_on_a_driver_that_is_too_old_says_so(
    up: Up, runtime: Runtime, runtime_program: Path
) -> None:
    done = run(runtime_program, "linear", up("1xT4-R470").root)
    if runtime.major == 11:
        assert (done.returncode, done.stdout) == (0, "ok\n")
    else:
        assert done.returncode == 1
        assert ": 35, not 0" in done.stdout  # cudaErrorInsufficientDriver


def test_without_a_driver_there_is_no_device(runtime_program: Path, tmp_path: Path) -> None:
    (tmp_path / "usr/lib/none-linux-gnu").mkdir(parents=True)
    done = run(runtime_program, "devices", str(tmp_path))
    assert done.returncode == 1
    assert "cudaGetDeviceCount(&count): 35, not 0" in done.stdout


def test_no_sanitizer_finds_an_error_under_the_runtime(up: Up, tmp_path: Path) -> None:
    """The runtime itself is not instrumented: AddressSanitizer is loaded first, and checks libcuda."""
    newest = next(runtime for runtime in runtimes() if runtime.name == "13")
    root = up(
        "1xT4", native=str(build("sim-cudart-sanitized", "CUDART=1", "SANITIZE=address,undefined"))
    ).root
    program = newest.compile(PROGRAM, tmp_path / "program")
    libraries = [
        subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        for name in ("libasan.so", "libubsan.so")
    ]
    preload = " ".join(library.stdout.strip() for library in libraries)
    for check in CHECKS:
        done = run(program, check, root, LD_PRELOAD=preload)
        assert (done.returncode, done.stdout.splitlines()[-1:], done.stderr) == (0, ["ok"], ""), check
