"""On each Debian, with its own Python, runtimes and engines: apt installs the packages without a network, and
a container has its slice of the simulated device.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import image
from support import GIB, REPOSITORY
from support.engine_table import tried

from .root import Root
from .ways import IMAGE, WAYS, Crun, Runc, Way

# The first run makes a root of two hundred packages.
pytestmark = pytest.mark.timeout(900)

_ENGINES = ("busybox-static", "containerd", "crun", "docker.io", "python3", "runc")
#: By release, the packages that are installed from its archive.
PACKAGES = {
    "bullseye": _ENGINES,
    "bookworm": _ENGINES,
    "trixie": (*_ENGINES, "docker-cli"),
    "forky": (*_ENGINES, "docker-cli"),
}
#: The ways to run containers, by the mounted cgroups: this machine's, or v2 alone. crun does not run with
#: cgroup v1 if v2 has a controller too, and ctr 2 not on a v2 without the cpu controller; both depend on this
#: machine.
VIEWS = {"own": ("runc", "containerd", "docker"), "v2": ("runc", "crun", "docker")}
OWN = [pytest.param((suite, "own"), id=f"{suite}-own") for suite in PACKAGES]
JOBS = [
    pytest.param((suite, view), way, id=f"{suite}-{view}-{way}")
    for suite in PACKAGES
    for view, ways in VIEWS.items()
    for way in ways
]

#: The package's folder of programs that people do not call.
LIB = "/usr/lib/xpu-container-runtime"


def install(machine: Root, debs: list[Path]) -> subprocess.CompletedProcess[str]:
    """Installs as docs/how-to/install.md says, without a network."""
    machine.path("/run/debs").mkdir(exist_ok=True)
    for deb in debs:
        shutil.copy(deb, machine.path("/run/debs"))
    names = [f"/run/debs/{deb.name}" for deb in debs]
    return machine.run("apt-get", "install", "-y", *names)


def image_in(machine: Root) -> None:
    """Unpacks the image for containers at IMAGE."""
    image.make(str(machine.path(IMAGE)), [str(REPOSITORY / "build" / "probe" / "cuda-probe")])


@pytest.fixture(scope="module")
def machine(request: pytest.FixtureRequest, debs: list[Path]) -> Iterator[Root]:
    """A machine with the packages installed, and a simulated T4."""
    suite, view = request.param
    entered = Root(suite, packages=PACKAGES[suite], network=False, cgroups=view)
    try:
        done = install(entered, debs)
        assert done.returncode == 0, done.stdout
        image_in(entered)
        done = entered.run("xpu", "sim", "up", "--topology", "1xT4")
        assert done.returncode == 0, done.stdout
        yield entered
    finally:
        entered.close()


@pytest.fixture(scope="module")
def way(machine: Root, request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param](machine)


def told(machine: Root, *command: str) -> Any:
    """The output of `xpu ... --json`."""
    done = machine.run("xpu", *command, "--json")
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)


@tried("runc", "ctr", "docker")
@pytest.mark.parametrize(("machine", "way"), JOBS, indirect=True, scope="module")
def test_the_main_job(machine: Root, way: Way) -> None:
    way.start("held", ["XPU_MEM=10G"], "cuda-probe", "alloc", "3000", "--hold")
    try:
        beside_a_held_slice(machine, way)
    finally:
        way.remove("held")
    assert told(machine, "ps") == []
    assert told(machine, "devices")[0]["memory_granted_bytes"] == 0


@pytest.mark.parametrize(
    "machine", [pytest.param((suite, "v2"), id=suite) for suite in PACKAGES], indirect=True, scope="module"
)
def test_a_refusal_is_the_last_line_of_cruns_log(machine: Root) -> None:
    """Engines show people the last line. In hook mode crun would log only the hook's exit status after it."""
    for mode in ("auto", "hook"):
        done = Crun(machine, mode).run(["XPU_MEM=100G"], "true")
        assert done.returncode != 0
        # crun 1.28 writes an object over several lines.
        *_, last = re.findall(r"^ *.*\"msg\": *\"(.*?)\",", done.stdout, re.MULTILINE)
        assert "refused: no device has 100G of memory" in last, done.stdout
        assert "no device has 100G of memory" in machine.run("xpu", "events").stdout.splitlines()[-1]


def beside_a_held_slice(machine: Root, way: Way) -> None:
    (held,) = told(machine, "ps")
    assert held["memory_bytes"] == 10 * GIB and held["state"] == "running"
    assert held["memory_backend"] == "driver" if has_own_v2_folder(machine, held["pid"]) else "library"

    done = way.run(["XPU_MEM=4G"], "sh", "-c", "nvidia-smi && cuda-probe alloc 3000 2000 500")
    assert "/   4096MiB" in done.stdout
    assert "allocating 3000 MiB: CUDA_SUCCESS" in done.stdout
    assert "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in done.stdout
    assert "allocating 500 MiB: CUDA_SUCCESS" in done.stdout

    done = way.run(["XPU_MEM=6G"], "true")
    assert done.returncode != 0 and "XPU_MEM=5G" in done.stdout, "the engine says what would fit"


def has_own_v2_folder(machine: Root, pid: int) -> bool:
    """Whether the low-level runtime has made a folder in cgroup v2 for the container."""
    (line,) = [
        line
        for line in machine.run("cat", f"/proc/{pid}/cgroup").stdout.splitlines()
        if line.startswith("0::")
    ]
    return line != "0::/init"


@pytest.mark.parametrize("machine", OWN, indirect=True, scope="module")
def test_a_start_imports_the_bundle_and_only_c_halves(machine: Root) -> None:
    # The whole modules would cost each start some 15 ms, on every Python.
    code = f"""
import sys
sys.path.insert(0, "{LIB}/python")
import xpu_bundle
xpu_bundle.install()
import xpu_runtime.hook, xpu_runtime.shim, xpu_runtime.start.in_container, xpu_runtime.start.spec_mode
print(type(xpu_runtime.shim.__loader__).__name__)
print(*sorted(name for name in sys.modules if name.lstrip("_") in ("ctypes", "json", "sqlite3")))
"""
    done = machine.run("python3", "-IS", "-c", code)
    assert done.stdout == "Bundle\n_ctypes _json _sqlite3\n"


@pytest.mark.parametrize("machine", OWN, indirect=True, scope="module")
def test_the_doctor_finds_no_problem(machine: Root) -> None:
    done = machine.run("xpu", "doctor")
    assert done.returncode == 0 and "\n0 problem(s)" in done.stdout, done.stdout
    machine.path("/etc/xpu/config.yaml").rename(machine.path("/etc/xpu/aside"))
    machine.path("/etc/xpu/config.yaml").write_text("mode: hock\n")
    done = machine.run("xpu", "doctor")
    machine.path("/etc/xpu/aside").rename(machine.path("/etc/xpu/config.yaml"))
    assert done.returncode == 1 and "use auto, hook or spec" in done.stdout, done.stdout


@pytest.mark.parametrize("mode", ["hook", "spec"])
@pytest.mark.parametrize("machine", [pytest.param(("bullseye", "own"), id="bullseye")], indirect=True)
def test_the_driver_holds_no_limit_if_runc_makes_no_cgroup(machine: Root, mode: str) -> None:
    # If cgroup v1 is mounted too, runc 1.0 makes no v2 cgroup. The runtime learns this only after runc is
    # done.
    way = Runc(machine, mode)
    way.start("held", ["XPU_MEM=4G"], "cuda-probe", "alloc", "3000", "--hold")
    (held,) = told(machine, "ps")
    own = has_own_v2_folder(machine, held["pid"])
    way.remove("held")
    assert (held["mode"], held["memory_backend"]) == (mode, "driver" if own else "library")

    done = way.run(["XPU_MEM=4G", "XPU_ENFORCE=hard"], "true")
    assert (done.returncode == 0) is own
    assert own or "made no cgroup v2 folder" in done.stdout
    assert told(machine, "ps") == []
