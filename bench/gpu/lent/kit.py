"""The kit of a run on a lent machine, which `make lease` packs and equip.py unpacks, and its manifest.

manifest.json lists each file with its size, SHA-256, version and origin, and the sources of compiled files,
so that a kit of another tree is recognized.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
#: The folder of `make lease`, ignored by git.
KIT = REPOSITORY / "build" / "lease"
MANIFEST, FORMAT, MOST = "manifest.json", 1, 30_000_000
#: The folder where a machine is set up. It is compiled into the packed programs: runc finds its libraries
#: there, the launcher its interpreter. LD_LIBRARY_PATH would not do, because runc starts itself again with an
#: empty environment.
PLACE = Path("/opt/xpu-lease")
INTERPRETER, LIBRARIES = PLACE / "python3", PLACE / "lib"
#: The driver line of equip.py if there is none.
NO_DRIVER = "none: no NVIDIA driver is on this machine"
#: The sources of the packed tree and programs.
SOURCES = (
    "Makefile",
    "bench/gpu",
    "bench/share/load",
    "config",
    "hooks",
    "native",
    "packaging/requirements.txt",
    "packaging/third_party.py",
    "src",
)
#: Only compiled files of bench/gpu count: a script may change without a new kit.
_COMPILED = (".c", ".h", "Makefile")


class KitError(Exception):
    """There is no whole kit. The message names the file and the remedy."""


def sources(repository: Path = REPOSITORY) -> dict[str, str]:
    """A short digest of each source, by its path in the repository."""
    return {str(path.relative_to(repository)): digest(path)[:16] for path in sorted(_sources(repository))}


def _sources(repository: Path) -> Iterator[Path]:
    for name in SOURCES:
        top = repository / name
        for path in [top] if top.is_file() else top.rglob("*"):
            compiled = name != "bench/gpu" or path.name.endswith(_COMPILED)
            if path.is_file() and compiled and path.suffix != ".pyc":
                yield path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read(kit: Path) -> dict[str, Any]:
    """The manifest of a whole kit. KitError."""
    todo = "run `make lease` on the other machine, and copy build/lease here"
    try:
        manifest = json.loads((kit / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise KitError(f"no kit in {kit} ({error}): {todo}") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise KitError(f"the kit in {kit} is of format {found}, not {FORMAT}: {todo}")
    try:
        entries = [(kit / each["path"], each["size"], each["sha256"]) for each in manifest["files"]]
        {**manifest["sources"]}, manifest["commit"]
    except (LookupError, TypeError) as error:
        raise KitError(f"{kit / MANIFEST} is not whole ({type(error).__name__}: {error}): {todo}") from error
    for path, size, sha256 in entries:
        if not path.is_file() or path.stat().st_size != size or digest(path) != sha256:
            raise KitError(f"{path} is missing or differs from the packed one: {todo}")
    return dict(manifest)


def differences(manifest: dict[str, Any], repository: Path = REPOSITORY) -> list[str]:
    """Sources that differ from those of the kit's tree."""
    packed, here = manifest["sources"], sources(repository)
    return sorted(path for path in {*packed, *here} if packed.get(path) != here.get(path))
