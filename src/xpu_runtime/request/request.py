"""A request: what a container asks for, parsed and checked, before any device is looked at."""

from __future__ import annotations

from xpu_runtime.request.units import Memory
from xpu_runtime.value import Value

#: What a request may name, in the order of the README's table.
CAPABILITIES = ("compute", "utility", "graphics", "video", "display", "ngx", "compat32")
POLICIES = ("binpack", "spread")
BACKENDS = ("driver", "library", "mig", "none")


class Condition(Value):
    """One comparison of XPU_REQUIRE, e.g. `cuda>=12.0`."""

    subject: str
    operator: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.subject}{self.operator}{self.wanted}"


class Request(Value):
    """What a container asks for; `selectors` are indexes, UUIDs or GPU:MIG indexes as written."""

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
    policy: str | None = None
    capabilities: tuple[str, ...] = ("compute", "utility")
    #: All of these must hold; each is a list of alternatives, each of which is a list of conditions.
    requirements: tuple[tuple[tuple[Condition, ...], ...], ...] = ()
    enforce: str = "auto"
    #: XPU_LOG=debug: the wrapper libraries, where they hold the limit, are to tell what they count.
    log: bool = False
    #: What `cores` comes from where no XPU_CORES asks for it, as `policy.max_cores`.
    cores_from: str = ""
    #: Why the container could lift a limit that the driver holds; empty: it cannot.
    can_lift: str = ""

    def memory_of(self, position: int) -> Memory | None:
        """What is asked of the device at this position; None: all of it."""
        if not self.memory:
            return None
        return self.memory[position] if len(self.memory) > 1 else self.memory[0]
