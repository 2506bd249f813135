"""kubernetes/access.py: the API server's address, and our identity."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support import kubernetes_api
from support.kubernetes_api import ApiServer
from unit.kubernetes.replica import PEM
from unit.kubernetes.test_api import PODS, name
from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes import access
from xpu_runtime.kubernetes.api import Api, ApiError


@pytest.fixture
def tls(api_server: ApiServer) -> ApiServer:
    """The same server with TLS, that asks for a client's certificate."""
    assert api_server._server is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM / "server.crt", PEM / "server.key")
    context.load_verify_locations(PEM / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    api_server._server.socket = context.wrap_socket(api_server._server.socket, server_side=True)
    return api_server


def test_connecting_and_the_answer_have_one_limit_together(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM / "server.crt", PEM / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as slow:

        def serve() -> None:
            connection, _ = slow.accept()
            time.sleep(0.6)
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as tls:
                tls.recv(1 << 16)
                time.sleep(0.6)
                tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=serve)
        thread.start()
        cluster = {
            "server": f"https://127.0.0.1:{slow.getsockname()[1]}",
            "certificate-authority": str(PEM / "ca.crt"),
        }
        # Each of the two takes less than that.
        with pytest.raises(ApiError, match=r"no answer in time|timed out|took too long"):
            Api(access.find(kubeconfig(tmp_path, cluster, {"token": "t"}))).post("/api", {}, seconds=0.9)
        thread.join()


def kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> str:
    return str(kubernetes_api.kubeconfig(folder / "kubeconfig", cluster, user, "team"))


@pytest.mark.parametrize("inline", [False, True])
def test_certificates_of_a_kubeconfig_are_used(tls: ApiServer, tmp_path: Path, inline: bool) -> None:
    def entry(key: str, file: str) -> dict[str, str]:
        if inline:
            return {f"{key}-data": base64.b64encode((PEM / file).read_bytes()).decode()}
        return {key: str(PEM / file)}

    cluster = {
        "server": f"https://127.0.0.1:{tls.port}",
        "tls-server-name": "localhost",
        **entry("certificate-authority", "ca.crt"),
    }
    user = {**entry("client-certificate", "client.crt"), **entry("client-key", "client.key")}
    found = access.find(kubeconfig(tmp_path, cluster, user))
    assert found.namespace == "team"
    assert Api(found).list(PODS, name)[0] == []
    cluster["tls-server-name"] = "other.test"
    with pytest.raises(ApiError, match=r"cannot be reached.*CERTIFICATE"):
        Api(access.find(kubeconfig(tmp_path, cluster, user))).list(PODS, name)


def test_authorities_that_clusters_have_made_for_years_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    make = ssl.create_default_context

    def strict(**options: Any) -> ssl.SSLContext:
        """As Python 3.13 makes it."""
        context = make(**options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    context = access._context(str(PEM / "ca.crt"))
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname


def test_a_command_of_a_kubeconfig_prints_the_token(api_server: ApiServer, tmp_path: Path) -> None:
    script = tmp_path / "token.sh"
    script.write_text(
        '#!/bin/sh\ncase "$KUBERNETES_EXEC_INFO" in *v1beta1*) ;; *) exit 3;; esac\n'
        'echo "{\\"status\\": {\\"token\\": \\"$1$NAME\\"}}"\n'
    )
    script.chmod(0o755)
    command = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "./token.sh",
        "args": ["a"],
        "env": [{"name": "NAME", "value": "b"}],
    }
    api_server.token = "ab"
    file = kubeconfig(tmp_path, {"server": api_server.url}, {"exec": command})
    assert Api(access.find(file)).list(PODS, name)[0] == []
    command["apiVersion"] = "other"
    with pytest.raises(ApiError, match=r"token\.sh.* failed with 3"):
        Api(access.find(kubeconfig(tmp_path, {"server": api_server.url}, {"exec": command}))).list(PODS, name)


def test_a_pod_uses_its_service_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "ca.crt").write_bytes((PEM / "ca.crt").read_bytes())
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "namespace").write_text("xpu")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv(access.FOLDER, str(tmp_path))
    found = access.find()
    assert (found.host, found.port, found.token(), found.namespace) == ("fd00::1", 6443, "abc", "xpu")


@pytest.mark.parametrize(
    ("cluster", "user", "problem"),
    [
        ({"server": "api.test:6443"}, {}, "not the URL"),
        ({"server": "https://a", "certificate-authority-data": "%%"}, {}, "is not base64"),
        ({"server": "https://a", "certificate-authority": "/none/ca"}, {}, "/none/ca cannot be read"),
        ({"server": "https://a", "certificate-authority-data": "YQ=="}, {}, "no usable certificate"),
        ({"server": "https://a", "proxy-url": "http://p"}, {}, "proxy-url is not supported"),
        ({"server": "https://a"}, {"username": "u"}, "username, which is not supported"),
        ({"server": "https://a"}, {"auth-provider": {}, "token": "t"}, "auth-provider, which is not"),
    ],
)
def test_errors_in_a_kubeconfig_are_reported(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        access.find(kubeconfig(tmp_path, cluster, user))


def test_several_files_are_one_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text('{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k"}}]}')
    two.write_text(
        '{"current-context": "d", "clusters": [{"name": "k", "cluster": {"server": "http://a:1"}}]}'
    )
    monkeypatch.setenv("KUBECONFIG", f"{one}:{tmp_path / 'none'}:{two}")
    assert (access.find().host, access.find().port) == ("a", 1)
    monkeypatch.setenv("KUBECONFIG", str(one))
    with pytest.raises(ConfigError, match="there is no cluster 'k'"):
        access.find()
    one.write_text("]")
    with pytest.raises(ConfigError, match="is not a kubeconfig"):
        access.find()


def test_without_any_configuration_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no KUBECONFIG, no service account.*--kubeconfig"):
        access.find()
