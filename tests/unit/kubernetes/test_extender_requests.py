"""The extender's answers to any request, its metrics, and TLS."""

from __future__ import annotations

import http.client
import ssl

import pytest

from support.kubernetes_objects import node, pod
from unit.kubernetes.replica import PATIENCE_S, ControlPlane, certificate, trusting, until


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"null",
        b"[]",
        b"\xff",
        b'"x"',
        b"{}",
        b'{"Pod": {"spec": 1}, "NodeNames": ["n1"]}',
        b'{"Pod": {}, "NodeNames": "n1"}',
        b"[" * 100_000,
    ],
)
def test_whatever_is_sent_is_answered_with_an_error_that_kube_scheduler_shows(
    body: bytes, api: ControlPlane
) -> None:
    one = api.replica()
    assert one.ask("filter", body)["Error"]
    assert one.ask("bind", body)["Error"]
    assert one.ask("prioritize", body) == []


def test_other_requests_get_no_answer_of_the_verbs(api: ControlPlane) -> None:
    one = api.replica()
    for method, path, headers, status in (
        ("GET", "/filter", {}, 404),
        ("POST", "/other", {"Content-Length": "2"}, 404),
        ("POST", "/filter", {"Content-Length": str(1 << 30)}, 413),
        # More than is borne beside the cluster, when it is read.
        ("POST", "/filter", {"Content-Length": str((8 << 20) + 1)}, 413),
        ("POST", "/filter", {"Content-Length": "x"}, 413),
        ("POST", "/filter", {"Transfer-Encoding": "chunked"}, 411),
        ("PUT", "/filter", {}, 405),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=PATIENCE_S)
        connection.putrequest(method, path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(b"{}" if headers.get("Content-Length") == "2" else None)
        assert connection.getresponse().status == status, (method, path, headers)
        connection.close()


def test_metrics_tell_what_was_asked_and_what_the_cluster_has(api: ControlPlane) -> None:
    asking = pod("p", mem=4)
    api.create(node("n1", 2), {"metadata": {"name": "bare"}}, asking)
    one = api.replica()
    one.fits(asking, "n1", "bare")  # one of them does
    one.fits(pod("q", mem=17))
    one.ask("filter", b"{")
    assert one.bind(asking) == ""
    until(lambda: 'pods{state="bound"} 1.0' in one.status("/metrics")[1], "the watch tells of the pod")
    status, text = one.status("/metrics")
    assert status == 200
    for line in (
        'xpu_extender_request_seconds_count{result="ok",verb="filter"} 1.0',
        'xpu_extender_request_seconds_count{result="refused",verb="filter"} 1.0',
        'xpu_extender_request_seconds_count{result="error",verb="filter"} 1.0',
        'xpu_extender_request_seconds_count{result="ok",verb="bind"} 1.0',
        "xpu_extender_api_bind_seconds_count 1.0",
        'xpu_extender_nodes{serves="yes"} 1.0',
        'xpu_extender_nodes{serves="no"} 1.0',
        "xpu_extender_devices 2.0",
        "xpu_extender_memory_free_bytes 3.0064771072e+10",
        'xpu_extender_state{state="leads"} 1.0',
        'xpu_extender_state{state="follows_pods"} 1.0',
    ):
        assert line in text, text


def test_with_tls_only_clients_with_a_certificate_are_answered(api: ControlPlane) -> None:
    asking = pod("p", mem=4)
    api.create(node("n1"), asking)
    one = api.replica(certificate=certificate(), client=trusting())
    one.client = trusting(own=False)
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        one.bind(asking)
    one.client = None
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        one.bind(asking)
    one.client = trusting()
    assert one.bind(asking) == ""
