"""A node without Python: the image installs the runtime on it, containers run with it, and the runtime is
removed without a trace.

The node's containerd runs the image as it runs the DaemonSet's containers, privileged and in the node's PID
namespace. tests/machine covers the restart by systemd and its timer.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from .root import Root
from .test_packages import image_in, install
from .ways import IMAGE

pytestmark = pytest.mark.timeout(900)

_PACKAGES = ("busybox-static", "containerd", "runc")
_NAME = "docker.io/library/xpu-kubernetes:0.1.0"
_ROOT = "/run/mounted"
_KEY = "k1 " + "ab" * 32 + "\n"
_CONFIGURATION = """kubernetes:
  require_assignment: true
  placement: extender
  memory_unit: 1GiB
  aliases: []
"""
_THEIRS = "# The node's owner's.\nplacement:\n  policy: spread\n"
_PATIENCE = 30


class Node:
    """A root with containerd in it, and the image."""

    def __init__(self, machine: Root, image: Path) -> None:
        self.machine = machine
        shutil.copy(image, machine.path("/run/image.tar"))
        pod = machine.path("/run/pod")
        for folder in ("configuration", "keys"):
            (pod / folder).mkdir(parents=True)
        (pod / "configuration/config.yaml").write_text(_CONFIGURATION)
        (pod / "keys/keys").write_text(_KEY)
        self.restart()
        self.done("ctr", "images", "import", "--snapshotter", "native", "/run/image.tar")
        # ctr runs an image only as the user that the image names.
        machine.path(_ROOT).mkdir()
        self.done("ctr", "images", "mount", "--rw", "--snapshotter", "native", _NAME, _ROOT)
        image_in(machine)

    def done(self, *command: str, timeout: float = 120) -> str:
        """Runs a command, which must succeed; returns its output."""
        done = self.machine.run(*command, timeout=timeout)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def restart(self) -> None:
        """Restarts containerd as its unit does: containers continue to run."""
        self.machine.run("sh", "-c", "test ! -e /run/containerd.pid || kill $(cat /run/containerd.pid)")
        serve = "containerd --root /run/c-root --state /run/c-state"
        self.done(
            "sh", "-c", f"{serve} > /run/containerd.log 2>&1 < /dev/null & echo $! > /run/containerd.pid"
        )
        until = time.monotonic() + _PATIENCE
        while self.machine.run("ctr", "version").returncode:
            assert time.monotonic() < until, self.machine.path("/run/containerd.log").read_text()[-2000:]
            time.sleep(0.05)

    def pod(self, *words: str, environ: Sequence[str] = (), folder: str = "") -> list[str]:
        """The command that runs `xpu kubernetes WORDS` as a container of the DaemonSet, with a service
        account in `folder`.
        """
        account = "/var/run/secrets/kubernetes.io/serviceaccount"
        mounts = [f"--mount=type=bind,src={folder},dst={account},options=rbind:ro"] if folder else []
        mounts += [
            f"--mount=type=bind,src=/run/pod/{name},dst=/etc/xpu-kubernetes/{name},options=rbind:ro"
            for name in ("configuration", "keys")
        ]
        return [
            "ctr", "run", "--rm", "--rootfs", "--privileged", "--read-only",
            "--with-ns", "pid:/proc/1/ns/pid", "--env", "NODE_NAME=n1",
            *(word for each in environ for word in ("--env", each)), *mounts, _ROOT,
            f"pod-{time.monotonic_ns()}", "/opt/xpu/bin/xpu", "kubernetes", *words,
        ]  # fmt: skip

    def exists(self, path: str) -> bool:
        return self.machine.run("test", "-e", path).returncode == 0

    def text(self, path: str) -> str:
        return self.machine.path(path).read_text()


@pytest.fixture
def node(request: pytest.FixtureRequest, kubernetes_image: Path) -> Iterator[Node]:
    """A node; with Python too, if the test asks for it."""
    more = getattr(request, "param", ())
    machine = Root("bookworm", packages=(*_PACKAGES, *more), network=False)
    try:
        assert bool(machine.run("sh", "-c", "command -v python3").returncode) is not bool(more)
        yield Node(machine, kubernetes_image)
    finally:
        machine.run("sh", "-c", "ctr task ls -q | xargs -r -n 1 ctr task rm -f")
        machine.run("sh", "-c", "kill $(cat /run/containerd.pid)")
        machine.close()


def test_the_runtime_comes_from_the_image_and_goes_when_nothing_calls_it_any_more(node: Node) -> None:
    node.machine.path("/etc/xpu").mkdir()
    node.machine.path("/etc/xpu/config.yaml").write_text(_THEIRS)
    before = node.text("/etc/containerd/config.toml")

    said = node.done(*node.pod("install-node"))

    assert "restart it" in said
    assert 'BinaryName = "/opt/xpu/bin/xpu-container-runtime"' in node.text("/etc/containerd/config.toml")
    assert node.text("/etc/xpu/config.yaml").startswith(_THEIRS)
    shown = json.loads(node.done("/opt/xpu/bin/xpu", "config", "show", "--json"))
    values = {each["key"]: each["value"] for each in shown["settings"]}
    assert values["kubernetes.node_name"] == "n1"
    assert values["kubernetes.require_assignment"] is True
    assert values["placement.policy"] == "spread"
    keys = node.machine.path("/etc/xpu/kubernetes/keys")
    assert keys.read_text() == _KEY
    assert oct(keys.stat().st_mode & 0o777) == "0o600"

    # A second time there is nothing to do, and later nothing to undo twice.
    node.restart()
    assert "restart it" not in node.done(*node.pod("install-node"))

    runtime = ["--runc-binary", "/opt/xpu/bin/xpu-container-runtime"]
    node.done(
        "ctr",
        "run",
        "--detach",
        "--rootfs",
        "--env",
        "PATH=/bin",
        *runtime,
        IMAGE,
        "sleeper",
        "sleep",
        "1000",
    )
    said = node.done(*node.pod("uninstall-node"))
    assert "/opt/xpu stays for" in said
    assert "sleeper" in said
    assert node.text("/etc/containerd/config.toml") == before
    # As long as something may call it, the runtime gives nothing to a pod without an assignment.
    assert "require_assignment: true" in node.text("/etc/xpu/config.yaml")
    assert not node.exists("/etc/xpu/kubernetes/keys")
    assert node.done("ctr", "task", "exec", "--exec-id", "e1", "sleeper", "echo", "goes on") == "goes on\n"

    node.restart()
    node.done("ctr", "task", "rm", "--force", "sleeper")
    assert "as it was before" in node.done("/opt/xpu/bin/xpu", "kubernetes", "uninstall-node", "--finish")
    for path in ("/opt/xpu", "/etc/xpu/kubernetes", "/run/xpu"):
        assert not node.exists(path), path
    assert node.text("/etc/xpu/config.yaml") == _THEIRS


def test_a_command_on_the_node_has_the_pods_service_account(node: Node) -> None:
    node.done(*node.pod("install-node"))
    folder = node.machine.path("/run/account")
    folder.mkdir()
    certificate = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=a",
        "-keyout",
        "/dev/null",
    ]
    subprocess.run([*certificate, "-out", folder / "ca.crt"], check=True, capture_output=True)
    (folder / "token").write_text("t")
    where = ["KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=7"]

    done = node.machine.run(*node.pod("on-node", "status", environ=where, folder="/run/account"))

    # It has come as far as the connection, so it has found the certificate and the token.
    assert done.returncode == 1
    assert "127.0.0.1:7 cannot be reached" in done.stdout


@pytest.mark.parametrize("node", [("python3",)], indirect=True)
def test_a_package_that_is_there_is_used_and_stays(node: Node, debs: list[Path]) -> None:
    assert install(node.machine, debs[:1]).returncode == 0

    node.done(*node.pod("install-node"))

    dropped = node.text("/etc/containerd/config.toml")
    assert 'BinaryName = "/usr/bin/xpu-container-runtime"' in dropped
    node.done(*node.pod("uninstall-node"))
    assert "xpu" not in node.text("/etc/containerd/config.toml")
    # containerd has not been restarted, and still calls the package's runtime for pods.
    assert "require_assignment: true" in node.text("/etc/xpu/config.yaml")
    node.restart()
    node.done("/opt/xpu/bin/xpu", "kubernetes", "uninstall-node", "--finish")
    assert "require_assignment: true" not in node.text("/etc/xpu/config.yaml")
    assert not node.exists("/opt/xpu")
    node.done("/usr/bin/xpu", "config", "check")

    file = node.machine.path("/usr/lib/xpu-container-runtime/python/xpu_runtime/version.py")
    file.write_text(re.sub(r'BUILD = ".*"', 'BUILD = "another"', file.read_text()))
    done = node.machine.run(*node.pod("install-node"), timeout=120)
    assert done.returncode == 1
    assert "another build of xpu-container-runtime" in done.stdout
    assert not node.exists("/opt/xpu")


def test_a_node_without_the_keys_or_with_a_wrong_configuration_is_left_as_it_was(node: Node) -> None:
    node.machine.path("/run/pod/keys/keys").unlink()
    done = node.machine.run(*node.pod("install-node"), timeout=120)
    assert done.returncode == 1
    assert "there is no Secret xpu-keys" in done.stdout

    node.machine.path("/run/pod/keys/keys").write_text("k1 short\n")
    done = node.machine.run(*node.pod("install-node"), timeout=120)
    assert done.returncode == 1
    assert not node.exists("/etc/xpu/kubernetes/keys")

    node.machine.path("/run/pod/keys/keys").write_text(_KEY)
    node.machine.path("/run/pod/configuration/config.yaml").write_text("kubernetes: {placement: nowhere}\n")
    done = node.machine.run(*node.pod("install-node"), timeout=120)
    assert done.returncode == 1
    assert 'kubernetes.placement: "nowhere" is not allowed: use node or extender' in done.stdout
    assert not node.exists("/etc/xpu/config.yaml")
    assert "xpu" not in node.text("/etc/containerd/config.toml")

    assert "as it was before" in node.done(*node.pod("uninstall-node"))
    assert not node.exists("/opt/xpu") and not node.exists("/etc/xpu")
