"""nvidia-smi's longer outputs: the report as text and XML, and exporters' queries.

The expected contents are those of real outputs: the captures of utkuozdemir/nvidia_gpu_exporter (drivers 590
to 610) and the test data of telegraf's nvidia_smi plugin. That plugin's parser is the second reference.
"""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from support import GIB, MIB, REPOSITORY
from support.simulation import SUCCESS, Process, Start, Up, Working
from xpu_simulator.topology import DRIVERS

from .test_smi import query, smi


def xml(root: str) -> ET.Element:
    return ET.fromstring(smi(root, "-q", "-x").stdout)


def report(root: str, *arguments: str) -> list[str]:
    return query(root, "-q", *arguments)


def part(lines: list[str], heading: str) -> list[str]:
    """The lines below a heading with an indentation of four."""
    first = lines.index(f"    {heading}") + 1
    count = next(i for i, line in enumerate(lines[first:]) if not line.startswith(" " * 8))
    return lines[first : first + count]


# ---- -q ----


def test_the_report_has_the_lines_of_a_real_card(working: Working) -> None:
    root, one = working("2xH200-R590")
    lines = report(root)
    assert lines[:2] == ["", "==============NVSMI LOG=============="]
    assert "Driver Version                                         : 590.48.01" in lines
    assert "Attached GPUs                                          : 2" in lines
    assert [line for line in lines if line.startswith("GPU ")] == [
        "GPU 00000000:00:10.0",
        "GPU 00000000:00:11.0",
    ]
    assert "    Product Architecture                               : Hopper" in lines
    assert (
        "    Display Mode                                       : Requested functionality has been deprecated"
        in lines
    )
    assert "                Max                                    : 16x" in lines
    assert "        Device Id                                      : 0x233510DE" in lines
    assert part(lines, "FB Memory Usage") == [
        "        Total                                          : 143771 MiB",
        "        Reserved                                       : 615 MiB",
        "        Used                                           : 518 MiB",
        "        Free                                           : 142638 MiB",
    ]
    assert part(lines, "Clocks Event Reasons")[3:6] == [
        "        HW Slowdown                                    : Not Active",
        "            HW Thermal Slowdown                        : Not Active",
        "            HW Power Brake Slowdown                    : Not Active",
    ]
    assert part(lines, "Processes")[:4] == [
        "        GPU instance ID                   : N/A",
        "        Compute instance ID               : N/A",
        f"        Process ID                        : {one.pid()}",
        "            Type                          : C",
    ]
    assert "    Processes                                          : None" in lines, "of the other card"


def test_a_value_that_is_not_simulated_is_not_available(up: Up) -> None:
    lines = report(up("1xT4-R580").root)
    assert "    Fan Speed                             : N/A" in lines
    assert "    Remapped Rows                         : N/A" in lines
    assert "        Memory Current Temp               : N/A" in lines


@pytest.mark.parametrize(
    ("branch", "has", "lacks"),
    [
        ("R470", ["Clocks Throttle Reasons", "Power Readings"], ["Fabric", "GPU Power Readings"]),
        ("R550", ["Clocks Event Reasons", "GPU Power Readings", "Voltage"], ["Platform Info"]),
        ("R570", ["Platform Info", "GPU Reset Status"], ["Clocks Event Reasons Counters"]),
        ("R580", ["Clocks Event Reasons Counters"], ["Voltage", "GPU Reset Status"]),
    ],
)
def test_the_report_is_that_of_the_branch(up: Up, branch: str, has: list[str], lacks: list[str]) -> None:
    lines = report(up(f"1xT4-{branch}").root)
    assert [heading for heading in has + lacks if f"    {heading}" in lines] == has
    assert {line.index(": ") for line in lines if ": " in line} == {42}


def test_since_r610_it_has_the_versions_under_both_names(up: Up) -> None:
    lines = report(up("1xT4-R615").root)
    assert "KMD Version                                            : 615.36.02" in lines
    assert "CUDA UMD Version                                       : 13.4" in lines
    assert any(line.startswith("Driver Version") and "615.36.02 [Deprecated" in line for line in lines)


def test_mig_devices_are_in_the_report(up: Up, process: Start) -> None:
    root = up("2xA100-MIG-R590").root
    one = process(root, {"CUDA_VISIBLE_DEVICES": process(root).mig()[1]})
    one.start()
    one.alloc(GIB)
    lines = report(root)
    assert lines.count("    MIG Device") == 7
    assert "                Multiprocessor count                   : 42" in lines
    assert "        GPU instance ID                   : 7" in lines
    cards = xml(root).findall("gpu")
    assert [len(card.findall("mig_devices/mig_device")) for card in cards] == [5, 2]
    memory = [mig.findtext("fb_memory_usage/used") for mig in cards[0].findall("mig_devices/mig_device")]
    assert memory == ["0 MiB", "1024 MiB", "0 MiB", "0 MiB", "0 MiB"]
    assert cards[0].findtext("utilization/gpu_util") == "N/A"


# ---- -q -x ----

#: The values that telegraf's parsers of all schemas read and a simulated card has, and then those of one
#: schema.
TELEGRAF = """
product_name uuid performance_state compute_mode serial vbios_version display_active display_mode
ecc_mode/current_ecc fb_memory_usage/total fb_memory_usage/used fb_memory_usage/free fb_memory_usage/reserved
temperature/gpu_temp utilization/gpu_util utilization/memory_util utilization/encoder_util
utilization/decoder_util pci/pci_gpu_link_info/pcie_gen/current_link_gen
pci/pci_gpu_link_info/link_widths/current_link_width encoder_stats/session_count encoder_stats/average_fps
encoder_stats/average_latency fbc_stats/session_count fbc_stats/average_fps fbc_stats/average_latency
clocks/graphics_clock clocks/sm_clock clocks/mem_clock clocks/video_clock
"""
BY_SCHEMA = {
    "11": "power_readings/power_draw power_readings/power_limit "
    "clocks_throttle_reasons/clocks_throttle_reason_gpu_idle",
    "12": "product_architecture utilization/jpeg_util utilization/ofa_util pci/rx_util pci/tx_util "
    "temperature/gpu_temp_max_threshold temperature/gpu_temp_slow_threshold "
    "gpu_power_readings/current_power_limit gpu_power_readings/requested_power_limit "
    "clocks_event_reasons/clocks_event_reason_sw_power_cap",
    "13": "product_architecture utilization/jpeg_util utilization/ofa_util bar1_memory_usage/total "
    "bar1_memory_usage/used bar1_memory_usage/free gpu_power_readings/instant_power_draw "
    "gpu_power_readings/average_power_draw gpu_power_readings/current_power_limit "
    "clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown",
}


@pytest.mark.parametrize("branch", DRIVERS)
def test_telegraf_finds_its_values_in_the_xml(working: Working, branch: str) -> None:
    root, one = working(f"1xT4-{branch}", 0, GIB)
    text = smi(root, "-q", "-x").stdout
    (schema,) = re.findall(r"<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v(\d+)\.dtd\">", text)
    assert schema == {"R470": "11", "R535": "12", "R550": "12", "R570": "12"}.get(branch, "13")
    log = ET.fromstring(text)
    assert log.findtext("driver_version") == DRIVERS[branch][0]
    assert log.findtext("cuda_version") == DRIVERS[branch][1]
    card = log.find("gpu")
    assert card is not None and card.get("id") == "00000000:00:10.0"
    paths = (TELEGRAF + BY_SCHEMA[schema]).split()
    assert {path for path in paths if card.findtext(path) in (None, "", "N/A")} == set()
    assert card.findtext("fb_memory_usage/used") == "1024 MiB"
    assert card.findtext("pci/pci_device_id") == "1EB810DE"
    running = card.find("processes/process_info")
    assert running is not None
    assert [running.findtext(key) for key in ("pid", "type", "used_memory")] == [
        str(one.pid()),
        "C",
        "1024 MiB",
    ]


@pytest.fixture
def named(up: Up) -> Iterator[Callable[[str, str], Process]]:
    """`named(root, "<a>")` is a worker whose program has that name."""
    started: list[Process] = []

    def start(root: str, name: str) -> Process:
        worker = str(REPOSITORY / "tests/support/worker/worker.py")
        words = ["bash", "-c", f"exec -a '{name}' \"$@\"", "bash", sys.executable, worker, root]
        # Python looks for its modules beside its name.
        environ = {"PYTHONPATH": str(Path(pynvml.__file__).parent)}
        started.append(Process(words, environ, None))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def test_a_name_may_have_any_letters(up: Up, named: Callable[[str, str], Process]) -> None:
    root = up("1xT4").root
    assert named(root, "/opt/<a&b>").start() == SUCCESS
    assert xml(root).findtext("gpu/processes/process_info/process_name") == "/opt/<a&b>"


def test_no_name_breaks_the_xml(up: Up, named: Callable[[str, str], Process]) -> None:
    root = up("1xT4").root
    assert named(root, "a\x01\n\x1b\udcffb").start() == SUCCESS
    assert xml(root).findtext("gpu/processes/process_info/process_name") == "a????b"


# ---- exporters' queries ----


def test_names_of_older_drivers_are_known_to_newer_ones(up: Up) -> None:
    root = up("1xT4-R580").root
    asked = "clocks_throttle_reasons.active,gpu.power.requested_limit,retired_pages.sbe,display_mode"
    assert query(root, f"--query-gpu={asked}", "--format=csv") == [
        "clocks_event_reasons.active, power.limit [W], retired_pages.single_bit_ecc.count, display_mode",
        "0x0000000000000001, 70.00 W, [N/A], [Requested functionality has been deprecated]",
    ]


def test_accounted_processes_as_csv(working: Working) -> None:
    root, one = working("2xT4", 1, 338 * MIB)
    asked = "gpu_name,pid,time,gpu_util,mem_util,max_memory_usage"
    assert query(root, f"--query-accounted-apps={asked}", "--format=csv") == [
        "gpu_name, pid, time [ms], gpu_utilization [%], mem_utilization [%], max_memory_usage [MiB]",
        f"Tesla T4, {one.pid()}, 0 ms, 0 %, 0 %, 338 MiB",
    ]


# ---- repeated output ----


@pytest.mark.parametrize("option", ["-l 1", "--loop=1"])
def test_a_query_goes_on_with_one_header(up: Up, option: str) -> None:
    root = up("1xT4").root
    words = [f"{root}/usr/bin/nvidia-smi", "--query-gpu=index", "--format=csv", *option.split()]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        # Each round is readable as soon as it is printed.
        assert [running.stdout.readline() for _ in range(3)] == ["index\n", "0\n", "0\n"]
        running.kill()


@pytest.mark.parametrize("words", ["", "-q", "-l 1"])
def test_it_fails_where_nothing_can_be_written(up: Up, words: str) -> None:
    """With -l it would otherwise go on for ever."""
    program = f"{up('1xT4').root}/usr/bin/nvidia-smi"
    with open("/dev/full", "w") as full:
        assert subprocess.run([program, *words.split()], stdout=full, timeout=20).returncode == 255
