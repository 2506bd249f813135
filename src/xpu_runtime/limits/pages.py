"""The quota page and the usage page of a grant: the host's view of native/abi/page.h.

The quota page has a container's limits, and the container cannot write it. The container can write the usage
page, so nothing in it is trusted; usage_page.py reads it. Both lie in the grant's folder, a small tmpfs of
its own (folders.py). Knows no driver and no vendor.
"""

from __future__ import annotations

import errno
import os
from binascii import crc32

from xpu_runtime.value import Value

ABI = 2
QUOTA, USAGE = "quota", "usage"
NO_LIMIT = (1 << 64) - 1
MAX_DEVICES = 16
#: Processes that may use the devices of one container at once.
SLOTS = 4095

QUOTA_SIZE = 4096
#: Bytes from a page's start that no ABI changes: its kind, and its ABI.
_VERSIONED = 12
FIXED = 2048
DEVICES_AT, DEVICE_SIZE = 1024, 64
LIMIT_SIZE = 64
#: From the start of a device's limits.
CORES_AT, POLICY_AT = 8, 24
#: One percent in the word of a cap; all of a device's time is XPU_WHOLE.
_SHARES_A_PERCENT = 100
#: enum xpu_sched and enum xpu_priority, by the words that requests have for them.
SCHEDS = ("fixed", "burst", "weight")
PRIORITIES = ("normal", "low", "high")
PRIORITY_SHIFT = 8
USAGE_HEADER = 4096
SLOT_SIZE, SLOT_DEVICE_SIZE = 64, 192
#: struct xpu_usage_compute: each device's, and in it `used`, `waits`, `guesses`, `held`, `paid`.
COMPUTE_AT, COMPUTE_SIZE, COMPUTE_WORDS = 2048, 128, (16, 24, 32, 40, 0)
#: O_NONBLOCK: a lease that a process of the container holds makes this an error instead of a wait of 45 s. It
#: can put one on the quota page too, which it may only read.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


class Entry(Value):
    """One device of a quota page: its UUID, with any prefix, and its limit in bytes (None: none)."""

    uuid: str
    memory_limit: int | None
    #: A hardware partition of a device; the UUID is the partition's own.
    is_partition: bool = False
    #: The cap on the device's time in percent; None: none.
    cores: int | None = None
    #: One of SCHEDS and of PRIORITIES.
    sched: str = "fixed"
    priority: str = "normal"


class Policy(Value):
    """How a device's time is shared with others that want it: one of SCHEDS, and one of PRIORITIES."""

    sched: str = "fixed"
    priority: str = "normal"


class Quota(Value):
    """A quota page's content; `valid`: its fixed part is as it was made.

    A page of another ABI counts as valid, without limits.
    """

    abi: int
    valid: bool
    #: Memory limits in bytes.
    limits: tuple[int | None, ...]
    #: Caps on the devices' time, in percent.
    cores: tuple[int | None, ...] = ()
    policies: tuple[Policy, ...] = ()


class Compute(Value):
    """The use of one device by all processes of a container, since it started."""

    #: ns of the device's time that were charged.
    used: int
    #: Counts up while a launch waits for its turn.
    waits: int
    #: Charges for which nothing could be measured.
    guesses: int
    #: ns that launches have waited for their turns, of all threads together.
    held: int = 0
    #: CLOCK_MONOTONIC, ns: the time until which the cap has paid for all launches.
    paid: int = 0


def needs_agent(sched: str | None, priority: str | None) -> bool:
    """Whether this way of sharing a device's time needs the agent; without it each slice has its cap.

    None: it was not requested, or there is no choice.
    """
    return sched not in (None, SCHEDS[0]) or priority not in (None, PRIORITIES[0])


def usage_size(device_count: int) -> int:
    """Bytes of a usage page for that many devices."""
    return slots_at() + SLOTS * slot_stride(device_count)


def slots_at() -> int:
    """Where the first slot of a usage page begins; a byte a slot before it says which are taken."""
    return USAGE_HEADER + (SLOTS + 63) // 64 * 64


def slot_stride(device_count: int) -> int:
    return SLOT_SIZE + device_count * SLOT_DEVICE_SIZE


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def raw_uuid(uuid: str) -> bytes:
    """The 16 bytes behind a UUID's prefix, as CUDA gives them.

    Zeros if it has no such bytes: a device of another vendor, which no interposer counts, still has its place
    in the page, because positions are those of the grant's slices.
    """
    digits = uuid.partition("-")[2].replace("-", "")
    try:
        return bytes.fromhex(digits) if len(digits) == 32 else bytes(16)
    except ValueError:
        return bytes(16)


def quota_page(container: str, entries: tuple[Entry, ...]) -> bytes:
    page = bytearray(QUOTA_SIZE)
    page[0:8] = b"XPUQUOTA"
    page[8:12] = _u32(ABI)
    page[16:20] = _u32(len(entries))
    page[20:24] = _u32(SLOTS)
    page[24:32] = _u64(usage_size(len(entries)))
    page[32:160] = container.encode()[:127].ljust(128, b"\0")
    for number, entry in enumerate(entries):
        at = DEVICES_AT + number * DEVICE_SIZE
        page[at : at + 16] = raw_uuid(entry.uuid)
        page[at + 16] = entry.is_partition
        at = FIXED + number * LIMIT_SIZE
        page[at : at + 8] = _u64(NO_LIMIT if entry.memory_limit is None else entry.memory_limit)
        page[at + CORES_AT : at + CORES_AT + 8] = _u64(_cap(entry.cores))
        page[at + POLICY_AT : at + POLICY_AT + 8] = _u64(_policy(entry.sched, entry.priority))
    page[12:16] = _u32(crc32(page[:FIXED]))
    return bytes(page)


def _cap(percent: int | None) -> int:
    return 0 if percent is None else percent * _SHARES_A_PERCENT


def _policy(sched: str, priority: str) -> int:
    return SCHEDS.index(sched) | PRIORITIES.index(priority) << PRIORITY_SHIFT


def create(folder: str, container: str, entries: tuple[Entry, ...]) -> None:
    """Makes both pages in `folder`. OSError; ValueError for more than 16 devices."""
    if len(entries) > MAX_DEVICES:
        raise ValueError(f"a quota page has room for {MAX_DEVICES} devices, not {len(entries)}")
    header = b"XPUUSAGE" + _u32(ABI)
    # Every user of the container may have processes that use the devices.
    _write(os.path.join(folder, USAGE), header, 0o666, usage_size(len(entries)))
    page = quota_page(container, entries)
    _write(os.path.join(folder, QUOTA), page, 0o644, len(page))


def _write(path: str, content: bytes, mode: int, size: int) -> None:
    """No container has it mounted yet. The agent looks for new pages several times a second, and would take
    one that is half written for a broken one."""
    fd = os.open(path + ".new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)  # this does not depend on the umask
        os.ftruncate(fd, size)
        os.pwrite(fd, content, 0)
    finally:
        os.close(fd)
    os.rename(path + ".new", path)


class OpenQuota:
    """A quota page, open to change limits.

    Opening can take 45 s (/proc/sys/fs/lease-break-time) where a process of the container has put a lease on
    the file (fcntl(2)), as any process of the file's owner may: do it before anything is locked.
    """

    def __init__(self, folder: str) -> None:
        """OSError, also where the file is no quota page."""
        import mmap  # never on a container's start

        fd = os.open(os.path.join(folder, QUOTA), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            _require_abi(folder, os.pread(fd, _VERSIONED, 0))
            if os.fstat(fd).st_size != QUOTA_SIZE:
                raise OSError(errno.EINVAL, "not a quota page", os.path.join(folder, QUOTA))
            self._page = mmap.mmap(fd, QUOTA_SIZE)
        finally:
            os.close(fd)

    def __enter__(self) -> OpenQuota:
        return self

    def __exit__(self, *_: object) -> None:
        self._page.close()

    def set_limit(self, device: int, limit: int | None) -> None:
        """Changes a limit in bytes (None: none) for every process of the container at once."""
        self._store(device, 0, NO_LIMIT if limit is None else limit)

    def set_cores(self, device: int, percent: int | None) -> None:
        """Changes a cap on a device's time (None: none) for every process of the container at once."""
        self._store(device, CORES_AT, _cap(percent))

    def set_policy(self, device: int, sched: str, priority: str) -> None:
        """Changes how a device's time is shared: one of SCHEDS, and one of PRIORITIES."""
        self._store(device, POLICY_AT, _policy(sched, priority))

    def _store(self, device: int, place: int, value: int) -> None:
        # One aligned 64-bit store: a reader sees the old value or the new one.
        with memoryview(self._page) as page, page.cast("Q") as words:
            words[(FIXED + device * LIMIT_SIZE + place) // 8] = value


def quota(folder: str) -> Quota:
    """The quota page's content; OSError, ValueError if it is no quota page."""
    fd = os.open(os.path.join(folder, QUOTA), _READ)
    try:
        page = bytearray(os.pread(fd, QUOTA_SIZE, 0))
    finally:
        os.close(fd)
    abi = _abi(page)
    if abi is not None and abi != ABI:
        return Quota(abi=abi, valid=True, limits=())
    count = device_count(page, folder)
    places = range(FIXED, FIXED + count * LIMIT_SIZE, LIMIT_SIZE)
    raw = [_word(page, at) for at in places]
    check = page[12:16]
    page[12:16] = bytes(4)
    return Quota(
        abi=int.from_bytes(page[8:12], "little"),
        valid=check == _u32(crc32(page[:FIXED])),
        limits=tuple(None if limit == NO_LIMIT else limit for limit in raw),
        cores=tuple(_word(page, at + CORES_AT) // _SHARES_A_PERCENT or None for at in places),
        policies=tuple(_policy_of(_word(page, at + POLICY_AT)) for at in places),
    )


def device_count(page: bytes | bytearray, folder: str) -> int:
    """The number of devices in the quota page of this folder; ValueError if it is no quota page."""
    count = int.from_bytes(page[16:20], "little")
    if len(page) != QUOTA_SIZE or page[:8] != b"XPUQUOTA" or count > MAX_DEVICES:
        raise ValueError(f"{folder}/{QUOTA} is not a quota page")
    return count


def _word(page: bytes | bytearray, at: int) -> int:
    return int.from_bytes(page[at : at + 8], "little")


def _policy_of(word: int) -> Policy:
    """A policy's word; an unknown value counts as the strictest, as in the container."""
    sched, priority = word & 0xFF, word >> PRIORITY_SHIFT & 0xFF
    return Policy(
        SCHEDS[sched] if sched < len(SCHEDS) else SCHEDS[0],
        PRIORITIES[priority] if priority < len(PRIORITIES) else PRIORITIES[0],
    )


def _abi(page: bytes | bytearray) -> int | None:
    """The ABI of a quota page that begins like this; None where it is none. These bytes mean the same in
    every ABI."""
    return int.from_bytes(page[8:12], "little") if page[:8] == b"XPUQUOTA" else None


def _require_abi(folder: str, page: bytes) -> None:
    """OSError if a quota page that begins like this has another ABI, so that nothing else in it is known."""
    abi = _abi(page)
    if abi is not None and abi != ABI:
        raise OSError(
            errno.EPROTO,
            f"the container was started by another version of this runtime (pages of ABI {abi}, this one "
            f"knows {ABI})",
            os.path.join(folder, QUOTA),
        )


def compute(folder: str, device_count: int) -> list[Compute]:
    """Each device's time in the usage page; shorter if the container has cut the page. OSError."""
    fd = open_usage(folder)
    try:
        content = os.pread(fd, device_count * COMPUTE_SIZE, COMPUTE_AT)
    finally:
        os.close(fd)
    return [
        Compute(*(_word(content, at + word) for word in COMPUTE_WORDS))
        for at in range(0, len(content) - COMPUTE_SIZE + 1, COMPUTE_SIZE)
    ]


def open_usage(folder: str) -> int:
    """The usage page's descriptor, to be read and closed; OSError, also where the page is of another ABI."""
    # The host's page has the ABI of both: the container could write another into its own. With a lease on the
    # host's page a container would hide what it uses, so then ours is taken for granted.
    try:
        fd = os.open(os.path.join(folder, QUOTA), _READ)
    except BlockingIOError:
        pass
    else:
        try:
            _require_abi(folder, os.pread(fd, _VERSIONED, 0))
        finally:
            os.close(fd)
    return os.open(os.path.join(folder, USAGE), _READ)
