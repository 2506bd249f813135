"""Each command of the tutorials and how-tos is run, with real engines; support.pages reads the pages.
tests/kubernetes follows the page of a cluster, tests/machine those that need systemd.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support import REPOSITORY, pages
from support.amd import Tree
from support.engine_table import tried
from support.oci_images import write_archive

from .root import Root
from .test_packages import PACKAGES, image_in
from .ways import IMAGE, Docker, Way

pytestmark = pytest.mark.timeout(900)

_PACKAGES = (*PACKAGES["trixie"], "catatonit", "curl", "docker-buildx", "docker-compose", "podman")
#: The pages' commands for systemd, which these machines do not have.
_SYSTEMCTL = """#!/bin/sh
case "$*" in
"reload docker") kill -HUP "$(pidof dockerd)" && sleep 1 ;;
"restart docker")
    process=$(pidof dockerd) && words=$(tr '\\0' ' ' < "/proc/$process/cmdline") && kill "$process"
    # Not by its number, which a zombie keeps.
    while grep -qs . "/proc/$process/cmdline"; do sleep 0.1; done
    $words > /run/dockerd.log 2>&1 < /dev/null &
    until docker version > /dev/null 2>&1; do sleep 0.1; done ;;
"start xpu-agent"|"restart xpu-agent") xpu agent > /run/agent.log 2>&1 & sleep 1 ;;
*) echo "systemctl $*: not on this machine" >&2; exit 1 ;;
esac
"""
#: Options of podman on a machine without systemd, without a bridge, without a cgroup v2 that crun works with,
#: and without the right to raise these limits; the storage is no overlay on an overlay.
CONTAINERS = """[containers]
netns = "none"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
STORAGE = """[storage]
driver = "overlay"
runroot = "/run/p-run"
graphroot = "/run/p-root"
"""
#: Where the host's driver is on a machine with a simulated card, and its nvidia-smi.
_DRIVER = "/run/xpu/sim/root/usr"
_NVIDIA_SMI = f"""#!/bin/sh
LD_LIBRARY_PATH={_DRIVER}/lib/x86_64-linux-gnu exec {_DRIVER}/bin/nvidia-smi "$@"
"""
#: Of cri-o's own packages.
_CRIO = """\
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = ["io.containers.trace-syscall"]
"""
_K3S = "/var/lib/rancher/k3s/agent/etc/containerd"


class Reader(Docker):
    """A reader who follows a page, in a folder with the packages, on a machine with its engines."""

    _IMAGE = "debian:12"
    _WHOLE_NAME = f"docker.io/library/{_IMAGE}"
    _HOME = "/root"

    def __init__(self, machine: Root, debs: list[Path], page: Path) -> None:
        Way.__init__(self, machine)
        image_in(machine)
        self._done("busybox", "ip", "link", "set", "lo", "up")
        self._write("/usr/bin/systemctl", _SYSTEMCTL)
        shutil.copy(REPOSITORY / "build/probe/cuda-probe", machine.path(self._HOME))
        for deb in debs:
            shutil.copy(deb, machine.path(self._HOME))
        for command, has_engine in (
            ("docker ", self._has_docker),
            ("podman ", self._has_podman),
            ("ctr ", self._has_containerd),
        ):
            if f"\n# {command}" in page.read_text():
                has_engine()
        before = {
            "amd": self._has_amds_gpus,
            "crio": self._has_crios_files,
            "engines": self._has_k3s_files,
            "install": self._has_a_card,
            "node-with-a-card": self._has_a_card,
        }
        if page.stem in before:
            before[page.stem]()

    def _has_docker(self) -> None:
        self.serve()
        self._done("sh", "-c", f"tar -C {IMAGE} -c . | docker import - {self._IMAGE}")

    def _has_podman(self) -> None:
        self.machine.path("/etc/containers/containers.conf").write_text(CONTAINERS)
        self.machine.path("/etc/containers/storage.conf").write_text(STORAGE)
        self._done("sh", "-c", f"tar -C {IMAGE} -c . | podman import - {self._WHOLE_NAME}")

    def _has_containerd(self) -> None:
        self._serve("containerd --root /run/c-root --state /run/c-state", ["ctr", "version"])
        write_archive(self.machine.path(IMAGE), self.machine.path("/run/image.tar"), self._WHOLE_NAME, [])
        self._done("ctr", "image", "import", "/run/image.tar")

    def _has_a_card(self) -> None:
        """The simulator brings the card up from a folder of its own: nothing is installed yet."""
        self._done("sh", "-ec", "for deb in *.deb; do dpkg-deb -x $deb /opt/card; done")
        self._done("/opt/card/usr/bin/xpu", "sim", "up", "--topology", "1xT4-R580")
        self._write("/usr/bin/nvidia-smi", _NVIDIA_SMI)

    def _has_amds_gpus(self) -> None:
        """In the kernel's own places: /sys/class has nothing else then."""
        tree = Tree(self.machine.path("/run/amd"))
        for number in range(2):
            tree.gpu(name="AMD Instinct MI210", unique_id=0x5F1C0D9E6B7A4821 + number)
            tree.tells_use(128 + number, memory=0, percent=0)
        self._done("sh", "-ec", "cp -a /run/amd/dev/. /dev; mount --bind /run/amd/sys/class /sys/class")

    def _has_crios_files(self) -> None:
        """Our package beside cri-o's configuration; Debian 13 has no cri-o."""
        self._done("sh", "-c", "apt-get install -y ./*.deb")
        self.machine.path("/etc/crio/crio.conf.d").mkdir(parents=True)
        self.machine.path("/etc/crio/crio.conf.d/10-crio.conf").write_text(_CRIO)

    def _has_k3s_files(self) -> None:
        """Our package beside K3s's configuration; Debian 13 has no K3s."""
        self._done("sh", "-c", "apt-get install -y ./*.deb")
        self.machine.path(_K3S).mkdir(parents=True)
        self.machine.path(f"{_K3S}/config.toml").write_text(
            "# File generated by k3s. DO NOT EDIT. Use config-v3.toml.tmpl instead.\n"
            f'version = 3\nimports = ["{_K3S}/config-v3.toml.d/*.toml"]\n'
        )

    def _write(self, path: str, program: str) -> None:
        self.machine.path(path).write_text(program)
        self.machine.path(path).chmod(0o755)

    def follow(self, step: pages.File | pages.Command) -> None:
        """Carries out a step; the test fails if a command prints something else."""
        if isinstance(step, pages.File):
            # There is no bridge.
            image, spec = "    image: debian:12\n", "\nspec:\n"
            text = step.text.replace(image, f"{image}    network_mode: none\n")
            text = text.replace(spec, f"{spec}  hostNetwork: true\n")
            self.machine.path(str(Path(self._HOME, step.name))).write_text(text)
            return
        environ = {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1", "DEBIAN_FRONTEND": "noninteractive"}
        said = self.machine.run("sh", "-c", step.words, timeout=300, environ=environ).stdout
        assert pages.matches(said, step.prints), f"# {step.words}\n{said}\n\nthe page has\n{step.prints}"


@tried("docker", "compose", "cdi", "gpus", "podman", "ctr", "build")
@pytest.mark.parametrize("page", pages.followed_by("tests/distributions"), ids=lambda page: page.stem)
def test_what_a_page_says_is_what_happens(page: Path, debs: list[Path]) -> None:
    machine = Root("trixie", packages=_PACKAGES, network=False)
    try:
        reader = Reader(machine, debs, page)
        for step in pages.steps(page):
            reader.follow(step)
    finally:
        machine.close()
