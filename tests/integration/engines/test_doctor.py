"""`xpu doctor` beside running engines: their present configuration, and a bug report without their
secrets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Node
from .conftest import Daemon, Docker, Engines, until

Finding = dict[str, Any]


def about(node: Node, check: str, engine_file: Path) -> list[Finding]:
    """The findings about the engine with this configuration file; there may be others on the machine."""
    told = json.loads(node.xpu("doctor", "--json", check=False).stdout)
    return [each for each in told["findings"] if each["check"] == check and str(engine_file) in each["text"]]


@pytest.fixture
def docker_config(engines: Engines, docker: Docker) -> Iterator[Path]:
    """docker's configuration file, which is as it was when the test has ended, and read."""
    path = engines.docker_config
    before = path.read_text()
    yield path
    path.write_text(before)
    engines.dockerd.send(signal.SIGHUP)
    until(lambda: about(engines.node, "docker", path)[0]["state"] == "ok", "docker has read its file")


def test_docker_has_read_its_configuration_or_is_told_to(
    node: Node, docker: Docker, dockerd: Daemon, docker_config: Path
) -> None:
    (finding,) = about(node, "docker", docker_config)
    assert finding["state"] == "ok"
    assert f"has read {docker_config} and knows xpu ({node.runtime})" in finding["text"]

    other = node.folder / "other-runtime"
    shutil.copy("/bin/true", other)
    docker_config.write_text(docker_config.read_text().replace(str(node.runtime), str(other)))
    another, unread = about(node, "docker", docker_config)
    assert another["state"] == "warning"
    assert "belongs to another installation" in another["text"]
    assert unread["state"] == "problem"
    assert f"has not read {docker_config}: it takes {node.runtime} for xpu" in unread["text"]
    assert "systemctl reload docker" in unread["todo"]
    dockerd.send(signal.SIGHUP)  # which that does
    until(
        lambda: [each["state"] for each in about(node, "docker", docker_config)] == ["warning", "ok"],
        "docker has read its file",
    )

    other.unlink()
    gone = about(node, "docker", docker_config)[0]
    assert gone["state"] == "problem"
    assert f"names {other}, which is not there" in gone["text"]
    assert f"xpu runtime configure docker --config {docker_config}" in gone["todo"]
    docker_config.write_text("{}\n")
    (forgotten,) = about(node, "docker", docker_config)[-1:]
    assert forgotten["state"] == "warning"
    assert "does not name it (any more)" in forgotten["text"]
    docker_config.write_text("{")
    assert "not JSON" in about(node, "docker", docker_config)[0]["text"]


def test_containerd_that_started_before_its_file_changed_is_told(
    engines: Engines, node: Node, docker: Docker
) -> None:
    path = engines.containerd_config
    (fine,) = about(node, "containerd", path)
    assert fine["state"] == "ok"
    time.sleep(0.2)  # it is told from the file's time
    path.write_text(path.read_text())
    (finding,) = about(node, "containerd", path)
    assert finding["state"] == "problem"
    assert f"has not read {path}" in finding["text"]
    assert finding["todo"].startswith("systemctl restart containerd (")
    engines.containerd.stop()
    engines.containerd.start()
    (fine,) = about(node, "containerd", path)
    assert fine["state"] == "ok"


SECRET = "Hunter2"
#: Keys of daemon.json that hold secrets by purpose or by habit; which docker takes.
PLANTED = {
    "registry-mirrors": [f"https://user:{SECRET}1@mirror.example.com"],
    "labels": [f"db.password={SECRET}2"],
    "log-opts": {"env": f"{SECRET}3", "labels": f"{SECRET}4"},
}


def test_a_bug_report_has_what_is_needed_and_no_secret(
    engines: Engines, node: Node, docker: Docker, docker_config: Path, tmp_path: Path
) -> None:
    settings = json.loads(docker_config.read_text())
    docker_config.write_text(json.dumps({**settings, **PLANTED}))
    containerd = engines.containerd_config.read_text()
    credentials = f"""
[plugins."io.containerd.grpc.v1.cri".registry.configs."registry.example.com".auth]
username = "{SECRET}5"
password = "{SECRET}6"
identitytoken = "{SECRET}7"
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
endpoint = ["https://me:{SECRET}8@mirror.example.com"]
[proxy_plugins.remote]
address = "{SECRET}9"
"""
    engines.containerd_config.write_text(containerd + credentials)
    options = ["--annotation", f"note={SECRET}a"] if "--annotation" in docker.must("run", "--help") else []
    container = docker.start(
        f"XPU_MEM=4G API_TOKEN={SECRET}b PLAIN={SECRET}c",
        "sh", "-c", f"sleep 1000; echo {SECRET}d",
        options=[*options, "--label", f"note={SECRET}e", "--hostname", SECRET, "--tmpfs", "/scratch"],
    )  # fmt: skip
    spec = Path(node.grants()[0].bundle) / "config.json"
    changed = json.loads(spec.read_text())
    assert SECRET in json.dumps(changed["process"]["env"])
    changed.setdefault("annotations", {})["com.example/note"] = f"{SECRET}f"
    changed["mounts"].append(
        {
            "destination": "/share",
            "type": "cifs",
            "source": f"//user:{SECRET}g@host/share",
            "options": [f"password={SECRET}h", SECRET],
        }
    )
    changed["hooks"].setdefault("poststop", []).append(
        {"path": "/bin/true", "args": ["true", f"{SECRET}i"], "env": [f"KEY={SECRET}j"]}
    )
    spec.write_text(json.dumps(changed))
    # A process whose command line is in a message, as that which locks the ledger.
    program = "import fcntl, sys, time; file = open(sys.argv[1]); fcntl.flock(file, 2); "
    program += "print(flush=True); time.sleep(1000)"
    lock = f"{node.run_dir}/ledger.db.lock"
    words = ["/usr/bin/python3", "-c", program, lock, f"--password={SECRET}k"]
    file = tmp_path / "report.tar.gz"
    try:
        with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            try:
                told = node.xpu("doctor", "--bundle", file).stdout
            finally:
                holder.kill()
    finally:
        engines.containerd_config.write_text(containerd)
        os.utime(engines.containerd_config, (1, 1))
    assert str(file) in told
    assert file.stat().st_mode & 0o7777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [file.name]

    parts: dict[str, str] = {}
    with tarfile.open(file) as archive:
        for entry in archive:
            member = archive.extractfile(entry)
            assert member is not None
            parts[entry.name.partition("/")[2]] = member.read().decode()
    assert [name for name, text in parts.items() if SECRET in name + text] == []
    assert not any(name.startswith("not-collected/") for name in parts)

    findings = json.loads(parts["doctor.json"])["findings"]
    (locked,) = [each for each in findings if "locked" in each["text"]]
    assert f"process {holder.pid} ([left out])" in locked["text"]
    outline = json.loads(parts[f"containers/{container}.json"])
    assert {"XPU_MEM", "API_TOKEN", "PLAIN", "PATH"} <= set(outline["process"]["env"])
    assert "com.example/note" in outline["annotations"]
    assert any(each["path"] == str(node.hook) for each in outline["hooks"]["poststop"])
    assert "/scratch" in [each["destination"] for each in outline["mounts"]]
    assert json.loads(parts["ledger.json"])[0]["container_id"] == container
    assert json.loads(parts["xpu/ps.json"])[0]["memory_bytes"] == 4 << 30
    assert json.loads(parts["xpu/devices.json"])[0]["name"] == "Tesla T4"
    name = str(docker_config).strip("/").replace("/", "-")
    daemon = json.loads(parts[f"engines/docker/{name}.json"])
    assert daemon["runtimes"]["xpu"]["path"] == str(node.runtime)
    assert daemon["registry-mirrors"] == ["[left out]"]
    assert (
        str(node.runtime)
        in parts[f"engines/containerd/{name.replace('daemon.json', 'containerd.toml')}.json"]
    )
    assert "runc version" in parts["versions.txt"]

    again = node.xpu("doctor", "--bundle", file, check=False)
    assert again.returncode == 1
    assert f"{file} is there already" in again.stderr
