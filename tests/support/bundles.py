"""Real bundles for the real runc, and the installed tree, for tests of every entry point.

`bundle` makes a busybox container that asks for nothing by default; `state_root` is a private `--root` for
it. At the end runc deletes every container below it. Nothing here outlives the test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import REPOSITORY

RUNC = "/usr/sbin/runc"


def copy_root(source: Path, target: Path, copy_file: Callable[..., object] = shutil.copy2) -> None:
    """Copies an image's root folder: files by `copy_file`, symbolic links as hard links to the same ones.

    An image has 300 symbolic links to busybox. Making them anew takes 0.2 s of a processor for each bundle,
    ten times as long as the rest: ext4 searches all inodes that were freed in the last seconds, and the test
    before has just freed as many. Nobody can write to a symbolic link: a test that replaces one gets its own.
    """
    target.mkdir(parents=True)
    with os.scandir(source) as entries:
        for entry in entries:
            there = target / entry.name
            if entry.is_symlink():
                try:
                    os.link(entry.path, there, follow_symlinks=False)
                except OSError:  # another file system
                    there.symlink_to(os.readlink(entry.path))
            elif entry.is_dir():
                copy_root(Path(entry.path), there, copy_file)
            else:
                copy_file(entry.path, there)
    shutil.copystat(source, target)


@pytest.fixture(scope="session")
def installed() -> Path:
    """The PREFIX that `make install` filled: XPU_TEST_PREFIX, or build/root in this tree."""
    prefix = Path(os.environ.get("XPU_TEST_PREFIX") or REPOSITORY / "build" / "root")
    if not (prefix / "bin" / "xpu-container-runtime").exists():
        pytest.fail(f"nothing is installed at {prefix}: run `make install PREFIX={prefix}`")
    return prefix


@pytest.fixture
def container_id() -> Callable[[], str]:
    """Makes ids that no other container on the machine has."""
    return lambda: f"xpu-test-{uuid.uuid4().hex[:16]}"


@pytest.fixture
def state_root(tmp_path: Path) -> Iterator[Path]:
    """A runtime's private state folder (`--root`); its containers are deleted when the test ends."""
    root = tmp_path / "state"
    root.mkdir()
    yield root
    for state in root.iterdir():
        subprocess.run([RUNC, "--root", root, "delete", "--force", state.name], check=True, timeout=60)


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with only the static busybox; bundles have copies of it."""
    folder = tmp_path_factory.mktemp("rootfs")
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
        (folder / name).mkdir()
    shutil.copy("/bin/busybox", folder / "bin" / "busybox")
    applets = subprocess.run(["/bin/busybox", "--list"], check=True, capture_output=True, text=True).stdout
    for applet in applets.split():
        if applet != "busybox":
            (folder / "bin" / applet).symlink_to("busybox")
    return folder


@pytest.fixture(scope="session")
def base_spec(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of `runc spec`."""
    folder = tmp_path_factory.mktemp("spec")
    subprocess.run([RUNC, "spec"], cwd=folder, check=True)
    spec: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return spec


@pytest.fixture
def bundle(tmp_path: Path, state_root: Path, rootfs: Path, base_spec: dict[str, Any]) -> Callable[..., Path]:
    """Makes a bundle: `bundle(args=[...], env=[...], annotations={...}, terminal=False) -> path`.

    `args` is the command (default: `true`), `env` is added to a PATH. The bundle has its own writable root
    file system; busybox in it is a hard link. The fixture uses `state_root` so that containers end before
    their bundles.
    """

    def make(
        args: list[str] | None = None,
        env: list[str] | None = None,
        annotations: dict[str, str] | None = None,
        terminal: bool = False,
    ) -> Path:
        name = f"xpu-test-{uuid.uuid4().hex[:16]}"
        folder = tmp_path / name
        copy_root(rootfs, folder / "rootfs", os.link)
        spec = json.loads(json.dumps(base_spec))
        spec["process"]["args"] = args or ["true"]
        spec["process"]["env"] = ["PATH=/bin", *(env or [])]
        spec["process"]["terminal"] = terminal
        spec["root"] = {"path": "rootfs", "readonly": False}
        spec["linux"]["cgroupsPath"] = f"/{name}"
        if annotations is not None:
            spec["annotations"] = annotations
        (folder / "config.json").write_text(json.dumps(spec))
        return folder

    return make
