"""nvidia-smi: the table that people know, and the lines that scripts read."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support import GIB, MIB
from support.simulation import SUCCESS, Start, Up, Working
from xpu_simulator.topology import DRIVERS


def smi(root: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [f"{root}/usr/bin/nvidia-smi", *arguments], capture_output=True, text=True, timeout=60
    )


def query(root: str, *arguments: str) -> list[str]:
    answer = smi(root, *arguments)
    assert answer.returncode == 0, answer.stdout
    return answer.stdout.splitlines()


@pytest.mark.parametrize("branch", DRIVERS)
def test_it_runs_on_each_branch(working: Working, branch: str) -> None:
    root, one = working(f"1xT4-{branch}")
    assert query(root, "--query-gpu=memory.total", "--format=csv,noheader") == ["15360 MiB"]
    assert query(root, "--query-compute-apps=pid", "--format=csv,noheader") == [str(one.pid())]


def test_the_table_has_the_driver_each_card_and_each_process(working: Working) -> None:
    root, one = working("2xT4", 1, 338 * MIB)
    lines = query(root)
    width = {len(line) for line in lines[1:] if line}
    assert width == {91}, "all lines are of one width"
    table = "\n".join(lines)
    assert (
        "| NVIDIA-SMI 615.36.02              KMD Version: 615.36.02     CUDA UMD Version: 13.4     |" in table
    )
    assert (
        "|   1  Tesla T4                       On  |   00000000:00:11.0 Off |                    0 |" in table
    )
    assert "|     338MiB /  15360MiB |      0%      Default |" in table
    assert "|       0MiB /  15360MiB |" in table
    [row] = [line for line in lines if "MiB |" in line and " C   " in line]
    assert row.split()[1:6] == ["1", "N/A", "N/A", str(one.pid()), "C"]
    assert row.endswith(" 338MiB |")


def test_without_processes_the_table_says_so(up: Up) -> None:
    assert any("No running processes found" in line for line in query(up("1xT4").root))


def test_the_table_of_mig_devices(up: Up, process: Start) -> None:
    root = up("2xA100-MIG").root
    one = process(root, {"CUDA_VISIBLE_DEVICES": process(root).mig()[1]})
    one.start()
    one.alloc(GIB)
    lines = query(root)
    assert {len(line) for line in lines[1:] if line} == {91}
    table = "\n".join(lines)
    assert "MIG devices:" in table
    assert (
        "|  0    1   0   0  |               0MiB / 40192MiB    | 42      0 |  3   0    2    0    0 |" in table
    )
    assert (
        "|  0    7   0   1  |            1024MiB /  9728MiB    | 14      0 |  1   0    0    0    0 |" in table
    )
    assert "|     N/A      Default |" in table
    assert "|              Enabled |" in table
    [row] = [line for line in lines if " C   " in line and "MiB |" in line]
    assert row.split()[1:5] == ["0", "7", "0", str(one.pid())]


def test_inside_a_limited_cgroup_the_total_is_the_limit(
    up: Up, process: Start, cgroup: Callable[..., Path]
) -> None:
    root = up("1xT4").root
    group = cgroup()
    assert process(root).limit(str(group), 0, 4 * GIB) == SUCCESS
    procs = group / "cgroup.procs"
    inside = subprocess.run(
        ["sh", "-c", f'echo $$ > {procs}; exec "$@"', "sh", f"{root}/usr/bin/nvidia-smi"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "0MiB /   4096MiB |" in inside
    assert "0MiB /  15360MiB |" in smi(root).stdout


def test_the_list_has_each_device_and_mig_device(up: Up) -> None:
    root = up("2xA100-MIG").root
    uuids = query(root, "--query-gpu=uuid", "--format=csv,noheader")
    lines = query(root, "-L")
    assert lines[0] == f"GPU 0: NVIDIA A100-SXM4-80GB (UUID: {uuids[0]})"
    assert lines[1].startswith("  MIG 3g.40gb    Device  0: (UUID: MIG-")
    assert lines[2].startswith("  MIG 1g.10gb    Device  1: (UUID: MIG-")
    assert len(lines) == 9


def test_fields_as_csv_with_and_without_header_and_units(up: Up) -> None:
    root = up("2xT4").root
    fields = "index,name,memory.total,memory.used,memory.free,utilization.gpu,driver_version,pci.bus_id"
    assert query(root, f"--query-gpu={fields}", "--format=csv") == [
        "index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%], "
        "driver_version, pci.bus_id",
        "0, Tesla T4, 15360 MiB, 0 MiB, 15360 MiB, 0 %, 615.36.02, 00000000:00:10.0",
        "1, Tesla T4, 15360 MiB, 0 MiB, 15360 MiB, 0 %, 615.36.02, 00000000:00:11.0",
    ]
    rest = "compute_cap, mig.mode.current, temperature.gpu, power.draw, utilization.memory, pstate, fan.speed"
    assert query(root, "--query-gpu", rest, "--format", "csv,noheader,nounits", "-i", "1") == [
        "7.5, [N/A], 30, 9.00, 0, P8, [N/A]"
    ]


def test_processes_as_csv(working: Working) -> None:
    root, one = working("2xT4", 1, GIB)
    uuid = one.count()[1]
    lines = query(root, "--query-compute-apps=pid,process_name,used_memory,gpu_uuid", "--format=csv")
    assert lines[0] == "pid, process_name, used_gpu_memory [MiB], gpu_uuid"
    pid, name, memory, device = lines[1].split(", ")
    assert (int(pid), memory, device) == (one.pid(), "1024 MiB", uuid)
    assert "python" in name
    assert query(root, "--query-compute-apps=pid", "--format=csv,noheader", "-i", "0") == []


@pytest.mark.parametrize("chosen", ["index", "uuid", "pci.bus_id"])
def test_cards_are_chosen_by_any_of_their_names(up: Up, chosen: str) -> None:
    root = up("4xT4").root
    name = query(root, f"--query-gpu={chosen}", "--format=csv,noheader")[2]
    assert query(root, "--query-gpu=index", "--format=csv,noheader", f"--id={name}") == ["2"]


def test_before_r610_the_table_has_the_drivers_version(up: Up) -> None:
    head = "| NVIDIA-SMI 595.58.03              Driver Version: 595.58.03      CUDA Version: 13.2     |"
    assert head in query(up("1xT4-R595").root)


def test_help_is_printed(up: Up) -> None:
    assert any("--query-gpu" in line for line in query(up("1xT4-R535").root, "-h"))


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--nonsense"], 2, "Option --nonsense is not recognized"),
        (["--query-gpu=index,colour", "--format=csv"], 2, 'Field "colour" is not a valid field to query.'),
        (["--query-gpu=", "--format=csv"], 2, "not a valid field"),
        (["--query-gpu=index"], 2, "--format="),
        (["--query-gpu=index", "--format=xml"], 2, "--format="),
        (["-L", "--query-gpu=index", "--format=csv"], 2, "Invalid combination"),
        (["-x"], 2, "Invalid combination"),
        (["-q", "--loop=often"], 2, '"often" is not a valid number'),
        (["-i", "7"], 6, "No devices were found"),
    ],
)
def test_an_unknown_option_is_an_error(up: Up, arguments: list[str], status: int, says: str) -> None:
    answer = smi(up("1xT4").root, *arguments)
    assert (answer.returncode, says in answer.stdout) == (status, True), answer.stdout


def test_without_a_driver_it_says_so(up: Up) -> None:
    root = up("1xT4").root
    Path(root, "run/nvidia-sim/socket").unlink()
    answer = smi(root)
    assert answer.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in answer.stdout


def test_a_lost_card_is_reported_and_the_others_are_shown(up: Up) -> None:
    root = up({"gpus": [{"model": "T4", "healthy": False}, {"model": "T4"}]}).root
    table = smi(root).stdout
    assert "ERR!" in table
    assert "15360MiB" in table
    assert query(root, "--query-gpu=index,memory.used", "--format=csv,noheader") == [
        "0, [GPU is lost]",
        "1, 0 MiB",
    ]
