"""`xpu kubernetes extender` as a process: wrong options, and files that change under it."""

from __future__ import annotations

import http.client
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.kubernetes_objects import node
from unit.kubernetes.replica import PEM, ControlPlane, Process, trusting, until
from xpu_runtime.cli.kubernetes import extender as command
from xpu_runtime.cli.kubernetes.extender import extender
from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes.extender import certificate as certificate_module
from xpu_runtime.kubernetes.extender import keys as keys_module
from xpu_runtime.kubernetes.extender.certificate import Certificate
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.keys import Keys
from xpu_runtime.kubernetes.resources import Resources

ONE, TWO = f"one {'ab' * 32}\n", f"two {'cd' * 32}\n"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(ONE)
    return path


@pytest.fixture
def refused(api: ControlPlane, keys: Path, tmp_path: Path) -> Callable[..., str]:
    """The error with which the command ends, with these options besides those that it needs."""
    api.create(node("n1"))
    config = api.kubeconfig(tmp_path / "config", "kube-system")
    # Where no other replica looks for this one.
    needed = [f"--kubeconfig={config}", f"--keys={keys}", "--advertise=http://127.0.0.1:1"]

    def run(*options: str) -> str:
        result = CliRunner().invoke(extender, [*needed, *options])
        assert isinstance(result.exception, XpuError)
        return str(result.exception)

    return run


def test_it_runs_until_it_is_told_to_end_and_gives_its_lease_back(api: ControlPlane, tmp_path: Path) -> None:
    one = Process(api, tmp_path)

    def holder() -> object:
        return api.get("leases", "xpu-extender").get("spec", {}).get("holderIdentity")

    until(holder, "it leads")
    one.process.send_signal(signal.SIGTERM)
    said = one.process.communicate(timeout=60)[1]
    assert (one.process.returncode, holder()) == (0, "")
    assert said.endswith("stopped\n")


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
def test_wrong_options_are_said_in_one_line(
    refused: Callable[..., str], options: list[str], line: str
) -> None:
    assert refused(*options) == line


@pytest.mark.parametrize(("more", "policy"), [("", "binpack"), ("placement: {policy: spread}", "spread")])
def test_unit_aliases_and_policy_are_those_of_the_config_map(
    refused: Callable[..., str],
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
    assert refused("--configuration", str(path)) == "far enough"
    assert given == [Resources(256 << 20, ("aliyun.com/gpu",)), policy]


def test_without_keys_it_does_not_start(refused: Callable[..., str]) -> None:
    assert "the keys of assignments" in refused("--keys", "/none")


def test_it_ends_with_an_error_where_it_cannot_go_on(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "set_node", lambda *_: 1 / 0)
    said = refused("--listen", "127.0.0.1:0", "--status-listen", "")
    assert "xpu's extender has failed: " in said


def test_an_address_that_is_taken_is_said(refused: Callable[..., str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert refused("--listen", where) == f"{where}: Address already in use"


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


def test_a_renewed_certificate_is_served_without_a_restart(
    api: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_module, "_CERTIFICATE_S", 0)
    files = tmp_path / "tls.crt", tmp_path / "tls.key"

    def use(name: str) -> None:
        for path in files:
            shutil.copy(PEM / f"{name}{path.suffix}", path.with_name("new"))
            path.with_name("new").rename(path)

    def subject() -> object:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            trusting().wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            return (secure.getpeercert() or {})["subject"]

    use("server")
    port = api.replica(certificate=Certificate(str(files[0]), str(files[1]), None)).port
    assert subject() == ((("commonName", "server"),),)
    use("client")
    assert subject() == ((("commonName", "client"),),)
    files[1].write_text("broken")
    assert subject() == ((("commonName", "client"),),)


def test_another_authority_of_clients_counts_without_a_restart(
    api: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_module, "_CERTIFICATE_S", 0)
    authority = tmp_path / "ca.crt"

    def trust(name: str) -> None:
        shutil.copy(PEM / name, tmp_path / "new")
        (tmp_path / "new").rename(authority)

    def is_answered() -> bool:
        try:
            return bool(one.ask("prioritize", {}) == [])
        except (OSError, http.client.HTTPException):
            return False

    trust("server.crt")  # which has issued nothing
    certificate = Certificate(str(PEM / "server.crt"), str(PEM / "server.key"), str(authority))
    one = api.replica(certificate=certificate, client=trusting())
    assert not is_answered()
    trust("ca.crt")
    assert is_answered()
    trust("server.crt")
    assert not is_answered()
