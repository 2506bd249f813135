"""Runs beside the device plugin as long as the DaemonSet's pod: keeps keys in step, and cleans up at the end.

A pod ends when it is updated, restarted, or its DaemonSet is removed, or when somebody keeps it off its node;
only the last two are reasons to take the runtime from the node. So the API is asked at the end. A pod that
may not see the DaemonSet any more has lost its rights because they are removed with it. If its token is
refused, it may be in the same case, or may have been deleted by force, as a token ends with its pod's object:
then another pod comes in its place and installs the runtime, and that installation is left alone. If the API
does not answer, nothing is removed; packaging/kubernetes/uninstall.yaml is for that case. setup.py removes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from xpu_runtime.errors import ConfigError, XpuError
from xpu_runtime.kubernetes.api import Api, ApiError
from xpu_runtime.kubernetes.node_setup.host import say

#: Written by `label` and at the removal. The list of docs/reference/kubernetes.md is made from the comments.
WRITTEN = (
    #: `true` where the runtime is installed: the RuntimeClass sends pods there.
    "yoyoworks.com/xpu.runtime",
    #: `pending` where a part of the runtime stays after [its removal](../kubernetes.md#uninstall).
    "yoyoworks.com/xpu.removal",
)
#: packaging/kubernetes/uninstall.yaml looks for REMOVAL.
LABEL, REMOVAL = WRITTEN
#: The label's value on a node that we are kept off, and the place of a DaemonSet's affinity.
_DISABLED, _REQUIRED = "disabled", "requiredDuringSchedulingIgnoredDuringExecution"
#: Labels that are people's own words to us; of the same list.
THEIRS = (
    #: `enabled`, `disabled`: whether the runtime is installed there.
    "yoyoworks.com/xpu",
    #: `binpack`, `spread`: the way to fill its cards.
    "yoyoworks.com/xpu.placement",
)
_OURS = THEIRS[0]
_ENDS = (signal.SIGTERM, signal.SIGINT)
#: Seconds between two looks at the keys; the kubelet renews a Secret's files within a minute or so.
_PAUSE_S = 10.0
#: Until keys that could not be written are tried again, at most.
_MOST_PAUSE_S = 600.0
#: Within these seconds the replacement of a pod that was deleted by force has begun to install; well within
#: the pods' terminationGracePeriodSeconds.
_REPLACED_S = 20.0
#: Seconds that the one in its place asks before it installs.
_ASK_S = 5.0


def keep(keys: str, write: Callable[[bytes], bool]) -> None:
    """Until SIGTERM or SIGINT: gives the content of the file `keys` to `write` at first and whenever it
    changes. If `write` fails (False, with the reason in the log), it is repeated, each time after twice as
    long."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    if read(keys) is None:
        # A cluster without the extender has none.
        say(f"no keys in {keys}: they are looked for every {_PAUSE_S:.0f} s")
    # The present content does not count: the Secret may have changed since the init container has read it.
    written = tried = None
    again_at, pause = 0.0, _PAUSE_S
    while True:
        now = read(keys)
        if now != tried:
            again_at, pause = 0.0, _PAUSE_S
        if now is not None and now != written and time.monotonic() >= again_at:
            tried = now
            if write(now):
                written = now
            again_at, pause = time.monotonic() + pause, min(2 * pause, _MOST_PAUSE_S)
        if signal.sigtimedwait(_ENDS, _PAUSE_S) is not None:
            return


def read(path: str) -> bytes | None:
    """The file's content; None if there is no file."""
    try:
        with open(path, "rb") as file:
            return file.read(64 << 10)
    except OSError:
        return None


def is_removed(api: Api, namespace: str, daemonset: str, node: str) -> bool:
    """Whether the DaemonSet was removed, or is being removed, or is kept off the node by its label; logs the
    reason if that is unknown."""
    try:
        found = api.get(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{daemonset}")
    except ApiError as error:
        if error.status == 404:
            return True
        if error.status == 403:
            say(f"the rights to see DaemonSet {daemonset} are gone: it counts as removed")
            return True
        if error.status == 401:
            say(f"DaemonSet {daemonset} was removed, or this pod by force: waiting for its replacement")
            time.sleep(_REPLACED_S)
            return True
        say(
            f"it is not known whether DaemonSet {daemonset} was removed, so nothing is removed: {error}",
            error=True,
        )
        return False
    if found["metadata"].get("deletionTimestamp"):
        return True
    return _leaves_disabled_out(found) and _is_disabled(api, node)


def _leaves_disabled_out(daemonset: Mapping[str, Any]) -> bool:
    """Whether the DaemonSet's affinity keeps it off nodes with that label: a DaemonSet without it only
    updates or restarts its pod."""
    found: Any = daemonset
    for name in ("spec", "template", "spec", "affinity", "nodeAffinity", _REQUIRED):
        found = found.get(name) or {}
    terms = found.get("nodeSelectorTerms") or ()
    return bool(terms) and all(any(map(_excludes, term.get("matchExpressions") or ())) for term in terms)


def _excludes(expression: Mapping[str, Any]) -> bool:
    is_named = _DISABLED in (expression.get("values") or ())
    return expression.get("key") == _OURS and expression.get("operator") == ("NotIn" if is_named else "In")


def _is_disabled(api: Api, node: str) -> bool:
    try:
        labels = api.get(f"/api/v1/nodes/{node}")["metadata"].get("labels") or {}
    except ApiError as error:
        say(f"it is not known whether node {node} is labelled {_OURS}={_DISABLED}: {error}", error=True)
        return False
    return bool(labels.get(_OURS) == _DISABLED)


def check_pod(api: Api, namespace: str, node: str, uid: str) -> None:
    """ConfigError if the pod of that UID is not on the node any more; logs the reason if that is unknown.

    A kubelet before 1.22 may restart an init container of a pod that was deleted by force, after that of the
    pod in its place: it would pass for the last installer. Its token may still be accepted for 10 s.
    """
    deleted = ConfigError("this pod was deleted", "do nothing: its replacement installs the runtime")
    try:
        pods, _ = api.list(
            f"/api/v1/namespaces/{namespace}/pods",
            lambda found: str(found["metadata"].get("uid")),
            seconds=_ASK_S,
            fieldSelector=f"spec.nodeName={node}",
        )
    except ApiError as error:
        if error.status == 401:
            raise deleted from None
        # The one in its place must not wait: the pod that was deleted may be about to take the runtime away.
        say(f"it is not known whether this pod was deleted: {error}", error=True)
        return
    if uid not in pods:
        raise deleted


def label(api: Api, node: str) -> None:
    """Says in the cluster that `node` has the runtime; ApiError."""
    api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {LABEL: "true", REMOVAL: None}}})


def unlabel(api: Api, node: str, *, is_pending: bool = False) -> None:
    """Takes all that we have said of `node` in the cluster away, as far as that is allowed still; with
    `is_pending` it is said that a part of the runtime is there."""
    path = f"/api/v1/nodes/{node}"
    try:
        metadata = api.get(path)["metadata"]
        gone: dict[str, dict[str, str | None]] = {
            kind: {name: None for name in metadata.get(kind) or () if _is_ours(name)}
            for kind in ("labels", "annotations")
        }
        if is_pending:
            gone["labels"][REMOVAL] = "pending"
        if any(gone.values()):
            api.patch(path, {"metadata": gone})
    except XpuError as error:
        say(f"our labels stay on node {node}: {error}", error=True)


def _is_ours(name: str) -> bool:
    return name not in THEIRS and name.startswith((f"{_OURS}.", f"{_OURS}-"))
