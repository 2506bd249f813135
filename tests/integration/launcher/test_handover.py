"""The containers that the launcher hands to the shim: each that may ask, and few others.

The low-level runtime is `echo` here, so that either program behind the launcher prints its arguments.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xpu_runtime.request import source
from xpu_runtime.request.request import VARIABLES

from .conftest import Launcher

#: Those by which alone a container asks, as Python has it.
ASKING = [
    f"{name}=all"
    for name in (
        *VARIABLES,
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_GPU_MEMORY_LIMIT",
        "CUDA_VERSION",
        "XPU_MISSPELT",
    )
    if source.asks({"process": {"env": [f"{name}=all"]}})
]
CHUNK = 64 * 1024


@pytest.fixture
def echoing(checked_launcher: Launcher) -> Launcher:
    checked_launcher.compiled("/bin/echo")
    return checked_launcher


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    return tmp_path / "b"


def went_to(launcher: Launcher, *words: str | Path, cwd: Path | None = None) -> str:
    """ "shim" or "runtime"; either must have got the very words."""
    done = launcher.run(*words, cwd=cwd)
    assert done.returncode == 0
    if done.stdout == "\n".join(["the shim", *map(str, words)]) + "\n":
        return "shim"
    assert done.stdout == " ".join(map(str, words)) + "\n"
    return "runtime"


def spec_with(env: list[str], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "ociVersion": "1.0.2",
        "process": {"args": ["true"], "env": env},
        "annotations": annotations or {},
    }


@pytest.mark.parametrize("subcommand", ["create", "run", "restore"])
@pytest.mark.parametrize("variable", ASKING)
def test_a_spec_with_a_variable_of_ours_goes_to_the_shim(
    echoing: Launcher, folder: Path, subcommand: str, variable: str
) -> None:
    (folder / "config.json").write_text(json.dumps(spec_with(["PATH=/bin", variable])))
    assert went_to(echoing, subcommand, "--bundle", folder, "x") == "shim"


@pytest.mark.parametrize("slash", ["/", "\\/"])
def test_a_spec_with_an_annotation_of_ours_goes_to_the_shim(
    echoing: Launcher, folder: Path, slash: str
) -> None:
    text = json.dumps(spec_with([], {"yoyoworks.com/xpu-mem": "4G"})).replace("/", slash)
    (folder / "config.json").write_text(text)
    assert went_to(echoing, "create", "--bundle", folder, "x") == "shim"


def test_a_spec_that_names_nothing_goes_to_the_runtime(echoing: Launcher, folder: Path) -> None:
    env = ["PATH=/bin", "NVIDIA_DRIVER_CAPABILITIES=all", "XPUMEM=4G", "A=<&>", "B=é\t"]
    text = json.dumps(spec_with(env)).replace("<", "\\u003c").replace(">", "\\u003E").replace("&", "\\u0026")
    (folder / "config.json").write_text(text)
    assert went_to(echoing, "create", "--bundle", folder, "x") == "runtime"


def test_letters_behind_escapes_do_not_hide_a_variable(echoing: Launcher, folder: Path) -> None:
    for hidden in ["\\u0058PU_MEM=4G", "XPU\\u005fMEM=4G", "X\\u0050\\u0055\\u005FMEM=4G"]:
        spec = '{"process": {"env": ["' + hidden + '"]}}'
        assert json.loads(spec)["process"]["env"] == ["XPU_MEM=4G"]
        (folder / "config.json").write_text(spec)
        assert went_to(echoing, "create", "--bundle", folder, "x") == "shim"


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    at=st.one_of(
        st.integers(0, 200),
        *(st.integers(n * CHUNK - 60, n * CHUNK + 60) for n in (1, 2)),
        st.integers(0, 3 * CHUNK),
    ),
    variable=st.sampled_from([*ASKING, "yoyoworks.com/xpu", "\\u0058"]),
)
def test_a_variable_is_found_wherever_it_stands(
    echoing: Launcher, folder: Path, at: int, variable: str
) -> None:
    (folder / "config.json").write_text("x" * at + variable + "y" * 10)
    assert went_to(echoing, "create", "--bundle", folder, "x") == "shim"


def test_a_spec_that_was_edited_before_goes_to_the_shim(echoing: Launcher, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(spec_with([])))
    assert went_to(echoing, "create", "--bundle", folder, "x") == "runtime"
    (folder / "config.json.xpu").symlink_to("nowhere")
    assert went_to(echoing, "create", "--bundle", folder, "x") == "shim"


def test_a_spec_of_any_size_is_scanned_to_its_end(echoing: Launcher, folder: Path) -> None:
    with open(folder / "config.json", "w") as spec:
        spec.truncate(20 << 20)
    assert went_to(echoing, "create", "--bundle", folder, "x") == "runtime"
    with open(folder / "config.json", "a") as spec:
        spec.write('"XPU_MEM=4G"')
    assert went_to(echoing, "create", "--bundle", folder, "x") == "shim"


def test_a_fifo_is_not_opened_so_that_its_writer_still_waits_for_the_runtime(
    echoing: Launcher, folder: Path
) -> None:
    fifo = folder / "config.json"
    os.mkfifo(fifo)
    writer = subprocess.Popen(["sh", "-c", 'echo "a spec" > "$0"', fifo])
    assert went_to(echoing, "create", "--bundle", folder, "x") == "runtime"
    assert fifo.read_text() == "a spec\n"
    assert writer.wait(60) == 0


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["create", "x"], "shim"),
        (["create", "--bundle", "", "x"], "shim"),
        (["create", "--bundle", ".", "x"], "shim"),
        (["--root", "r", "create", "x"], "shim"),
        (["create", "--bundle", "plain", "x"], "runtime"),
        (["create", "--bundle", "plain", "--config", "config.json", "x"], "runtime"),
        (["create", "--bundle", "plain", "--config", "./config.json", "x"], "shim"),
        (["create", "x", "y"], "runtime"),
        (["state", "x"], "runtime"),
        (["delete", "create"], "runtime"),
        (["exec", "x", "env", "XPU_MEM=4G"], "runtime"),
        (["exec", "create", "run"], "runtime"),
    ],
    ids=lambda words: " ".join(words),
)
def test_the_bundle_that_the_line_names_decides(
    echoing: Launcher, folder: Path, words: list[str], target: str
) -> None:
    (folder / "config.json").write_text(json.dumps(spec_with(["XPU_MEM=4G"])))
    (folder / "plain").mkdir()
    (folder / "plain" / "config.json").write_text(json.dumps(spec_with([])))
    assert went_to(echoing, *words, cwd=folder) == target


def test_a_symlink_to_the_spec_is_followed(echoing: Launcher, folder: Path) -> None:
    (folder / "elsewhere").write_text(json.dumps(spec_with(["XPU_MEM=4G"])))
    (folder / "config.json").symlink_to("elsewhere")
    assert went_to(echoing, "create", "--bundle", folder, "x") == "shim"


@pytest.mark.parametrize("what", ["nothing", "fifo", "folder", "device", "link to itself", "dangling link"])
def test_a_spec_that_is_no_file_is_left_to_the_runtime_and_never_waited_for(
    echoing: Launcher, folder: Path, what: str
) -> None:
    spec = folder / "config.json"
    if what == "fifo":
        os.mkfifo(spec)
    elif what == "folder":
        spec.mkdir()
    elif what == "device":
        os.mknod(spec, 0o600 | stat.S_IFCHR, os.makedev(5, 0))
    elif what == "link to itself":
        spec.symlink_to("config.json")
    elif what == "dangling link":
        spec.symlink_to("nowhere")
    assert went_to(echoing, "create", "--bundle", folder, "x") == "runtime"
    assert went_to(echoing, "create", "--bundle", spec, "x") == "runtime"


def test_the_words_reach_the_shim_whatever_they_are(echoing: Launcher, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(spec_with(["XPU_MEM=4G"])))
    odd = ["--log", "", "--criu", "a\nb", "--rootless", "-", "--debug=true"]
    assert went_to(echoing, *odd, "create", "--pid-file", "--bundle", "-b", folder, "é" * 30_000) == "shim"
