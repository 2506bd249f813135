"""An API server with canned answers, over real HTTP; it records its few requests."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime.kubernetes import access
from xpu_runtime.kubernetes.api import Api


class Answers(http.server.ThreadingHTTPServer):
    """`answers`: (status, body) by method and path; everything else gets 404. `asked`: method, path and body
    of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.asked: list[tuple[str, str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Answers

    def _answer(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        self.server.asked.append((self.command, self.path, json.loads(text) if text else None))
        status, body = self.server.answers.get((self.command, path), (404, {"reason": "NotFound"}))
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PATCH = do_DELETE = _answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def answers() -> Iterator[Answers]:
    server = Answers()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def kubeconfig(answers: Answers, tmp_path: Path) -> Path:
    """A kubeconfig for that server."""
    file = tmp_path / "kubeconfig"
    document = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": answers.url}}],
    }
    file.write_text(json.dumps(document))
    return file


@pytest.fixture
def api(kubeconfig: Path) -> Api:
    return Api(access.find(str(kubeconfig)))
