"""packaging/kubernetes/make-secrets: both ends accept its keys and certificates, and a typing error makes
none."""

from __future__ import annotations

import base64
import ssl
import subprocess
from pathlib import Path

import pytest

from support import REPOSITORY
from xpu_runtime.request.assignment import read_keys

from .chart import (
    MANIFESTS,
    Api,
    documents,
)


def test_both_ends_accept_the_secrets(tmp_path: Path) -> None:
    done = subprocess.run([MANIFESTS / "make-secrets"], capture_output=True, text=True, check=True)
    secrets = {each["metadata"]["name"]: each for each in documents(done.stdout)}
    assert list(secrets) == ["xpu-keys", "xpu-extender-tls", "xpu-scheduler-tls"]
    assert [problem for each in secrets.values() for problem in Api("1.28").problems(each)] == []
    for name, secret in secrets.items():
        for key, text in secret["data"].items():
            (tmp_path / f"{name}-{key}").write_bytes(base64.b64decode(text))

    assert len(read_keys(str(tmp_path / "xpu-keys-keys"))) == 1
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "xpu-extender-tls-tls.crt", tmp_path / "xpu-extender-tls-tls.key")
    server.load_verify_locations(tmp_path / "xpu-extender-tls-ca.crt")
    server.verify_mode = ssl.CERT_REQUIRED
    for client_name in ("xpu-scheduler-tls", "xpu-extender-tls"):
        client = ssl.create_default_context(cafile=str(tmp_path / f"{client_name}-ca.crt"))
        client.load_cert_chain(tmp_path / f"{client_name}-tls.crt", tmp_path / f"{client_name}-tls.key")
        assert _shakes_hands(client, server, "xpu-extender.xpu-system.svc")
    with pytest.raises(ssl.SSLError):
        _shakes_hands(client, server, "elsewhere.xpu-system.svc")


@pytest.mark.parametrize(
    "words, made",
    [
        (["keys"], ["xpu-keys"]),
        (["certificates"], ["xpu-extender-tls", "xpu-scheduler-tls"]),
        (["-n", "gpus", "certificates"], ["xpu-extender-tls", "xpu-scheduler-tls"]),
        (["-n", "gpus"], ["xpu-keys", "xpu-extender-tls", "xpu-scheduler-tls"]),
    ],
)
def test_keys_and_certificates_can_be_made_separately(words: list[str], made: list[str]) -> None:
    done = subprocess.run([MANIFESTS / "make-secrets", *words], capture_output=True, text=True, check=True)

    found = [each["metadata"] for each in documents(done.stdout)]
    assert [each["name"] for each in found] == made
    assert {each["namespace"] for each in found} == {"gpus" if "gpus" in words else "xpu-system"}


def test_installing_twice_keeps_the_keys() -> None:
    text = (REPOSITORY / "docs/kubernetes.md").read_text()

    assert "make-secrets | kubectl create -f -" in text
    assert "make-secrets | kubectl apply" not in text


def test_one_more_key_is_one_more_line(tmp_path: Path) -> None:
    done = subprocess.run([MANIFESTS / "make-secrets", "line"], capture_output=True, text=True, check=True)
    keys = tmp_path / "keys"
    keys.write_text(f"old {'ab' * 32}\n{done.stdout}")

    assert len(read_keys(str(keys))) == 2


@pytest.mark.parametrize(
    "words", [["key"], ["--help-me"], ["gpus"], ["keys", "line"], ["-n"], ["-n", "--help"], ["-n", "Gpus"]]
)
def test_an_unknown_word_makes_no_secret(words: list[str]) -> None:
    done = subprocess.run([MANIFESTS / "make-secrets", *words], capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: make-secrets" in done.stderr


def test_help_makes_no_secret() -> None:
    done = subprocess.run([MANIFESTS / "make-secrets", "--help"], capture_output=True, text=True, check=True)

    assert "make-secrets [-n NAMESPACE]" in done.stdout
    assert "kind: Secret" not in done.stdout


def _shakes_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bool:
    """Shakes hands in memory, as kube-scheduler does with `serverName`; ssl.SSLError if one side refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        left = []
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                left.append(end)
        if not left:
            return True
    return False
