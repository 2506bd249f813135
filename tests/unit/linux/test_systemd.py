"""The call that tells systemd of a container's devices, and the refusal if it fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xpu_runtime.errors import ApplyError
from xpu_runtime.linux import systemd
from xpu_runtime.linux.device_rule import DeviceRule
from xpu_runtime.oci.spec import systemd_unit

RULES = [DeviceRule("c", 195, 0), DeviceRule("c", 195, 255, "rwm")]


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("system.slice:docker:0123", "docker-0123.scope"),
        ("machine.slice:libpod:0123", "libpod-0123.scope"),
        ("user.slice::0123", "0123.scope"),
        (":cri-containerd:0123", "cri-containerd-0123.scope"),
        ("a.slice:p:b.slice", "b.slice"),
        ("/docker/0123", ""),
        ("/default/a:b", ""),
        ("a:b:", ""),
        (None, ""),
    ],
)
def test_a_systemd_unit_is_known_by_the_form_of_the_cgroups_path(path: str | None, unit: str) -> None:
    assert systemd_unit({"linux": {"cgroupsPath": path}}) == unit


@pytest.fixture
def busctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place in PATH for a busctl, which can write `words` there."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "busctl"


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_all_devices_are_told_in_one_call_for_as_long_as_the_unit_is_there(busctl: Path) -> None:
    _program(busctl, f'echo "$*" > {busctl.parent}/words')
    systemd.allow_devices("docker-1.scope", RULES)
    said = (busctl.parent / "words").read_text()
    assert said.endswith(
        "SetUnitProperties sba(sv) docker-1.scope true 1 DeviceAllow a(ss) 2 "
        "/dev/char/195:0 rw /dev/char/195:255 rwm\n"
    )


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo Call failed: Unit docker-1.scope not found. >&2; exit 1", "Unit docker-1.scope not found."),
        ("exit 3", "busctl ended with 3"),
    ],
)
def test_a_systemd_that_cannot_be_told_is_a_refusal_with_its_reason(
    busctl: Path, script: str, why: str
) -> None:
    _program(busctl, script)
    with pytest.raises(ApplyError) as caught:
        systemd.allow_devices("docker-1.scope", RULES)
    assert why in caught.value.what and "(docker-1.scope)" in caught.value.what
    assert caught.value.todo == "start the container with the runtime xpu (--runtime=xpu)"


def test_no_busctl_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ApplyError, match="busctl cannot be started"):
        systemd.allow_devices("docker-1.scope", RULES)
