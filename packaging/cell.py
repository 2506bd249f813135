"""A cell: what a container with a slice is to a program, without an engine.

It is a mount namespace with the pages, the wrapper libraries, and the real libraries aside. Its folder /mnt
stands for the container's root, so that nothing of the machine's own is covered. For tests and benchmarks of
the wrapper libraries, which have to be built for it (`build`); needs root.
"""

from __future__ import annotations

import os
import subprocess

REPOSITORY = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
#: Where builds for cells look for the pages and the real libraries, and where programs find the wrappers.
ROOT = "/mnt"
FOLDER = f"{ROOT}/usr/lib/xpu"
WRAPPERS = f"{ROOT}/lib"
#: Where programs find the real libraries, for comparison. No container has such a folder.
UNWRAPPED = f"{ROOT}/usr/lib/unwrapped"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
PAGES = ("quota", "usage")


def build(kind: str = "") -> str:
    """Builds native/libxpu for cells, and gives the folder; `kind`: sanitizers ("address,undefined")."""
    folder = os.path.join(REPOSITORY, "build", f"libxpu-test{kind and '-'}{kind.replace(',', '-')}")
    native = os.path.join(REPOSITORY, "native", "libxpu")
    settings = [f"OUT={folder}", f"FOLDER={FOLDER}", *([f"SANITIZE={kind}"] if kind else [])]
    subprocess.run(["make", "-s", "-C", native, *settings], check=True, timeout=300)
    return folder


def command(
    arguments: list[str], *, pages: str, real: str, wrappers: str, simulation: str = "", setup: str = ""
) -> list[str]:
    """The command that runs `arguments` in a cell.

    `pages`, `real` and `wrappers` are folders with the files of these names; `simulation` is the root of a
    simulated driver that `real` belongs to; `setup` is shell that is run in the cell before.
    """
    steps = [f"mount -t tmpfs cell {ROOT}", f"mkdir -p {FOLDER} {WRAPPERS} {UNWRAPPED}"]
    for name in LIBRARIES:
        aside = f"{FOLDER}/{name.replace('.so.1', '.real')}"
        steps += [
            *_bind(os.path.realpath(os.path.join(real, name)), aside),
            *_bind(os.path.join(wrappers, name), f"{WRAPPERS}/{name}"),
            f"ln -s {aside} {UNWRAPPED}/{name}",
        ]
    for name in PAGES:
        steps += _bind(os.path.join(pages, name), f"{FOLDER}/{name}")
    steps += [f"mount -o remount,bind,ro {FOLDER}/quota"]
    if simulation:
        steps = [*_private_dev(), *steps, *_simulated_device(simulation)]
    return ["unshare", "-m", "sh", "-ec", "\n".join([*steps, setup, 'exec "$@"']), "sh", *arguments]


def environ(more: dict[str, str] | None = None, *, wrapped: bool = True) -> dict[str, str]:
    """The environment of a program in a cell: the loader finds the wrappers, as in a container; or, for
    comparison, the real libraries."""
    return {**os.environ, "LD_LIBRARY_PATH": WRAPPERS if wrapped else UNWRAPPED, **(more or {})}


def _bind(source: str, target: str) -> list[str]:
    return [f"touch {target}", f"mount --bind {source} {target}"]


def _simulated_device(root: str) -> list[str]:
    return [
        f"mkdir -p {ROOT}/run/nvidia-sim",
        f"mount --bind {root}/run/nvidia-sim {ROOT}/run/nvidia-sim",
        f"for node in {root}/dev/nvidia*; do test -c $node || continue; "
        "test -e /dev/${node##*/} || touch /dev/${node##*/}; mount --bind $node /dev/${node##*/}; done",
    ]


def _private_dev() -> list[str]:
    """A /dev of the cell's own, so that device nodes can be bound into it."""
    keep = ("null", "zero", "full", "random", "urandom", "tty")
    return [
        "mount -t tmpfs -o mode=755 dev-of-cell /dev/shm",
        "mkdir /dev/shm/dev",
        *(f"touch /dev/shm/dev/{name}; mount --bind /dev/{name} /dev/shm/dev/{name}" for name in keep),
        "mkdir /dev/shm/dev/shm; ln -s /proc/self/fd /dev/shm/dev/fd",
        "mount --rbind /dev/shm/dev /dev",
    ]
