"""What tests create at the API server, with as few words as can be."""

from __future__ import annotations

from typing import Any

from .cluster import IMAGE


def pod(
    name: str, *containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """A pod that asks the runtime for XPUs; of `containers` as `container` makes them."""
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
    """A container of the tests' image; without a command it has no end."""
    return {
        "name": name,
        "image": IMAGE,
        "command": list(command or ("sleep", "infinity")),
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "resources": {"limits": {key: str(value) for key, value in (limits or {}).items()}},
        **more,
    }
