"""The quotas of the configuration that a container counts to, by the engine's facts in the spec.

The facts are annotations and the user namespace. docker and Kubernetes pass no labels to a runtime. A user
who can set annotations chooses the quota. ledger/quotas.py knows the amounts that are granted already.
"""

from __future__ import annotations

from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.request.units import parse_memory
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from xpu_runtime.oci.spec import Spec


class Quota(Value):
    """The most that the containers of this quota may have together; None: no limit."""

    name: str
    #: The description of its containers, for people.
    who: str
    max_slices: int | None
    #: In bytes, as booked.
    max_memory: int | None
    #: In percent of a device, 100 for a slice without a cap.
    max_cores: int | None


def matching(configured: tuple[dict[str, Any], ...], spec: Spec) -> tuple[Quota, ...]:
    """The entries of policy.quotas, checked by the schema, that match the container."""
    annotations = oci_spec.annotations_of(spec)
    return tuple(_quota(each) for each in configured if _matches(each["match"], annotations, spec))


def every(configured: tuple[dict[str, Any], ...]) -> tuple[Quota, ...]:
    """All of policy.quotas, checked by the schema."""
    return tuple(_quota(each) for each in configured)


def _matches(match: dict[str, Any], annotations: dict[str, str], spec: Spec) -> bool:
    if "annotation" in match:
        key, value = match["annotation"], match["value"]
        return key in annotations and annotations[key] == str(value)
    wanted = match["user_namespace"]
    if not oci_spec.has_namespace(spec, "user"):
        return False
    return wanted is True or oci_spec.root_uid(spec) == int(wanted)


def _quota(each: dict[str, Any]) -> Quota:
    match = each["match"]
    if "annotation" in match:
        who = f"annotation {match['annotation']}={match['value']}"
    else:
        whose = "" if match["user_namespace"] is True else f" of uid {match['user_namespace']}"
        who = f"user namespace{whose}"
    memory = each.get("max_memory")
    return Quota(
        each["name"],
        who,
        each.get("max_slices"),
        parse_memory(memory).bytes if memory else None,
        each.get("max_cores"),
    )
