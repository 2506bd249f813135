"""`xpu runtime configure containerd`, against the real containerd that reads the file."""

from __future__ import annotations

import subprocess
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


def configure(node: Node, config: Path, *options: str, refused: bool = False) -> str:
    """Does it, or is refused; stderr, which is empty unless it is refused."""
    words = ["--config", str(config), "--runtime-path", PROGRAM, *options]
    done = node.xpu("runtime", "configure", "containerd", *words, check=False)
    assert (done.returncode != 0) is (done.stderr != "") is refused, done.stderr
    return done.stderr


def unconfigure(node: Node, config: Path) -> None:
    node.xpu("runtime", "unconfigure", "containerd", "--config", config)


def seen(config: Path) -> Any:
    """The runtimes' table as containerd itself reads it, under the name that its version gives it."""
    done = subprocess.run(
        ["containerd", "--config", config, "config", "dump"], capture_output=True, text=True, check=True
    )
    plugins = tomli.loads(done.stdout)["plugins"]
    # containerd 2 has a plugin of the older name too, which has no runtimes.
    names = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
    return next(plugins[name] for name in names if name in plugins)["containerd"]


@pytest.mark.parametrize("name", ["a full version 2 file", "a short file", "an empty file", "no file"])
def test_containerd_itself_sees_the_runtime(node: Node, config: Path, name: str) -> None:
    if name in DOCUMENTS:
        config.write_text(DOCUMENTS[name])
    configure(node, config, "--set-as-default")
    table = seen(config)
    assert table["default_runtime_name"] == "xpu"
    assert table["runtimes"]["xpu"]["options"]["BinaryName"] == PROGRAM
    assert table["runtimes"]["xpu"]["pod_annotations"] == ["yoyoworks.com/*"]
    unconfigure(node, config)
    assert (config.read_text() if config.exists() else None) == DOCUMENTS.get(name)


def test_a_version_1_file_is_seen_by_containerd_1_and_refused_where_containerd_2_ignores_it(
    node: Node, config: Path
) -> None:
    config.write_text(DOCUMENTS["a version 1 file"])
    ignored = (2, 0) <= (installed_version("containerd") or (0, 0)) < (2, 3)
    told = configure(node, config, "--set-as-default", refused=ignored)
    assert ignored is (f"ignores plugins.cri of a file of version 1, as {config} is" in told)
    assert ignored is (seen(config)["default_runtime_name"] != "xpu")
    assert ignored or seen(config)["runtimes"]["xpu"]["options"]["BinaryName"] == PROGRAM
    unconfigure(node, config)
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
    is_refused = hides and (installed_version("containerd") or (0, 0)) < (2, 0)
    configure(node, config, refused=is_refused)
    assert ("xpu" in seen(config).get("runtimes", {})) is not is_refused


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
    hidden = HIDDEN_FROM_2 if (installed_version("containerd") or (1, 0)) >= (2, 0) else HIDDEN_FROM_1
    told = configure(node, config, refused=name in hidden)
    if name in hidden:
        assert told.endswith("; nothing was changed\n")
        assert {path: path.read_text() for path in config.parent.rglob("*.toml")} == before
        return
    assert options(config, "runc") == before_of_runc
    assert options(config, "xpu") == {**before_of_runc, "BinaryName": PROGRAM}
