"""The Debian packages of this working tree, built once for all tests of a session."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from . import REPOSITORY

NAMES = ("xpu-container-runtime", "xpu-simulator")
_FOLDER = REPOSITORY / "build" / "packages"


@pytest.fixture(scope="session")
def debs() -> list[Path]:
    """Both packages, xpu-container-runtime's first; XPU_TEST_PACKAGES can name a folder that has them."""
    if "XPU_TEST_PACKAGES" in os.environ:
        return in_folder(Path(os.environ["XPU_TEST_PACKAGES"]))
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with open(_FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = _FOLDER / session
        if not made.is_dir():
            for old in _FOLDER.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            build(REPOSITORY, _FOLDER)
            (_FOLDER / "dist").rename(made)
            shutil.rmtree(_FOLDER / "build")
    return in_folder(made)


def in_folder(folder: Path) -> list[Path]:
    """Both packages of a folder that has only one version of each."""
    return [next(folder.glob(f"{name}_*.deb")) for name in NAMES]


def build(source: Path, folder: Path, kind: str = "deb", arch: str = "") -> list[Path]:
    """Builds as `make deb` does, or `make rpm` for "rpm", after their requirements are met; the packages in
    folder/dist. `arch` is another machine's, by this kind of packages' name for it."""
    (folder / "build").mkdir()
    shutil.copytree(REPOSITORY / "build" / "wheels", folder / "build" / "wheels")
    command = [
        f"packaging/build-{kind}",
        str(folder / "build"),
        str(folder / "dist"),
        *([arch] if arch else []),
    ]
    # This must not be a part of the make that may have started us.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.fail(f"the packages cannot be built: {done.stdout}{done.stderr}")
    return sorted((folder / "dist").iterdir())


@pytest.fixture(scope="session")
def kubernetes_image(debs: list[Path]) -> Path:
    """The archive of the image for Kubernetes, made of those packages."""
    folder = _FOLDER.parent / "kubernetes-image"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{os.environ.get('PYTEST_XDIST_TESTRUNUID') or debs[0].stat().st_mtime_ns}.tar"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).exists():
            for old in folder.glob("*.tar"):
                old.unlink()
            make_image(debs[0], folder / name, folder / "work")
    return folder / name


def make_image(deb: Path, archive: Path, work: Path) -> None:
    """Makes the image from a package, as `make image` does."""
    program = REPOSITORY / "packaging" / "kubernetes" / "image.py"
    done = subprocess.run(
        [sys.executable, program, deb, archive, work], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        pytest.fail(f"the image cannot be made: {done.stdout}{done.stderr}")
