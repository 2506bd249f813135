"""XPU_LOG: the interposers in the container read it. It is checked with the request."""

from __future__ import annotations

import pytest

from xpu_runtime.config.defaults import Config
from xpu_runtime.ledger.grants import Holding, Slice
from xpu_runtime.limits import choose
from xpu_runtime.request.source import asks, from_spec

from .specs import refusal, refused, request, spec


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("debug", True), ("debug:/tmp/xpu.log", True), ("off", False), ("debug:/" + 510 * "x", True)],
)
def test_xpu_log_counts_beside_a_request_for_a_slice(value: str, wanted: bool) -> None:
    found = request("XPU_MEM=4G", f"XPU_LOG={value}")
    assert found.log is wanted
    assert found.replace(log=False) == request("XPU_MEM=4G")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("debgu", "must be debug, debug:/PATH/OF/A/FILE or off; did you mean debug?"),
        ("DEBUG", "did you mean debug?"),
        ("debgu:/tmp/log", "did you mean debug:/tmp/log?"),
        ("of", "did you mean off?"),
        ("info", "must be debug,"),
        ("1", "must be debug,"),
        ("debug:", "must be debug,"),
        ("debug:log", "must be debug,"),
        ("off:/tmp/log", "must be debug,"),
        ("", "is empty"),
        ("debug:/" + 511 * "x", "the path is longer than 511 bytes"),
    ],
)
def test_a_misspelt_log_is_refused(value: str, says: str) -> None:
    told = refusal("XPU_MEM=4G", f"XPU_LOG={value}")
    assert told.startswith("XPU_LOG=") and says in told


def test_a_misspelt_log_is_refused_beside_an_alias_or_an_annotation() -> None:
    assert "XPU_LOG='debgu'" in refusal("NVIDIA_VISIBLE_DEVICES=all", "XPU_LOG=debgu")
    strict = Config(policy_accept_env_when_unprivileged=False)
    annotated = spec("XPU_LOG=debgu", annotations={"yoyoworks.com/xpu-mem": "4G"})
    assert "XPU_LOG='debgu'" in refused(annotated, strict)


def test_xpu_log_alone_asks_for_nothing_and_is_not_checked() -> None:
    assert not asks(spec("XPU_LOG=debgu"))
    assert from_spec(spec("XPU_LOG=debgu"), Config()) is None


def held_by(backend: str | None, limited: bool = True) -> Slice:
    return Slice("0", "GPU-1", 1 << 30, limited, None, Holding(memory_backend=backend))


def test_a_note_says_that_xpu_log_has_no_effect_without_an_interposer() -> None:
    assert choose.why_no_log((held_by("library"),)) is None
    assert choose.why_no_log((held_by("driver"), held_by("library"))) is None
    assert "its memory limit is held by: driver" in (choose.why_no_log((held_by("driver"),)) or "")
    assert "nothing holds" in (choose.why_no_log((held_by(None, False),)) or "")
    assert "nothing holds" in (choose.why_no_log((held_by("none"),)) or "")
