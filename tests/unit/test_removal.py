"""Changes of engines' configuration before the package is removed, by root, in files that others may own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import REPOSITORY
from xpu_runtime import paths
from xpu_runtime.cli import removal
from xpu_runtime.engines import docker, engine, unconfigure
from xpu_runtime.errors import ConfigError
from xpu_runtime.observe import engine as engine_processes
from xpu_runtime.observe.engine import LAUNCHER, Process
from xpu_runtime.textfile import TextFile, read, write
from xpu_runtime.vendors import cdi_file

OURS = json.dumps({"debug": True, "runtimes": {"xpu": {"path": LAUNCHER}}})
NOBODY = 65534


@pytest.fixture
def etc() -> Iterator[Path]:
    """A folder that only root can write to, as are all above it."""
    folder = Path(f"/root/xpu-etc-{os.getpid()}")
    folder.mkdir(mode=0o755)
    yield folder
    subprocess.run(["rm", "-r", folder], check=True)


@pytest.mark.parametrize("wrong", ["file", "folder", "mode"])
def test_a_file_that_others_can_change_is_left_to_its_owner(etc: Path, wrong: str) -> None:
    path = etc / "daemon.json"
    path.write_text(OURS)
    if wrong == "mode":
        path.chmod(0o664)
    else:
        os.chown(path if wrong == "file" else etc, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match="belongs to another user than root, or others may write to it"):
        removal._unconfigure(engine("docker"), str(path))
    assert path.read_text() == OURS
    os.chown(path, 0, 0)
    os.chown(etc, 0, 0)
    path.chmod(0o644)
    assert removal._unconfigure(engine("docker"), str(path)) is True
    assert json.loads(path.read_text()) == {"debug": True}


def test_a_file_that_is_not_understood_and_does_not_name_us_is_nobodys_concern(etc: Path) -> None:
    path = etc / "containerd.toml"
    path.write_text("version = 0\n")
    assert removal._unconfigure(engine("containerd"), str(path)) is False


def test_another_installations_file_stays_and_an_engine_that_reads_it_does_not_call_us(
    etc: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = etc / "daemon.json"
    theirs = OURS.replace(LAUNCHER, f"{LAUNCHER}-of-another")
    path.write_text(theirs)
    running = [Process(os.getpid(), ("dockerd", "--config-file", str(path), "--host", "unix:///none"), 0.0)]
    monkeypatch.setattr(docker, "DEFAULT_PATH", str(path))
    monkeypatch.setattr(engine_processes, "running", lambda name: running if name == "dockerd" else [])
    assert list(removal._engine("docker")) == []
    assert path.read_text() == theirs
    # Unless its command line says so, which nobody can change before it is started again.
    running[:] = [Process(os.getpid(), (*running[0].words, "--add-runtime", f"xpu={LAUNCHER}"), 0.0)]
    assert [caller.pid for caller in removal._engine("docker")] == [os.getpid()]
    told = capsys.readouterr().err
    assert f"the command line of process {os.getpid()} names {LAUNCHER}: take that out" in told
    assert path.read_text() == theirs


def test_if_one_file_cannot_be_written_the_others_are_and_its_readers_count(etc: Path) -> None:
    # A file that something is mounted on cannot be replaced.
    path = etc / "daemon.json"
    path.write_text(OURS)
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(REPOSITORY / "src")!r})
        from xpu_runtime.cli import removal
        from xpu_runtime.engines import docker
        docker.DEFAULT_PATH = {str(path)!r}
        print(*[(caller.pid, caller.text) for caller in removal._engine("docker")])
    """
    mounted = ["unshare", "-m", "sh", "-ec", f'mount --bind {path} {path}; exec "$@"', "sh"]
    done = subprocess.run([*mounted, sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"(1, '{path}, until you take xpu out of it')" in done.stdout
    assert "still in docker's configuration, take it out there: " in done.stderr


def test_a_dockerd_that_would_not_start_without_us_keeps_its_file(
    etc: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = etc / "daemon.json"
    path.write_text(OURS)
    words = ["dockerd", "--config-file", str(path), "--default-runtime", "xpu"]
    running = [Process(os.getpid(), tuple(words), 0.0)]
    monkeypatch.setattr(docker, "DEFAULT_PATH", str(path))
    monkeypatch.setattr(engine_processes, "running", lambda name: running if name == "dockerd" else [])
    callers = list(removal._engine("docker"))
    assert path.read_text() == OURS
    assert (callers[0].pid, callers[0].text) == (1, f"{path}, until you take xpu out of it")
    told = capsys.readouterr().err
    assert "still in docker's configuration, take it out there: " in told
    assert told.count("does not start without that runtime") == 1
    # With the runtime in its command line it does not need the file's.
    running[:] = [Process(os.getpid(), (*words, "--add-runtime", "xpu=/mine"), 0.0)]
    assert [caller.pid for caller in removal._engine("docker")] == [os.getpid()]
    assert json.loads(path.read_text()) == {"debug": True}


def test_a_file_that_configure_made_is_gone_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "daemon.json"
    monkeypatch.setattr(docker, "DEFAULT_PATH", str(path))
    for set_as_default in (False, True):
        (edit,) = docker.configure(read(str(path)), LAUNCHER, set_as_default)
        write(edit.file, edit.text)
        (edit,) = unconfigure(engine("docker"), read(str(path)))
        assert edit.text is None
        write(edit.file, edit.text)
        assert not path.exists()
    path.write_text(OURS)
    (edit,) = unconfigure(engine("docker"), read(str(path)))
    assert json.loads(edit.text or "") == {"debug": True}


def test_a_new_file_gets_its_owner_by_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    os.chown(path, NOBODY, NOBODY)
    monkeypatch.setattr(os, "chown", None)  # by a path, which may lead elsewhere by then
    file: TextFile = read(str(path))
    write(file, "after")
    assert (path.read_text(), path.stat().st_uid) == ("after", NOBODY)


@pytest.mark.parametrize(
    ("beside", "is_link", "hook", "left"),
    [
        ("", False, f"{LAUNCHER}-hook", None),
        ("nvidia.yaml", False, f"{LAUNCHER}-hook", ["nvidia.yaml"]),
        ("", True, f"{LAUNCHER}-hook", []),
        ("", False, "/usr/local/bin/xpu-container-runtime-hook", ["yoyoworks.com-xpu.yaml"]),
    ],
)
def test_the_cdi_file_of_this_installation_goes_without_a_word(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    beside: str,
    is_link: bool,
    hook: str,
    left: list[str] | None,
) -> None:
    folder = tmp_path / "cdi"
    if is_link:
        (tmp_path / "other").mkdir()
        folder.symlink_to(tmp_path / "other")
    else:
        folder.mkdir()
    monkeypatch.setattr(paths, "DEFAULT_CDI_DIR", str(folder))
    (folder / "yoyoworks.com-xpu.yaml").write_text(f'{cdi_file.MARK}\n    - path: "{hook}"\n')
    if beside:
        (folder / beside).touch()
    removal._remove_cdi_file()
    assert (sorted(each.name for each in folder.iterdir()) if folder.exists() else None) == left
    assert capsys.readouterr() == ("", "")
