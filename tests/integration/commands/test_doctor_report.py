"""The bug report of `xpu doctor --bundle`: its content, and secrets that it must not have."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from ..conftest import Node

SECRET = "Hunter2"


_SYSLOG = f"""\
Nov 22 17:00:01 host CRON[7]: (root) CMD (podman --runtime /usr/bin/xpu-container-runtime run -p{SECRET})
Nov 22 17:00:02 host systemd[1]: Started r1 - podman --runtime xpu-container-runtime -e db_pwd={SECRET}.
Nov 22 17:00:03 host logger: Nov 22 17:00:03 host xpu-container-runtime[1]: xpu: {SECRET}
Nov 22 17:00:04 host xpu-container-runtime[8]: xpu: it is full
2026-11-22T17:00:05.123456+00:00 host xpu-container-runtime[9]: xpu: refused: A_PW=a,{SECRET} PW='a {SECRET}'
"""


_DMESG = f"""\
[    0.000000] Command line: nvidia-drm.modeset=1 netroot=iscsi:bob:{SECRET}@192.0.2.1::3260::x
[    9.1] audit: type=1309 audit(1.2:3): argc=2 a0="nvidia-smi" a1="{SECRET}"
[    9.2] systemd[1]: Started nvidia-persistenced {SECRET}
[    9.3] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  615.36.02
[   10.4] NVRM: Xid (PCI:0000:01:00): 31, pid=7, name={SECRET}, Ch 00000010
[   10.5] nvidia 0000:01:00.0: enabling device
"""


_DAEMON = {
    "exec-opts": [f"pw={SECRET}"],
    SECRET: 1,
    "labels": [SECRET],
    "runtimes": {SECRET: {"path": "/usr/bin/crun", "runtimeArgs": [SECRET]}},
}


_CONTAINERD = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri".registry.configs."u:{SECRET}@reg".auth]
username = "{SECRET}"
[plugins."io.containerd.grpc.v1.cri".registry.configs."u:{SECRET}@reg".tls]
"""


def programs(node: Node, **texts: str) -> None:
    """Puts programs that print these texts in front of the machine's."""
    folder = node.folder / "programs"
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
        (folder / name).write_text(f"#!/bin/sh\ncat {folder}/{name}.txt\n")
        (folder / name).chmod(0o755)
    node.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def contents(file: Path) -> dict[str, str]:
    """The texts of a bug report by their names."""
    found = {}
    with tarfile.open(file) as archive:
        for entry in archive:
            member = archive.extractfile(entry)
            assert member is not None
            found[entry.name.partition("/")[2]] = member.read().decode()
    return found


@pytest.mark.parametrize("broken", [False, True])
def test_a_bug_report_has_no_secret_of_other_programs(node: Node, tmp_path: Path, broken: bool) -> None:
    programs(node, dmesg=_DMESG, journalctl="")
    there = node.folder / "there"
    there.mkdir()
    (there / "syslog").write_text(_SYSLOG)
    (there / "daemon.json").write_text(f'{{"{SECRET}": 1, "{SECRET}": 2}}' if broken else json.dumps(_DAEMON))
    again = f'[plugins."{SECRET}"]\n[plugins."{SECRET}"]\n' if broken else ""
    (there / "config.toml").write_text(_CONTAINERD + again)
    script = ""
    for folder, name in (("log", "syslog"), ("docker", "daemon.json"), ("containerd", "config.toml")):
        place = f"/var/{folder}" if folder == "log" else f"/etc/{folder}"
        script += f"mkdir -p {place}; mount -t tmpfs none {place}; cp {there}/{name} {place}/\n"
    file = tmp_path / "report.tar.gz"
    with node.own_mounts(script):
        # doctor reads the file of a running engine, such as another test's, and not the usual one.
        node.view += ["unshare", "--pid", "--fork", "--mount-proc", "--"]
        node.xpu("doctor", "--bundle", file)
        node.view = node.view[:-5]
    parts = contents(file)
    assert [name for name, text in parts.items() if SECRET in name + text] == []
    assert not any(name.startswith("not-collected/") for name in parts)
    assert [line.split()[-2:] for line in parts["log.txt"].splitlines()] == [
        ["is", "full"],
        ["PW=[left", "out]"],
    ]
    assert parts["kernel.txt"].count("\n") == 3
    assert "Xid (PCI:0000:01:00): 31" in parts["kernel.txt"]
    if broken:
        texts = [each["text"] for each in json.loads(parts["doctor.json"])["findings"]]
        assert any("/etc/docker/daemon.json:1:" in text for text in texts)
    else:
        daemon = json.loads(parts["engines/docker/etc-docker-daemon.json.json"])
        assert daemon["runtimes"] == {"[left out]": {"path": "/usr/bin/crun", "runtimeArgs": ["[left out]"]}}


@pytest.mark.usefixtures("copy")
def test_a_bug_report_that_cannot_be_written_is_told_with_the_name_asked_for(node: Node) -> None:
    assert '"" names no file' in node.xpu("doctor", "--bundle", "", check=False).stderr
    with node.as_user():
        done = node.xpu("doctor", "--bundle", node.folder / "a", check=False)
    assert done.returncode == 1
    assert done.stderr == f"xpu: {node.folder}/a: Permission denied: run it as root\n"
