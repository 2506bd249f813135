"""The folder below /run of one run, and the end of all that is in it: also after a run that was killed.

It has the pid, the start time and the PID namespace of the run that made it, so that a later run can tell
whether that one still lives: in a file, as a socket of MPS in it leaves 20 bytes for its name. What belongs
to it is found by the folder, not by anything that the run remembered: containers in runc's state below it,
processes by their environment, cgroups by name, mounts.
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
#: In it: the numbers of the run that made it.
OWNER = "owner"
END_S = 5.0  # until processes that were killed have left their cgroups


def make(prefix: str = PREFIX) -> Path:
    """A new one, this process's own; `prefix` says whose runs it is one of."""
    pid = os.getpid()
    while True:
        folder = TOP / f"{prefix}{pid}-{secrets.token_hex(2)}"
        with contextlib.suppress(FileExistsError):  # a run in another PID namespace has the same pid
            folder.mkdir(0o700)
            (folder / OWNER).write_text(f"{pid} {proc.start_time(pid)} {proc.pid_namespace()}")
            return folder


def dead(prefix: str = PREFIX) -> list[Path]:
    """Those of runs that have ended; nothing is known of runs in other PID namespaces, nor of a folder that
    was made just now."""
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
    """The product's configuration there: the runc of PATH, which may be in none of the system's folders.

    `root`: the driver's, if that is a simulation which is up elsewhere.
    """
    if root:
        (folder / "run/sim").mkdir(parents=True)
        (folder / "run/sim/root").symlink_to(os.path.realpath(root))
    (folder / "config.yaml").write_text(f"low_level_runtimes: [{shutil.which('runc') or 'runc'}]\n")


def environment(folder: Path) -> dict[str, str]:
    """What the product's programs get in place of their own."""
    return {**os.environ, "XPU_RUN_DIR": str(folder / "run"), "XPU_CONFIG": str(folder / "config.yaml")}


def remove(folder: Path, prefix: Path) -> None:
    """Ends all that runs in it by the installation at `prefix`, what that leaves by force, and removes it."""
    environ = environment(folder)
    state = folder / "state"
    for container in sorted(state.iterdir()) if state.is_dir() else []:
        runtime = [str(prefix / "bin/xpu-container-runtime"), "--root", str(state)]
        run_to_its_end([*runtime, "delete", "--force", container.name], environ)
    # A simulation that is only used here, by a link, is somebody else's.
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
    """Whether it fails or not, and however often Ctrl-C is pressed meanwhile."""
    subprocess.run(words, env=environ, capture_output=True, check=False, start_new_session=True)


def processes(folder: Path) -> list[int]:
    """Those that have a path in it in their environment: the agent, the simulated driver, an MPS daemon."""
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
    """Its containers', each in every hierarchy: they are named by it (Node.start)."""
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
