"""The objects that tests create at the API server, in few words."""

from __future__ import annotations

from typing import Any

from .cluster import IMAGE


def pod(
    name: str, *containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """A pod that asks the runtime for XPUs; `container` makes its containers."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {
            "runtimeClassName": "xpu",
            "hostNetwork": True,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": list(containers),
            **spec,
        },
    }


def container(
    *command: str,
    name: str = "main",
    env: dict[str, str] | None = None,
    limits: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A container of the tests' image; without a command it runs until it is killed."""
    return {
        "name": name,
        "image": IMAGE,
        "command": list(command or ("sleep", "infinity")),
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "resources": {"limits": {key: str(value) for key, value in (limits or {}).items()}},
        **more,
    }
