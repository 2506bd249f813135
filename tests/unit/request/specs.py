"""Specs with variables and annotations that request devices, and their requests."""

from __future__ import annotations

from typing import Any

import pytest

from xpu_runtime.config.defaults import Config
from xpu_runtime.errors import RequestError
from xpu_runtime.request.request import Request
from xpu_runtime.request.source import from_spec

GIB = 1 << 30

Spec = dict[str, Any]


def spec(*variables: str, annotations: dict[str, str] | None = None, privileged: bool = False) -> Spec:
    found: Spec = {"process": {"env": ["PATH=/bin", *variables]}, "annotations": annotations or {}}
    if privileged:
        found["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
    return found


def request(*variables: str, config: Config | None = None) -> Request:
    return asked(spec(*variables), config)


def asked(wanted: Spec, config: Config | None = None) -> Request:
    found = from_spec(wanted, config or Config())
    assert found is not None
    return found


def refusal(*variables: str, config: Config | None = None) -> str:
    return refused(spec(*variables), config)


def refused(wrong: Spec, config: Config | None = None) -> str:
    with pytest.raises(RequestError) as caught:
        from_spec(wrong, config or Config())
    return str(caught.value)
