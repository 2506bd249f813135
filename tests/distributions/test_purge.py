"""Removed and purged, the packages leave a distribution as it was, file by file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .root import Root
from .test_packages import PACKAGES, image_in, install
from .ways import Runc

pytestmark = pytest.mark.timeout(900)

#: Files as an operator may have written them; each must come back byte for byte.
CONFIGURATIONS = {
    "/etc/docker/daemon.json": '{"debug":false,\n\t"runtimes": {"other": {"path": "/bin/other"} } }',
    "/etc/containerd/config.toml": "# ours\nversion = 2\n\n[debug]\n  level = 'warn' # not more\n",
}
#: Records of apt and dpkg themselves; their files that are named after a package are compared.
_OF_APT = (
    "/var/cache/apt/", "/var/cache/debconf/", "/var/lib/apt/", "/var/log/apt/", "/var/log/dpkg.log",
    "/var/lib/dpkg/lock", "/var/lib/dpkg/status", "/var/lib/dpkg/triggers/", "/var/lib/dpkg/updates",
)  # fmt: skip
#: groupadd's files. The group of the package stays, because files may belong to it.
_OF_GROUPS = ("/etc/group", "/etc/gshadow", "/etc/.pwd.lock ")


def listing(machine: Root) -> set[str]:
    """Each file and folder outside of /run and /tmp: kind, mode, owner, link, and a file's size and time.

    The engines' configuration is listed without its time: it was changed, and has its old content again.
    """
    common = "%p %y %m %u:%g %l"
    command = ["find", "/", "-xdev", "(", "-type", "d", "-printf", f"{common}\\n", ")", "-o"]
    done = machine.run(*command, "-printf", f"{common} %s %T@\\n")
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if not line.startswith((*_OF_APT, *_OF_GROUPS))]
    return {line.rpartition(" ")[0] if line.startswith(tuple(CONFIGURATIONS)) else line for line in lines}


def files(machine: Root) -> dict[str, str]:
    return {path: machine.path(path).read_text() for path in CONFIGURATIONS}


def done(machine: Root, *command: str) -> str:
    result = machine.run(*command)
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.mark.parametrize("suite", PACKAGES)
def test_a_purge_leaves_nothing_and_the_engines_have_their_configuration_back(
    root: Callable[..., Root], debs: list[Path], suite: str
) -> None:
    machine = root(suite, packages=PACKAGES[suite], network=False)
    image_in(machine)
    way = Runc(machine)
    for path, text in CONFIGURATIONS.items():
        machine.path(path).parent.mkdir(exist_ok=True)
        machine.path(path).write_text(text)
    before = listing(machine)

    installed = install(machine, debs)
    assert installed.returncode == 0, installed.stdout
    assert_used(way)
    assert all("xpu-container-runtime" in text for text in files(machine).values())

    removed = done(machine, "apt-get", "remove", "-y", "xpu-container-runtime", "xpu-simulator")
    assert all(f"taken out of {path}" in removed for path in CONFIGURATIONS)
    assert files(machine) == CONFIGURATIONS
    left = {line.split()[0] for line in listing(machine) - before}
    kept = ("/etc/xpu", "/etc/xpu/config.yaml", *(f"/var/lib/dpkg/info/xpu-container-runtime.{name}"
            for name in ("list", "postrm")))  # fmt: skip
    assert left == set(kept), "the configuration stays, and nothing else"

    again = install(machine, debs)
    assert again.returncode == 0, again.stdout
    assert_used(way)

    done(machine, "apt-get", "purge", "-y", "xpu-container-runtime", "xpu-simulator")
    assert files(machine) == CONFIGURATIONS
    assert listing(machine) == before
    assert done(machine, "getent", "group", "xpu").endswith(":\n"), "the group stays, without members"
    assert machine.programs() == []
    assert [name for name in machine.path("/run").iterdir() if name.name.startswith("xpu")] == []


def assert_used(way: Runc) -> None:
    """The engines know the runtime, and a container has had a slice."""
    machine = way.machine
    for engine in ("docker", "containerd"):
        done(machine, "xpu", "runtime", "configure", engine)
    done(machine, "xpu", "sim", "up", "--topology", "1xT4")
    ran = way.run(["XPU_MEM=4G"], "nvidia-smi")
    assert "/   4096MiB" in ran.stdout, ran.stdout
    assert json.loads(done(machine, "xpu", "ps", "--json")) == []
