"""A container of a Kubernetes pod, and what it asks by, as a value; read from its spec by pod.py."""

from __future__ import annotations

from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.request.assignment import Assignment


class PodContainer(Value):
    """Which container of which pod; `uid` is the pod's."""

    uid: str
    namespace: str
    pod: str
    container: str
    #: What its pod was assigned; None: it asks by its pod's allocation in the ledger.
    assignment: Assignment | None = None
    #: What its author says of a cap on cores, as `XPU_SCHED=burst`.
    about_cores: tuple[str, ...] = ()
    #: The id of the key that has signed the assignment.
    key_id: str = ""

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"container {self.container} of pod {self.namespace}/{self.pod}"
