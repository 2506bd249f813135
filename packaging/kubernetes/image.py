"""Makes the container image for Kubernetes, as an archive: image.py DEB ARCHIVE WORK.

It has only /opt/xpu: the runtime from our Debian package, the packages of the extra [kubernetes], and a
Python of its own with the C library that it needs (Debian 12's, for which the wheels are compiled). `xpu
kubernetes install-node` copies that folder to nodes, so that these need no Python; the device plugin runs
from it in the node's own mount namespace. The image has no shell and no package manager.

The same package and the same releases of Debian's packages give the same bytes; /opt/xpu/image.json lists
them. It runs as root, on x86-64, with mmdebstrap, patchelf and a C compiler; WORK is a folder for
intermediate files, and is emptied first.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

_HERE = os.path.dirname(os.path.realpath(__file__))
_REPOSITORY = os.path.dirname(os.path.dirname(_HERE))
NAME = "xpu-kubernetes"
PREFIX = "/opt/xpu"
_PYTHON = f"{PREFIX}/python/bin/python3"
_SUITE, _VERSION = "bookworm", "3.11"
_TRIPLET = "x86_64-linux-gnu"
#: `xpu kubernetes install-node` lets the node's systemd run this.
_UNIT = "xpu-agent.service"
_LOADER = "ld-linux-x86-64.so.2"
_PACKAGES = (f"python{_VERSION}-minimal", f"libpython{_VERSION}-stdlib", "libstdc++6")
#: The libraries that Python and its modules load. Since 2.34 libc includes the others, but older objects name
#: them.
_LIBRARIES = (
    _LOADER, "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1",
    "libresolv.so.2", "libnss_files.so.2", "libnss_dns.so.2", "libgcc_s.so.1", "libstdc++.so.6",
    "libz.so.1", "libexpat.so.1", "libcrypto.so.3", "libssl.so.3", "libffi.so.8", "libsqlite3.so.0",
    "libbz2.so.1.0", "liblzma.so.5", "libuuid.so.1",
)  # fmt: skip
#: Parts of the standard library that nothing here imports.
_LEFT_OUT = (
    "test", "idlelib", "tkinter", "turtledemo", "turtle.py", "lib2to3", "ensurepip", "distutils", "venv",
    "pydoc_data", "pydoc.py", "unittest", "dbm", "curses", "msilib", "xmlrpc", "__phello__",
    f"config-{_VERSION}-{_TRIPLET}", "doctest.py", "pdb.py", "this.py", "antigravity.py", "sitecustomize.py",
)  # fmt: skip
_LEFT_OUT_COMPILED = re.compile(
    r"(_codecs_(cn|hk|iso2022|jp|kr|tw)|_curses.*|_dbm|_gdbm|readline|_tkinter|audioop|ossaudiodev|nis"
    r"|_crypt|_xx.*|_test.*|xxlimited.*)\."
)
#: The user nobody, for what needs no root.
_NOBODY = 65532
_FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/none\nnobody:x:{_NOBODY}:{_NOBODY}:nobody:/:/none\n",
    "etc/group": f"root:x:0:\nnobody:x:{_NOBODY}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
_FOLDERS = ("dev", "proc", "sys", "tmp", "run", "var/run", "etc/xpu", "etc/xpu-kubernetes")


def main(deb: str, archive: str, work: str) -> None:
    work = os.path.abspath(work)
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    root = os.path.join(work, "root")
    epoch = _time_of(deb)
    debian = _debian(os.path.join(work, "debian"))
    _python(os.path.join(work, "debian"), root)
    _runtime(deb, root, work)
    wheels = _wheels(os.path.join(work, "wheels"), f"{root}{PREFIX}/lib/xpu-container-runtime/vendor")
    for folder in _FOLDERS:
        os.makedirs(os.path.join(root, folder), exist_ok=True)
    for path, text in _FILES.items():
        with open(os.path.join(root, path), "w", encoding="ascii") as file:
            file.write(text)
    # Before compiling, because compiled files contain their sources' times.
    _same_times(root, epoch)
    _compile(root)
    content = {"deb": os.path.basename(deb), "deb_sha256": _sha256(deb), "debian": debian, "wheels": wheels}
    with open(f"{root}{PREFIX}/image.json", "w", encoding="ascii") as file:
        json.dump(content, file, indent=1, sort_keys=True)
    _same_times(root, epoch)
    os.makedirs(os.path.dirname(os.path.abspath(archive)), exist_ok=True)
    _archive(root, f"{archive}.new", _version(deb), epoch)
    os.rename(f"{archive}.new", archive)
    shutil.rmtree(work)
    print(archive)


def _run(*words: str, **options: Any) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr[-3000:] or done.stdout[-3000:]}")
    return done.stdout


def _time_of(deb: str) -> int:
    """The commit's time; all times in our packages are the commit's (packaging/source.sh)."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as members:
            return max(int(member.mtime) for member in members)


def _version(deb: str) -> str:
    return _run("dpkg-deb", "--field", deb, "Version").strip()


def _debian(folder: str) -> dict[str, str]:
    """Unpacks Debian's packages into `folder`, without configuring them; their versions by name."""
    mirror = next(
        uri
        for line in _run(
            "apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Component: main"
        ).splitlines()
        for name, uri in [line.split()]
        if name in (_SUITE, "stable", "oldstable", "testing", "unstable")
    )
    _run(
        "mmdebstrap", "--variant=extract", f"--include={','.join(_PACKAGES)}",
        '--aptopt=Acquire::Check-Valid-Until "false"', '--aptopt=Acquire::Languages "none"',
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        # Extracted packages are in no database; the files that apt has fetched show the versions.
        '--aptopt=Binary::apt::APT::Keep-Downloaded-Packages "true"', "--skip=cleanup/apt",
        _SUITE, folder, mirror,
    )  # fmt: skip
    fetched = os.listdir(os.path.join(folder, "var/cache/apt/archives"))
    parts = (name[: -len(".deb")].split("_") for name in fetched if name.endswith(".deb"))
    return {package: version.replace("%3a", ":") for package, version, _ in sorted(parts)}


def _python(debian: str, root: str) -> None:
    """A Python that runs on any node: with its own loader and libraries, found beside it."""
    folder = f"{root}{PREFIX}/python"
    library = os.path.join(folder, "lib")
    os.makedirs(os.path.join(folder, "bin"))
    standard = os.path.join(library, f"python{_VERSION}")
    shutil.copytree(
        os.path.join(debian, "usr/lib", f"python{_VERSION}"),
        standard,
        ignore=lambda _, names: [
            name for name in names if name in (*_LEFT_OUT, "__pycache__") or _LEFT_OUT_COMPILED.match(name)
        ],
    )
    for name in _LIBRARIES:
        for place in ("lib", "usr/lib", f"lib/{_TRIPLET}", f"usr/lib/{_TRIPLET}", "lib64"):
            if os.path.exists(path := os.path.join(debian, place, name)):
                shutil.copy(os.path.realpath(path), os.path.join(library, name))
                break
        else:
            sys.exit(f"Debian's packages have no {name}")
    program = f"{root}{_PYTHON}"
    shutil.copy(os.path.join(debian, "usr/bin", f"python{_VERSION}"), program)
    # Its libraries come before the node's, whose C library may be older.
    _run("patchelf", "--set-interpreter", f"{PREFIX}/python/lib/{_LOADER}", program)
    _run("patchelf", "--force-rpath", "--set-rpath", f"{PREFIX}/python/lib", program)


def _runtime(deb: str, root: str, work: str) -> None:
    """The files of our package, below PREFIX, with that Python."""
    unpacked = os.path.join(work, "package")
    _run("dpkg-deb", "--extract", deb, unpacked)
    os.makedirs(f"{root}{PREFIX}/bin")
    shutil.copytree(
        f"{unpacked}/usr/lib/xpu-container-runtime",
        f"{root}{PREFIX}/lib/xpu-container-runtime",
        symlinks=True,
    )
    shutil.copytree(f"{unpacked}/usr/share/doc", f"{root}{PREFIX}/share/doc", symlinks=True)
    with open(f"{unpacked}/usr/bin/xpu", encoding="utf-8") as file:
        text = file.read()
    with open(f"{root}{PREFIX}/bin/xpu", "w", encoding="utf-8") as file:
        file.write(re.sub(r"^#!\S+", f"#!{_PYTHON}", text))
    units = f"{root}{PREFIX}/lib/systemd/system"
    os.makedirs(units)
    with open(f"{unpacked}/usr/lib/systemd/system/{_UNIT}", encoding="utf-8") as file:
        text = file.read()
    with open(f"{units}/{_UNIT}", "w", encoding="utf-8") as file:
        file.write(text.replace("=/usr/bin/", f"={PREFIX}/bin/"))
    # The path of the interpreter is compiled in: an engine's environment must not choose it.
    launcher = os.path.join(work, "launcher")
    _run(
        "make",
        "-s",
        "-C",
        os.path.join(_REPOSITORY, "native/launcher"),
        f"OUT={launcher}",
        f"PYTHON={_PYTHON}",
    )
    for name in ("xpu-container-runtime", "xpu-container-runtime-hook"):
        shutil.copy(os.path.join(launcher, name), f"{root}{PREFIX}/bin/{name}")
    for name in os.listdir(f"{root}{PREFIX}/bin"):
        os.chmod(f"{root}{PREFIX}/bin/{name}", 0o755)  # noqa: S103 - programs


def _wheels(download: str, folder: str) -> list[str]:
    """Unpacks the extra's packages into `folder`; their names."""
    _run(
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--require-hashes", "--only-binary", ":all:", "--python-version", _VERSION, "--implementation", "cp",
        "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64",
        "--dest", download, "--requirement", os.path.join(_HERE, "requirements.txt"),
    )  # fmt: skip
    names = sorted(os.listdir(download))
    for name in names:
        with zipfile.ZipFile(os.path.join(download, name)) as wheel:
            wheel.extractall(folder)  # noqa: S202 - by hash
    return names


def _same_times(root: str, epoch: int) -> None:
    for path in _paths(root):
        full = os.path.join(root, path)
        os.utime(full, (epoch, epoch), follow_symlinks=False)
        if not os.path.islink(full):
            mode = os.stat(full).st_mode
            os.chmod(full, 0o755 if os.path.isdir(full) or mode & 0o100 else 0o644)
    os.chmod(os.path.join(root, "tmp"), 0o1777)  # noqa: S103 - as everywhere


def _compile(root: str) -> None:
    """Compiles with the image's own Python, in the image: the standard library loses its sources, our modules
    keep them."""
    standard = f"{PREFIX}/python/lib/python{_VERSION}"
    # Bytecode is checked by the sources' times: checking their content would read them at each import.
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    inside = ("chroot", root, _PYTHON, "-ISB")
    _run(*inside, "-m", "compileall", "-q", "-b", standard, env=environ)
    for path, _, names in os.walk(f"{root}{standard}"):
        for name in names:
            if name.endswith(".py"):
                os.unlink(os.path.join(path, name))
    _run(*inside, f"{PREFIX}/lib/xpu-container-runtime/precompile.py", env=environ)


def _paths(root: str) -> Iterator[str]:
    for path, folders, names in os.walk(root):
        folders.sort()
        for name in sorted([*folders, *names]):
            yield os.path.relpath(os.path.join(path, name), root)


def _archive(root: str, archive: str, version: str, epoch: int) -> None:
    """An OCI image layout that `docker load` takes as well as `ctr images import`."""
    layer = _layer(root, epoch)
    compressed = gzip.compress(layer, 9, mtime=0)
    created = _run("date", "-u", "-d", f"@{epoch}", "+%Y-%m-%dT%H:%M:%SZ").strip()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "config": {
            "User": f"{_NOBODY}:{_NOBODY}",
            "Env": [f"PATH={PREFIX}/bin", "LANG=C.UTF-8"],
            "Entrypoint": [f"{PREFIX}/bin/xpu"],
            "WorkingDir": "/",
            "Labels": {"org.opencontainers.image.title": NAME, "org.opencontainers.image.version": version,
                       "org.opencontainers.image.licenses": "Apache-2.0"},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "packaging/kubernetes/image.py"}],
    }  # fmt: skip
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(data),
        }

    def text(value: Any) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    layers = [blob(compressed, "layer.v1.tar+gzip")]
    configuration = blob(text(config), "config.v1+json")
    name = f"{NAME}:{version}"
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": configuration, "layers": layers}  # fmt: skip
    entry = {**blob(text(manifest), "manifest.v1+json"), "platform": {"architecture": "amd64", "os": "linux"}}
    entry["annotations"] = {"io.containerd.image.name": f"docker.io/library/{name}",
                            "org.opencontainers.image.ref.name": version}  # fmt: skip
    paths = ["blobs/sha256/" + each["digest"].partition(":")[2] for each in (configuration, *layers)]
    files = {
        **blobs,
        "index.json": text({"schemaVersion": 2, "manifests": [entry]}),
        "oci-layout": text({"imageLayoutVersion": "1.0.0"}),
        "manifest.json": text([{"Config": paths[0], "RepoTags": [name], "Layers": paths[1:]}]),
    }
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as out:
        for path in sorted(files):
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(files[path]), epoch, 0o644
            out.addfile(member, io.BytesIO(files[path]))


def _layer(root: str, epoch: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as layer:
        for path in _paths(root):
            member = layer.gettarinfo(os.path.join(root, path), path)
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = epoch
            if member.isreg():
                with open(os.path.join(root, path), "rb") as file:
                    layer.addfile(member, file)
            else:
                layer.addfile(member)
    return out.getvalue()


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


if __name__ == "__main__":
    os.umask(0o022)
    main(*sys.argv[1:])
