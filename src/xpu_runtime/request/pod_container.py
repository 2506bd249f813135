"""A container of a Kubernetes pod and its assignment, as a value; pod.py reads it from the spec."""

from __future__ import annotations

from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.request.assignment import Assignment


class PodContainer(Value):
    """A container and its pod; `uid` is the pod's."""

    uid: str
    namespace: str
    pod: str
    container: str
    #: Its pod's assignment; None: its pod's allocation in the ledger counts.
    assignment: Assignment | None = None
    #: The author's variables about a cap on cores, such as `XPU_SCHED=burst`.
    about_cores: tuple[str, ...] = ()
    #: The id of the key that has signed the assignment.
    key_id: str = ""

    @property
    def label(self) -> str:
        return f"container {self.container} of pod {self.namespace}/{self.pod}"
