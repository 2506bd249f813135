"""Realistic files of operators: unconfigure restores every byte after any configure.

`files` has the shapes of real ones, each under a line `=== its name`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tomli

from support.containerd_files import NAMES, PROGRAM, in_process
from support.drop_in_trees import shapes
from xpu_runtime import engines
from xpu_runtime.errors import ConfigError
from xpu_runtime.observe import engine

DAEMON_JSON = shapes("daemon.json.txt")
CONFIG_TOML = shapes("config.toml.txt", "config.toml.more.txt")
#: No engine starts with the default in these files. `unconfigure` removes it with a note.
NAMED_BEFORE = {
    "a default that was xpu already, and nobody's entry",
    "a default that was xpu already, and nobody's table",
}
#: The forms in which editors save a file.
SPELLINGS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": lambda raw: raw,
    "CRLF": lambda raw: raw.replace(b"\n", b"\r\n"),
    "no end of line": lambda raw: raw.rstrip(b"\n"),
    "byte-order mark": lambda raw: b"\xef\xbb\xbf" + raw,
    "tabs": lambda raw: raw.replace(b"  ", b"\t"),
}
spelt = pytest.mark.parametrize(
    "spelling",
    [pytest.param(each, marks=[] if each == "as it is" else pytest.mark.slow) for each in SPELLINGS],
)


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search through the machine's processes would take most of the test's time."""
    monkeypatch.setattr(engine, "running", lambda program: [])


def test_there_are_forty_of_each_kind() -> None:
    assert len(DAEMON_JSON) >= 40 and len(CONFIG_TOML) >= 40


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def there_and_back(name: str, config: Path, raw: bytes, has: Callable[[bool], bool]) -> None:
    """Configures twice and unconfigures: first beside other runtimes, then as the default."""
    for is_default in (False, True):
        config.write_bytes(raw)
        default = ["--set-as-default"] if is_default else []
        words: list[str | Path] = ["configure", name, "--config", config, "--runtime-path", PROGRAM]
        words += default
        in_process("unconfigure", name, "--config", config)
        assert contents(config.parent) == {str(config): raw}
        in_process(*words)
        assert has(is_default)
        after = contents(config.parent)
        in_process(*words)
        assert contents(config.parent) == after
        in_process("unconfigure", name, "--config", config)
        assert contents(config.parent) == {str(config): raw}


def has_docker(config: Path, default: bool) -> bool:
    data = json.loads(config.read_bytes().decode("utf-8-sig"))
    is_default = data.get("default-runtime") == "xpu"
    return data["runtimes"]["xpu"]["path"] == PROGRAM and (is_default or not default)


def has_containerd(config: Path, default: bool) -> bool:
    """Whether a file has our table and a file has the default. containerd merges them, or there is
    one file."""
    tables = []
    for raw in contents(config.parent).values():
        data = tomli.loads(raw.decode("utf-8-sig"))
        plugin = data.get("plugins", {}).get(NAMES[data.get("version") or 1][0], {})
        tables.append(plugin.get("containerd", {}))
    ours = [each.get("runtimes", {}).get("xpu", {}).get("options", {}) for each in tables]
    is_default = "xpu" in [each.get("default_runtime_name") for each in tables]
    return PROGRAM in [each.get("BinaryName") for each in ours] and (is_default or not default)


@spelt
@pytest.mark.parametrize("shape", [each for each in DAEMON_JSON if each not in NAMED_BEFORE])
def test_unconfigure_restores_a_daemon_json(tmp_path: Path, shape: str, spelling: str) -> None:
    config = tmp_path / "daemon.json"
    raw = SPELLINGS[spelling](DAEMON_JSON[shape].encode())
    there_and_back("docker", config, raw, lambda default: has_docker(config, default))


#: Refused files: the version of containerd (0: any), and words of the message.
REFUSED = {
    ("docker's package: the CRI plugin is off", 2): "ignores plugins.cri",
    ("version 1 with the CRI plugin of old", 2): "ignores plugins.cri",
    ("version 1 with nvidia as the engine of the old shim", 2): "ignores plugins.cri",
    ("version 1 that says so, with gVisor", 2): "ignores plugins.cri",
    ("version 0, as dockerd writes it", 2): "ignores plugins.cri",
    ("an inline table of runtimes", 0): "as inline tables or dotted keys",
    ("k3s' generated file, version 2", 0): "written anew at each start of k3s",
}


@spelt
@pytest.mark.parametrize("version", [None, (1, 6), (2, 2)], ids=["none", "1.6", "2.2"])
@pytest.mark.parametrize("shape", [each for each in CONFIG_TOML if each not in NAMED_BEFORE])
def test_a_config_toml_is_restored_or_refused_without_a_change(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    version: tuple[int, int] | None,
    spelling: str,
) -> None:
    monkeypatch.setattr(engines, "installed_version", lambda _: version)
    config = tmp_path / "config.toml"
    raw = SPELLINGS[spelling](CONFIG_TOML[shape].replace("/etc/containerd", str(tmp_path)).encode())
    told = REFUSED.get((shape, 0)) or REFUSED.get((shape, version[0] if version else 0))
    if told is None:
        there_and_back("containerd", config, raw, lambda default: has_containerd(config, default))
        return
    config.write_bytes(raw)
    for default in ([], ["--set-as-default"]):
        with pytest.raises(ConfigError, match=told) as caught:
            in_process("configure", "containerd", "--config", config, "--runtime-path", PROGRAM, *default)
        assert caught.value.todo.endswith("; nothing was changed")
        assert contents(tmp_path) == {str(config): raw}


@pytest.mark.parametrize("name", ["docker", "containerd"])
def test_a_default_of_our_name_without_a_runtime_is_removed_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """No engine starts with such a default."""
    (text,) = [
        each
        for title, each in {**DAEMON_JSON, **CONFIG_TOML}.items()
        if title in NAMED_BEFORE and each.startswith("{") is (name == "docker")
    ]
    config = tmp_path / "config"
    gone = "".join(line for line in text.splitlines(keepends=True) if '= "xpu"' not in line)
    gone = gone.replace(',\n  "default-runtime": "xpu"', "")
    assert gone != text
    config.write_text(text)
    in_process("unconfigure", name, "--config", config)
    assert "xpu: note: default" in (said := capsys.readouterr().err) and "and takes runc" in said
    assert config.read_text() == gone
    config.write_text(text)
    in_process("configure", name, "--config", config, "--runtime-path", PROGRAM)
    assert "was xpu already; unconfigure takes that out, too" in capsys.readouterr().err
    in_process("unconfigure", name, "--config", config)
    assert config.read_text() == gone


@pytest.mark.parametrize("name", ["docker", "containerd"])
@pytest.mark.parametrize("default", [[], ["--set-as-default"]], ids=["beside", "as default"])
def test_unconfigure_removes_the_file_behind_a_link_that_was_dangling(
    tmp_path: Path, name: str, default: list[str]
) -> None:
    target, link = tmp_path / "elsewhere" / "file", tmp_path / "config"
    target.parent.mkdir()
    link.symlink_to("elsewhere/file")
    in_process("configure", name, "--config", link, "--runtime-path", PROGRAM, *default)
    assert PROGRAM in target.read_text()
    in_process("unconfigure", name, "--config", link)
    assert (os.readlink(link), target.exists()) == ("elsewhere/file", False)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file with another file mounted on it, as in a container with a mounted file."""
    source, config = tmp_path / "source", tmp_path / "config"
    source.write_text("")
    config.write_text("")
    subprocess.run(["mount", "--bind", source, config], check=True)
    try:
        yield config
    finally:
        subprocess.run(["umount", config], check=True)


@pytest.mark.parametrize("name", ["docker", "containerd"])
def test_a_file_that_is_a_mount_is_refused_with_the_remedy(mounted: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        in_process("configure", name, "--config", mounted, "--runtime-path", PROGRAM)
    assert caught.value.what == f"{mounted} is a mount of its own, which cannot be replaced"
    assert "--config" in caught.value.todo
    assert mounted.read_text() == ""
    assert [each.name for each in mounted.parent.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("verb", ["configure", "unconfigure"])
def test_the_refusal_of_k3s_config_names_its_template(tmp_path: Path, verb: str) -> None:
    template = tmp_path / "config-v3.toml.tmpl"
    text = '{{ template "base" . }}\n[plugins]\n'
    template.write_text(text)
    more = ["--runtime-path", PROGRAM] if verb == "configure" else []
    with pytest.raises(ConfigError) as caught:
        in_process(verb, "containerd", "--config", template, *more)
    assert caught.value.what == (
        f"{template} is a template, of which K3s or RKE2 makes a config.toml, and no TOML"
    )
    assert template.read_text() == text


def test_our_file_is_made_in_the_folder_that_k3s_config_imports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    shape = "k3s' generated file, version 3, with a folder of its own"
    config.write_text(CONFIG_TOML[shape].replace("/etc/containerd", str(tmp_path)))
    before = config.read_bytes()
    in_process("configure", "containerd", "--config", config, "--runtime-path", PROGRAM)
    assert config.read_bytes() == before
    assert PROGRAM in (tmp_path / "config-v3.toml.d" / "99-xpu.toml").read_text()
    told = "For the change to take effect: restart k3s, which starts this containerd\n"
    assert capsys.readouterr().out.endswith(told)
    in_process("configure", "containerd", "--config", config, "--runtime-path", PROGRAM)
    assert "restart" not in capsys.readouterr().out
    in_process("unconfigure", "containerd", "--config", config)
    assert capsys.readouterr().out.endswith(told)


@pytest.mark.parametrize(
    "entry",
    [
        '{"path": "/opt/vendor/xpu-runtime", "runtimeArgs": []}',
        '{"path": "/opt/vendor/xpu-runtime"}',
        '{"runtimeType": "io.containerd.runsc.v1"}',
    ],
)
def test_another_program_s_runtime_of_our_name_is_not_taken_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], entry: str
) -> None:
    config = tmp_path / "daemon.json"
    text = f'{{"default-runtime": "xpu", "runtimes": {{"xpu": {entry}}}}}'
    config.write_text(text)
    in_process("unconfigure", "docker", "--config", config)
    assert config.read_text() == text
    assert "xpu: note: runtimes.xpu is another program's, and stays" in capsys.readouterr().err
