"""Faults of a running container's pages, for people: `pages.py` only leaves out unreadable ones.

A program that finds such pages at its start has no CUDA (native/account/pages.c), so that this must not be
silent. The usage page is the container's own, and each of its programs can cut it.
"""

from __future__ import annotations

import os

from xpu_runtime.errors import XpuError
from xpu_runtime.limits import pages

_RESTART = "start the container again"


def find(folder: str, device_count: int) -> XpuError | None:
    """The first fault of the pages in this folder; None: they are as they were made, or of another ABI."""
    sizes = ((pages.QUOTA, pages.QUOTA_SIZE), (pages.USAGE, pages.usage_size(device_count)))
    try:
        for name, size in sizes:
            path = os.path.join(folder, name)
            there = os.stat(path, follow_symlinks=False).st_size
            if there < size:
                return _fault(f"its {name} page is cut off ({path}: {there} bytes of {size})", name)
        name = pages.QUOTA
        if not pages.quota(folder).valid:
            return _fault(f"its {name} page is damaged ({folder}/{name})", name)
    except BlockingIOError:
        pass  # a lease, which ends
    except OSError as error:
        return _fault(f"the {name} page in {folder} cannot be read ({error.strerror})", name)
    except ValueError:
        return _fault(f"its {name} page is damaged ({folder}/{name})", name)
    return None


def _fault(what: str, name: str) -> XpuError:
    unknown = "its limits are not known" if name == pages.QUOTA else "its use is not known"
    return XpuError(f"{what}: {unknown}, and programs that start in it cannot use CUDA", _RESTART)
