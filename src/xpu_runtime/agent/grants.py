"""The pages of all grants on the node, open as long as their grants are there.

A container can put a lease on its pages (fcntl(2)), and a starting one has none yet: a page that cannot be
opened now is tried again, and its container keeps its caps until then. A lease that is given up and taken
again in time would keep us out for ever, and its holder out of the comparison with the driver's samples: a
thread waits for the end of the first one, and as long as it has the page open no new one is granted.
Independent of the pages' content.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable

from xpu_runtime import paths
from xpu_runtime.limits import folders, pages
from xpu_runtime.limits.compute import GrantPages

#: A folder's time stamp has the clock's ticks: two changes can have the same.
_TICK_NS = 1_000_000_000


class _PastLeases(threading.Thread):
    """Opens a grant's pages, however long a lease on them lasts (45 s at most, each), and keeps them open."""

    def __init__(self, folder: str) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._fds: list[int] = []
        self._lock = threading.Lock()
        self._ended = False
        self.start()

    def run(self) -> None:
        for name, access in ((pages.QUOTA, os.O_RDWR), (pages.USAGE, os.O_RDONLY)):
            try:
                fd = os.open(os.path.join(self._folder, name), access | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                return  # the grant has ended
            with self._lock:
                self._fds.append(fd)
                if self._ended:
                    self._close()

    def end(self) -> None:
        """Closes them, now or once they are open."""
        with self._lock:
            self._ended = True
            self._close()

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


class OpenGrants:
    """Grants' pages by the grant's folder; `log` is told, once, of each that cannot be opened."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._stamp = -1
        self._untold: set[str] = set()
        self._cut: set[str] = set()
        self._past_leases: dict[str, _PastLeases] = {}
        self.by_folder: dict[str, GrantPages] = {}
        #: The highest number of an agent's round that was in a page when it was opened.
        self.round = 0

    def refresh(self) -> bool:
        """Opens the pages of new grants, closes those of ended grants; returns whether there were any."""
        self._tell_cut()
        try:
            stamp = os.stat(paths.in_run_dir(paths.GRANT_FOLDERS)).st_mtime_ns
        except OSError:
            stamp = 0
        if stamp == self._stamp:
            return False
        # A new stamp is not remembered: more changes may have come in the same tick of the clock.
        self._stamp = stamp if time.time_ns() - stamp > _TICK_NS else -1
        there = set(folders.left())
        changed = False
        for folder in self.by_folder.keys() - there:
            self.by_folder.pop(folder).close()
            changed = True
        for folder in sorted(there - self.by_folder.keys()):
            try:
                self.by_folder[folder] = self._opened(folder)
                changed = True
            except (OSError, ValueError) as error:
                self._not_opened(folder, error)
        self._untold &= there
        for folder in self._past_leases.keys() - (there - self.by_folder.keys()):
            self._past_leases.pop(folder).end()
        return changed

    def close(self) -> None:
        for grant in self.by_folder.values():
            grant.close()
        for each in self._past_leases.values():
            each.end()

    def _tell_cut(self) -> None:
        """Logs, once for each container, that root on the host has cut its quota page after it was opened."""
        self._cut &= self.by_folder.keys()
        for folder, grant in self.by_folder.items():
            if grant.is_cut and folder not in self._cut:
                self._cut.add(folder)
                self._log(
                    f"{os.path.join(folder, pages.QUOTA)} is cut off: container {grant.container} has no "
                    "limits that its programs could read; start it again"
                )

    def _opened(self, folder: str) -> GrantPages:
        grant = GrantPages(folder)
        grant.keep_from_children()
        self.round = max(self.round, *(each.adjusted[0] for each in grant.slices), 0)
        return grant

    def _not_opened(self, folder: str, error: OSError | ValueError) -> None:
        if getattr(error, "errno", None) in (errno.ENOENT, errno.ENOTDIR):
            # Another backend holds its limits; or a start has not made its pages yet, which does not change
            # the folder of all grants.
            if not folders.is_complete(folder):
                self._stamp = -1
            return
        self._stamp = -1
        if isinstance(error, BlockingIOError) and folder not in self._past_leases:
            self._past_leases[folder] = _PastLeases(folder)
        if folder not in self._untold:
            self._untold.add(folder)
            why = getattr(error, "strerror", None) or error
            self._log(f"{folder}: the container keeps its caps and gets no more: {why}")
