"""A request: the devices and limits that a container asks for, parsed and checked.

A value without behaviour. It knows neither the node's devices nor its backends.
"""

from __future__ import annotations

from xpu_runtime.request.units import Memory
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.request.pod_container import PodContainer
    from xpu_runtime.request.quotas import Quota

#: The table of docs/reference/variables.md is made from the comments on these names and on FOR_PROGRAMS.
VARIABLES = (
    #: Memory on each device: `4G`, `4096M`, `1.5GiB` or `50%`.
    #: default: `defaults.memory`, or the whole device
    "XPU_MEM",
    #: Percent of each device's time, in steps of 5.
    #: default: `defaults.cores`, or no cap
    "XPU_CORES",
    #: The use of time beyond the caps.
    #: default: `cores.sched`, or `fixed`
    "XPU_SCHED",
    #: The order in which containers are served.
    #: default: `cores.priority`, or `normal`
    "XPU_PRIORITY",
    #: The number of devices.
    #: default: 1
    "XPU_COUNT",
    #: The devices: `auto`, `all`, `none`, or a list.
    #: default: `auto`
    "XPU_VISIBLE_DEVICES",
    #: Only devices reserved under this name by `xpu reserve`.
    #: default: devices without a reservation
    "XPU_RESERVATION",
    #: The fullest device that fits, or the emptiest.
    #: default: `placement.policy`
    "XPU_POLICY",
    #: Parts of the driver, a list.
    #: default: `compute,utility`
    "XPU_CAPABILITIES",
    #: Conditions on the device and its driver, as `cuda>=12.0`.
    #: default: none
    "XPU_REQUIRE",
    #: The least strength of the limits, or the backend that holds them.
    #: default: `auto`
    "XPU_ENFORCE",
)

#: The interposers in the container read them. They request nothing, and are checked only if another variable
#: requests something.
FOR_PROGRAMS = (
    #: The log of the libraries of `library`.
    #: default: one line a process
    "XPU_LOG",
)

#: The words that a request may have.
CAPABILITIES = ("compute", "utility", "graphics", "video", "display", "ngx", "compat32")
POLICIES = ("binpack", "spread")
#: How a device's time is shared beyond the cap on cores. Lists of docs/reference/variables.md are made from
#: the comments here and on PRIORITIES.
SCHEDS = (
    #: The cap on average. A container that its neighbours have held up may catch up, by at most a second.
    "fixed",
    #: More while others leave it, in equal parts.
    "burst",
    #: More while others leave it, in proportion to the caps.
    "weight",
)
#: Lowest first.
PRIORITIES = (
    #: Served last. It gets only the part of its cap that others leave, but at least 1 %. A neighbour with
    #: `burst` that is not `low` can take all the rest. Beyond its cap it gets time only with `burst` or
    #: `weight`.
    "low",
    #: Served after `high` in the time beyond the caps.
    "normal",
    #: Served first in the time beyond the caps.
    "high",
)
#: The prefixes of devices' UUIDs.
UUIDS = ("GPU-", "MIG-", "XPU-")
#: The rule for names of reservations and quotas (`is_name`), for people.
NAMES = "letters, digits, '.', '_' and '-', at most 63, the first a letter or digit"


class Condition(Value):
    """One comparison of XPU_REQUIRE, e.g. `cuda>=12.0`."""

    subject: str
    operator: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.subject}{self.operator}{self.wanted}"


class Request(Value):
    """The request of a container. `selectors` are indexes, UUIDs or GPU:MIG indexes as written."""

    #: auto: the ledger chooses `count` devices; all; none: libraries without a device; list: `selectors`.
    choice: str = "auto"
    selectors: tuple[str, ...] = ()
    #: The variable or the annotation that chose them, as the container's author wrote it.
    choice_from: str = "XPU_VISIBLE_DEVICES"
    count: int = 1
    #: One for each device, or one for all; empty: the whole device.
    memory: tuple[Memory, ...] = ()
    #: Percent of each device; None: no cap.
    cores: int | None = None
    #: One of SCHEDS and one of PRIORITIES; they belong to the cap on cores. None: not requested.
    sched: str | None = None
    priority: str | None = None
    policy: str | None = None
    #: Only devices that are reserved under this name; None: only those that are not reserved.
    reservation: str | None = None
    capabilities: tuple[str, ...] = ("compute", "utility")
    #: All of these must hold; each is a list of alternatives, each of which is a list of conditions.
    requirements: tuple[tuple[tuple[Condition, ...], ...], ...] = ()
    enforce: str = "auto"
    #: XPU_LOG=debug: the interposers, where they hold the limit, log what they count.
    log: bool = False
    #: The source of `cores` if it is not XPU_CORES, such as `policy.max_cores`.
    cores_from: str = ""
    #: The container has CAP_SYS_ADMIN, so the configuration's policy does not apply.
    privileged: bool = False
    #: Why the container could lift a limit that the driver or the kernel holds on its cgroup; empty: it could
    #: not.
    can_lift: str = ""
    #: Why the container has no cgroup that limits could be held on; empty: it has one, or does not exist yet.
    no_cgroup: str = ""
    #: The vendor of the devices that the image is made for, by its own variables; empty: they do not name
    #: one.
    vendor: str = ""
    #: Those of policy.quotas that the container counts to.
    quotas: tuple[Quota, ...] = ()
    #: A cluster has decided on the amounts: the configuration's defaults and maxima do not apply.
    decided: bool = False
    #: The variables that a refusal names by their annotations; none for a request by variables alone.
    annotated: tuple[str, ...] = ()
    #: The container of a pod; None for all others.
    of_pod: PodContainer | None = None

    @property
    def caps_cores(self) -> bool:
        """Whether the cap on cores limits anything: 100 % does not."""
        return self.cores is not None and self.cores < 100

    def memory_of(self, position: int) -> Memory | None:
        """The memory of the device at this position; None: all of it."""
        if not self.memory:
            return None
        return self.memory[position] if len(self.memory) > 1 else self.memory[0]


def is_name(name: str) -> bool:
    """Whether a reservation or a quota can have this name (NAMES)."""
    rest = name.replace(".", "").replace("_", "").replace("-", "")
    return len(name) <= 63 and name[:1].isalnum() and name.isascii() and rest.isalnum()


def devices_in_words(count: int) -> str:
    """`1 device`, `2 devices`."""
    return f"{count} device{'s' if count != 1 else ''}"


def wrong_number(values: int, devices: int) -> str:
    """The problem of a wrong number of values of XPU_MEM, and its remedy."""
    right = f"one value, or {devices}" if devices != 1 else "one value"
    return f"{values} values for {devices_in_words(devices)}: give {right}"
