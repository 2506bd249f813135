"""apt removes the package on Debian 12 while containers run and engines know it: the programs that something
calls stay, and everything else goes.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import GIB

from .test_upgrade import RUNTIME, Debs, Machine
from .ways import IMAGE, Containerd, Docker, Runc

pytestmark = pytest.mark.timeout(900)

NAMES = ("xpu-simulator", "xpu-container-runtime")
HOOK = "/usr/bin/xpu-container-runtime-hook"
DAEMON_JSON = "/etc/docker/daemon.json"
JUST_SO = '{"debug": false}\n'
INFO = "/var/lib/dpkg/info/xpu-container-runtime"


@pytest.fixture(scope="module")
def machine(debs: Debs) -> Iterator[Machine]:
    entered = Machine()
    try:
        entered.path("/etc/docker").mkdir(exist_ok=True)
        entered.path(DAEMON_JSON).write_text(JUST_SO)
        yield entered
    finally:
        entered.root.close()


@pytest.fixture
def installed(machine: Machine, debs: Debs) -> Iterator[Machine]:
    machine.install(debs)
    machine.must("xpu", "sim", "up", "--topology", "1xT4-R580")
    yield machine
    # Leftovers of a failed test would appear in the messages of the next removal.
    machine.run("sh", "-c", "kill -9 -1")
    machine.must("dpkg", "--purge", *NAMES)
    # The mount points in the image, which all containers share, would appear there too.
    machine.must("sh", "-c", f"rm -rf /run/bundles-* {IMAGE}/usr/lib/xpu")
    machine.path(DAEMON_JSON).write_text(JUST_SO)


def files(machine: Machine) -> set[str]:
    """All files except dpkg's own records, running processes, and programs' logs and data."""
    others = " ".join(f"-not -path '{path}'" for path in ("/var/*", "/root/*", "/srv/*"))
    command = f"find / -xdev {others}; find /run/xpu 2> /dev/null"
    return set(machine.run("sh", "-c", command).stdout.splitlines())


def remove(machine: Machine, how: str = "remove") -> str:
    return machine.must("apt-get", how, "-y", *NAMES)


def end(machine: Machine, *programs: str) -> None:
    """Ends engines, as `systemctl stop` does, and waits until they have ended."""
    for program in programs:
        script = "for pid in $(pidof $1); do kill $pid; while [ -d /proc/$pid ]; do sleep 0.05; done; done"
        machine.must("sh", "-c", script, "sh", program)


def test_running_containers_can_be_deleted_and_ordinary_ones_start(installed: Machine, debs: Debs) -> None:
    machine = installed
    machine.must("xpu", "runtime", "configure", "containerd")
    runc, containerd, docker = Runc(machine.root), Containerd(machine.root), Docker(machine.root)
    machine.must("xpu", "runtime", "configure", "docker", "--set-as-default")
    machine.must("sh", "-c", "kill -HUP $(pidof dockerd)")
    runc.start("of-runc", ["XPU_MEM=1G"], "sleep", "1000")
    containerd.start("of-ctr", ["XPU_MEM=1G"], "sleep", "1000")
    containerd.start("of-ctr-plain", [], "sleep", "1000")
    docker.start("of-docker", ["XPU_MEM=2G"], "sleep", "1000")
    docker.start("stopped", ["XPU_MEM=1G"], "sleep", "1000")
    machine.must("docker", "stop", "--time=0", "stopped")
    (of_docker,) = (name for name, size in machine.held().items() if size == 2 * GIB)

    told = remove(machine)
    assert machine.path(DAEMON_JSON).read_text() == JUST_SO
    assert "xpu" not in machine.path("/etc/containerd/config.toml").read_text()
    for text in (
        "taken out of /etc/docker/daemon.json", "taken out of /etc/containerd/config.toml",
        "these containers hold slices, and keep them until they end", "still called by:", "container of-runc",
        "container of-ctr\n", "container of-ctr-plain", f"container {of_docker}",
        "containerd (process", "dockerd (process", "When they are gone:\n  apt purge xpu-container-runtime",
    ):  # fmt: skip
        assert text in told, f"{text!r} is not in {told}"

    # dockerd still has its configuration, with this runtime as the default.
    plain = ["docker", "run", "--rm", "--network=none", "image:1", "echo", "ordinary"]
    assert machine.must(*plain) == "ordinary\n"
    for refused in (docker.run(["XPU_MEM=1G"], "true"), machine.run("docker", "start", "stopped")):
        assert refused.returncode != 0
        assert "asks for an accelerator" in refused.stdout
        assert "install xpu-container-runtime again" in refused.stdout
    assert runc.run([], "echo", "ordinary").stdout == "ordinary\n"
    assert json.loads(machine.must(RUNTIME, "state", "of-runc"))["status"] == "running"
    machine.must("docker", "exec", "of-docker", "true")

    # Installed again, the runtime knows which container has which slice.
    machine.install(debs)
    assert sorted(machine.held().values()) == [GIB, GIB, 2 * GIB]
    remove(machine)

    runc.remove("of-runc")
    containerd.remove("of-ctr")
    containerd.remove("of-ctr-plain")
    docker.remove("of-docker")
    end(machine, "dockerd", "containerd")
    docker.serve()
    assert machine.must(*plain) == "ordinary\n"
    refused = machine.run("docker", "start", "stopped")
    assert refused.returncode != 0 and "xpu" in refused.stdout, "docker says that it knows no such runtime"
    docker.remove("stopped")
    assert "still called" not in remove(machine, "purge")
    assert [name for name in files(machine) if "xpu" in name] == []
    end(machine, "dockerd")


def test_a_container_started_after_the_removal_keeps_the_programs_and_the_shown_commands_leave_nothing(
    installed: Machine,
) -> None:
    machine = installed
    machine.must("xpu", "runtime", "configure", "containerd")
    containerd = Containerd(machine.root)
    containerd.start("with-slice", ["XPU_MEM=1G"], "sleep", "1000")
    remove(machine)
    # A running containerd still knows the runtime, and its records name the runtime's caller: containerd.
    containerd.start("later", [], "sleep", "1000")
    containerd.remove("with-slice")
    end(machine, "containerd")
    told = remove(machine, "purge")
    assert "still called by:\n  container later\n" in told
    assert os.path.lexists(machine.path(RUNTIME)), "the container's shim calls it to delete the container"
    Containerd(machine.root).remove("later")
    end(machine, "containerd")

    assert " /run/xpu/slices/" in machine.must("cat", "/proc/mounts")
    lines = told.partition("When they are gone:\n")[2].splitlines()
    machine.must("sh", "-ec", "\n".join(itertools.takewhile(lambda line: line.startswith("  "), lines)))
    assert [name for name in files(machine) if "xpu" in name] == []


def mps(machine: Machine) -> list[str]:
    return [name for name in machine.root.programs() if name.startswith("nvidia-cuda-mps")]


def test_a_purge_beside_a_container_says_once_what_is_left_to_do(installed: Machine) -> None:
    machine = installed
    runc = Runc(machine.root)
    runc.start("of-runc", ["XPU_MEM=1G"], "sleep", "1000")
    told = remove(machine, "purge")
    assert told.count("still called by:\n  container of-runc\n") == 1
    assert "apt purge" not in told, "a purge is what is going on"
    runc.remove("of-runc")
    lines = told.partition("When they are gone:\n")[2].splitlines()
    machine.must("sh", "-ec", "\n".join(itertools.takewhile(lambda line: line.startswith("  "), lines)))
    assert [name for name in files(machine) if "xpu" in name] == []


def test_a_purge_ends_the_mps_daemons_of_containers_that_have_ended(installed: Machine) -> None:
    machine = installed
    runc = Runc(machine.root)
    runc.start("of-mps", ["XPU_MEM=1G", "XPU_ENFORCE=mps"], "sleep", "1000")
    remove(machine)
    runc.remove("of-mps")
    # The hook would have ended MPS; the program that replaces the hook does not.
    assert mps(machine)
    assert "stays" not in remove(machine, "purge")
    deadline = time.monotonic() + 30
    while mps(machine):
        assert time.monotonic() < deadline, mps(machine)
        time.sleep(0.05)
    assert [name for name in files(machine) if "xpu" in name] == []


@pytest.mark.parametrize("by", ["environment", "engine"])
def test_a_container_in_another_ledger_keeps_the_programs_too(installed: Machine, by: str) -> None:
    machine = installed
    elsewhere = {"XPU_RUN_DIR": "/run/elsewhere"}
    done = machine.run("xpu", "sim", "up", "--topology", "1xT4-R580", environ=elsewhere)
    assert done.returncode == 0, done.stdout
    runc = Runc(machine.root)
    runc._environ |= elsewhere
    runc.start("of-runc", ["XPU_MEM=1G"], "sleep", "1000")
    if by == "engine":
        engine = Containerd.__new__(Containerd)
        engine.machine = machine.root
        engine._serve("env XPU_RUN_DIR=/run/elsewhere containerd", ["ctr", "version"])
    how = elsewhere if by == "environment" else {}
    told = machine.run("apt-get", "remove", "-y", *NAMES, environ=how).stdout
    assert "still called by:" in told and "  container of-runc\n" in told
    runc.remove("of-runc")
    assert "still called" not in remove(machine, "purge")
    machine.must(
        "sh", "-c", "grep -o ' /run/elsewhere/[^ ]*' /proc/self/mounts | sort -r | xargs -r umount -l"
    )
    machine.must("rm", "-r", "/run/elsewhere")
    # dockerd would wait for a containerd whose socket still exists.
    end(machine, *(["containerd"] if by == "engine" else []))


def test_how_installations_and_removals_call_systemctl(installed: Machine, debs: Debs) -> None:
    """A reload takes device rules from podman's containers, so systemd reloads its units only if one of ours
    has changed. The agent starts if a driver was there before us. systemd does not run here: the test reads
    the calls of systemctl.
    """
    machine = installed
    machine.path("/run/systemd/system").mkdir(parents=True)
    machine.path("/usr/local/bin/systemctl").write_text('#!/bin/sh\necho "$*" >> /run/told\n')
    machine.path("/usr/local/bin/systemctl").chmod(0o755)

    def told(*command: str) -> str:
        machine.path("/run/told").write_text("")
        machine.must(*command)
        return machine.path("/run/told").read_text()

    reinstall = ("sh", "-c", "exec dpkg --install /run/debs/*.deb")
    restart = "try-restart xpu-agent.service\n"
    assert told(*reinstall) == restart
    assert told(f"{INFO}.postinst", "triggered", "/usr/bin/python3") == restart
    machine.must("sh", "-c", "echo >> /usr/lib/systemd/system/xpu-agent.service")
    assert told(*reinstall) == f"daemon-reload\n{restart}"
    assert "reload" not in told("dpkg", "--remove", *NAMES).replace("--no-reload", "")
    assert told(*reinstall) == f"daemon-reload\n{restart}"
    assert not machine.path("/run/xpu-container-runtime.units").exists()
    machine.must("mount", "-t", "tmpfs", "modules", "/sys/module")
    machine.must("mkdir", "/sys/module/nvidia")
    assert told(*reinstall) == restart
    told("dpkg", "--remove", *NAMES)
    start = "start --no-block xpu-inventory.service xpu-agent.service\n"
    assert told(*reinstall) == f"daemon-reload\n{restart}{start}"
    machine.must("umount", "/sys/module")
    machine.must("rm", "-r", "/run/systemd", "/usr/local/bin/systemctl", "/run/told")


def test_a_purge_leaves_no_file_and_ends_the_simulation(machine: Machine, debs: Debs) -> None:
    before = files(machine)
    machine.install(debs)
    machine.must("xpu", "sim", "up", "--topology", "2xT4")
    Runc(machine.root, "hook").run(["XPU_MEM=1G"], "true")
    remove(machine, "purge")
    ours = ("/run/bundles", "/run/debs")
    assert {name for name in files(machine) if not name.startswith(ours)} <= before
    assert "xpu-sim-driver" not in machine.root.programs()


def test_an_engine_with_another_file_and_another_installations_entry(installed: Machine) -> None:
    machine = installed
    machine.must("xpu", "runtime", "configure", "docker", "--config", "/run/other.json")
    other = '{"runtimes": {"xpu": {"path": "/usr/local/bin/xpu-container-runtime"}}}\n'
    machine.path(DAEMON_JSON).write_text(other)
    docker = Docker.__new__(Docker)
    docker.machine = machine.root
    docker.serve("--config-file", "/run/other.json")
    told = remove(machine)
    assert "taken out of /run/other.json" in told and "dockerd (process" in told
    assert machine.path("/run/other.json").read_text() == "{}\n"
    assert machine.path(DAEMON_JSON).read_text() == other
    end(machine, "dockerd")
    assert "still called" not in remove(machine, "purge")


def test_a_broken_configuration_of_ours_does_not_stop_the_removal(installed: Machine) -> None:
    machine = installed
    machine.path(DAEMON_JSON).write_text('{ broken "/usr/bin/xpu-container-runtime"')
    told = machine.must("dpkg", "--remove", *NAMES)
    assert f"still in docker's configuration, take it out there: {DAEMON_JSON}" in told
    # A dockerd that starts meanwhile finds the program, even if it cannot read the file.
    assert f"  {DAEMON_JSON}, until you take xpu out of it" in told
    assert os.path.lexists(machine.path(RUNTIME))
    machine.path(DAEMON_JSON).unlink()
    assert "still called" not in remove(machine, "purge")
    assert not os.path.lexists(machine.path(RUNTIME)) and not os.path.lexists(machine.path(HOOK))


def test_without_a_python_that_works_every_engine_counts(installed: Machine, debs: Debs) -> None:
    machine = installed
    containerd = Containerd(machine.root)
    containerd.start("of-ctr", ["XPU_MEM=1G"], "sleep", "1000")
    machine.must("mv", "/usr/bin/python3", "/usr/bin/python3.aside")
    told = machine.must("dpkg", "--remove", *NAMES)
    machine.must("mv", "/usr/bin/python3.aside", "/usr/bin/python3")
    assert "cannot tell who uses it" in told and "containerd-shim (process" in told
    assert not machine.path("/etc/cdi").exists()
    containerd.remove("of-ctr")
    end(machine, "containerd")
    assert "still called" not in remove(machine, "purge")
    assert not os.path.lexists(machine.path(RUNTIME)) and not os.path.lexists(machine.path(HOOK))


def test_the_scripts_accept_every_call_of_dpkg_and_the_package_still_works(installed: Machine) -> None:
    machine = installed
    for words in (
        "prerm upgrade 99.0", "prerm failed-upgrade 0.0.1 99.0", "prerm deconfigure in-favour other 1",
        "postrm upgrade 99.0", "postrm failed-upgrade 0.0.1 99.0", "postrm disappear other 1",
        "preinst install", "preinst upgrade 0.0.1", "postrm abort-install",
        "postrm abort-install 0.0.1 99.0", "postrm abort-upgrade 0.0.1 99.0",
        "postinst abort-upgrade 99.0", "postinst abort-deconfigure in-favour other 1",
        "postinst triggered /usr/bin/python3", "prerm remove", "postinst abort-remove",
    ):  # fmt: skip
        script, *rest = words.split()
        done = machine.run(f"{INFO}.{script}", *rest)
        assert done.returncode == 0, f"{words}: {done.stdout}"
    assert not os.path.lexists(machine.path(f"{RUNTIME}.kept"))
    assert (machine.path("/usr/lib/xpu-container-runtime/python") / "start.bundle").exists()
    done = Runc(machine.root, "spec").run(["XPU_MEM=2G"], "cuda-probe", "alloc", "3000")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stdout
    remove(machine, "purge")


def test_a_purge_leaves_files_of_others_in_our_places(installed: Machine, tmp_path: Path) -> None:
    machine = installed
    remove(machine)
    machine.path(RUNTIME).write_text("#!/bin/sh\n")
    machine.path(HOOK).write_text("#!/bin/sh\n")
    remove(machine, "purge")
    for path in (RUNTIME, HOOK):
        assert machine.path(path).read_text() == "#!/bin/sh\n"
        machine.path(path).unlink()
