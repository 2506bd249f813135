"""The installed tree on the node: copied from the image in one step, and removed when no process calls it any
more.

The image has the tree at the same path as the node, PREFIX, with a Python of its own in it
(packaging/kubernetes), so that it runs on a node that has none. Containers that run name programs in it: the
tree is replaced under the same path, and files of the old one that are mounted into containers live on.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from xpu_runtime import paths
from xpu_runtime.errors import ConfigError
from xpu_runtime.linux import syscalls

#: The path of this very installation: in the image, and so on the node.
PREFIX = os.path.dirname(os.path.dirname(paths.LIB))
#: In the tree: says which image it is of. Written last by the image's build, so it is the last that is
#: copied.
STAMP = "image.json"


def copy(source: str, prefix: str) -> bool:
    """Makes `prefix` a copy of the tree in the folder `source`; False where it is one already. OSError."""
    stamp = _read(os.path.join(source, STAMP))
    if stamp and stamp == _read(os.path.join(prefix, STAMP)):
        return False
    new, old = f"{prefix}.new", f"{prefix}.old"
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    os.makedirs(os.path.dirname(prefix), mode=0o755, exist_ok=True)
    # Times stay: compiled code counts as current by its source's time.
    shutil.copytree(source, new, symlinks=True, ignore=shutil.ignore_patterns(STAMP))
    if stamp:
        with open(os.path.join(new, STAMP), "wb") as file:
            file.write(stamp)
    os.chmod(new, 0o755)  # noqa: S103 - as every program is
    os.sync()
    if not os.path.lexists(prefix):
        os.rename(new, prefix)
        return True
    try:
        syscalls.renameat2(new, prefix, syscalls.RENAME_EXCHANGE)
        shutil.rmtree(new)
    except OSError:
        # A file system that cannot exchange: for a moment there is none.
        os.rename(prefix, old)
        os.rename(new, prefix)
        shutil.rmtree(old)
    return True


def remove(prefix: str) -> None:
    """Removes the tree, and the rest of an interrupted copy. OSError."""
    if os.path.realpath(prefix).count("/") < 2:
        raise ConfigError(f"{prefix} is not an installation's folder")
    old = f"{prefix}.old"
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(old)
    # In one step: half a tree would pass for the whole of its image.
    with contextlib.suppress(FileNotFoundError):
        os.rename(prefix, old)
    for folder in (old, f"{prefix}.new"):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""
