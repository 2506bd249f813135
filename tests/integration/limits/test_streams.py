"""`xpu` whose caller has closed its standard streams, or given it one that takes nothing."""

from __future__ import annotations

import subprocess

import pytest

from ..conftest import Node


def xpu(node: Node, words: str) -> subprocess.CompletedProcess[str]:
    """`xpu` in a shell, with redirections of its streams."""
    command = f"{node.prefix / 'bin' / 'xpu'} {words}"
    return subprocess.run(
        ["sh", "-c", command],
        env=node.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "words",
    ["top --once --interval 0.1", "ps --json", "explain -e XPU_MEM=1G", "--help", "ps -h", "--version"],
)
def test_output_that_goes_nowhere_is_an_error_in_one_line(node: Node, words: str) -> None:
    node.sim("1xT4-R580")
    done = xpu(node, f"{words} >/dev/full")
    assert done.returncode == 1
    todo = "free space where it goes, or send it elsewhere"
    assert done.stderr == f"xpu: cannot write to stdout: No space left on device: {todo}\n"


def test_an_error_that_cannot_be_told_has_its_status_all_the_same(node: Node) -> None:
    for words in ("inspect nope 2>/dev/full", "inspect nope 2>&-", "inspect nope >/dev/full 2>/dev/full"):
        assert xpu(node, words).returncode == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_dev_null(node: Node, closed: str) -> None:
    node.sim("1xT4-R580")
    for words in ("top --interval 0.1", "ps", "devices"):
        done = xpu(node, f"{words} {closed}")
        assert (done.returncode, done.stderr) == (0, "")
        assert bool(done.stdout) == (">&-" not in closed)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "0", "-1", "61", "1e400", "soon", ""])
def test_an_interval_of_no_time_is_said(node: Node, seconds: str) -> None:
    done = xpu(node, f"top --once --interval '{seconds}'")
    assert done.returncode == 2
    assert f"Invalid value for '--interval': '{seconds}': give seconds, from 0.1 to 60" in done.stderr
