"""podman with our name in its configuration: its errors, names, pods, and the way back; crun's refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from support.drop_in_trees import Tree, parsed, shapes, snapshot, trees
from support.engine_table import tried

from .root import Root
from .test_packages import image_in, install
from .test_pages import CONTAINERS, STORAGE
from .ways import IMAGE

pytestmark = pytest.mark.timeout(900)

_PACKAGES = ("busybox-static", "catatonit", "crun", "podman", "python3", "runc")
#: Of each release. Debian 12 has no compose v2.
PACKAGES = {"bookworm": _PACKAGES} | dict.fromkeys(("trixie", "forky"), (*_PACKAGES, "docker-compose"))
_FILE = "/etc/containers/containers.conf.d/99-xpu.conf"
_POD = """apiVersion: v1
kind: Pod
metadata:
  name: pod
  annotations: {yoyoworks.com/xpu-mem: 3G}
spec:
  hostNetwork: true
  containers:
  - {name: one, image: "docker.io/library/debian:12", command: [/bin/sleep, "1000"], imagePullPolicy: Never}
"""


class Podman:
    """podman on a machine with our packages, an image and a simulated card."""

    def __init__(self, machine: Root, debs: list[Path]) -> None:
        self.machine = machine
        assert install(machine, debs).returncode == 0
        image_in(machine)
        self.must("busybox", "ip", "link", "set", "lo", "up")
        self.must("xpu", "sim", "up", "--topology", "1xT4")
        machine.path("/etc/containers/containers.conf").write_text(CONTAINERS)
        machine.path("/etc/containers/storage.conf").write_text(STORAGE)
        self.must("sh", "-c", f"tar -C {IMAGE} -c . | podman import - docker.io/library/debian:12")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.machine.run(*words, environ={"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"})

    def must(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, (words, done.stdout)
        return done.stdout

    def names(self) -> list[str]:
        return [each["name"] for each in json.loads(self.must("xpu", "ps", "--json"))]


@contextmanager
def podman_on(suite: str, debs: list[Path], cgroups: str = "own") -> Iterator[Podman]:
    """podman on a machine of that release, which is closed afterwards."""
    with closing(Root(suite, packages=PACKAGES[suite], network=False, cgroups=cgroups)) as machine:
        yield Podman(machine, debs)


@pytest.fixture(scope="module", params=list(PACKAGES))
def podman(request: pytest.FixtureRequest, debs: list[Path]) -> Iterator[Podman]:
    with podman_on(request.param, debs) as found:
        yield found


@tried("podman")
def test_podman_knows_our_name_and_shows_every_runtimes_errors(podman: Podman) -> None:
    assert "changed" in podman.must("xpu", "runtime", "configure", "podman")
    assert "nothing to change" in podman.must("xpu", "runtime", "configure", "podman")
    finding = f"ok       podman: {_FILE} names xpu (/usr/bin/xpu-container-runtime)"
    assert finding in podman.run("xpu", "doctor").stdout
    run = ("run", "--name", "web", "--rm", "-e", "XPU_MEM=40G", "debian:12")
    refused = podman.run("podman", "--runtime", "xpu", *run, "true").stdout
    assert refused.startswith("Error: OCI runtime error: xpu: runc create failed: ")
    assert "xpu: refused: no device has 40G of memory free" in refused
    assert "(web)  no device has 40G" in podman.must("xpu", "events")
    for runtime in ("runc", "crun"):
        said = podman.run("podman", "--runtime", runtime, *run, "/none").stdout
        # crun refuses every container where cgroup v2 has controllers beside v1.
        said = said.removeprefix("Error: ").removeprefix("OCI runtime error: ")
        # The other form is the log's own, as of a runtime whose JSON podman does not read.
        assert said.startswith(f"{runtime}: ") and "level=error" not in said, said


@pytest.mark.parametrize("tree", trees("containers.conf.txt"), ids=lambda tree: tree.title)
def test_podmans_default_is_that_of_peoples_files_until_ours_is_asked_for(
    podman: Podman, tree: Tree, tmp_path: Path
) -> None:
    ours_when_asked(podman, tree, tmp_path)


#: Operators' main files that say something of runtimes.
_MAIN = [
    Tree(title, "", {"etc/containers/containers.conf": text})
    for title, text in shapes("containers.conf.more.txt").items()
    if "runtime" in text and parsed(text) is not None
]


@pytest.mark.parametrize("podman", ["trixie"], indirect=True)
@pytest.mark.parametrize("tree", _MAIN, ids=lambda tree: tree.title)
def test_podman_reads_an_operators_main_file_with_ours(podman: Podman, tree: Tree, tmp_path: Path) -> None:
    ours_when_asked(podman, tree, tmp_path)


def ours_when_asked(podman: Podman, tree: Tree, tmp_path: Path) -> None:
    """Puts the tree in place of the machine's files; `tmp_path` keeps those until the end."""
    folders = [podman.machine.path(each) for each in ("/etc/containers", "/usr/share/containers")]
    kept = [(folder, tmp_path / folder.parent.name) for folder in folders]
    for folder, copy in kept:
        shutil.copytree(folder, copy)
    default = ("podman", "info", "--format", "{{.Host.OCIRuntime.Name}}")
    try:
        for name in (_FILE, "/etc/containers/containers.conf", "/usr/share/containers/containers.conf"):
            podman.machine.path(name).unlink(missing_ok=True)
        tree.write(podman.machine.path("/"))
        theirs = podman.must(*default)
        files = [snapshot(folder) for folder in folders]
        podman.must("xpu", "runtime", "configure", "podman")
        assert podman.must(*default) == theirs
        asked = podman.run("xpu", "runtime", "configure", "podman", "--set-as-default")
        if asked.returncode:
            assert (
                f"xpu: /{tree.decides} is read after {_FILE}, and has another engine.runtime" in asked.stdout
            )
        assert podman.must(*default) == (theirs if asked.returncode else "xpu\n")
        podman.must("xpu", "runtime", "unconfigure", "podman")
        assert podman.must(*default) == theirs
        assert [snapshot(folder) for folder in folders] == files
    finally:
        for name in tree.files:
            podman.machine.path(f"/{name}").unlink()
        for folder, copy in kept:
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)


def test_podmans_names_are_known_and_its_containers_keep_our_name(podman: Podman) -> None:
    podman.must("xpu", "runtime", "configure", "podman", "--set-as-default")
    run = ("podman", "run", "-d", "-e", "XPU_MEM=1G")
    podman.must(*run, "--name", "web", "debian:12", "sleep", "1000")
    podman.must(*run, "--name", "short", "--rm", "debian:12", "sleep", "1000")
    assert podman.names() == ["web", "short"]
    podman.must("podman", "rename", "web", "db")
    assert json.loads(podman.must("xpu", "inspect", "db", "--json"))["name"] == "db"
    refused = podman.run("xpu", "runtime", "unconfigure", "podman")
    assert refused.returncode == 1 and "podman has containers of the runtime xpu (" in refused.stdout
    assert podman.machine.path(_FILE).exists()
    podman.must("podman", "rm", "--force", "--time", "0", "db", "short")
    assert "removed" in podman.must("xpu", "runtime", "unconfigure", "podman")
    assert not podman.machine.path(_FILE).exists()
    assert podman.names() == []
    podman.must("podman", "run", "--rm", "debian:12", "true")


def test_the_containers_of_a_pod_get_slices(podman: Podman) -> None:
    podman.must("xpu", "runtime", "configure", "podman")
    podman.machine.path("/run/pod.yaml").write_text(_POD)
    podman.must("podman", "--runtime", "xpu", "kube", "play", "/run/pod.yaml")
    assert podman.names() == ["pod-one"]
    podman.must("podman", "pod", "rm", "--force", "--time", "0", "pod")
    assert podman.names() == []


#: It does not come back from `create` before the test has killed podman.
_SLOW = """#!/bin/sh
/usr/bin/xpu-container-runtime "$@" || exit
case " $* " in
*" create "*) touch /run/created; while test -e /run/created; do sleep 0.1; done ;;
esac
"""
_KILLED = """exec > /dev/null 2>&1
podman --runtime /run/slow run --name lost -d -e XPU_MEM=1G debian:12 sleep 1000 &
until test -e /run/created; do sleep 0.1; done
kill -9 $!
rm /run/created
"""


@pytest.mark.parametrize("by", ["podman start", "xpu-container-runtime delete --force"])
def test_a_container_whose_podman_was_killed_while_it_was_created_is_ended_by_hand(
    podman: Podman, by: str
) -> None:
    podman.machine.path("/run/slow").write_text(_SLOW)
    podman.machine.path("/run/slow").chmod(0o755)
    podman.must("sh", "-c", _KILLED)
    assert podman.names() == ["lost"]
    if by == "podman start":
        podman.run(*by.split(), "lost")
        assert podman.names() == []
    podman.must("podman", "rm", "--force", "--time", "0", "lost")
    if by != "podman start":
        assert podman.must("xpu", "ps", "--format", "{{.Name}} {{.State}}") == "- running\n"
        podman.must(*by.split(), podman.must("xpu", "ps", "--quiet").strip())
        assert podman.names() == []


@pytest.fixture
def on_v2(debs: list[Path]) -> Iterator[Podman]:
    """crun does not start anything beside cgroup v1 where v2 has a controller."""
    with podman_on("trixie", debs, cgroups="v2") as found:
        yield found


def test_in_front_of_crun_podman_shows_a_refusals_reason_and_a_dead_slice_is_taken_back(
    on_v2: Podman,
) -> None:
    # This machine's v2 need not have the controller of pids.
    run = ("podman", "--runtime", "crun", "run", "--rm", "--pids-limit=0")
    said = on_v2.must(*run, "--annotation=yoyoworks.com/xpu-mem=4G", "debian:12", "nvidia-smi", "-L")
    assert said.startswith("GPU 0: Tesla T4")
    said = on_v2.run(*run, "--annotation=yoyoworks.com/xpu-mem=40G", "debian:12", "true").stdout
    assert said.startswith("Error: OCI runtime error: crun: xpu: refused: no device has 40G of memory free")
    # crun calls no poststop hook for a container that it could not start.
    on_v2.run(*run, "--annotation=yoyoworks.com/xpu-mem=10G", "debian:12", "/none")
    assert on_v2.must("xpu", "ps", "--format", "{{.Memory}} {{.State}}") == "10G dead\n"
    on_v2.must(*run, "--annotation=yoyoworks.com/xpu-mem=10G", "debian:12", "true")
    assert on_v2.names() == []
