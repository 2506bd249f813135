"""`xpu config …` and the root command, as a person at a terminal meets them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import REPOSITORY, STAND_INS
from xpu_runtime.cli.main import COMMANDS
from xpu_runtime.version import VERSION

Write = Callable[[str], Path]


def xpu(*arguments: str, path: Path = REPOSITORY / "src") -> subprocess.CompletedProcess[str]:
    code = "from xpu_runtime.config import low_level_runtime\n"
    code += f"low_level_runtime.RUNTIME_FOLDERS = ({str(STAND_INS)!r},)\n"
    code += "from xpu_runtime.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_version_names_release_commit_and_page_layout() -> None:
    header = (REPOSITORY / "native" / "abi" / "page.h").read_text()
    abi = re.search(r"XPU_ABI = (\d+)", header)
    assert abi is not None
    expected = f"xpu {VERSION} (commit unknown, ABI {abi[1]} of the pages)\n"
    assert xpu("--version").stdout == expected


def test_a_wrong_command_is_a_usage_error_that_names_the_commands() -> None:
    done = xpu("cofnig")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "No such command 'cofnig'; did you mean config? There are agent, cdi, config, devices," in done.stderr
    )
    assert "No such command 'zzz'; there are agent, cdi, config, devices," in xpu("zzz").stderr


@pytest.mark.parametrize(
    "broken", ["raise RuntimeError('half\\nan update')", "import no_such_thing", "devices = 1"]
)
def test_a_broken_command_says_so_and_leaves_the_others_alone(
    tmp_path: Path, config_file: Path, run_dir: Path, broken: str
) -> None:
    path = tmp_path / "src"
    shutil.copytree(REPOSITORY / "src/xpu_runtime", path / "xpu_runtime")
    shutil.copytree(REPOSITORY / "config", tmp_path / "config")
    (path / "xpu_runtime/cli/devices.py").write_text(broken)
    assert xpu("config", "check", str(REPOSITORY / "config/config.yaml"), path=path).returncode == 0
    listed = xpu("--help", path=path)
    assert listed.returncode == 0 and "config" in listed.stdout
    done = xpu("devices", "--json", path=path)
    assert done.returncode == 1
    assert done.stderr.startswith("xpu: the command devices cannot be loaded (")
    assert done.stderr.count("\n") == 1


def test_the_list_of_commands_is_the_table_s() -> None:
    listed = xpu("--help").stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed if line.startswith("  ") and line[2] != " "] == list(COMMANDS)


def test_check_of_a_good_file_says_ok(write_config: Write) -> None:
    file = write_config("mode: hook\n")
    done = xpu("config", "check")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}: ok\n", "")


def test_a_default_of_cores_is_a_multiple_of_the_step(write_config: Write) -> None:
    file = write_config("cores: {step: 10}\ndefaults:\n  cores: 25\n")
    done = xpu("config", "check", str(file))
    assert done.returncode == 1
    assert done.stdout == (
        f"{file}:3:3: defaults.cores: 25 is not allowed: give a multiple of cores.step, which is 10\n"
    )
    write_config("defaults: {memory: 4G, cores: 25}\n")
    assert xpu("config", "check").returncode == 0


def test_check_prints_every_mistake_on_its_line_and_fails(write_config: Write) -> None:
    file = write_config("mode: hok\nplacment: {}\n")
    done = xpu("config", "check", str(file))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        f'{file}:1:1: mode: "hok" is not allowed: use auto, hook or spec',
        f"{file}:2:1: unknown key placment: did you mean placement?",
    ]


def test_check_of_the_file_in_use_also_misses_a_runtime_that_is_not_there(write_config: Write) -> None:
    file = write_config("mode: auto\nlow_level_runtimes: [no-such-runtime]\n")
    done = xpu("config", "check")
    assert done.returncode == 1
    assert done.stdout.startswith(f"{file}:2:1: no low-level runtime found: no-such-runtime")
    assert xpu("config", "check", str(file)).returncode == 0


def test_check_says_where_policy_devices_could_not_be_compared_with_the_node_s(
    tmp_path: Path, write_config: Write
) -> None:
    file = write_config(f"driver: {{root: {tmp_path}}}\npolicy: {{devices: [7]}}\n")
    done = xpu("config", "check")
    assert (done.returncode, done.stdout) == (0, f"{file}: ok\n")
    assert done.stderr.startswith("xpu: policy.devices is not checked: no NVIDIA driver found")


def test_check_without_a_file_says_that_the_defaults_hold(config_file: Path, run_dir: Path) -> None:
    done = xpu("config", "check")
    assert (done.returncode, done.stdout) == (0, f"{config_file}: no such file, so the defaults apply\n")


def test_check_of_a_named_file_that_is_missing_is_an_error_in_one_line(tmp_path: Path) -> None:
    done = xpu("config", "check", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"xpu: {tmp_path}/none cannot be read (No such file or directory)")


def test_show_tells_the_values_of_the_file_from_the_defaults(write_config: Write) -> None:
    file = write_config("# mine\nmode: hook\npolicy:\n  max_memory: 8G\n")
    shown = json.loads(xpu("config", "show", "--json").stdout)
    assert (shown["file"], shown["found"]) == (str(file), True)
    rows = {row["key"]: (row["value"], row["source"], row["line"]) for row in shown["settings"]}
    assert rows["mode"] == ("hook", "file", 2)
    assert rows["policy.max_memory"] == ("8G", "file", 4)
    assert rows["policy.devices"] == ("all", "default", None)
    table = xpu("config", "show").stdout
    assert any(line.split() == ["policy.max_memory", '"8G"', "line", "4"] for line in table.splitlines())


def test_show_of_a_broken_file_is_an_error(write_config: Write) -> None:
    write_config("mode: hok\n")
    done = xpu("config", "show")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("xpu: ") and "use auto, hook or spec" in done.stderr


def test_the_default_file_can_be_used_as_it_is_printed(write_config: Write) -> None:
    write_config(xpu("config", "default").stdout)
    assert xpu("config", "check").returncode == 0
    before = xpu("config", "show", "--json").stdout
    assert {row["source"] for row in json.loads(before)["settings"]} == {"file"}


def test_where_the_simulator_is_not_installed_its_command_says_so() -> None:
    for words in (["list"], ["up", "--topology", "1xT4"], ["down"]):
        done = xpu("sim", *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "xpu: the simulator is not installed: "
            "install the package xpu-simulator; from a clone, `make install` installs it\n"
        )


@pytest.mark.parametrize("group", [[], ["runtime"], ["sim"], ["config"]])
def test_the_list_of_commands_says_each_in_full(group: list[str]) -> None:
    listed = xpu(*group, "--help").stdout.partition("Commands:")[2]
    assert listed
    assert "..." not in listed
