"""The address of the Kubernetes API, and our identity there: a pod's service account, or a kubeconfig.

Read as client-go does (k8s.io/client-go, rest.InClusterConfig and tools/clientcmd), without what clusters
have given up: no auth-provider, no user names. Tokens are read again, as the kubelet renews a service
account's each hour.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xpu_runtime import third_party
from xpu_runtime.errors import ConfigError

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
#: The variable with its path, for a process that has left its pod's mount namespace (node_setup/host.py).
FOLDER = "XPU_SERVICE_ACCOUNT"
#: Seconds until a token's file is read again.
_TOKEN_S = 60.0
#: Seconds that a cloud's command for a token may take.
_EXEC_S = 30.0
_MOST_BYTES = 1 << 20


class Access:
    """A server, and how to be known there."""

    def __init__(
        self,
        server: str,
        *,
        context: ssl.SSLContext | None = None,
        token: str = "",
        token_file: str = "",
        command: dict[str, Any] | None = None,
        server_name: str = "",
        namespace: str = "default",
    ) -> None:
        """`server`: its URL. A token is given, or in a file, or printed by a command (kubeconfig's exec).
        ConfigError where the URL is none."""
        parts = urllib.parse.urlsplit(server)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"{server!r} is not the URL of a Kubernetes API server")
        self.host, self.prefix = parts.hostname, parts.path.rstrip("/")
        self.port = port or (443 if parts.scheme == "https" else 80)
        #: None: plain HTTP.
        self.context = (context or ssl.create_default_context()) if parts.scheme == "https" else None
        #: In the place of `host`, where the server's certificate has another name.
        self.server_name = server_name or self.host
        self.namespace = namespace
        self._token, self._file, self._command = token, token_file, command
        self._until = 0.0

    def token(self, *, anew: bool = False) -> str:
        """The bearer token; "" if there is none. `anew`: the API no longer accepts the last one. ConfigError
        if it cannot be read."""
        if (self._file or self._command) and (anew or time.monotonic() >= self._until):
            if self._command:
                self._token, self._until = _of_command(self._command)
            else:
                self._token = _read(self._file).decode("ascii", "replace").strip()
                self._until = time.monotonic() + _TOKEN_S
        return self._token


def find(kubeconfig: str | None = None, context: str | None = None) -> Access:
    """The access by the named file, otherwise by KUBECONFIG, the pod's service account, or ~/.kube/config, in
    this order. ConfigError if there is none, or if it cannot be used."""
    if kubeconfig:
        return from_kubeconfig([kubeconfig], context)
    if named := os.environ.get("KUBECONFIG"):
        return from_kubeconfig([path for path in named.split(os.pathsep) if path], context)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster()
    default = os.path.expanduser("~/.kube/config")
    if os.path.exists(default):
        return from_kubeconfig([default], context)
    raise ConfigError(
        "there is no Kubernetes API to ask: no KUBECONFIG, no service account, and no ~/.kube/config",
        "name a file with --kubeconfig",
    )


def _in_cluster() -> Access:
    """The service account of the pod that this runs in; ConfigError."""
    folder = os.environ.get(FOLDER, SERVICE_ACCOUNT)
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    context = _context(cafile=os.path.join(folder, "ca.crt"))
    token = os.path.join(folder, "token")
    _read(token)
    try:
        namespace = _read(os.path.join(folder, "namespace")).decode("ascii", "replace").strip()
    except ConfigError:
        namespace = "default"
    bracketed = f"[{host}]" if ":" in host else host
    return Access(f"https://{bracketed}:{port}", context=context, token_file=token, namespace=namespace)


def from_kubeconfig(paths: list[str], context: str | None = None) -> Access:
    """The current (or the named) context of these files; of two entries of one name the first counts, and a
    file that is missing is left out, as with kubectl. ConfigError."""
    merged: dict[str, dict[str, Any]] = {"contexts": {}, "clusters": {}, "users": {}}
    current = context or ""
    for path in paths:
        if len(paths) > 1 and not os.path.exists(path):
            continue
        document = _yaml(path)
        current = current or str(document.get("current-context") or "")
        for kind, known in merged.items():
            for entry in document.get(kind) or ():
                value = entry.get(kind[:-1]) if isinstance(entry, dict) else None
                if isinstance(value, dict):
                    # Paths in the file are relative to it.
                    known.setdefault(str(entry.get("name")), {**value, "folder": os.path.dirname(path)})
    where = ", ".join(paths)
    chosen = _named(merged["contexts"], current, "context", where)
    cluster = _named(merged["clusters"], str(chosen.get("cluster")), "cluster", where)
    user = _named(merged["users"], str(chosen.get("user")), "user", where) if chosen.get("user") else {}
    return _access(cluster, user, str(chosen.get("namespace") or "default"), where)


def _named(known: dict[str, Any], name: str, kind: str, where: str) -> dict[str, Any]:
    found: dict[str, Any] | None = known.get(name)
    if found is None:
        raise ConfigError(f"{where}: there is no {kind} {name!r}", f"it has {', '.join(known) or 'none'}")
    return found


def _access(cluster: dict[str, Any], user: dict[str, Any], namespace: str, where: str) -> Access:
    if cluster.get("proxy-url"):
        raise ConfigError(f"{where}: proxy-url is not supported", "reach the API server without a proxy")
    unknown = sorted({"auth-provider", "username", "password"} & set(user))
    if unknown:
        raise ConfigError(
            f"{where}: the user has {unknown[0]}, which is not supported",
            "use a token, a client certificate or exec",
        )
    server = str(cluster.get("server") or "")
    command = user.get("exec")
    if command is not None:
        command = {**command, "folder": user["folder"]}
    token_file = os.path.join(user["folder"], user["tokenFile"]) if user.get("tokenFile") else ""
    return Access(
        server,
        context=_tls(cluster, user, where) if server.startswith("https:") else None,
        token="" if token_file else str(user.get("token") or ""),
        token_file=token_file,
        command=command,
        server_name=str(cluster.get("tls-server-name") or ""),
        namespace=namespace,
    )


def _tls(cluster: dict[str, Any], user: dict[str, Any], where: str) -> ssl.SSLContext:
    authority = _data(cluster, "certificate-authority", where)
    context = _context(cadata=authority.decode("ascii", "replace") if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _data(user, "client-certificate", where), _data(user, "client-key", where)
    if certificate and key:
        _load_certificate(context, certificate, key, where)
    return context


def _data(entry: dict[str, Any], name: str, where: str) -> bytes:
    """The data of the entry itself (NAME-data, base64) or of the file that it names; None without both."""
    if text := entry.get(f"{name}-data"):
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise ConfigError(f"{where}: {name}-data is not base64") from None
    if path := entry.get(name):
        return _read(os.path.join(entry["folder"], str(path)))
    return b""


def _context(cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=cafile, cadata=cadata)
        # Python 3.13 sets it, and refuses authorities that clusters have made for years: without an Authority
        # Key Identifier (RFC 5280, 4.2.1.1). Signatures are checked all the same.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{cafile or 'certificate-authority'}: no usable certificate ({error})") from None


def _load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes, where: str) -> None:
    # ssl takes paths alone: in memory, so that no key is written to a disk.
    try:
        with _in_memory(certificate) as certificate_path, _in_memory(key) as key_path:
            # With a password, or OpenSSL asks for one on the terminal.
            context.load_cert_chain(certificate_path, key_path, password="")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{where}: the client certificate cannot be used ({error})") from None


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    fd = os.memfd_create("xpu")
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _of_command(command: dict[str, Any]) -> tuple[str, float]:
    """The token that a command prints, and until when it holds (time.monotonic): ExecCredential of
    client.authentication.k8s.io. ConfigError."""
    words = [str(command.get("command") or ""), *map(str, command.get("args") or ())]
    if os.sep in words[0]:
        words[0] = os.path.join(command["folder"], words[0])
    asked = {
        "apiVersion": command.get("apiVersion"),
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    environ = {**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
    environ.update({str(each["name"]): str(each["value"]) for each in command.get("env") or ()})
    try:
        done = subprocess.run(
            words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=_EXEC_S, check=False
        )
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [""]
            raise ConfigError(
                f"{words[0]}, which must print a token, failed with {done.returncode}: {last[0]}"
            )
        status = json.loads(done.stdout[:_MOST_BYTES]).get("status") or {}
    except (OSError, ValueError, AttributeError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{words[0]}, which must print a token: {error}") from None
    if not status.get("token"):
        raise ConfigError(f"{words[0]} has printed no token", "credentials by certificate are not supported")
    return str(status["token"]), time.monotonic() + _TOKEN_S


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None


def _yaml(path: str) -> dict[str, Any]:
    content = _read(path)
    try:
        document = json.loads(content)  # which is YAML as well, and needs no parser of 2 MB
    except ValueError:
        document = _other_yaml(path, content)
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not a kubeconfig")
    return document


def _other_yaml(path: str, content: bytes) -> Any:
    third_party.enable()
    import yaml

    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} is not a kubeconfig: {' '.join(str(error).split())}") from None
