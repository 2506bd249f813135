"""The programs of the tests' cluster; all are Debian 12's, on any release.

etcd, containerd and its shim are unpacked from Debian's packages; nothing is installed on the machine. No
package has Kubernetes' own programs: they are built from Debian's source package of Kubernetes 1.20 with
Debian's Go. Source and Go are unpacked beside them, and removed when the build ends. The build takes five
minutes of a processor, so all clones of a user share its result. It is in the user's cache, under a digest of
what it was made from, or below build/ if the cache cannot be written to.

`make test` starts the build beside lint and tests (python3 -m kubernetes.parts says what each step costs);
the first test that needs the programs waits for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from distributions.root import mirror
from support import REPOSITORY

_OF_THIS_CLONE = REPOSITORY / "build" / "kubernetes"
_SUITE = "bookworm"
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
#: The packages whose programs are used unchanged, and the programs that are taken from them.
_UNPACKED = {
    "etcd-server": ("etcd",),
    "containerd": ("containerd", "containerd-shim-runc-v2", "ctr"),
}
_TOOLS = ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev")
_GO = "usr/lib/go-1.19"
_SOURCE = "kubernetes"
_VERSION = "v1.20.2"
_BUILT = ("kube-apiserver", "kube-scheduler", "kubelet", "kube-controller-manager")
#: Half of the code to compile is for clouds' volumes and for kubelet's former docker driver.
_TAGS = "providerless,dockerless"
_PACKAGE = "k8s.io/kubernetes"
_NUMBERS = _VERSION.removeprefix("v").split(".")
_VERSIONS = {"gitVersion": _VERSION, "gitMajor": _NUMBERS[0], "gitMinor": _NUMBERS[1]}
_LINKING = " ".join(
    ["-s", "-w"]
    + [
        f"-X {_PACKAGE}/vendor/k8s.io/{package}/version.{name}={value}"
        for package in ("component-base", "client-go/pkg")
        for name, value in _VERSIONS.items()
    ]
)
#: A generator makes this one file of the source, from all types with this line.
_OPENAPI = "pkg/generated/openapi"
_OPENAPI_TAG = "^// *+k8s:openapi-gen=true"
_NO_OPENAPI = ("code-generator", "sample-apiserver", "sample-controller", "sample-cli-plugin")


class PartsError(Exception):
    """The programs cannot be had; the message says why."""


def prepare() -> Path:
    """The folder with all programs; made if it is missing. PartsError.

    The folder's name is a digest of what it was made from. If several processes need it, one makes it, and
    renames it when it is complete: a killed build leaves nothing that looks complete.
    """
    # This file has the recipe and the steps; the cache has other commits' builds too.
    name = hashlib.sha256(Path(__file__).read_bytes() + os.uname().machine.encode()).hexdigest()
    cache = _cache()
    folder = cache / name
    programs = [*_BUILT, *(name for names in _UNPACKED.values() for name in names)]
    try:
        with open(cache / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for killed in cache.glob("being-made*"):
                shutil.rmtree(killed, ignore_errors=True)
            if not all((folder / program).is_file() for program in programs):
                shutil.rmtree(folder, ignore_errors=True)
                unfinished = Path(tempfile.mkdtemp(prefix="being-made", dir=cache))
                (unfinished / "programs").mkdir()
                with _said("all"):
                    _make(unfinished)
                (unfinished / "programs").rename(folder)
                shutil.rmtree(unfinished)
    except OSError as error:
        raise PartsError(f"{cache}: {error}") from error
    return folder


def _cache() -> Path:
    """The folder that keeps builds; the variable and its default are XDG's Base Directory Specification's."""
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not shared.is_absolute():
        shared = Path(os.path.expanduser("~/.cache"))
    for folder in (shared / "xpu-container-runtime" / "kubernetes", _OF_THIS_CLONE):
        try:
            if not folder.is_absolute():
                continue
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "lock").touch()
            if folder.stat().st_uid != os.geteuid():
                continue  # its owner could put programs there
        except OSError:
            continue
        return folder
    raise PartsError(f"{_OF_THIS_CLONE} cannot be written to")


def _make(folder: Path) -> None:
    programs, root = folder / "programs", folder / "root"
    source = folder / "go" / "src" / _PACKAGE
    with _said("packages"):
        packages = _fetch(folder)
        for package in packages:
            _run("dpkg-deb", "--extract", package, root)
        source.parent.mkdir(parents=True)
        (description,) = folder.glob("*.dsc")
        _run("dpkg-source", "--extract", "--no-check", description, source)
        for names in _UNPACKED.values():
            for name in names:
                shutil.move(root / "usr/bin" / name, programs / name)
        # The source's own copy does not know this Go's maps, and kube-apiserver would crash.
        reflect = source / "vendor/github.com/modern-go/reflect2"
        shutil.rmtree(reflect)
        shutil.copytree(root / "usr/share/gocode/src/github.com/modern-go/reflect2", reflect)
    go = _Go(root / _GO, folder / "go", source)
    with _said(_OPENAPI):
        _generate_openapi(go, source)
    for name in _BUILT:
        with _said(name):
            go.build(f"cmd/{name}", programs / name, "-tags", _TAGS, "-ldflags", _LINKING)


def _fetch(folder: Path) -> list[Path]:
    """Downloads packages and source into `folder`, and leaves this machine's apt alone; the packages."""
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "archives" / "partial").mkdir(parents=True)
    where = f"[signed-by={_KEYS}] {mirror()} {_SUITE} main"
    (folder / "sources.list").write_text(f"deb {where}\ndeb-src {where}\n")
    settings = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        # A mirror's copy may be some weeks old.
        "Acquire::Check-Valid-Until": "false",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    _run(*apt, "update")
    _run(*apt, "download", *_UNPACKED, *_TOOLS, cwd=folder)
    _run(*apt, "source", "--download-only", _SOURCE, cwd=folder)
    return sorted(folder.glob("*.deb"))


class _Go:
    """Debian's Go, with one tree as the whole GOPATH."""

    def __init__(self, go: Path, path: Path, source: Path) -> None:
        self._program = go / "bin" / "go"
        self._source = source
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(path),
            "GOROOT": str(go),
            "GOPATH": str(path),
            "GOCACHE": str(path / "cache"),
            "GO111MODULE": "off",
            # Debian builds its own packages so; it needs no C compiler.
            "CGO_ENABLED": "0",
        }

    def build(self, package: str, program: Path, *options: str) -> None:
        words: list[str | Path] = [self._program, "build", *options, "-o", program, f"{_PACKAGE}/{package}"]
        _run(*words, cwd=self._source, env=self.environ)


def _generate_openapi(go: _Go, source: Path) -> None:
    generator = source.parent / "openapi-gen"
    go.build("vendor/k8s.io/kube-openapi/cmd/openapi-gen", generator)
    places = [place for place in sorted(source.glob("vendor/k8s.io/*")) if place.name not in _NO_OPENAPI]
    search = ["grep", "-rlE", "--include=*.go", "--exclude=*_test.go", _OPENAPI_TAG.replace("+", "\\+")]
    # With a slash at the end, because grep does not follow these links otherwise.
    found = _run(*search, "pkg", *(f"{place.relative_to(source)}/" for place in places), cwd=source)
    packages = sorted({f"{_PACKAGE}/{os.path.dirname(line)}" for line in found.splitlines()})
    _run(
        generator, "--input-dirs", ",".join(packages), "--output-package", f"{_PACKAGE}/{_OPENAPI}",
        "--output-file-base", "zz_generated.openapi", "--report-filename", source.parent / "report",
        "--go-header-file", source / "vendor/k8s.io/code-generator/hack/boilerplate.go.txt",
        cwd=source, env=go.environ,
    )  # fmt: skip


def _run(*words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        name = os.path.basename(words[0])
        raise PartsError(f"{name} {' '.join(map(str, words[1:3]))}...: {done.stdout}{done.stderr[-3000:]}")
    return done.stdout


@contextmanager
def _said(step: str) -> Iterator[None]:
    """Prints what a step has cost: its time, and the time of one processor."""
    began, before = time.monotonic(), os.times()
    yield
    after = os.times()
    cost = after.children_user + after.children_system - before.children_user - before.children_system
    took = time.monotonic() - began
    print(f"Kubernetes for tests: {step}: {took:.0f} s, {cost:.0f} s of a processor", flush=True)


def main(words: Sequence[str]) -> int:
    if words:
        print("usage: python3 -m kubernetes.parts", file=sys.stderr)
        return 2
    try:
        prepare()
    except PartsError as error:
        print(f"Kubernetes for tests: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
