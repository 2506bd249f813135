"""dpkg upgrades and downgrades under running containers: they go on, and their slices are kept and given
back. Data that the other version does not know is refused or made anew. Runs in this machine's release of
Debian, with its runc and docker.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import image
from support import GIB, REPOSITORY

from . import variants
from .root import Root, own_suite
from .test_packages import PACKAGES
from .ways import IMAGE, Docker, Runc

# The first run makes a root of two hundred packages.
pytestmark = pytest.mark.timeout(900)

RUNTIME = "/usr/bin/xpu-container-runtime"
LIB = "/usr/lib/xpu-container-runtime"
#: MiB: more than a slice of 2 GiB, less than a whole T4.
MORE = "3000"
LAYOUT, ABI = "ledger/layout.py", "limits/pages.py"
Debs = list[Path]


class Machine:
    """An entered root with a simulated T4, whose memory is limited by the interposers.

    It has this machine's release: packages of an early commit, built here, need the libc of the build.
    """

    def __init__(self) -> None:
        self.root = Root(own_suite(), packages=PACKAGES[own_suite()], network=False)
        image.make(str(self.root.path(IMAGE)), [str(REPOSITORY / "build" / "probe" / "cuda-probe")])
        self.path = self.root.path
        self.run = self.root.run

    def must(self, *command: str) -> str:
        done = self.run(*command)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def install(self, debs: Debs, how: str = "--install") -> str:
        """Installs with dpkg, because apt would ask about a downgrade."""
        self.path("/run/debs").mkdir(exist_ok=True)
        for deb in debs:
            shutil.copy(deb, self.path("/run/debs"))
        return self.must("dpkg", how, "--force-downgrade", *(f"/run/debs/{deb.name}" for deb in debs))

    def held(self) -> dict[str, int]:
        """The bytes that each container holds, by `xpu ps`."""
        listed = json.loads(self.must("sh", "-c", "xpu ps --json 2> /dev/null"))
        return {each["container_id"]: each["memory_bytes"] for each in listed}


@pytest.fixture(scope="module")
def machine(debs: Debs) -> Iterator[Machine]:
    entered = Machine()
    try:
        entered.install(debs)
        entered.must("xpu", "sim", "up", "--topology", "1xT4-R580")
        yield entered
    finally:
        entered.root.close()


@pytest.fixture(scope="module")
def runc(machine: Machine) -> Runc:
    return Runc(machine.root)


@pytest.fixture(scope="module")
def newer_layout(debs: Debs, tmp_path_factory: pytest.TempPathFactory) -> Debs:
    now = variants.constant(debs[0], LAYOUT, "VERSION")
    change = {LAYOUT: (f"VERSION = {now}", f"VERSION = {now + 1}")}
    return variants.changed(debs, tmp_path_factory.mktemp("layout") / "debs", "99.0", change)


@pytest.fixture(scope="module")
def newer_abi(debs: Debs, tmp_path_factory: pytest.TempPathFactory) -> Debs:
    folder = tmp_path_factory.mktemp("abi")
    files = variants.interposers_of_abi(3, folder)
    return variants.changed(debs, folder / "debs", "99.0", {ABI: ("ABI = 2", "ABI = 3")}, files)


def exceeds(runc: Runc) -> subprocess.CompletedProcess[str]:
    """Runs a container of 2 GiB that allocates more."""
    return runc.run(["XPU_MEM=2G"], "cuda-probe", "alloc", MORE)


def in_container(machine: Machine, name: str) -> str:
    """The output of a new process that allocates too much, in a running container."""
    return machine.run(RUNTIME, "exec", name, "cuda-probe", "alloc", MORE).stdout


def install_earlier(machine: Machine, packages: list[Path]) -> None:
    """Builds from before 2026-11-27 start nothing if their hook asks an NVML that starts a thread, as
    NVIDIA's does. So a command asks first, and keeps the answer for the hook.
    """
    machine.install(packages)
    machine.run("xpu", "devices")


def test_containers_and_their_slices_live_through_an_upgrade_and_a_downgrade(
    machine: Machine, runc: Runc, debs: Debs, tmp_path: Path
) -> None:
    older, what = variants.earlier(debs, tmp_path / "earlier")
    print(f"the earlier packages: {what}")
    layouts = [variants.constant(deb, LAYOUT, "VERSION") for deb in (older[0], debs[0])]
    abis = [variants.constant(deb, ABI, "ABI") for deb in (older[0], debs[0])]
    install_earlier(machine, older)
    docker = Docker(machine.root)
    docker.start("of-docker", ["XPU_MEM=4G"], "cuda-probe", "alloc", "1000", "--watch")
    runc.start("old", ["XPU_MEM=2G"], "sleep", "1000")
    runc.create("created", ["XPU_MEM=1G"], "sleep", "1000")
    before = machine.held()
    assert sorted(before.values()) == [GIB, 2 * GIB, 4 * GIB]

    machine.install(debs)
    if layouts[0] == layouts[1]:
        assert machine.held() == before
        (of_docker,) = (name for name, size in before.items() if size == 4 * GIB)
        changed = machine.run("xpu", "set", of_docker, "--mem", "5G")
        if abis[0] == abis[1]:
            assert changed.returncode == 0, changed.stdout
        else:
            # The container keeps its limit, and the libraries that it started with.
            assert changed.returncode != 0
            assert f"(pages of ABI {abis[0]}, this one knows {abis[1]})" in changed.stdout
            assert machine.held() == before
        size = "5120" if abis[0] == abis[1] else "4096"
        assert f"of {size} MiB" in machine.must("docker", "exec", "of-docker", "cuda-probe", "info")
    else:
        assert "was written by another version" in machine.run("xpu", "ps").stdout
    assert "CUDA_ERROR_OUT_OF_MEMORY" in in_container(machine, "old")
    machine.must(RUNTIME, "start", "created")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in in_container(machine, "created")
    for name in ("old", "created"):
        runc.remove(name)
    docker.remove("of-docker")
    assert machine.held() == {}, "what the earlier version gave, this one has taken back"

    docker.start("of-docker", ["XPU_MEM=4G"], "cuda-probe", "alloc", "1000", "--watch")
    runc.create("created", ["XPU_MEM=1G"], "sleep", "1000")
    before = machine.held()
    install_earlier(machine, older)
    if layouts[0] == layouts[1]:
        assert machine.held() == before
    machine.must(RUNTIME, "start", "created")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in in_container(machine, "created")
    runc.remove("created")
    docker.remove("of-docker")
    machine.install(debs)
    assert machine.held() == {}


@pytest.mark.parametrize("newer_first", [True, False], ids=["downgrade", "upgrade"])
def test_a_ledger_of_another_layout_is_refused_and_nothing_is_lost(
    machine: Machine, runc: Runc, debs: Debs, newer_layout: Debs, newer_first: bool
) -> None:
    first, then = (newer_layout, debs) if newer_first else (debs, newer_layout)
    machine.install(first)
    runc.start("held", ["XPU_MEM=2G"], "sleep", "1000")

    machine.install(then)
    told_by = [machine.run("xpu", "ps"), runc.run(["XPU_MEM=1G"], "true")]
    for refused in told_by:
        assert refused.returncode != 0
        assert (
            "the ledger /run/xpu/ledger.db was written by another version of this runtime" in refused.stdout
        )
        assert (
            "has the slices of containers that run: held: install that version again, or stop"
            in refused.stdout
        )
    assert runc.run([], "echo", "ordinary").stdout == "ordinary\n"
    assert json.loads(machine.must(RUNTIME, "state", "held"))["status"] == "running"
    assert "CUDA_ERROR_OUT_OF_MEMORY" in in_container(machine, "held")

    machine.install(first)
    assert machine.held() == {"held": 2 * GIB}

    machine.install(then)
    machine.must(RUNTIME, "kill", "held", "KILL")
    runc.remove("held")
    runc.start("next", ["XPU_MEM=3G"], "sleep", "1000")
    assert machine.held() == {"next": 3 * GIB}
    runc.remove("next")
    machine.install(debs)
    assert machine.held() == {}


def test_pages_of_another_abi_go_on_with_the_libraries_of_their_container(
    machine: Machine, runc: Runc, debs: Debs, newer_abi: Debs
) -> None:
    machine.install(newer_abi)
    runc.start("newer", ["XPU_MEM=2G"], "cuda-probe", "alloc", "1000", "--watch")

    machine.install(debs)
    assert machine.held() == {"newer": 2 * GIB}
    assert "CUDA_ERROR_OUT_OF_MEMORY" in in_container(machine, "newer")
    assert (
        "memory in use is not known: the usage page of newer cannot be read: the container was started by"
        in (machine.must("xpu", "ps"))
    )
    refused = machine.run("xpu", "set", "newer", "--mem", "4G")
    assert refused.returncode != 0
    assert "started by another version of this runtime (pages of ABI 3, this one knows 2)" in refused.stdout
    assert machine.held() == {"newer": 2 * GIB}
    assert "CUDA_ERROR_OUT_OF_MEMORY" in exceeds(runc).stdout
    runc.remove("newer")
    assert machine.held() == {}


def test_a_start_while_an_upgrade_is_unpacked_and_not_configured_has_its_limit(
    machine: Machine, runc: Runc, debs: Debs, newer_abi: Debs
) -> None:
    machine.install(debs)
    machine.install(newer_abi, "--unpack")
    status = machine.must("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}", "xpu-container-runtime")
    assert status.strip() == "iU"
    # The bundle still has the old code, and the new libraries are there: these would refuse to work at all.
    done = exceeds(runc)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stdout, done.stdout
    machine.must("dpkg", "--configure", "--pending")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in exceeds(runc).stdout
    machine.install(debs)


def test_a_start_while_files_are_replaced_is_refused_or_has_its_limit(
    machine: Machine, runc: Runc, debs: Debs, newer_abi: Debs
) -> None:
    """dpkg renames its files one by one, in the package's order."""
    machine.install(debs)
    machine.path("/run/newer").mkdir()
    shutil.copy(newer_abi[0], machine.path("/run/debs"))
    machine.must("dpkg-deb", "--extract", f"/run/debs/{newer_abi[0].name}", "/run/newer")
    listed = machine.must("sh", "-c", "cd /run/newer && find usr -type f | LC_ALL=C sort").split()
    files = [file for file in listed if file.startswith(("usr/bin/", LIB[1:])) and "/vendor/" not in file]
    for part in range(0, len(files), len(files) // 8):
        rename = 'for file; do cp "$file" "/$file.dpkg-new"; mv "/$file.dpkg-new" "/$file"; done'
        machine.must("sh", "-ec", f"cd /run/newer; {rename}", "sh", *files[part : part + len(files) // 8])
        done = exceeds(runc)
        assert "SUCCESS" not in done.stdout and done.returncode != 0, done.stdout
    machine.install(debs)
