"""The `mig` backend: the hardware keeps a MIG device apart from its neighbours, memory and cores alike.

There is nothing to set: a container that has a whole MIG device cannot leave it. A limit on a share of a MIG
device is another backend's to hold. Which devices are such is the inventory's to say: no driver is asked
here.
"""

from __future__ import annotations

from xpu_runtime.ledger.grants import CORES, MEMORY
from xpu_runtime.limits.backend import HARD, Backend, Offer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.request.request import Request
    from xpu_runtime.vendors.inventory import Device, Inventory


class Mig(Backend):
    NAME = "mig"
    EXPERIMENTAL = True
    KINDS = (MEMORY, CORES)
    STRONGEST = HARD
    WHOLE_DEVICES = True

    def offer(self, kind: str, inventory: Inventory, device: Device, request: Request) -> Offer:
        # A part of a device is asked for.
        if kind == CORES and request.enforce == HARD:
            return Offer(None, "only a whole MIG device has a cap on cores that no program can get round")
        return Offer(None)

    def unasked(self, kind: str, device: Device) -> str | None:
        return HARD if device.is_partition else None

    def objection(self, device: Device, request: Request) -> str | None:
        if not device.is_partition:
            return "not a MIG device, and XPU_ENFORCE=mig needs one"
        if request.memory or request.caps_cores:
            return "XPU_ENFORCE=mig asks for a whole MIG device, without XPU_MEM and XPU_CORES"
        return None


BACKEND = Mig()
