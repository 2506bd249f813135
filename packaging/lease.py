"""Packs what bench/gpu/lease needs on a machine without a network: lease.py FOLDER (`make lease`).

The folder is made anew, with kit.py's manifest (bench/gpu/lent): wheels, runc with its libraries except the C
library, a static busybox, the installed tree without the simulator, and compiled programs. The same files
give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "bench" / "gpu" / "lent"), str(REPOSITORY / "packaging")]

import kit  # noqa: E402

import sandbox  # noqa: E402

BUILD = REPOSITORY / "build"
NAME = "xpu-container-runtime"
#: Libraries of the C library's own packages; every machine has them, older or newer.
_OF_LIBC = (
    "linux-vdso",
    "ld-linux",
    "libc.so",
    "libm.so",
    "libdl.so",
    "libpthread.so",
    "librt.so",
    "libresolv.so",
)
#: Folders with a Makefile for the C programs of measurements. They are built into OUT, where their users
#: look.
PROGRAMS, OUT = ("bench/share/load", "bench/gpu", "bench/gpu/boundary"), Path("build/bench")
PROBE = Path("build/probe/cuda-probe")


class PackError(Exception):
    """Something cannot be packed; the message says what to do."""


def output(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        raise PackError(f"{' '.join(map(str, words))}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def add_runc(folder: Path) -> dict[str, tuple[str, str]]:
    """Adds runc and its libraries; by path in the kit, the version and the origin."""
    runc = Path(_program("runc"))
    target = folder / "bin" / "runc"
    shutil.copy(runc, target)
    version = f"{output(runc, '--version').splitlines()[0]}; {_least_libc(runc)}"
    added = {"bin/runc": (version, str(runc))}
    for library in _libraries(runc):
        shutil.copy(os.path.realpath(library), folder / "lib" / library.name)
        added[f"lib/{library.name}"] = (os.path.basename(os.path.realpath(library)), str(library))
    if len(added) > 1:
        # runc starts itself again with an empty environment, so its libraries' path must be in the program.
        output("patchelf", "--set-rpath", kit.LIBRARIES, target)
    return added


def _libraries(program: Path) -> Iterator[Path]:
    """The libraries that a program links to, without the C library's; none for a static one (ldd's exit
    status 1)."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        name, _, found = line.strip().partition(" => ")
        if "not found" in found:
            raise PackError(f"{program} does not find its {name} here: install the package that has it")
        if found and not name.startswith(_OF_LIBC):
            yield Path(found.split()[0])


def add_busybox(folder: Path) -> dict[str, tuple[str, str]]:
    busybox = _program("busybox")
    if "INTERP" in output("readelf", "--program-headers", "--wide", busybox):
        raise PackError(f"{busybox} is not static: install busybox-static")
    shutil.copy(busybox, folder / "bin" / "busybox")
    return {"bin/busybox": (output(busybox, "--help").split(" (")[0], busybox)}


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if not found:
        raise PackError(
            f"there is no {name} here: run `make lease` as root, which installs it, or install it"
        )
    return found


def add_tree(folder: Path, commit: str) -> dict[str, tuple[str, str]]:
    """Adds the tree that `make install` makes, without the simulator and compiled files, for the interpreter
    at kit.INTERPRETER."""
    root, launcher = folder / "tree", BUILD / "lease-launcher"
    install = [
        "make",
        "-s",
        "-C",
        REPOSITORY,
        f"DESTDIR={root}",
        "PREFIX=",
        f"COMMIT={commit}",
        "install-runtime",
    ]
    (root / "bin").mkdir(parents=True)
    output(*install, f"PYTHON={kit.INTERPRETER}")
    output("make", "-s", "-C", REPOSITORY / "native/launcher", f"OUT={launcher}", f"PYTHON={kit.INTERPRETER}")
    for name in (NAME, f"{NAME}-hook"):
        shutil.copy(launcher / name, root / "bin" / name)
    pack(root, folder / "tree.tar.gz")
    shutil.rmtree(root)
    return {"tree.tar.gz": (f"{NAME} {commit}", "make install-runtime")}


def pack(folder: Path, archive: Path) -> None:
    """Packs a folder; the same files give the same bytes: sorted, of root, with the time 0."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            entry = tar.gettarinfo(str(path), str(path.relative_to(folder)))
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = "root"
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)
    with archive.open("wb") as target, gzip.GzipFile("", "wb", 9, target, mtime=0) as packed:
        packed.write(whole.getvalue())


def add_programs(folder: Path) -> dict[str, tuple[str, str]]:
    """Adds the programs below `build/`, by their paths in the repository; equip.py copies them there."""
    made = {}
    shutil.rmtree(BUILD / "lease-programs", ignore_errors=True)
    for source in PROGRAMS:
        out = BUILD / "lease-programs" / source.replace("/", "-")
        if (REPOSITORY / source / "Makefile").exists():
            output("make", "-s", "-C", REPOSITORY / source, f"OUT={out}")
            made.update({OUT / path.name: (path, source) for path in sorted(out.iterdir())})
    made[PROBE] = (REPOSITORY / PROBE, "native/probe")
    built = Path(sandbox.build())
    for name in sandbox.LIBRARIES:
        made[built.relative_to(REPOSITORY) / name] = (built / name, "native/interposer/nvidia")
    for target, (path, _) in made.items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / target)
    return {str(target): (_least_libc(path), source) for target, (path, source) in made.items()}


def _least_libc(program: Path) -> str:
    """The newest version of the C library that a program needs."""
    words = output("objdump", "-T", program).replace("(", " ").replace(")", " ").split()
    versions = [word.removeprefix("GLIBC_") for word in words if word.startswith("GLIBC_")]
    numbers = [version.split(".") for version in versions if version.replace(".", "").isdecimal()]
    return (
        f"needs glibc {'.'.join(max(numbers, key=lambda parts: [int(part) for part in parts]))}"
        if numbers
        else ""
    )


def add_wheels(folder: Path) -> dict[str, tuple[str, str]]:
    wheels = sorted((BUILD / "wheels").iterdir())
    for path in wheels:
        shutil.copy(path, folder / "wheels" / path.name)
    return {f"wheels/{path.name}": (path.name.partition("-py")[0], "make deps") for path in wheels}


def write_manifest(folder: Path, commit: str, added: dict[str, tuple[str, str]]) -> int:
    """Writes the manifest; returns the total size. PackError if it is too large."""
    files = []
    for name, (version, source) in sorted(added.items()):
        data = (folder / name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        files.append({"path": name, "size": len(data), "sha256": digest, "version": version, "from": source})
    total = sum(int(str(each["size"])) for each in files)
    if total > kit.MOST:
        largest = sorted(files, key=lambda each: -int(str(each["size"])))[:3]
        named = ", ".join(f"{each['path']} {int(str(each['size'])) / 1e6:.1f} MB" for each in largest)
        raise PackError(
            f"the kit has {total / 1e6:.1f} MB of at most {kit.MOST / 1e6:.0f}; the largest: {named}"
        )
    manifest = {"format": kit.FORMAT, "commit": commit, "files": files, "sources": kit.sources()}
    (folder / kit.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return total


def main(words: Sequence[str]) -> None:
    target = Path(words[0])
    folder = target.with_name(f"{target.name}.new")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("bin", "lib", "wheels"):
        (folder / name).mkdir(parents=True)
    commit = words[1] if len(words) > 1 else ""
    try:
        added = {**add_wheels(folder), **add_runc(folder), **add_busybox(folder), **add_programs(folder)}
        added.update(add_tree(folder, commit))
        total = write_manifest(folder, commit, added)
    except PackError as error:
        shutil.rmtree(folder)
        sys.exit(f"make lease: {error}")
    shutil.rmtree(target, ignore_errors=True)
    folder.rename(target)
    print(f"{target}: {len(added)} files, {total / 1e6:.1f} MB, of commit {commit or 'unknown'}")


if __name__ == "__main__":
    main(sys.argv[1:])
