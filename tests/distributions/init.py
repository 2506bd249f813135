"""The first process of an entered root: init.py PLAN, in the namespaces that root.py has made.

It makes the mounts, moves into the root, and prints one line. Then it reaps orphaned processes, as an init
must. When its standard input closes, because the test has ended or died, it ends with everything in the root.
PLAN is JSON; root.py writes it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from types import FrameType

_MNT_DETACH = 2
_NODES = "null", "zero", "full", "random", "urandom", "tty"


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def make_mounts(plan: dict[str, object], root: str) -> None:
    # Many tests share the root, so changes go to a tmpfs. The root itself may be on an overlay.
    above = str(plan["scratch"])
    mount("-t", "tmpfs", "-o", "mode=755", "above", above)
    for name in ("upper", "work", "root"):
        os.mkdir(f"{above}/{name}")
    options = f"lowerdir={plan['lower']},upperdir={above}/upper,workdir={above}/work"
    mount("-t", "overlay", "-o", options, "root", root)
    mount("-t", "proc", "proc", f"{root}/proc")
    mount("--bind", "/sys", f"{root}/sys")
    make_cgroups(plan["cgroups"], root)  # type: ignore[arg-type]
    make_dev(f"{root}/dev")
    for name in ("run", "tmp"):
        mount("-t", "tmpfs", "-o", f"mode={'1777' if name == 'tmp' else '755'}", name, f"{root}/{name}")
    for source, target in plan["binds"]:  # type: ignore[attr-defined]
        place = root + target
        os.makedirs(place if os.path.isdir(source) else os.path.dirname(place), exist_ok=True)
        if not os.path.isdir(source) and (os.path.islink(place) or not os.path.exists(place)):
            # A link is replaced too: resolv.conf may be one.
            if os.path.lexists(place):
                os.unlink(place)
            open(place, "w").close()
        mount("--bind", source, place)


def make_cgroups(hierarchies: list[list[str]], root: str) -> None:
    """Mounts every hierarchy; the namespace shows this root's own cgroup as the top of each."""
    if hierarchies and not any(target == "/sys/fs/cgroup" for target, _, _ in hierarchies):
        mount("-t", "tmpfs", "-o", "mode=755", "cgroup", f"{root}/sys/fs/cgroup")
    for target, kind, options in hierarchies:
        os.makedirs(root + target, exist_ok=True)
        mount("-t", kind, *(["-o", options] if options else []), kind, root + target)


def make_dev(folder: str) -> None:
    """A /dev of its own: nodes and links that are made in it do not reach this machine's."""
    kept = [name for name in _NODES if os.path.exists(f"/dev/{name}")]
    mount("-t", "tmpfs", "-o", "mode=755", "dev", folder)
    for name in kept:
        open(f"{folder}/{name}", "w").close()
        mount("--bind", f"/dev/{name}", f"{folder}/{name}")
    os.mkdir(f"{folder}/pts")
    mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620", "devpts", f"{folder}/pts")
    os.mkdir(f"{folder}/shm")
    mount("-t", "tmpfs", "-o", "mode=1777", "shm", f"{folder}/shm")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
    links |= {name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        os.symlink(target, f"{folder}/{name}")


def move_into(root: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    os.mkdir(f"{root}/old-root")
    # util-linux no longer has the program pivot_root everywhere (Debian's lacks it from 2.42 on).
    if libc.pivot_root(root.encode(), f"{root}/old-root".encode()) != 0:
        raise OSError(ctypes.get_errno(), "pivot_root", root)
    os.chdir("/")
    if libc.umount2(b"/old-root", _MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "umount2 /old-root")
    os.rmdir("/old-root")


def reap(_number: int, _frame: FrameType | None) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main() -> None:
    plan = json.loads(sys.argv[1])
    root = f"{plan['scratch']}/root"
    make_mounts(plan, root)
    move_into(root)
    signal.signal(signal.SIGCHLD, reap)
    print("entered", flush=True)
    while os.read(0, 1):
        pass


if __name__ == "__main__":
    main()
