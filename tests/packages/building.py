"""The packages built once more in another environment; support/packages.py builds the packages that tests
use."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support import REPOSITORY

NOBODY = 65534


def build_elsewhere(kind: str, folder: Path) -> list[Path]:
    """Builds the packages, "deb" or "rpm", of a copy of this working tree, in folder/dist: as another user,
    without a network, in another time zone."""
    copy, temporary = folder / "copy", folder / "tmp"
    copy.mkdir(parents=True)
    temporary.mkdir()
    copy_tree(copy)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", folder], check=True)
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    command = [
        "unshare", "--net", *user, f"packaging/build-{kind}", str(copy / "build"), str(folder / "dist"),
    ]  # fmt: skip
    # dpkg-deb puts its files into /tmp, and not every machine lets every user write there.
    places = {"HOME": str(folder), "TMPDIR": str(temporary)}
    environ = {"PATH": os.environ["PATH"], "TZ": "Asia/Kathmandu", "LANG": "C", **places, **commit()}
    done = subprocess.run(command, cwd=copy, env=environ, umask=0o077, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted((folder / "dist").iterdir())


def copy_tree(folder: Path) -> None:
    """Copies this working tree, with the wheels, into a folder, which becomes a git repository."""
    listed = "git ls-files -z --cached --others --exclude-standard"
    subprocess.run(
        ["sh", "-ec", f'{listed} | xargs -0 cp --parents -t "$0"; cp -r --parents build/wheels "$0"', folder],
        cwd=REPOSITORY,
        check=True,
    )
    subprocess.run(["sh", "-ec", "git init -q; git add -A"], cwd=folder, check=True)


def commit() -> dict[str, str]:
    """The variables by which the git of such a copy would name its commit, if it had this one's history."""
    return {
        "COMMIT": _git("describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"),
        "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct"),
    }


def by_name(rpms: list[Path]) -> dict[str, Path]:
    """Rpms by the packages' names; the source's is "source"."""
    return {"source" if file.match("*.src.rpm") else file.name.rsplit("-", 2)[0]: file for file in rpms}


def _git(*command: str) -> str:
    return subprocess.run(
        ["git", *command], cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout.strip()
