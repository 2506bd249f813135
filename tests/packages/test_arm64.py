"""The packages for arm64, cross-built: all binaries are for that machine, and they run under the emulator."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributions import root as debian
from support import REPOSITORY
from support.packages import build

RUNTIME, SIMULATOR = "xpu-container-runtime", "xpu-simulator"
#: Before Debian 14 the static one has a longer name.
EMULATOR = shutil.which("qemu-aarch64-static") or "qemu-aarch64"
LIB = f"usr/lib/{RUNTIME}"
INTERPOSERS = f"{LIB}/native/interposer/"
#: The C libraries of the oldest image, and of the oldest distribution that the deb's dependency names.
OLDEST = {INTERPOSERS: (2, 17), f"{LIB}/native/sim/": (2, 27)}
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", params=["deb", "rpm"])
def unpacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of both packages of one kind."""
    kind: str = request.param
    folder = tmp_path_factory.mktemp(kind)
    built = build(REPOSITORY, folder, kind, {"deb": "arm64", "rpm": "aarch64"}[kind])
    assert len(built) == 2
    files = folder / "files"
    files.mkdir()
    for package in built:
        if kind == "deb":
            assert deb_field(package, "Architecture") == "arm64"
            subprocess.run(["dpkg-deb", "--extract", package, files], check=True)
        else:
            query = ["rpm", "-qp", "--queryformat", "%{ARCH} %{OS}", str(package)]
            assert subprocess.run(query, check=True, capture_output=True, text=True).stdout == "aarch64 linux"
            subprocess.run(["sh", "-ec", 'rpm2cpio "$0" | cpio -idm --quiet', package], cwd=files, check=True)
    if kind == "deb":
        (simulator,) = (package for package in built if SIMULATOR in package.name)
        assert (
            deb_field(simulator, "Depends")
            == f"{RUNTIME} (= {deb_field(simulator, 'Version')}), libc6 (>= 2.27)"
        )
    return files


def deb_field(package: Path, name: str) -> str:
    command = ["dpkg-deb", "--field", str(package), name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def python() -> list[str]:
    """The command of Debian's arm64 Python, under the emulator."""
    folder = debian.CACHE / "python-arm64"
    debian.CACHE.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            unfinished = Path(f"{folder}-being-made")
            shutil.rmtree(unfinished, ignore_errors=True)
            command = ["mmdebstrap", "--variant=extract", "--architectures=arm64", "--include=python3"]
            command += ["bookworm", str(unfinished), debian.mirror()]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-3000:]
            unfinished.rename(folder)
    return [EMULATOR, "-L", str(folder), str(folder / "usr/bin/python3.11"), "-IS"]


def readelf(option: str, file: Path) -> str:
    return subprocess.run(["readelf", "-W", option, file], check=True, capture_output=True, text=True).stdout


def test_every_binary_is_for_that_machine_and_for_old_distributions(unpacked: Path) -> None:
    binaries = {
        str(path.relative_to(unpacked)): path
        for path in unpacked.rglob("*")
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"
    }
    assert f"usr/bin/{RUNTIME}" in binaries and len(binaries) > 20
    for name, path in binaries.items():
        assert re.search(r"Machine: +AArch64", readelf("--file-header", path)), name
        needed = [
            tuple(map(int, each.split(".")))
            for each in re.findall(r"GLIBC_([\d.]+)", readelf("--version-info", path))
        ]
        oldest = next((version for folder, version in OLDEST.items() if name.startswith(folder)), (0, 0))
        assert max(needed, default=(0, 0)) <= oldest, name
    # The documentation is left out because it names a clone's build folder.
    command = ["grep", "-rlE", "--exclude-dir=docs", "x86_64-linux-gnu-gcc|/build/", str(unpacked)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == ""


def test_the_launcher_reaches_a_low_level_runtime(unpacked: Path) -> None:
    launcher = [EMULATOR, str(unpacked / "usr/bin" / RUNTIME)]
    for words in (["--version"], ["state", "no-such-container"]):
        ours, theirs = (
            subprocess.run([*command, *words], capture_output=True, text=True)
            for command in (launcher, ["runc"])
        )
        assert (ours.returncode, ours.stdout) == (theirs.returncode, theirs.stdout)
        assert ours.stderr.partition("msg=")[2] == theirs.stderr.partition("msg=")[2]


@pytest.fixture
def bundle(tmp_path: Path) -> Iterator[Path]:
    """A bundle with what a hook sees while its container is being created."""
    folder = tmp_path / "bundle"
    (folder / "rootfs").mkdir(parents=True)
    subprocess.run(["runc", "spec"], cwd=folder, check=True)
    yield folder


@pytest.mark.parametrize("asks", [False, True])
def test_the_hook_passes_a_container_that_asks_nothing_and_refuses_without_a_driver(
    unpacked: Path, python: list[str], bundle: Path, tmp_path: Path, asks: bool
) -> None:
    config = json.loads((bundle / "config.json").read_text())
    config["process"]["env"] += ["XPU_MEM=4G"] * asks
    (bundle / "config.json").write_text(json.dumps(config))
    state = {
        "ociVersion": "1.0.2",
        "id": "arm64",
        "status": "creating",
        "pid": os.getpid(),
        "bundle": str(bundle),
    }
    done = subprocess.run(
        [*python, unpacked / "usr/lib/xpu-container-runtime/hook.py", "createRuntime"],
        env={"XPU_RUN_DIR": str(tmp_path / "run"), "PATH": os.environ["PATH"]},
        input=json.dumps(state),
        capture_output=True,
        text=True,
    )
    if asks:
        assert done.returncode == 1
        assert "no NVIDIA driver found" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")
