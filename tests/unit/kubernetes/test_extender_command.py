"""`xpu kubernetes extender` as a process: wrong options, and files that change under it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from support import REPOSITORY
from support.kubernetes_objects import node
from support.scheduling_api import ApiServer
from xpu_runtime.cli.kubernetes import extender as command
from xpu_runtime.cli.kubernetes.extender import extender
from xpu_runtime.errors import XpuError
from xpu_runtime.http_message import Answer
from xpu_runtime.http_server import Listener, Server
from xpu_runtime.kubernetes.extender import certificate as certificate_module
from xpu_runtime.kubernetes.extender import keys as keys_module
from xpu_runtime.kubernetes.extender.certificate import Certificate
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.keys import Keys
from xpu_runtime.kubernetes.resources import Resources
from xpu_runtime.linux import address

PEM = REPOSITORY / "tests/support/certificates"
#: Where no other replica looks for this one.
ADVERTISE = ("--advertise", "http://127.0.0.1:1")
ONE, TWO = f"one {'ab' * 32}\n", f"two {'cd' * 32}\n"


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig for an API server with one node."""
    api = ApiServer()
    api.set("nodes", "n1", node("n1"))
    config = {
        "clusters": [{"name": "t", "cluster": {"server": api.url}}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "namespace": "kube-system"}}],
        "current-context": "t",
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    yield path
    api.down()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(ONE)
    return path


def test_it_runs_until_it_is_told_to_end_and_gives_its_lease_back(kubeconfig: Path, keys: Path) -> None:
    command = [sys.executable, "-m", "xpu_runtime.cli.main", "kubernetes", "extender"]
    options = ["--listen", "127.0.0.1:0", "--status-listen", "", *ADVERTISE]
    files = ["--kubeconfig", str(kubeconfig), "--keys", str(keys)]
    process = subprocess.Popen(
        [*command, *options, *files],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
    )
    assert process.stderr is not None
    said = ""
    while "leads now" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert rest.endswith("stopped\n")
    assert "could not be given back" not in rest


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ["--listen", "8443"],
            "'8443' is not an address with a port: give one such as 0.0.0.0:8443 or [::]:8443",
        ),
        (
            ["--tls-cert", "x"],
            "--tls-cert, --tls-key and --client-ca belong together: give the first two, or none",
        ),
        (
            ["--tls-cert", "/none.crt", "--tls-key", "/none.key"],
            "TLS: /none.crt, /none.key: No such file or directory: give a certificate and its key",
        ),
        (["--kubeconfig", "/none"], "/none cannot be read (No such file or directory)"),
    ],
)
def test_wrong_options_are_said_in_one_line(options: list[str], line: str) -> None:
    result = CliRunner().invoke(extender, options)
    assert str(result.exception) == line


@pytest.mark.parametrize(("more", "policy"), [("", "binpack"), ("placement: {policy: spread}", "spread")])
def test_unit_aliases_and_policy_are_those_of_the_config_map(
    kubeconfig: Path,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: str,
    policy: str,
) -> None:
    path = tmp_path / "config.yaml"
    # require_assignment needs a node's name on a node, and none here.
    words = "require_assignment: true, placement: extender, memory_unit: 256MiB, aliases: [aliyun.com/gpu]"
    path.write_text(f"kubernetes: {{{words}}}\n{more}\n")
    given: list[object] = []

    def stop_there(api: object, resources: Resources, keys: object, policy: str, *others: object) -> None:
        given.extend([resources, policy])
        raise XpuError("far enough")

    monkeypatch.setattr(command, "Extender", stop_there)
    options = ["--kubeconfig", str(kubeconfig), "--keys", str(keys), *ADVERTISE]
    result = CliRunner().invoke(extender, [*options, "--configuration", str(path)])

    assert str(result.exception) == "far enough"
    assert given == [Resources(256 << 20, ("aliyun.com/gpu",)), policy]


def test_without_keys_it_does_not_start(kubeconfig: Path, tmp_path: Path) -> None:
    options = ["--kubeconfig", str(kubeconfig), "--keys", str(tmp_path / "none"), *ADVERTISE]
    result = CliRunner().invoke(extender, options)
    assert "the keys of assignments" in str(result.exception)


def test_it_ends_with_an_error_where_it_cannot_go_on(
    kubeconfig: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "set_node", lambda *_: 1 / 0)
    where = ["--listen", "127.0.0.1:0", "--status-listen", "", *ADVERTISE]
    result = CliRunner().invoke(extender, ["--kubeconfig", str(kubeconfig), "--keys", str(keys), *where])
    assert isinstance(result.exception, XpuError)
    assert "xpu's extender has failed: " in str(result.exception)


def test_an_address_that_is_taken_is_said(kubeconfig: Path, keys: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ["--kubeconfig", str(kubeconfig), "--keys", str(keys), "--listen", where]
        result = CliRunner().invoke(extender, [*options, *ADVERTISE])
    assert str(result.exception) == f"{where}: Address already in use"


def test_keys_are_read_again_when_they_are_replaced_and_bad_ones_are_not_taken(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "_LOOK_S", 0)
    said: list[str] = []
    found = Keys(str(keys), said.append)
    assert list(found()) == ["one"]
    new = keys.with_name("new")
    new.write_text(TWO + ONE)
    new.rename(keys)
    assert list(found()) == ["two", "one"]
    new.write_text(ONE + TWO)
    new.rename(keys)
    assert list(found()) == ["one", "two"]  # the first one signs
    new.write_text("nonsense\n")
    new.rename(keys)
    assert list(found()) == ["one", "two"]
    keys.unlink()
    assert list(found()) == ["one", "two"]
    assert len(said) == 4
    assert TWO.split()[1] not in "".join(said)


@contextlib.contextmanager
def serving(certificate: Certificate) -> Iterator[int]:
    """The port of a server with that certificate."""
    server = Server()
    server.listen(
        Listener(
            address.bound("127.0.0.1", 0),
            lambda _, reply: reply(Answer(200, "text/plain", b"")),
            longest_body=1 << 20,
            tls=certificate,
        )
    )
    threading.Thread(target=server.run, daemon=True).start()
    yield server.ports[0]
    server.stop(1)


def test_a_renewed_certificate_is_served_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_module, "_CERTIFICATE_S", 0)
    files = tmp_path / "tls.crt", tmp_path / "tls.key"

    def use(name: str) -> None:
        for path in files:
            shutil.copy(PEM / f"{name}{path.suffix}", path.with_name("new"))
            path.with_name("new").rename(path)

    def subject() -> object:
        context = ssl.create_default_context(cafile=str(PEM / "ca.crt"))
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            return (secure.getpeercert() or {})["subject"]

    use("server")
    certificate = Certificate(str(files[0]), str(files[1]), None)
    with serving(certificate) as port:
        assert subject() == ((("commonName", "server"),),)
        use("client")
        assert subject() == ((("commonName", "client"),),)
        files[1].write_text("broken")
        assert subject() == ((("commonName", "client"),),)


def test_another_authority_of_clients_counts_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_module, "_CERTIFICATE_S", 0)
    authority = tmp_path / "ca.crt"
    client = ssl.create_default_context(cafile=str(PEM / "ca.crt"))
    client.load_cert_chain(str(PEM / "client.crt"), str(PEM / "client.key"))

    def trust(name: str) -> None:
        shutil.copy(PEM / name, tmp_path / "new")
        (tmp_path / "new").rename(authority)

    def is_answered() -> bool:
        connection = http.client.HTTPSConnection("localhost", port, timeout=20, context=client)
        try:
            connection.request("POST", "/filter", b"{}")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    trust("server.crt")  # which has issued nothing
    certificate = Certificate(str(PEM / "server.crt"), str(PEM / "server.key"), str(authority))
    with serving(certificate) as port:
        assert not is_answered()
        trust("ca.crt")
        assert is_answered()
        trust("server.crt")
        assert not is_answered()
