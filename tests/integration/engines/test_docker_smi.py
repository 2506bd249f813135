"""nvidia-smi in a container shows the slice in each of its outputs, and no process of another container."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from .conftest import Docker, until

#: Ours and the other container's MiB.
OURS, OTHERS = 338, 1234


@pytest.fixture(params=["1xT4-R470", "1xT4-R535", "1xT4-R580", "1xT4-R615"])
def branch(request: pytest.FixtureRequest, topology: Callable[[str], None]) -> str:
    """A driver before R615 holds no limit: our library in the container shows the slice."""
    name: str = request.param
    topology(name)
    return name.rpartition("-")[2]


@pytest.fixture
def smi(docker: Docker, branch: str) -> Callable[..., str]:
    """nvidia-smi in a container of 4 GiB that holds OURS, beside one that holds OTHERS."""
    docker.hold("XPU_MEM=4G", OTHERS)
    # Our library shows no others even where the node's processes can all be seen.
    options = [] if branch == "R615" else ["--pid=host"]
    mine = docker.hold("XPU_MEM=4G", OURS, options=options)

    def ask(*arguments: str) -> str:
        done = docker("exec", mine, "nvidia-smi", *arguments)
        assert done.status == 0, done
        assert not re.search(rf"\b{OTHERS}\b", done.out), done.out
        return done.out

    return ask


def test_the_report_as_text_and_as_xml(smi: Callable[..., str]) -> None:
    text = [" ".join(line.split()) for line in smi("-q").splitlines()]
    assert text[text.index("FB Memory Usage") + 1] == "Total : 4096 MiB"
    assert f"Used : {OURS} MiB" in text
    assert [line for line in text if line.startswith("Used GPU Memory")] == [f"Used GPU Memory : {OURS} MiB"]

    card = ET.fromstring(smi("-q", "-x")).find("gpu")
    assert card is not None
    memory = {key: card.findtext(f"fb_memory_usage/{key}") for key in ("total", "used", "free")}
    assert memory == {"total": "4096 MiB", "used": f"{OURS} MiB", "free": f"{4096 - OURS} MiB"}
    running = card.findall("processes/process_info")
    assert [process.findtext("used_memory") for process in running] == [f"{OURS} MiB"]
    accounted = card.findall("accounted_processes/accounted_process_info")
    assert [process.findtext("max_memory_usage") for process in accounted] == [f"{OURS} MiB"]
    assert running[0].findtext("pid") == accounted[0].findtext("pid")


def test_processes_as_csv(smi: Callable[..., str]) -> None:
    for query, memory in (("compute", "used_memory"), ("accounted", "max_memory_usage")):
        (row,) = smi(f"--query-{query}-apps=pid,{memory}", "--format=csv,noheader").splitlines()
        assert row.split(", ")[1] == f"{OURS} MiB"


@pytest.mark.parametrize("branch", ["1xT4-R470", "1xT4-R535", "1xT4-R580"], indirect=True)
def test_the_work_of_another_container_is_not_shown(docker: Docker, branch: str) -> None:
    mine = docker.hold("XPU_MEM=4G", OURS)
    docker.start("XPU_MEM=4G", "cuda-probe", "busy")

    def value(field: str) -> str:
        return docker.must(
            "exec", mine, "nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"
        ).strip()

    until(lambda: value("pstate") == "P0", "the card is busy")
    assert value("utilization.gpu") == "0 %"
