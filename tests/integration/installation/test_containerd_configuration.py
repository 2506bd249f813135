"""`xpu runtime configure containerd`, against the real containerd that reads the file."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli

from support.containerd_files import CRI, DOCUMENTS
from xpu_runtime.engines import installed_version

from ..conftest import Node

PROGRAM = "/usr/bin/true"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def configure(node: Node, config: Path, *options: str) -> None:
    done = node.xpu(
        "runtime", "configure", "containerd", "--config", config, "--runtime-path", PROGRAM, *options
    )
    assert done.stderr == ""


def seen(config: Path) -> Any:
    """The runtimes' table as containerd itself reads it, under the name that its version gives it."""
    done = subprocess.run(
        ["containerd", "--config", config, "config", "dump"], capture_output=True, text=True, check=True
    )
    plugins = tomli.loads(done.stdout)["plugins"]
    # containerd 2 has a plugin of the older name too, which has no runtimes.
    names = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
    return next(plugins[name] for name in names if name in plugins)["containerd"]


def test_a_missing_file_is_made_for_the_installed_containerd(node: Node, config: Path) -> None:
    configure(node, config)
    assert seen(config)["runtimes"]["xpu"]["options"]["BinaryName"] == PROGRAM


@pytest.mark.parametrize("name", ["a full version 2 file", "a short file", "an empty file"])
def test_containerd_itself_sees_the_runtime(node: Node, config: Path, name: str) -> None:
    config.write_text(DOCUMENTS[name])
    configure(node, config, "--set-as-default")
    table = seen(config)
    assert table["default_runtime_name"] == "xpu"
    assert table["runtimes"]["xpu"]["options"]["BinaryName"] == PROGRAM
    assert table["runtimes"]["xpu"]["pod_annotations"] == ["yoyoworks.com/*"]
    node.xpu("runtime", "unconfigure", "containerd", "--config", config)
    assert config.read_text() == DOCUMENTS[name]


def test_a_version_1_file_is_seen_by_containerd_1_and_refused_where_containerd_2_ignores_it(
    node: Node, config: Path
) -> None:
    config.write_text(DOCUMENTS["a version 1 file"])
    words = ["--config", str(config), "--runtime-path", PROGRAM, "--set-as-default"]
    told = node.xpu("runtime", "configure", "containerd", *words, check=False)
    ignored = (2, 0) <= (installed_version("containerd") or (0, 0)) < (2, 3)
    assert told.returncode == ignored
    assert ignored is (f"ignores plugins.cri of a file of version 1, as {config} is" in told.stderr)
    assert ignored is (seen(config)["default_runtime_name"] != "xpu")
    assert ignored or seen(config)["runtimes"]["xpu"]["options"]["BinaryName"] == PROGRAM
    node.xpu("runtime", "unconfigure", "containerd", "--config", config)
    assert config.read_text() == DOCUMENTS["a version 1 file"]


_OTHER = f"[{CRI}.containerd.runtimes.kata]\nruntime_type = 'io.containerd.runc.v2'\n"


@pytest.mark.parametrize(
    ("imports", "name", "text", "hides"),
    [
        ("FOLDER/conf.d/*.toml", ".hidden.toml", f"version = 2\n{_OTHER}", True),
        ("conf.d/[ab].toml", "[ab].toml", f"version = 2\n{_OTHER}", True),
        ("FOLDER/conf.d/[^b]*.toml", "a.toml", f"version = 2\n{_OTHER}", True),
        # A pattern that is not absolute means another folder, and this file is not read.
        ("conf.d/*.toml", "a.toml", f"version = 2\n{_OTHER}", False),
        # containerd reads all files as version 1, whose tables have another name.
        ("conf.d/a.toml", "a.toml", "version = 1\n", True),
    ],
    ids=["hidden", "no pattern", "negated", "relative", "version"],
)
def test_it_ends_well_only_where_containerd_sees_the_runtime_beside_odd_imports(
    node: Node, config: Path, imports: str, name: str, text: str, hides: bool
) -> None:
    imported = config.parent / "conf.d" / name
    imported.parent.mkdir()
    imported.write_text(text)
    imports = imports.replace("FOLDER", str(config.parent))
    config.write_text(f"version = 2\nimports = ['{imports}']\n")
    words = ["--config", str(config), "--runtime-path", PROGRAM]
    told = node.xpu("runtime", "configure", "containerd", *words, check=False)
    assert ("xpu" in seen(config).get("runtimes", {})) is (told.returncode == 0), told.stderr
    assert (told.returncode != 0) is (hides and (installed_version("containerd") or (0, 0)) < (2, 0)), (
        told.stderr
    )


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Any]:
    """Starts a containerd of its own with a configuration file; ends it with the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(config: Path) -> str:
        socket = str(tmp_path / "c.sock")
        arguments = ["--root", f"{tmp_path}/root", "--state", f"{tmp_path}/state", "--address", socket]
        with (tmp_path / "log").open("wb") as log:
            processes.append(
                subprocess.Popen(["containerd", "--config", str(config), *arguments], stdout=log, stderr=log)
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and processes[-1].poll() is None:
            done = subprocess.run(
                ["ctr", "--address", socket, "plugins", "ls"], capture_output=True, text=True
            )
            if done.returncode == 0:
                return done.stdout
            time.sleep(0.1)
        raise AssertionError((tmp_path / "log").read_text()[-2000:])

    yield start
    for process in processes:
        process.terminate()
        process.wait(30)


def test_the_cri_plugin_of_a_containerd_that_knew_no_runtime_by_name_still_loads(
    node: Node, config: Path, running: Any
) -> None:
    config.write_text(f'version = 2\n[{CRI}.cni]\nconf_dir = "{config.parent}"\n')
    configure(node, config)
    plugins = [line.split() for line in running(config).splitlines()]
    assert ["io.containerd.grpc.v1", "cri", "ok"] in [
        [line[0], line[1], line[-1]] for line in plugins if line
    ]


CRI_3 = "plugins.'io.containerd.cri.v1.runtime'"
CRI_2 = "plugins.'io.containerd.grpc.v1.cri'"


def runc(cri: str, body: str, version: str) -> str:
    """A file that says this of runc's options, and which program that is."""
    table = f"{cri}.containerd.runtimes.runc"
    head = f"{version}[{table}]\nruntime_type = 'io.containerd.runc.v2'\n"
    return f"{head}[{table}.options]\n{body}\n"


#: config.toml, and files in the folder that it imports.
LAYOUTS = {
    "version 2, all in a folder": (
        "version = 2\n",
        {"10": runc(CRI_2, "SystemdCgroup = true", "version = 2\n")},
    ),
    "version 2, in a file without a version": (
        "version = 2\n",
        {"10": runc(CRI_2, "SystemdCgroup = true", "")},
    ),
    "version 2, a part in a folder": (
        runc(CRI_2, "Root = '/a'", "version = 2\n"),
        {
            "10": runc(CRI_2, "SystemdCgroup = true\nIoUid = 1", "version = 2\n"),
            "20": runc(CRI_2, "IoUid = 2", "version = 2\n"),
        },
    ),
    "version 2, and 3 in a folder": (
        runc(CRI_2, "Root = '/a'", "version = 2\n"),
        {"10": runc(CRI_3, "SystemdCgroup = true", "version = 3\n")},
    ),
    "version 2, and 3 in the middle": (
        "version = 2\n",
        {
            "10": runc(CRI_3, "SystemdCgroup = true", "version = 3\n"),
            "20": runc(CRI_2, "IoUid = 2", "version = 2\n"),
        },
    ),
    "no version": ("", {}),
    "no version, and 2 in a folder": ("", {"10": runc(CRI_2, "SystemdCgroup = true", "version = 2\n")}),
    "version 2, runc without a type": (
        f"version = 2\n[{CRI_2}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n",
        {},
    ),
    "version 2, another default runtime that does not say it": (
        f"version = 2\n[{CRI_2}.containerd]\ndefault_runtime_name = 'nvidia'\n"
        f"[{CRI_2}.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\n"
        f"[{CRI_2}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n",
        {},
    ),
    "another plugin in a folder": (
        runc(CRI_2, "SystemdCgroup = true", "version = 2\n"),
        {"10": "version = 2\n[metrics]\naddress = '127.0.0.1:1'\n"},
    ),
}
#: Cases in which a containerd reads no file that the command could write.
HIDDEN_FROM_1 = {
    "version 2, all in a folder",
    "version 2, in a file without a version",
    "version 2, a part in a folder",
    "version 2, and 3 in the middle",
    "no version, and 2 in a folder",
}
HIDDEN_FROM_2 = {"version 2, and 3 in a folder", "version 2, and 3 in the middle", "no version"}


def options(config: Path, runtime: str) -> dict[str, Any]:
    """A runtime's options as containerd has them, without unset ones."""
    found = (seen(config).get("runtimes") or {}).get(runtime, {}).get("options") or {}
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("name", LAYOUTS)
def test_containerd_sees_the_runtime_with_runc_s_options_or_the_command_fails(
    node: Node, config: Path, name: str
) -> None:
    text, imported = LAYOUTS[name]
    folder = config.parent / "conf.d"
    folder.mkdir()
    for number, said in imported.items():
        (folder / f"{number}.toml").write_text(said)
    head, newline, tables = text.partition("\n")
    config.write_text(f"{head}{newline}imports = ['{folder}/*.toml']\n{tables}")
    before = {path: path.read_text() for path in config.parent.rglob("*.toml")}
    before_of_runc = options(config, "runc")
    words = ["runtime", "configure", "containerd", "--config", str(config), "--runtime-path", PROGRAM]
    done = node.xpu(*words, check=False)
    if name in (HIDDEN_FROM_2 if (installed_version("containerd") or (1, 0)) >= (2, 0) else HIDDEN_FROM_1):
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.endswith("; nothing was changed\n")
        assert {path: path.read_text() for path in config.parent.rglob("*.toml")} == before
        return
    assert (done.returncode, done.stderr) == (0, "")
    assert options(config, "runc") == before_of_runc
    assert options(config, "xpu") == {**before_of_runc, "BinaryName": PROGRAM}
