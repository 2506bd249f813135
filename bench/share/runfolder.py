"""The folder below /run of one run, and the end of everything in it, also after a kill.

A file in it has the pid, the start time and the PID namespace of the run that made it, so that a later run
can tell whether that one still lives. (The folder's name must be short: a socket of MPS leaves 20 bytes for
it.) A run's leftovers are found by the folder, not by anything that the run remembered: containers in runc's
state below it, processes by their environment, cgroups by name, mounts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from xpu_runtime.linux import cgroups, mountinfo, proc, syscalls

TOP, PREFIX = Path("/run"), "xpu-share-"
#: The file with the numbers of the run that made the folder.
OWNER = "owner"
END_S = 5.0  # until killed processes have left their cgroups


def make(prefix: str = PREFIX) -> Path:
    """A new folder of this process; `prefix` says what kind of run it belongs to."""
    pid = os.getpid()
    while True:
        folder = TOP / f"{prefix}{pid}-{secrets.token_hex(2)}"
        with contextlib.suppress(FileExistsError):  # a run in another PID namespace has the same pid
            folder.mkdir(0o700)
            (folder / OWNER).write_text(f"{pid} {proc.start_time(pid)} {proc.pid_namespace()}")
            return folder


def dead(prefix: str = PREFIX) -> list[Path]:
    """The folders of ended runs, except those in other PID namespaces, and those that were made just now."""
    found = []
    for folder in TOP.glob(f"{prefix}*"):
        try:
            pid, started, namespace = map(int, (folder / OWNER).read_text().split())
        except (OSError, ValueError):
            continue
        if namespace == proc.pid_namespace() and not proc.is_alive(pid, started):
            found.append(folder)
    return sorted(found)


def prepare(folder: Path, root: str = "") -> None:
    """Writes the product's configuration there: the runc of PATH, which may be in no system folder.

    `root`: the driver's, if that is a simulation that runs elsewhere.
    """
    if root:
        (folder / "run/sim").mkdir(parents=True)
        (folder / "run/sim/root").symlink_to(os.path.realpath(root))
    (folder / "config.yaml").write_text(f"low_level_runtimes: [{shutil.which('runc') or 'runc'}]\n")


def environment(folder: Path) -> dict[str, str]:
    """The environment of the product's programs."""
    return {**os.environ, "XPU_RUN_DIR": str(folder / "run"), "XPU_CONFIG": str(folder / "config.yaml")}


def remove(folder: Path, prefix: Path) -> None:
    """Ends everything that runs in it with the installation at `prefix`, kills the rest, and removes it."""
    environ = environment(folder)
    state = folder / "state"
    for container in sorted(state.iterdir()) if state.is_dir() else []:
        runtime = [str(prefix / "bin/xpu-container-runtime"), "--root", str(state)]
        run_to_its_end([*runtime, "delete", "--force", container.name], environ)
    # A simulation that is only linked here belongs to another run.
    if (folder / "run/sim").exists() and not (folder / "run/sim/root").is_symlink():
        run_to_its_end([str(prefix / "bin/xpu"), "sim", "down"], environ)
    for pid in processes(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for cgroup in _cgroups(folder):
        _remove_cgroup(cgroup)
    for point in sorted(mounted_below(folder), reverse=True):
        with contextlib.suppress(OSError):
            syscalls.umount2(point, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
    shutil.rmtree(folder, ignore_errors=True)


def run_to_its_end(words: Sequence[str], environ: dict[str, str]) -> None:
    """Waits for it even if it fails or Ctrl-C is pressed meanwhile."""
    subprocess.run(words, env=environ, capture_output=True, check=False, start_new_session=True)


def processes(folder: Path) -> list[int]:
    """The processes with a path in it in their environment: agent, simulated driver, MPS daemon."""
    wanted = f"={folder}/".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def mounted_below(folder: Path) -> list[str]:
    return [each.point for each in mountinfo.read() if each.point.startswith(f"{folder}/")]


def _cgroups(folder: Path) -> Iterator[Path]:
    """The cgroups of its containers, in every hierarchy: Node.start names them after it."""
    for hierarchy in cgroups.mounted():
        yield from Path(hierarchy.mountpoint).glob(f"{folder.name}-*")


def _remove_cgroup(cgroup: Path) -> None:
    until = time.monotonic() + END_S
    while cgroup.exists() and time.monotonic() < until:
        for pid in cgroups.processes(str(cgroup)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            for inner, _, _ in os.walk(cgroup, topdown=False):
                os.rmdir(inner)
        time.sleep(0.01)
