"""The compute words of grants' pages, read and written many times a second: native/abi/page.h, ABI 2.

`pages.py` reads a page whole, for people. Here a page is opened once for each grant; then each look at a
slice is one pread(2) of two words, and each change one store. The quota page is the host's own and is mapped.
The usage page is the container's: it can cut the file at any time, and reading a mapping beyond the file's
end raises SIGBUS. So it is never mapped, and no word of it is trusted here. Root on the host can cut the
quota page: its size is checked before each use of the mapping. This module knows no policy.
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
from collections.abc import Callable

from xpu_runtime.limits import pages

#: XPU_WHOLE: all of a device's time, in the unit of shares.
WHOLE = 10000
#: XPU_AGENT_LOST_MS, in seconds: a share counts no longer than that after its round number was written last.
LOST_S = 0.5
ROUND_SHIFT = 32
_SHARE_MASK = (1 << ROUND_SHIFT) - 1

_UUID_SIZE = 16
_CONTAINER_AT, _CONTAINER_SIZE = 32, 128
#: struct xpu_quota_limit, in words.
_LIMITS_AT, _LIMIT_WORDS = pages.FIXED // 8, pages.LIMIT_SIZE // 8
_CORES, _ADJUSTED, _POLICY = pages.CORES_AT // 8, 2, pages.POLICY_AT // 8
#: The bytes of `used` and `waits` in struct xpu_usage_compute.
_LOOK = 16

#: O_NONBLOCK: a lease that a process of the container holds makes this an error, instead of a wait of 45 s
#: (fcntl(2)). Trying again later gets the page: the kernel takes the lease away meanwhile.
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


class SlicePages:
    """One slice of a grant in its pages."""

    __slots__ = ("_adjusted", "_cores", "_policy", "_size", "_words", "look", "uuid")

    def __init__(
        self, words: memoryview, size: Callable[[], int], usage: int, position: int, uuid: bytes
    ) -> None:
        """`words`: the quota page, mapped; `size`: of its file now."""
        self._words = words
        self._size = size
        limit = _LIMITS_AT + position * _LIMIT_WORDS
        self._cores, self._adjusted, self._policy = limit + _CORES, limit + _ADJUSTED, limit + _POLICY
        #: The 16 bytes that name the device.
        self.uuid = uuid
        at = pages.COMPUTE_AT + position * pages.COMPUTE_SIZE + pages.COMPUTE_WORDS[0]
        #: `used` and `waits` as they are in the page, 16 bytes; fewer where the container has cut its file.
        #: Equal bytes mean that nothing was launched: that is all that most looks need to know. It is called
        #: dozens of times a second for each slice: without a Python frame it takes half the time.
        self.look: Callable[[], bytes] = functools.partial(os.pread, usage, _LOOK, at)

    def _word(self, number: int) -> int:
        """A word of the quota page; 0 where the page was cut, so that its slice has no cap any more."""
        return int(self._words[number]) if self._size() >= pages.QUOTA_SIZE else 0

    def terms(self) -> tuple[int, int]:
        """The words that `cap` and `policy` are of: as long as they are equal, those are."""
        return self._word(self._cores), self._word(self._policy)

    @property
    def cap(self) -> int:
        """The share that was granted; 0: no cap."""
        return min(self._word(self._cores), WHOLE)

    @property
    def policy(self) -> tuple[int, int]:
        """Indexes in pages.SCHEDS and pages.PRIORITIES; those not known are the first."""
        word = self._word(self._policy)
        sched, priority = word & 0xFF, word >> pages.PRIORITY_SHIFT & 0xFF
        return (
            sched if sched < len(pages.SCHEDS) else 0,
            priority if priority < len(pages.PRIORITIES) else 0,
        )

    @property
    def adjusted(self) -> tuple[int, int]:
        """The number of the agent's round and the share, as written last; zeros: no agent's."""
        word = self._word(self._adjusted)
        return word >> ROUND_SHIFT, word & _SHARE_MASK

    def adjust(self, word: int) -> None:
        """Writes `adjusted`: round << ROUND_SHIFT | share; 0: the cap alone counts."""
        # One aligned 64-bit store: a reader sees the old value or the new one.
        if self._size() >= pages.QUOTA_SIZE:
            self._words[self._adjusted] = word


class GrantPages:
    """The pages of the grant with this folder, open until `close`.

    OSError, ValueError where they are not there, not complete, held by a lease, or of another ABI.
    """

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, pages.QUOTA)
        fd = os.open(path, os.O_RDWR | _FLAGS)
        try:
            page = os.pread(fd, pages.QUOTA_SIZE, 0)
            count = pages.device_count(page, folder)
            if int.from_bytes(page[8:12], "little") != pages.ABI:
                raise ValueError(f"{path} is of another version of this runtime")
            self._usage = os.open(os.path.join(folder, pages.USAGE), os.O_RDONLY | _FLAGS)
            self._page = mmap.mmap(fd, pages.QUOTA_SIZE)
        finally:
            os.close(fd)
        self._bytes = memoryview(self._page)
        self._words = self._bytes.cast("Q")
        name = page[_CONTAINER_AT : _CONTAINER_AT + _CONTAINER_SIZE]
        self.container = name.partition(b"\0")[0].decode(errors="replace")
        uuids = (
            page[at : at + _UUID_SIZE]
            for at in range(pages.DEVICES_AT, pages.DEVICES_AT + count * pages.DEVICE_SIZE, pages.DEVICE_SIZE)
        )
        self.slices = tuple(
            SlicePages(self._words, self._page.size, self._usage, position, uuid)
            for position, uuid in enumerate(uuids)
        )

    @property
    def is_cut(self) -> bool:
        """Whether the quota page has lost its end."""
        return self._page.size() < pages.QUOTA_SIZE

    def close(self) -> None:
        """After this none of `slices` may be used."""
        self._words.release()
        self._bytes.release()
        self._page.close()
        os.close(self._usage)

    def keep_from_children(self) -> None:
        """A child of fork(2) does not get the mapping: one that hangs must not keep the grant's folder."""
        self._page.madvise(mmap.MADV_DONTFORK)


def unpack(content: bytes) -> tuple[int, int]:
    """`used` and `waits` from the result of `look`; ValueError if it is shorter."""
    if len(content) != _LOOK:
        raise ValueError("the usage page was cut")
    return _PAIR(content)  # type: ignore[return-value]


_PAIR: Callable[[bytes], tuple[int, ...]] = struct.Struct("<2Q").unpack
