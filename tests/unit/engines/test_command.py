"""`xpu runtime configure|unconfigure` on complete files."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime import textfile
from xpu_runtime.engines import ENGINES, engine
from xpu_runtime.errors import ConfigError

PROGRAM = "/bin/true"
STARTS = {
    "docker": '{\n  "debug": true\n}\n',
    "containerd": "version = 2\n# mine\n",
    "podman": '[network] # mine\nnetwork_backend = "netavark"\n',
    "crio": '[crio.image] # mine\npause_image = "pause"\n',
}
BROKEN = {
    "docker": '{\n  "debug": true,\n  data\n}\n',
    "containerd": "version = 2\n[plugins\n",
    "podman": "# mine\n[network\n",
    "crio": "# mine\n[crio\n",
}


def configure(xpu: Any, name: str, config: Path, *more: str) -> Any:
    return xpu("runtime", "configure", name, "--config", config, "--runtime-path", PROGRAM, *more)


def test_every_engine_module_has_the_names_that_the_command_uses() -> None:
    for name in ENGINES:
        known = engine(name)
        assert os.path.isabs(known.DEFAULT_PATH)
        assert callable(known.configure) and callable(known.unconfigure)
        file = textfile.read(known.DEFAULT_PATH)
        assert known.after_change(file, False) and known.after_change(file, True)


@pytest.mark.parametrize("name", ENGINES)
def test_a_change_is_shown_then_made_once_and_undone(tmp_path: Path, xpu: Any, name: str) -> None:
    config = tmp_path / "config"
    config.write_text(STARTS[name])

    def there() -> tuple[int, int]:
        return config.stat().st_mtime_ns, config.stat().st_ino

    before = there()
    done = configure(xpu, name, config, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"--- {config}\n+++ {config}\n@@")
    assert any(line.startswith("+") and PROGRAM in line for line in done.stdout.splitlines())
    assert (config.read_text(), there()) == (STARTS[name], before)
    assert configure(xpu, name, config).returncode == 0
    after = there()
    done = configure(xpu, name, config)
    assert (done.returncode, done.stdout) == (0, f"{config}: nothing to change\n")
    assert there() == after
    assert xpu("runtime", "unconfigure", name, "--config", config).returncode == 0
    assert config.read_text() == STARTS[name]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("verb", ["configure", "unconfigure"])
def test_a_malformed_file_is_refused_with_its_place_and_left_as_it_is(
    tmp_path: Path, xpu: Any, name: str, verb: str
) -> None:
    config = tmp_path / "config"
    config.write_text(BROKEN[name])
    more = ["--runtime-path", PROGRAM] if verb == "configure" else []
    done = xpu("runtime", verb, name, "--config", config, *more)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"xpu: {config}:{3 if name == 'docker' else 2}:")
    assert done.stderr.endswith("fix it first; nothing was changed\n")
    assert config.read_text() == BROKEN[name]


@pytest.mark.parametrize("name", ENGINES)
def test_a_missing_file_is_made_and_unconfigure_makes_none(tmp_path: Path, xpu: Any, name: str) -> None:
    config = tmp_path / "config"
    assert xpu("runtime", "unconfigure", name, "--config", config).returncode == 0
    shown = configure(xpu, name, config, "--dry-run")
    assert shown.stdout.startswith(f"--- /dev/null\n+++ {config}\n") and not config.exists()
    assert configure(xpu, name, config).returncode == 0
    assert stat.S_IMODE(config.stat().st_mode) == 0o644
    assert PROGRAM in config.read_text()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("default", [[], ["--set-as-default"]], ids=["beside", "as default"])
@pytest.mark.parametrize("before", [None, b"", b"\n"], ids=["no file", "empty", "blank"])
def test_unconfigure_removes_a_file_that_configure_made(
    tmp_path: Path, xpu: Any, name: str, default: list[str], before: bytes | None
) -> None:
    config = tmp_path / "config"
    if before is not None:
        config.write_bytes(before)
    assert configure(xpu, name, config, *default).returncode == 0
    assert xpu("runtime", "unconfigure", name, "--config", config).returncode == 0
    assert (config.read_bytes() if config.exists() else None) == before


@pytest.mark.parametrize("name", ENGINES)
def test_configure_does_not_make_a_missing_folder(tmp_path: Path, xpu: Any, name: str) -> None:
    config = tmp_path / "dokcer/config"
    done = configure(xpu, name, config)
    assert done.returncode == 1
    assert done.stderr == f"xpu: {config}: there is no folder {config.parent}: is the path spelt right?\n"
    assert not config.parent.exists()


def test_an_engine_that_is_not_installed_is_not_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xpu_runtime.cli import runtime
    from xpu_runtime.engines import docker

    monkeypatch.setattr(docker, "DEFAULT_PATH", str(tmp_path / "docker/daemon.json"))
    monkeypatch.setattr(docker, "PROGRAM", "no-such-dockerd")
    with pytest.raises(ConfigError, match="install docker first"):
        runtime._check_folder("docker", None, docker)  # type: ignore[arg-type]
    # Today's packages do not contain the folder: the engine makes it at first use, or never.
    monkeypatch.setattr(docker, "PROGRAM", "true")
    runtime._check_folder("docker", None, docker)  # type: ignore[arg-type]


@pytest.mark.parametrize("program", ["/nope", "/etc/passwd", "/usr/bin"])
def test_a_runtime_that_cannot_be_started_is_not_configured(tmp_path: Path, xpu: Any, program: str) -> None:
    config = tmp_path / "config"
    done = xpu("runtime", "configure", "docker", "--config", config, "--runtime-path", program)
    assert done.returncode == 1
    assert done.stderr.startswith(f"xpu: --runtime-path {program} is not an executable file: ")
    assert not config.exists()


def test_configure_keeps_mode_owner_and_symlink(tmp_path: Path, xpu: Any) -> None:
    target = tmp_path / "elsewhere.json"
    target.write_text("{}")
    target.chmod(0o640)
    os.chown(target, 12345, 54321)
    link = tmp_path / "daemon.json"
    link.symlink_to("elsewhere.json")
    assert configure(xpu, "docker", link).returncode == 0
    found = target.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o640, 12345, 54321)
    assert os.readlink(link) == "elsewhere.json"
    assert json.loads(target.read_text())["runtimes"]["xpu"]["path"] == PROGRAM
    assert sorted(os.listdir(tmp_path)) == ["daemon.json", "elsewhere.json"]


def test_a_file_that_changes_during_configure_is_not_overwritten(tmp_path: Path) -> None:
    config = tmp_path / "daemon.json"
    config.write_text("{}")
    file = textfile.read(str(config))
    config.write_text('{"debug": true}')
    with pytest.raises(ConfigError, match="changed by somebody else meanwhile"):
        textfile.write(file, "{ }")
    assert config.read_text() == '{"debug": true}'
    assert os.listdir(tmp_path) == ["daemon.json"]


@pytest.mark.parametrize("raw", [b"\xff{}", b"x" * (textfile.LARGEST + 1)])
def test_a_file_that_is_not_utf8_or_too_large_is_refused(tmp_path: Path, xpu: Any, raw: bytes) -> None:
    config = tmp_path / "daemon.json"
    config.write_bytes(raw)
    done = configure(xpu, "docker", config)
    assert done.returncode == 1 and done.stderr.startswith(f"xpu: {config}")
    assert config.read_bytes() == raw


def test_configure_names_the_runtime_in_the_folder_of_xpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xpu_runtime.cli.runtime import _program

    (tmp_path / "lib").mkdir()
    (tmp_path / "bin").mkdir()
    for name in ("xpu", "xpu-container-runtime"):
        (tmp_path / "lib" / name).write_text("#!/bin/sh\n")
        (tmp_path / "lib" / name).chmod(0o755)
    (tmp_path / "bin/xpu").symlink_to("../lib/xpu")
    monkeypatch.setattr("sys.argv", [str(tmp_path / "bin/xpu")])
    assert _program(None) == str(tmp_path / "lib/xpu-container-runtime")
    (tmp_path / "bin/xpu-container-runtime").symlink_to("../lib/xpu-container-runtime")
    assert _program(None) == str(tmp_path / "bin/xpu-container-runtime")


def test_a_runtime_path_that_is_not_absolute_is_a_usage_error(tmp_path: Path, xpu: Any) -> None:
    config = tmp_path / "daemon.json"
    done = xpu("runtime", "configure", "docker", "--config", config, "--runtime-path", "bin/x")
    assert done.returncode == 2 and "absolute path" in done.stderr and not config.exists()


def test_an_unknown_engine_is_a_usage_error_that_names_the_known_ones(xpu: Any) -> None:
    done = xpu("runtime", "configure", "dokcer")
    assert done.returncode == 2 and all(name in done.stderr for name in ENGINES)
