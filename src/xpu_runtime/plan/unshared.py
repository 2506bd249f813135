"""The mounts of a container that has no mount namespace of its own: they are written into its spec.

No hook could mount into this container alone. Links and the loader's cache are made in its root folder before
the low-level runtime starts.
"""

from __future__ import annotations

import errno
import os

from xpu_runtime.linux.rootfs import Root
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.plan import perform
from xpu_runtime.plan.operations import Link, LinkerCache, Mount, Operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.oci.spec import Spec

_OPTIONS = ["bind", "nosuid", "nodev", "rprivate"]


def add_mounts(spec: Spec, root: Root, operations: list[Operation]) -> None:
    """Adds a plan's mounts to `spec` in memory, and makes its links in `root`, which can undo those.

    ApplyError if a step fails. Devices are in_spec.py's.
    """
    for operation in operations:
        try:
            _one(spec, root, operation)
        except OSError as error:
            raise perform.failure(root, operation, error) from error


def _one(spec: Spec, root: Root, operation: Operation) -> None:
    if isinstance(operation, Mount):
        options = [*_OPTIONS, "rw" if operation.writable else "ro"]
        if not operation.executable:
            options.append("noexec")
        oci_spec.add_mount(spec, operation.destination, operation.source, options)
    elif isinstance(operation, Link):
        perform.make_link(root, operation)
    elif isinstance(operation, LinkerCache):
        perform.write_linker_cache(root, operation, _refuse_to_cover)


def _refuse_to_cover(path: str, data: bytes) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
