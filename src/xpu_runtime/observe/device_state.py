"""Facts about a reading's devices besides their use: faults, sensors, and the operator's marks.

For metrics and the page, which show the same in two forms. A part that cannot be read is left out, with a
problem.
"""

from __future__ import annotations

from xpu_runtime.errors import XpuError
from xpu_runtime.observe.reading import Card, Reading
from xpu_runtime.value import Value
from xpu_runtime.vendors import marks, registry
from xpu_runtime.vendors.inventory import Device
from xpu_runtime.vendors.marks import Marks, Reservation
from xpu_runtime.vendors.vendor import Sensors


class DeviceState(Value):
    """One device of a reading."""

    card: Card
    #: None: it is not on this node any more, and still has slices.
    device: Device | None
    sensors: Sensors
    #: None: that cannot be told, of this device or of all.
    marks: Marks | None

    @property
    def why_drained(self) -> str | None:
        """As of Marks; None also if not known."""
        return None if self.marks is None or self.device is None else self.marks.why_drained(self.device)

    @property
    def reservation(self) -> Reservation | None:
        """The same."""
        return None if self.marks is None or self.device is None else self.marks.reservation(self.device)


def states(reading: Reading, problems: list[str]) -> list[DeviceState]:
    """The state of each device, in their order; failures are added to `problems`."""
    sensors = registry.sensors(reading.inventory, problems)
    told: Marks | None = None
    try:
        told = marks.read()
    except XpuError as error:
        problems.append(str(error))
    known = {device.uuid: device for device in reading.inventory.devices}
    return [
        DeviceState(
            card,
            known.get(card.uuid),
            sensors.get(card.uuid, Sensors()),
            told if card.uuid in known else None,
        )
        for card in reading.cards
    ]
