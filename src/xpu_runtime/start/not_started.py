"""A container that was not started is written down among the ledger's events, with the reason.

Where the ledger itself is the reason, it may not take that either: the system's log has it then.
"""

from __future__ import annotations

from xpu_runtime.errors import RequestError
from xpu_runtime.ledger import events, waiting
from xpu_runtime.ledger.refusal import Refused
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.ledger.waiting import LedgerError
from xpu_runtime.messages import line_of, to_system_log
from xpu_runtime.oci import engine_name, own_bundle

#: The engine must learn of it soon, even if the event cannot be written.
_LONGEST_S = 1.0


def note(container_id: str, bundle: str, error: BaseException) -> None:
    """Writes the event of the container in `bundle`. Callers ignore what it raises: the engine has been told
    the reason."""
    if isinstance(error, LedgerError):
        to_system_log("error", f"container {container_id[:12]} was not started: {line_of(error)}")
        return
    kind, code = events.FAILED, ""
    if isinstance(error, Refused):
        kind, code = events.REFUSED, error.refusal.code
    elif isinstance(error, RequestError):
        kind, code = events.REFUSED, error.code
    name = engine_name.in_bundle(own_bundle.engines(bundle), container_id)
    waiting.allow(_LONGEST_S)
    with Ledger() as ledger:
        ledger.note(kind, container_id, text=line_of(error), code=code, name=name)
