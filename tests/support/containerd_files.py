"""Configuration files of containerd: each version, short, full, written by hand, empty.

The functions call the engine on them as values, without a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli

from xpu_runtime.engines import containerd
from xpu_runtime.errors import ConfigError
from xpu_runtime.textfile import TextFile

CRI = 'plugins."io.containerd.grpc.v1.cri"'
DOCUMENTS = {
    "a full version 2 file": f"""\
# made by hand
version = 2
root = "/var/lib/containerd" # here

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins]
  [{CRI}]
    sandbox_image = "pause:3.9"
    [{CRI}.containerd]
      snapshotter = "overlayfs"
      default_runtime_name = "runc"   # the usual one
      [{CRI}.containerd.runtimes]
        [{CRI}.containerd.runtimes.runc]
          runtime_type = "io.containerd.runc.v2"
          [{CRI}.containerd.runtimes.runc.options]
            SystemdCgroup = true

# the end
[metrics]
address = "127.0.0.1:1338"
""",
    "a short file": 'version = 2\ndisabled_plugins = ["io.containerd.snapshotter.v1.zfs"]\n',
    "a file without an end of line": "version = 2",
    "a version 1 file": '[plugins.cri]\n  sandbox_image = "pause"\n',
    "a version 1 file that says so": "version = 1\n\n[plugins.cri.containerd]\n  no_pivot = false\n",
    "a version 3 file": "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  max_x = 1\n",
    "a version 4 file": "version = 4\n",
    "an empty file": "",
    "comments only": "# nothing yet\n\n# really",
    "an empty line": "\n",
    "windows line ends": f'version = 2\r\n\r\n[{CRI}.containerd]\r\n  default_runtime_name = "kata"\r\n',
    "a last header without an end of line": f"version = 2\n[{CRI}.containerd]",
    "empty parents of its own": "version = 2\n[plugins]\n",
    "tables in no order": (
        f"version = 2\n[{CRI}.containerd.runtimes.a]\nb = 1\n[metrics]\nc = 2\n[{CRI}.cni]\nd = 3\n"
    ),
    "text that looks like tables": (
        f'version = 2\nroot = """\n[{CRI}.containerd.runtimes.xpu]\n#xpu# x = 1\n"""\n[metrics]\n'
        "a = [ # one\n  [1], ']', \"#\",\n]\n'b c' = '''\n[x]\n'''\n"
    ),
    "quoted and dotted keys": 'version = 2\n"a.b".c = 1\n[x]\n"y=z" = { a = "}", "b" = [1, 2] }\n',
}

PROGRAM = "/bin/true"
NAMES = {1: ("cri",), 2: ("io.containerd.grpc.v1.cri",), 3: ("io.containerd.cri.v1.runtime",)}
NAMES[4] = NAMES[3]
CRI_2, CRI_3 = NAMES[2][0], NAMES[3][0]


def file_of(text: str, path: Path = Path("/etc/containerd/config.toml")) -> TextFile:
    return TextFile(str(path), str(path), text, Path("/").stat())


def configured(text: str, default: bool = False, program: str = PROGRAM) -> str:
    (edit,) = containerd.configure(file_of(text), program, default)
    return edit.text or ""


def unconfigured(text: str) -> str:
    edits = containerd.unconfigure(file_of(text))
    return (edits[0].text or "") if edits else text


def cri(text: str) -> Any:
    data = tomli.loads(text)
    return data["plugins"][NAMES[data.get("version", 1)][0]]["containerd"]


def in_process(*words: str | Path) -> None:
    """Runs `xpu runtime` with these words, in this process."""
    from xpu_runtime.cli.runtime import runtime

    runtime.main([str(word) for word in words], standalone_mode=False)


def configure(config: Path, *more: str, program: str = PROGRAM) -> None:
    in_process("configure", "containerd", "--config", config, "--runtime-path", program, *more)


def unconfigure(config: Path, *more: str) -> None:
    in_process("unconfigure", "containerd", "--config", config, *more)


def refused(config: Path, *more: str) -> ConfigError:
    """The error of `configure`, which must not write anything."""
    before = {path: path.read_bytes() for path in config.parent.rglob("*.toml")}
    with pytest.raises(ConfigError) as caught:
        configure(config, *more)
    assert {path: path.read_bytes() for path in config.parent.rglob("*.toml")} == before
    assert caught.value.todo.endswith("; nothing was changed")
    return caught.value
