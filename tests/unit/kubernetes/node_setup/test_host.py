"""A command that becomes the node's own keeps its pod's service account, also where a token is renewed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xpu_runtime.kubernetes import access
from xpu_runtime.kubernetes.node_setup import host


def test_the_node_s_own_xpu_reads_the_pod_s_token_as_it_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, told = tmp_path / "account", tmp_path / "told"
    account.mkdir()
    (account / "token").write_text("first")
    program = tmp_path / "bin" / "xpu"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nexec > {told}\nprintf "$KUBECONFIG"\ncat "${access.FOLDER}/token"\n'
        f'mv {account}/renewed {account}/token\ncat "${access.FOLDER}/token"\necho " $*"\n'
    )
    program.chmod(0o755)
    (account / "renewed").write_text(" second")
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", str(account))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBECONFIG", "/a/file/of/the/pod")

    pid = os.fork()
    if pid == 0:
        try:
            host.execute(str(tmp_path), ["kubernetes", "status"], os.getpid())
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)

    assert (status, told.read_text()) == (0, "first second kubernetes status\n")
