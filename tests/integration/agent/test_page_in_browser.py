"""The page that `xpu agent` serves, as Chromium shows it."""

from __future__ import annotations

import html
import os
import re
import subprocess
from collections.abc import Callable

import pytest

from support.sharing_time import Serve, until

from ..agent_http import on_port
from ..conftest import SLEEP, Bundles, Node
from ..refusals import refused

#: Nothing of its own that asks for hosts elsewhere; root has no sandbox of Chromium's.
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    # So many milliseconds of the page's own time; it stands still while the page waits for an answer.
    "--virtual-time-budget=8000",
)


@pytest.fixture
def page(node: Node, start_agent: Serve) -> Callable[[], str]:
    """Starts the agent, with a port. Returns a function that gives the page as a browser renders it, as
    markup."""
    port = on_port(node, start_agent)

    def show() -> str:
        command = [
            "chromium",
            *_OPTIONS,
            f"--user-data-dir={node.folder / 'browser'}",
            "--dump-dom",
            f"http://127.0.0.1:{port}/",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        # The browser also reports a policy that forbids something of the page.
        assert done.returncode == 0 and ":CONSOLE" not in done.stderr, done.stderr
        return done.stdout

    return show


def texts(markup: str) -> str:
    return html.unescape(re.sub(r"<(script|style)>.*?</\1>|<[^>]*>", " ", markup, flags=re.DOTALL))


def test_cards_slices_refusals_and_events_are_shown(
    node: Node, bundles: Bundles, page: Callable[[], str]
) -> None:
    node.sim("2xT4-R580")
    container = node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", "XPU_VISIBLE_DEVICES=1", args=SLEEP))
    reason = refused(node, bundles("XPU_MEM=12G", "XPU_VISIBLE_DEVICES=1"))
    node.xpu("drain", "0", "--reason", "fan")
    markup = page()
    shown = " ".join(texts(markup).split())
    assert "2 devices · 1 slice" in shown and "as of " in shown
    assert "GPU 0 · Tesla T4 healthy drained: fan" in shown and "GPU 1 · Tesla T4 healthy " in shown
    assert "0 GiB used · 4 GiB asked for · 15 GiB in all" in shown and "30 % asked for as caps" in shown
    assert f"A {container[:12]} " in shown and "memory, cores: soft" in shown
    assert reason.splitlines()[0].split("; ")[0] in shown
    assert "+ granted" in shown and "▼ drained" in shown and "✕ refused" in shown
    # Both bars of the second card show its slice, at the slice's width.
    widths = re.findall(r'class="part"[^>]*calc\(([\d.]+)% - 2px\)', markup)
    assert [round(float(each)) for each in widths] == [27, 30]


def test_texts_of_containers_are_shown_as_text(node: Node, bundles: Bundles, page: Callable[[], str]) -> None:
    node.sim("1xT4")
    node.start(bundles("XPU_MEM=1G", args=SLEEP))
    evil = "</script><img src=x onerror=\"document.title='taken'\"><b>"
    node.change_ledger("UPDATE grants SET container_id = ?", (evil,))
    insert = "INSERT INTO events (time, kind, container_id, devices, text) VALUES (?,?,?,?,?)"
    node.change_ledger(insert, (1, "refused", evil, "[]", evil))
    markup = page()
    assert "<img" not in markup and evil in texts(markup)
    assert re.findall("<title>(.*)</title>", markup) == [f"XPU node {os.uname().nodename}"]


def test_it_says_when_there_is_no_answer(node: Node, page: Callable[[], str]) -> None:
    node.sim("1xT4")
    with node.hanging_driver():
        shown = texts(page())
    assert "no answer" in shown and "does the driver answer" in shown and "Tesla" not in shown
    until(lambda: "Tesla T4" in texts(page()), "it is shown again")
