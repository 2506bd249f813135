"""The launcher as it lies below a PREFIX, with a stand-in for the shim behind it.

The stand-in prints the runtime's words that it was started with. The launcher's configuration and run folder
are the test's own, so that nothing of the machine's decides.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import REPOSITORY, created
from xpu_runtime.config import cache
from xpu_runtime.start import created as python

NATIVE = REPOSITORY / "native" / "launcher"
SHIM = "import sys\nprint('the shim', *sys.argv[2:], sep='\\n')\n"


class Launcher:
    """One installation of the launcher, and the files that steer it."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.path = folder / "prefix" / "bin" / "xpu-container-runtime"
        self.shim = folder / "prefix" / "lib" / "xpu-container-runtime" / "shim.py"
        self.config = folder / "config.yaml"
        self.run_dir = folder / "run"
        self.path.parent.mkdir(parents=True)
        self.shim.parent.mkdir(parents=True)
        self.run_dir.mkdir()
        os.link(program, self.path)
        self.shim.write_text(SHIM)
        self.env = {**os.environ, "XPU_CONFIG": str(self.config), "XPU_RUN_DIR": str(self.run_dir)}

    def compiled(self, runtime: str | Path) -> Path:
        """Writes a configuration file and its compiled form."""
        self.config.write_text("runtimes: [runc]\n")
        stat = self.config.stat()
        conf = self.run_dir / "launcher.conf"
        conf.write_text(
            f"format={cache.FORMAT}\nconfig={self.config}\n"
            f"stamp={stat.st_mtime_ns}:{stat.st_size}:{stat.st_ino}\n"
            f"runtime={runtime}\n"
        )
        conf.chmod(0o644)
        return conf

    def run(self, *words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.path, *words], env=self.env, cwd=cwd, capture_output=True, text=True, timeout=60
        )

    def collect_garbage(self, *, long_after: bool = True) -> None:
        """What `xpu gc` does for the records of this installation's containers, long after they were made."""
        for path in created.of(self.run_dir) if long_after else ():
            os.utime(path, (1, 1), follow_symlinks=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XPU_RUN_DIR", str(self.run_dir))
            patch.setenv("XPU_CONFIG", str(self.config))
            python.forget_gone()


def build(out: Path, *variables: str) -> Path:
    subprocess.run(["make", "-s", "-C", NATIVE, f"OUT={out}", *variables], check=True)
    return out / "xpu-container-runtime"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("launcher"))


@pytest.fixture
def launcher(tmp_path: Path, program: Path) -> Iterator[Launcher]:
    yield Launcher(tmp_path / "installation", program)
    created.forget(tmp_path)


@pytest.fixture(scope="session")
def sanitized_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = "-g -Og -fsanitize=address,undefined -fno-sanitize-recover=all"
    out = tmp_path_factory.mktemp("sanitized")
    return build(out, "CC=gcc", f"CFLAGS={flags}", "LINKING=-no-pie")


@pytest.fixture(params=["program", "sanitized_program"])
def checked_launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launcher]:
    """The launcher as it is shipped, and once more under the address and undefined behaviour sanitizers."""
    yield Launcher(tmp_path / "installation", request.getfixturevalue(request.param))
    created.forget(tmp_path)


@pytest.fixture
def launcher_without_python(tmp_path: Path) -> Iterator[Launcher]:
    """A launcher whose interpreter is not there."""
    program = build(tmp_path / "build", f"PYTHON={tmp_path}/missing/python3")
    yield Launcher(tmp_path / "installation", program)
    created.forget(tmp_path)


@pytest.fixture(scope="session")
def argv_dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The launcher's own argv.c under the sanitizers, as a program that prints its result."""
    program = tmp_path_factory.mktemp("argv") / "argv_dump"
    here = Path(__file__).resolve().parent
    subprocess.run(
        ["gcc", "-std=c11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror"]
        + ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{NATIVE}"]
        + ["-o", program, here / "argv_dump.c", NATIVE / "argv.c", NATIVE / "handover.c"],
        check=True,
    )
    return program


@pytest.fixture(params=["runc", "launcher"])
def runc(request: pytest.FixtureRequest, launcher: Launcher) -> Callable[..., list[str | Path]]:
    """A command line of runc's, once for runc itself and once for the launcher in front of it."""
    program = launcher.path if request.param == "launcher" else "/usr/sbin/runc"
    return lambda *words: [program, *words]
