"""The steps of a container's start: request, candidates, grant, limits, plan. Spec mode plans before it
imposes limits.

Hook mode takes all steps in the hook (in_container.py). Spec mode books and plans in the shim (spec_mode.py),
and leaves limits and mounts to the hook. `xpu explain` decides and plans, and books nothing. The steps
themselves are those of request/, granting, limits/ and delivery/; the caller decides when and for which
container.
"""

from __future__ import annotations

from xpu_runtime import granting
from xpu_runtime.delivery import plan
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.limits import enforce
from xpu_runtime.oci import engine_name
from xpu_runtime.vendors import discovery

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from xpu_runtime.config.defaults import Config
    from xpu_runtime.ledger.grants import Slice
    from xpu_runtime.ledger.refusal import Refusal
    from xpu_runtime.ledger.store import Ledger
    from xpu_runtime.linux.proc import Caller
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.request.request import Request
    from xpu_runtime.vendors.inventory import Inventory


class Start:
    """A start whose request is known; the methods are in the order of the steps."""

    def __init__(
        self, request: Request, config: Config, load: Callable[[Config], Inventory] = discovery.load
    ) -> None:
        """`load` tells which devices there are. RequestError where a pod's container was assigned nothing."""
        self.request = granting.resolved(request)
        self.config = config
        self.inventory = load(config)

    def ledger(self) -> Ledger:
        """The ledger, not open yet, by which `decide` goes."""
        return granting.ledger_for(self.request)

    def decide(self, ledger: Ledger) -> tuple[Slice, ...] | Refusal:
        """The slices that the container would get now; changes nothing."""
        return granting.decide(self.inventory, self.request, self.config, ledger)

    def book(self, container_id: str, bundle: str, process: tuple[int, int], mode: str, spec: Spec) -> Grant:
        """The container's grant, booked for the process with this id and start time; Refused."""
        wanted = Grant(0, container_id, bundle, *process, "", "pending", mode, 0.0, ())
        name = engine_name.of(bundle, container_id, spec)
        return granting.grant(self.inventory, self.request, self.config, wanted, name)

    def impose(self, grant: Grant, process: tuple[int, int], caller: Caller, *, is_settled: bool) -> Grant:
        """The grant with its limits in force on the container of `process`. `is_settled`: its spec has the
        plan already, so no other backend can hold them. XpuError, with no limit set."""
        again = None if is_settled else (self.request, self.config)
        return granting.impose(self.inventory, grant, *process, caller, again, self.request)

    def plan(self, slices: tuple[Slice, ...], grant: Grant | None) -> plan.Plan:
        """The plan for a container with these slices; with their grant also the backends' contributions."""
        contributions = enforce.contributions(self.inventory, grant) if grant is not None else ()
        return plan.build(self.inventory, slices, self.request.capabilities, contributions)

    def give_back(self, grant: Grant | None) -> None:
        """Undoes the steps from `book` on, for a container that does not start."""
        granting.release(self.config, [grant] if grant is not None else [])
