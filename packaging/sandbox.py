"""A sandbox: for a program it looks like a container with a slice, but there is no engine.

It is a mount namespace with the pages, the interposers, and the real libraries aside. Its folder /mnt stands
for the container's root, so that nothing of the machine's own is hidden. Tests and benchmarks of the
interposers use it, with interposers that `build` makes for it. It needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess

REPOSITORY = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
#: Where the sandbox's interposers look for the pages and the real libraries, and where programs find the
#: interposers.
ROOT = "/mnt"
FOLDER = f"{ROOT}/usr/lib/xpu"
INTERPOSERS = f"{ROOT}/lib"
#: Where programs find the real libraries, for comparison. No container has such a folder.
REAL = f"{ROOT}/usr/lib/real"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
PAGES = ("quota", "usage")
#: The socket of a simulated driver, below the root of its libraries.
_SIMULATED = "/run/nvidia-sim"


def build(kind: str = "") -> str:
    """Builds the interposers for sandboxes; returns the folder. `kind`: sanitizers ("address,undefined").
    Without make, it takes libraries that were built elsewhere."""
    folder = os.path.join(REPOSITORY, "build", f"interposer-test{kind and '-'}{kind.replace(',', '-')}")
    native = os.path.join(REPOSITORY, "native", "interposer", "nvidia")
    settings = [f"OUT={folder}", f"FOLDER={FOLDER}", *([f"SANITIZE={kind}"] if kind else [])]
    if not shutil.which("make") and all(os.path.exists(f"{folder}/{name}") for name in LIBRARIES):
        return folder
    # Tests that run at the same time need the same build: one makes it, the others wait.
    command = ["flock", f"{folder}.lock", "make", "-s", "-C", native, *settings]
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    subprocess.run(command, check=True, timeout=300)
    return folder


def command(
    arguments: list[str], *, pages: str, real: str, interposers: str, simulation: str = "", setup: str = ""
) -> list[str]:
    """The command that runs `arguments` in a sandbox.

    `pages`, `real` and `interposers` are folders with the files of these names; `simulation` is the root of
    the simulated driver that `real` belongs to; `setup` is shell code that runs in the sandbox first.
    """
    steps = [f"mount -t tmpfs sandbox {ROOT}", f"mkdir -p {FOLDER} {INTERPOSERS} {REAL}"]
    for name in LIBRARIES:
        aside = f"{FOLDER}/{name.replace('.so.1', '.real')}"
        steps += [
            *_bind(os.path.realpath(os.path.join(real, name)), aside),
            *_bind(os.path.join(interposers, name), f"{INTERPOSERS}/{name}"),
            f"ln -s {aside} {REAL}/{name}",
        ]
    for name in PAGES:
        steps += _bind(os.path.join(pages, name), f"{FOLDER}/{name}")
    steps += [f"mount -o remount,bind,ro {FOLDER}/quota"]
    if simulation:
        steps = [*_private_dev(), *steps, *_simulated_device(simulation)]
    elif os.path.isdir(_SIMULATED):
        # The driver of a simulated machine is found as a real one is, and its socket is the host's.
        steps += _socket("")
    return ["unshare", "-m", "sh", "-ec", "\n".join([*steps, setup, 'exec "$@"']), "sh", *arguments]


def environ(more: dict[str, str] | None = None, *, interposed: bool = True) -> dict[str, str]:
    """The environment of a program in a sandbox: the loader finds the interposers, as in a container; or, for
    comparison, the real libraries."""
    return {**os.environ, "LD_LIBRARY_PATH": INTERPOSERS if interposed else REAL, **(more or {})}


def _bind(source: str, target: str) -> list[str]:
    return [f"touch {target}", f"mount --bind {source} {target}"]


def _socket(root: str) -> list[str]:
    return [f"mkdir -p {ROOT}{_SIMULATED}", f"mount --bind {root}{_SIMULATED} {ROOT}{_SIMULATED}"]


def _simulated_device(root: str) -> list[str]:
    return [
        *_socket(root),
        f"for node in {root}/dev/nvidia*; do test -c $node || continue; "
        "test -e /dev/${node##*/} || touch /dev/${node##*/}; mount --bind $node /dev/${node##*/}; done",
    ]


def _private_dev() -> list[str]:
    """A /dev of the sandbox's own, so that device nodes can be bound into it."""
    keep = ("null", "zero", "full", "random", "urandom", "tty")
    return [
        "mount -t tmpfs -o mode=755 dev-of-sandbox /dev/shm",
        "mkdir /dev/shm/dev",
        *(f"touch /dev/shm/dev/{name}; mount --bind /dev/{name} /dev/shm/dev/{name}" for name in keep),
        "mkdir /dev/shm/dev/shm; ln -s /proc/self/fd /dev/shm/dev/fd",
        "mount --rbind /dev/shm/dev /dev",
    ]
