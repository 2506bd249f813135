"""A lent machine with a card: no network, no runc, no busybox, and the driver in a folder of its own.

It is a minimal Debian root (distributions/root.py). The files of a simulated R580 driver are below
/usr/local/nvidia, read-only; its nodes are in /dev, its files in /proc. Python is in a virtual environment
below /opt, and not in /usr/bin. The simulation runs outside, as a card does. XPU_LEASE_PYTHON names a virtual
environment of this machine to use instead, for trying by hand the steps that need PyTorch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from distributions.root import Root
from support import REPOSITORY
from xpu_simulator.simulator import SimState

SUITE, PACKAGES = "trixie", ("gcc", "libc6-dev", "make", "python3", "python3-venv")
TREE, OUT, PATIENCE = "/root/tree", "/root/out", 600
_VENV = "/opt/torch/.venv"
_PATH = f"{_VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Moves Python to /opt, away from Debian's files.
_MOVE_PYTHON = f"""
version=$(readlink /usr/bin/python3)
mkdir -p /opt/python/bin /opt/python/lib
mv /usr/bin/$version /opt/python/bin/
ln -s $version /opt/python/bin/python3
mv /usr/lib/$version /opt/python/lib/
rm -rf /usr/bin/python3* /usr/lib/python3*
/opt/python/bin/python3 -m venv --without-pip {_VENV}
"""
_NO_COMPILER = "rm /usr/bin/*gcc* /usr/bin/cc /usr/bin/make"
_IN_CACHE = "echo /usr/local/nvidia/lib64 > /etc/ld.so.conf.d/nvidia.conf && ldconfig"


def make_kit() -> Path:
    """The result of `make lease`, after its prerequisites are made."""
    folder = REPOSITORY / "build" / "lease-of-tests"
    program = [sys.executable, str(REPOSITORY / "packaging/lease.py"), str(folder), "tests"]
    done = subprocess.run(
        ["flock", f"{folder}.lock", *program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def make_driver(state: SimState, folder: Path) -> Path:
    """A folder with the simulated driver's files, laid out as in /usr/local/nvidia."""
    (libraries,) = Path(state.root).glob("usr/lib/*-linux-gnu")
    shutil.copytree(libraries, folder / "lib64", symlinks=True)
    shutil.copytree(Path(state.root) / "usr/bin", folder / "bin")
    return folder


class LentMachine:
    """Needs `close`. `compiler`: it has gcc and make. `cached`: the loader's cache has the driver; without it
    only LD_LIBRARY_PATH leads to the driver. `cgroups`: as for Root. `card`: it has a card. `kit`: the packed
    kit, or None. `changed`: a script that changes the machine."""

    def __init__(
        self,
        state: SimState,
        driver: Path,
        kit: Path | None,
        *,
        compiler: bool = True,
        cached: bool = True,
        cgroups: str = "own",
        card: bool = True,
        changed: str = "",
    ) -> None:
        own = os.environ.get("XPU_LEASE_PYTHON", "")
        binds = [*(_of_card(state, driver) if card else []), *(_of_environment(Path(own)) if own else [])]
        self._root = Root(SUITE, packages=PACKAGES, network=False, cgroups=cgroups, binds=binds)
        self._environ = {"PATH": _PATH, "OUT": OUT}
        self._environ |= {} if cached or changed else {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
        try:
            self._must("mount -o remount,bind,ro /usr/local/nvidia" if card else "")
            self._must("" if own else _MOVE_PYTHON)
            self._must("" if compiler else _NO_COMPILER)
            self._must(_IN_CACHE if cached and card else "")
            self._must(changed)
            self._bring_tree(kit)
        except BaseException:
            self.close()
            raise

    def _must(self, script: str) -> None:
        done = self._root.run("sh", "-ec", script)
        assert done.returncode == 0, f"{script}: {done.stdout}"

    def _bring_tree(self, kit: Path | None) -> None:
        """Copies the files that git tracks or does not ignore, without .git, and the kit."""
        words = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\0")
        for name in filter(None, names):
            source, target = REPOSITORY / name, self.path(TREE) / name
            if os.path.lexists(source):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        if kit:
            shutil.copytree(kit, self.path(TREE) / "build/lease")

    def path(self, inside: str) -> Path:
        return self._root.path(inside)

    def run(
        self, *words: str, environ: Mapping[str, str] | None = None, timeout: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        more = {**self._environ, **(environ or {})}
        return self._root.run(*words, timeout=timeout, cwd=TREE, environ=more)

    def lease(self, run: int, *words: str) -> subprocess.CompletedProcess[str]:
        """Starts one of the three runs, as the machine's user does."""
        return self.run("bench/gpu/lease", str(run), *words)

    def programs(self) -> list[str]:
        """The programs that run on it."""
        return self._root.programs()

    def close(self) -> None:
        self._root.close()


def _of_environment(folder: Path) -> Sequence[tuple[str, str]]:
    """A virtual environment, and the Python that made it."""
    made_with = (folder / "bin/python3").resolve().parents[1]
    return [(str(folder), _VENV), (str(made_with), str(made_with))]


def _of_card(state: SimState, driver: Path) -> Sequence[tuple[str, str]]:
    simulated = Path(state.root)
    return [
        (str(driver), "/usr/local/nvidia"),
        (str(simulated / "run/nvidia-sim"), "/run/nvidia-sim"),
        (str(simulated / "proc/driver"), "/proc/driver"),
        (str(simulated / "proc/devices"), "/proc/devices"),
        *((str(node), f"/dev/{node.name}") for node in sorted((simulated / "dev").iterdir())),
    ]
