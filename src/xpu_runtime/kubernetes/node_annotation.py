"""The annotation with a node's devices: its name, its version, and its content.

The device plugin writes it; the scheduler extender and `xpu kubernetes status` read it. Whoever may change a
node can write anything there, so the reader has bounds, and raises only ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from xpu_runtime import jsonlite

ANNOTATION = "yoyoworks.com/xpu-devices"
VERSION = 1

#: Devices of a node, bytes of one and percent of its cores; more are nothing that our plugin writes.
_MOST_DEVICES, _MOST_BYTES, _MOST_PERCENT = 256, 1 << 50, 100_000
#: Bytes that may be granted of one.
_MOST_CAPACITY = 1 << 60

#: A strength: nothing holds such a limit, and it may not go unheld.
NONE = "none"

#: A pod's part of each device: UUID, bytes (None: all of it), percent of its cores (None: no cap).
Shares = tuple[tuple[str, "int | None", "int | None"], ...]


class Row(NamedTuple):
    """A device. No Value, as ten thousand nodes have many."""

    uuid: str
    #: Its index: 0, or 0:1 for a MIG device.
    name: str
    model: str
    #: Bytes (0: not known), and percent.
    memory: int
    cores: int
    #: Why pods get nothing of it; "": they do.
    why: str
    #: The use by others, who are in nobody's `reserved`: no pods, or containers that run although the API's
    #: object of their pod is over or gone. `others_whole`: they have all of the device.
    others_memory: int
    others_cores: int
    others_whole: bool
    #: "" in annotations of plugins that did not tell it, as are the strengths.
    vendor: str = ""
    #: How strongly a limit of memory, and one of cores, is held there; NONE: a container with one is refused.
    memory_strength: str = ""
    cores_strength: str = ""
    #: Bytes that may be granted, if different from `memory` (`oversubscribe.memory`); 0: the same.
    capacity: int = 0

    @property
    def grantable(self) -> int:
        return self.capacity or self.memory


class NodeAnnotation(NamedTuple):
    """The content of a node's annotation."""

    driver: str
    #: The placing program: "extender" or "node".
    placement: str
    devices: tuple[Row, ...]
    #: Reservations of pods by UID, so that a scheduler counts the true ones, even if a pod's author has made
    #: of its assignment since.
    reserved: Mapping[str, Shares]
    #: Bytes of one unit of memory there.
    memory_unit: int = 1 << 30
    #: Ids of the keys that it verifies assignments with. So it can be seen when a new key may sign, and which
    #: nodes still have one that was stolen.
    keys: tuple[str, ...] = ()
    #: Names of other systems that it offers (resources.ALIASES).
    aliases: tuple[str, ...] = ()
    #: By UID the key that has signed what is `reserved`, of those by a signed assignment.
    signed: Mapping[str, str] = {}


def write(annotation: NodeAnnotation) -> str:
    """The annotation's value, as compact JSON."""
    return jsonlite.dumps(
        {
            "v": VERSION,
            "driver": annotation.driver,
            "placement": annotation.placement,
            "memory_unit": annotation.memory_unit,
            "keys": list(annotation.keys),
            "aliases": list(annotation.aliases),
            "devices": [_plain(row) for row in annotation.devices],
            "reserved": {
                uid: [list(share) for share in annotation.reserved[uid]]
                for uid in sorted(annotation.reserved)
            },
            "signed": dict(sorted(annotation.signed.items())),
        }
    )


def _plain(row: Row) -> dict[str, Any]:
    return {
        "uuid": row.uuid,
        "index": row.name,
        "model": row.model,
        "memory": row.memory,
        "cores": row.cores,
        "healthy": not row.why,
        "why": row.why,
        "others": {"memory": row.others_memory, "cores": row.others_cores, "whole": row.others_whole},
        "vendor": row.vendor,
        "memory_strength": row.memory_strength,
        "cores_strength": row.cores_strength,
        "capacity": row.capacity,
    }


def read(text: str) -> NodeAnnotation:
    """The annotation's content; ValueError, in a few words, if it is not valid."""
    try:
        data = json.loads(text)
        if data["v"] != VERSION:
            raise WrongVersion(f"version {data['v']!r:.20}, and {VERSION} is known here")
        rows = tuple(_row(row) for row in data["devices"][:_MOST_DEVICES])
        reserved = {str(uid): _shares(shares) for uid, shares in (data.get("reserved") or {}).items()}
        unit = _number(data.get("memory_unit"), _MOST_BYTES) or 1 << 30
        keys, aliases = (tuple(map(str, data.get(name) or ())) for name in ("keys", "aliases"))
        signed = {str(uid): str(key) for uid, key in (data.get("signed") or {}).items()}
        driver, placement = (str(data.get(name) or "") for name in ("driver", "placement"))
        return NodeAnnotation(driver, placement, rows, reserved, unit, keys, aliases, signed)
    except WrongVersion:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}"[:120]) from error


class WrongVersion(ValueError):
    """It is of a plugin that is newer, or no plugin's."""


def _row(row: Mapping[str, Any]) -> Row:
    others = row.get("others") or {}
    vendor, memory_strength, cores_strength = (
        str(row.get(name) or "")[:20] for name in ("vendor", "memory_strength", "cores_strength")
    )
    return Row(
        str(row["uuid"]),
        str(row["index"]),
        str(row.get("model") or ""),
        _number(row["memory"], _MOST_BYTES),
        _number(row["cores"], _MOST_PERCENT),
        "" if row["healthy"] else str(row.get("why") or "not healthy")[:80],
        _number(others.get("memory"), _MOST_BYTES),
        _number(others.get("cores"), _MOST_PERCENT),
        bool(others.get("whole")),
        vendor,
        memory_strength,
        cores_strength,
        _number(row.get("capacity"), _MOST_CAPACITY),
    )


def _shares(shares: Iterable[Iterable[Any]]) -> Shares:
    return tuple(
        (
            str(uuid),
            None if memory is None else _number(memory, _MOST_BYTES),
            None if cores is None else _number(cores, _MOST_PERCENT),
        )
        for uuid, memory, cores in shares
    )


def _number(value: Any, most: int) -> int:
    """0 for None."""
    found = int(value or 0)
    if not 0 <= found <= most:
        raise ValueError("a number that no device can have")
    return found
