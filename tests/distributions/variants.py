"""Packages of other versions: built from an earlier commit, or this commit's with a changed constant."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from support import REPOSITORY
from support.packages import NAMES, build, in_folder
from xpu_runtime.ledger.layout import VERSION

_LIB = "usr/lib/xpu-container-runtime"
#: The path in the source tree of the file with the version.
_VERSION_FILE = "src/xpu_runtime/version.py"
_VERSION = re.compile(r'^VERSION = "(.*)"$', re.MULTILINE)


class Deb:
    """An unpacked package, whose files can be changed."""

    def __init__(self, deb: Path, folder: Path) -> None:
        subprocess.run(["dpkg-deb", "--raw-extract", deb, folder], check=True)
        self.folder = folder

    def substitute(self, path: str, old: str, new: str) -> None:
        file = self.folder / path
        text = file.read_text()
        assert old in text, f"{path} has no {old!r}"
        file.write_text(text.replace(old, new, 1))

    def write(self, into: Path) -> None:
        """Packs it again, with the checksum of its Python files, as `make install` writes it."""
        top = self.folder / _LIB / "python"
        if (top / "xpu_bundle.py").exists():
            files = [top / "xpu_bundle.py", *sorted((top / "xpu_runtime").rglob("*.py"))]
            found = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:15]
            for file in (top / "xpu_bundle.py", top / "xpu_runtime/version.py"):
                file.write_text(re.sub("^BUILD = .*", f'BUILD = "{found}"', file.read_text(), flags=re.M))
        shutil.rmtree(self.folder / "DEBIAN" / "md5sums", ignore_errors=True)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Znone", "--build", self.folder, into],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def changed(
    debs: list[Path],
    into: Path,
    version: str,
    constants: Mapping[str, tuple[str, str]],
    files: Mapping[str, Path] | None = None,
) -> list[Path]:
    """Both packages as `version`, with changed constants (by the module's file) and replaced files."""
    into.mkdir()
    for name, deb in zip(NAMES, debs):
        unpacked = Deb(deb, into / name)
        control = (unpacked.folder / "DEBIAN/control").read_text()
        (old,) = re.findall("^Version: (.*)$", control, re.MULTILINE)
        (unpacked.folder / "DEBIAN/control").write_text(control.replace(old, version))
        if name == NAMES[0]:
            module = f"{_LIB}/python/xpu_runtime"
            unpacked.substitute(f"{module}/version.py", f'VERSION = "{old}"', f'VERSION = "{version}"')
            for path, (before, after) in constants.items():
                unpacked.substitute(f"{module}/{path}", before, after)
            for path, file in (files or {}).items():
                shutil.copy(file, unpacked.folder / _LIB / path)
        unpacked.write(into)
        shutil.rmtree(unpacked.folder)
    return in_folder(into)


def _git(*words: str | Path) -> str:
    done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def earlier_commit() -> str:
    """The newest commit with another version; without one, the first commit that has packages; "" if the
    clone has no such history.
    """
    now = _VERSION.findall((REPOSITORY / _VERSION_FILE).read_text())
    for commit in _git("log", "--format=%H", "--", _VERSION_FILE).split():
        there = _VERSION.findall(_git("show", f"{commit}:{_VERSION_FILE}"))
        if there and there != now:
            return commit
    first = _git("log", "--format=%H", "--diff-filter=A", "--", "packaging/deb/control").split()
    # In a shallow clone all files appear in its oldest commit, so that it does not show which commit had
    # packages first.
    shallow = _git("rev-parse", "--is-shallow-repository") == "true"
    return first[-1] if first and not shallow and first[-1] != _git("rev-parse", "HEAD") else ""


def earlier(debs: list[Path], folder: Path) -> tuple[list[Path], str]:
    """The packages of an earlier version, and a description of them."""
    commit = earlier_commit()
    if not commit:
        older = {"ledger/layout.py": (f"VERSION = {VERSION}", f"VERSION = {VERSION - 1}")}
        return changed(debs, folder, "0.0.9", older), "this version's, with an older layout of the ledger"
    source = folder / "source"
    subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", REPOSITORY, source], check=True)
    subprocess.run(["git", "-C", source, "checkout", "-q", commit], check=True)
    build(source, folder)
    return in_folder(folder / "dist"), f"built from {commit[:12]}"


def constant(deb: Path, module: str, name: str) -> int:
    """An integer constant in a module of a package, with or without an underscore before its name."""
    path = f"./{_LIB}/python/xpu_runtime/{module}"
    tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, stdout=subprocess.PIPE).stdout
    text = subprocess.run(["tar", "-xO", path], input=tar, check=True, stdout=subprocess.PIPE).stdout.decode()
    return int(re.findall(rf"^_?{name} = (\d+)$", text, re.MULTILINE)[0])


def interposers_of_abi(abi: int, folder: Path) -> dict[str, Path]:
    """The interposer libraries, built for pages of another ABI, by their paths in the package."""
    native = folder / "native"
    shutil.copytree(REPOSITORY / "native", native)
    header = native / "abi/page.h"
    text = header.read_text()
    assert "XPU_ABI = 2," in text
    header.write_text(text.replace("XPU_ABI = 2,", f"XPU_ABI = {abi},"))
    subprocess.run(
        ["make", "-s", "-j2", "-C", native / "interposer/nvidia", f"OUT={folder / 'out'}"], check=True
    )
    return {
        f"native/interposer/nvidia/{name}": folder / "out" / name
        for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    }
