"""`xpu agent`'s page for browsers: its content, its clients, and hostile names of containers."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from typing import Any

import pytest

from support import GIB, timing
from support.sharing_time import Make, Serve, until

from ..agent_http import asked, on_port, on_socket
from ..conftest import SLEEP, Bundles, Node
from ..refusals import refused


def shown(address: str | int) -> Any:
    """The page's data."""
    time.sleep(1.1)  # the last answer counts for a second
    status, head, body = asked(address, "/data.json")
    assert status == 200 and "Content-Type: application/json\r\n" in head, body
    return json.loads(body)


def test_a_browser_is_told_to_run_nothing_but_the_page(node: Node, start_agent: Serve) -> None:
    start_agent()
    path = on_socket(node)
    status, head, page = asked(path, "/")
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:])
    assert (status, fields["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert (fields["X-Content-Type-Options"], fields["Cache-Control"]) == ("nosniff", "no-store")
    assert fields["Cross-Origin-Resource-Policy"] == "same-origin"
    policy = dict(each.split(" ", 1) for each in fields["Content-Security-Policy"].split("; "))
    assert (policy.pop("default-src"), policy.pop("connect-src")) == ("'none'", "'self'")
    for element in ("script", "style"):
        (text,) = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy.pop(f"{element}-src") == f"'sha256-{digest}'"
    assert policy.pop("img-src") == "data:" and set(policy.values()) == {"'none'"}
    # Nothing that makes markup of a text, or needs more than that policy; and no address elsewhere.
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(| on\w+=", page
    )
    assert not re.search(r" style=|<link (?!rel=\"icon\" href=\"data:)|src=", page)
    named = set(re.findall(r"https?://[^\"'\s]+", page))
    assert named == {"http://www.w3.org/2000/svg"}


def test_devices_slices_events_and_refusals_are_shown(
    node: Node, bundles: Bundles, start_agent: Serve
) -> None:
    node.sim("2xT4-R580")
    start_agent()
    path = on_socket(node)
    container = node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", "XPU_VISIBLE_DEVICES=1", args=SLEEP))
    refused(node, bundles("XPU_MEM=12G", "XPU_VISIBLE_DEVICES=1"))
    node.xpu("drain", "0", "--reason", "fan")
    found = shown(path)
    first, second = found["devices"]
    assert (first["drained"], first["slices"], second["drained"]) == ("drained: fan", [], None)
    (slice_,) = second["slices"]
    expected = {
        "container_id": container,
        "memory_bytes": 4 * GIB,
        "memory_used_bytes": 0,
        "memory_held": "soft",
        "cores": 30,
        "state": "running",
        "note": None,
    }
    assert {key: slice_[key] for key in expected} == expected
    assert [each["event"] for each in found["events"]] == ["drained", "refused", "granted"]
    (refusal,) = found["refusals"]
    assert "12G requested" in refusal["reason"]
    (granted,) = (each for each in found["events"] if each["event"] == "granted")
    assert granted["devices"][0]["memory_bytes"] == 4 * GIB
    history = json.loads(asked(path, "/history.json")[2])
    (sample,) = history["samples"]  # no reading was made before, and there is no port
    assert sample["slices"][0][:4] == [slice_["key"], second["uuid"], 0, 4 * GIB]
    assert history["since"] <= sample["time"]
    # The page shows later events, and after the removal of the ledger it does not show the old one.
    node.remove(container)
    assert shown(path)["events"][0]["event"] == "released"
    for each in node.run_dir.glob("ledger.db*"):
        each.unlink()
    assert shown(path)["events"] == []


def test_metrics_and_the_page_tell_the_same_when_both_are_asked(
    node: Node, capped: Make, start_agent: Serve
) -> None:
    """The second answer is of no shorter time than the first."""
    container = capped(30)
    start_agent()
    path = on_socket(node)
    shown(path)
    with container.waiting():
        time.sleep(1.1)

        def difference() -> float:
            text = asked(path, "/metrics")[2]
            told = json.loads(asked(path, "/data.json")[2])["devices"][0]["slices"][0]["cores_got_percent"]
            (ratio,) = re.findall(r"^xpu_slice_cores_got_ratio\{.*\} (\S+)$", text, re.MULTILINE)
            assert told > 0
            return float(told) - round(100 * float(ratio), 1)

        # Questions within a second get the same reading.
        timing.equals(0, difference)


def test_texts_of_containers_are_shown_short_and_printable(
    node: Node, bundles: Bundles, start_agent: Serve
) -> None:
    node.sim("1xT4")
    start_agent()
    path = on_socket(node)
    node.start(bundles("XPU_MEM=1G", args=SLEEP))
    evil = "</script><img src=x onerror=alert(1)>\x1b[2J\n\u202e\u2028" + "x" * 5000
    node.change_ledger("UPDATE grants SET container_id = ?", (evil,))
    insert = "INSERT INTO events (time, kind, container_id, devices, text) VALUES (?,?,?,?,?)"
    node.change_ledger(insert, *((number, "refused", evil, "[]", evil * 10) for number in range(60)))
    found = shown(path)
    assert len(found["events"]) == len(found["refusals"]) == 50  # not more
    assert found["events"][0]["time"] == 59
    texts = [
        *(each["container_id"] for each in found["devices"][0]["slices"]),
        *(each[key] for each in found["refusals"] for key in ("container_id", "reason")),
    ]
    assert len(texts) == 101 and all(each.startswith("</script>") for each in texts)
    assert all(each.isprintable() and len(each) <= 2000 for each in texts)


def test_a_node_without_devices_and_one_that_cannot_be_read_have_a_page(
    node: Node, start_agent: Serve
) -> None:
    start_agent()
    path = on_socket(node)
    found = shown(path)
    assert (found["devices"], found["events"], found["refusals"]) == ([], [], [])
    node.configure("mode: wrong")
    found = shown(path)
    assert found["devices"] == [] and any("mode" in each for each in found["problems"])
    assert found["agent_runs"] is True


def test_the_page_is_there_while_the_driver_hangs_and_says_so(node: Node, start_agent: Serve) -> None:
    node.sim("1xT4")
    start_agent()
    path = on_socket(node)
    assert len(shown(path)["devices"]) == 1
    with node.hanging_driver():
        time.sleep(1.1)
        status, _, body = asked(path, "/data.json")
        assert status == 503 and "does the driver answer" in body
        assert asked(path, "/")[0] == asked(path, "/history.json")[0] == 200
    assert len(shown(path)["devices"]) == 1


@pytest.mark.parametrize("slices", [0, 1])
def test_with_an_open_port_the_last_hour_is_kept_even_if_nobody_asks(
    node: Node, bundles: Bundles, start_agent: Serve, slices: int
) -> None:
    """On a node without slices the driver is left alone."""
    node.sim("1xT4")
    for _ in range(slices):
        node.start(bundles("XPU_MEM=1G", args=SLEEP))
    port = on_port(node, start_agent)

    def samples() -> Any:
        return json.loads(asked(port, "/history.json")[2])["samples"]

    until(lambda: len(samples()) == 1, "a sample is taken")
    assert (len(samples()[0]["slices"]), len(samples()[0]["devices"])) == (slices, slices)
