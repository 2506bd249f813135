"""Two ways into a container, one plan; an engine's handling of a bundle before, again and meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import script

from ..conftest import Bundles, Node

#: Everything that a container can see of its slice, without times and numbers of mounts.
_LOOK = """
ls -ln /dev /dev/nvidia* | grep nvidia | awk '{print $1, $3, $4, $5, $6, $10}'
ls -l /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu 2>/dev/null |
    grep -e cuda -e nvidia | awk '{print $1, $3, $5, $9, $11}'
awk '/nvidia|cuda/ {print $4, $5, $6}' /proc/self/mountinfo
sha256sum /etc/ld.so.cache
ls -l /usr/bin/nvidia-smi | awk '{print $1, $3, $5}'
nvidia-smi -L
"""


def spec_of(bundle: Path) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads((bundle / "config.json").read_text())
    return spec


def test_both_ways_show_a_container_the_same(node: Node, bundles: Bundles) -> None:
    node.sim("2xT4")
    seen = []
    for mode in ("hook", "spec"):
        node.configure(f"mode: {mode}")
        done = node.run(bundles("XPU_MEM=1G", "XPU_VISIBLE_DEVICES=1", args=["sh", "-c", _LOOK]))
        assert done.returncode == 0, done.stderr
        seen.append(set(done.stdout.splitlines()))
    assert len(seen[0]) > 12
    assert seen[0] == seen[1]


@pytest.fixture
def char_links() -> Iterator[Path]:
    """/dev/char; its links are restored afterwards."""
    folder = Path("/dev/char")
    before = {path: os.readlink(path) for path in folder.iterdir()} if folder.exists() else None
    yield folder
    for path in folder.iterdir() if folder.exists() else ():
        if path not in (before or {}) or os.readlink(path) != (before or {})[path]:
            path.unlink()
            if path in (before or {}):
                path.symlink_to((before or {})[path])
    if before is None and folder.exists():
        folder.rmdir()


@pytest.mark.alone  # it changes /dev/char, of which the machine has one
@pytest.mark.parametrize("booted", [True, False])
def test_a_cgroup_that_systemd_manages_gets_rules_that_systemd_can_keep(
    node: Node, bundles: Bundles, char_links: Path, booted: bool
) -> None:
    node.sim("1xT4")
    char_links.mkdir(exist_ok=True)
    for name in ("195:0", "195:255"):
        (char_links / name).unlink(missing_ok=True)
    (char_links / "195:0").symlink_to("/run/of/a/driver/that/is/gone")
    bundle = bundles("XPU_MEM=1G", change=lambda spec: spec["linux"].update(cgroupsPath="a.slice:b:c"))
    node.xpu("devices")  # the node's devices are known from now on
    script = (
        f"mkdir -p /run/systemd; mount -t tmpfs none /run/systemd; {'mkdir /run/systemd/system;' * booted}"
    )
    node.view = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script + ' exec "$0" "$@"']
    # Without systemd runc refuses it, once the spec is prepared.
    done = node.oci("--systemd-cgroup", "create", "--bundle", bundle, bundle.name)
    node.view = []
    assert done.returncode != 0
    assert "xpu:" not in done.stderr
    rules = spec_of(bundle)["linux"]["resources"]["devices"]
    allowed = [(rule["major"], rule["minor"]) for rule in rules if rule["allow"]]
    for numbers in ((195, 0), (195, 255)):
        assert numbers in allowed
        link = char_links / f"{numbers[0]}:{numbers[1]}"
        if booted:
            found = os.stat(link).st_rdev
            assert (os.major(found), os.minor(found)) == numbers
        else:
            assert not link.exists()  # nobody would read it, and nobody would remove it
    node.xpu("gc")
    assert node.grants() == []


def test_a_container_without_a_mount_namespace_gets_its_slice_by_its_spec(
    node: Node, bundles: Bundles
) -> None:
    """runc mounts such a container's /proc in the host's own namespace, and leaves it there: so with ours."""

    def on_the_host(spec: dict[str, Any]) -> None:
        spec["linux"]["namespaces"] = [n for n in spec["linux"]["namespaces"] if n["type"] != "mount"]
        spec["mounts"] = [{"destination": "/proc", "type": "proc", "source": "proc"}]
        for name in ("maskedPaths", "readonlyPaths"):
            del spec["linux"][name]

    with node.own_mounts():
        node.sim("1xT4")
        bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"], change=on_the_host)
        done = node.run(bundle)
        assert (done.returncode, done.stdout) == (0, "device 0: 1024 MiB free of 1024 MiB\n"), done.stderr
        assert "--grant" in spec_of(bundle)["hooks"]["createRuntime"][0]["args"]
        assert node.grants() == []


def test_a_bundle_that_is_used_again_gets_what_is_granted_then(
    node: Node, bundles: Bundles, any_mode: str
) -> None:
    node.sim("2xT4")
    bundle = bundles("XPU_MEM=10G", args=["sleep", "1000"])
    original = spec_of(bundle)
    for used in ("0", "0", "1"):
        if used == "1":
            node.start(bundles("XPU_MEM=10G", "XPU_VISIBLE_DEVICES=0", args=["sleep", "1000"]))
        node.start(bundle)
        (grant,) = [each for each in node.grants() if each.container_id == bundle.name]
        assert grant.slices[0].device_index == used
        spec = spec_of(bundle)
        assert {stage: len(hooks) for stage, hooks in spec["hooks"].items()} == {
            "createRuntime": 1,
            "poststop": 1,
        }
        places = [mount["destination"] for mount in spec["mounts"]]
        assert len(places) == len(set(places))
        assert spec["linux"].get("devices") == original["linux"].get("devices")
        rules = [rule["minor"] for rule in spec["linux"]["resources"]["devices"] if rule.get("major") == 195]
        if any_mode == "spec":
            assert sorted(rules) == [int(used), 255]
        else:
            assert {**spec, "hooks": None} == {**original, "hooks": None}
        node.remove(bundle.name)


def test_a_spec_that_the_engine_writes_anew_wins_over_what_was_kept(
    node: Node, bundles: Bundles, mode: str
) -> None:
    bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"])
    spec = spec_of(bundle)
    assert node.run(bundle).stdout == "device 0: 1024 MiB free of 1024 MiB\n"
    spec["process"]["env"][-1] = "XPU_MEM=3G"
    (bundle / "config.json").write_text(json.dumps(spec))
    assert node.run(bundle).stdout == "device 0: 3072 MiB free of 3072 MiB\n"
    spec["process"].update(args=["sh", "-c", "ls /dev | grep -c nvidia"], env=["PATH=/bin"])
    text = json.dumps(spec)
    (bundle / "config.json").write_text(text)
    assert node.run(bundle).stdout == "0\n"
    assert (bundle / "config.json").read_text() == text


@pytest.mark.parametrize("modes", ["hook spec", "spec hook"])
def test_a_bundle_can_be_used_again_the_other_way(node: Node, bundles: Bundles, modes: str) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"])
    for mode in modes.split():
        node.configure(f"mode: {mode}")
        assert node.run(bundle).stdout == "device 0: 1024 MiB free of 1024 MiB\n"
    assert ("--grant" in spec_of(bundle)["hooks"]["createRuntime"][0]["args"]) == (mode == "spec")
    assert node.grants() == []


@pytest.mark.parametrize("same_bundle", [True, False])
def test_an_id_that_is_taken_leaves_its_containers_grant_alone(
    node: Node, bundles: Bundles, mode: str, same_bundle: bool
) -> None:
    bundle = bundles("XPU_MEM=4G", args=["sleep", "1000"])
    container = node.start(bundle)
    (first,) = node.grants()
    again = bundle if same_bundle else bundles("XPU_MEM=4G", args=["sleep", "1000"])
    done = node.oci("create", "--bundle", again, container)
    assert done.returncode == 1
    assert "exist" in done.stderr
    node.xpu("gc")
    assert node.grants() == [first]
    assert node.oci("exec", container, "cuda-probe", "info").stdout.endswith("of 4096 MiB\n")
    node.remove(container)
    assert node.grants() == []


CGROUPS = "/sys/fs/cgroup"


def stand_in(node: Node, says: str) -> Path:
    """runc as a low-level runtime under another name; `calls` has its commands."""
    version = f"case $1 in --version) echo '{says}'; echo 'spec: 1.1.0'; exit;; esac"
    log = f'echo "$@" >> {node.folder}/calls'
    program = script(node.folder / "low-level", f'{version}\n{log}\nexec runc "$@"')
    node.configure(f"low_level_runtimes: [{program}]")
    return program


def test_in_front_of_crun_a_refusal_is_the_runtime_s_own_and_crun_is_not_called(
    node: Node, bundles: Bundles
) -> None:
    """crun tells of a hook that refuses its exit status alone."""
    stand_in(node, "crun version 1.8.1")
    controllers = f"{CGROUPS}/unified/cgroup.controllers"
    with node.own_mounts(f"[ ! -e {controllers} ] || mount --bind /dev/null {controllers}"):
        node.sim("1xT4")
        done = node.run(bundles("XPU_MEM=100G"))
        assert done.returncode == 1
        assert "xpu: refused: no device has 100G of memory" in done.stderr
        assert not (node.folder / "calls").exists()
        shown = node.xpu("explain", "-e", "XPU_MEM=4G").stdout
        assert "crun does not tell why a hook has refused a container" in shown

        node.start(bundles("XPU_MEM=1G", args=["sleep", "1000"]))
        assert [grant.mode for grant in node.grants()] == ["spec"]


def test_crun_is_refused_where_it_starts_nothing_before_a_slice_is_booked(
    node: Node, bundles: Bundles
) -> None:
    (node.folder / "controllers").write_text("hugetlb\n")
    node.configure("low_level_runtimes: [/usr/bin/crun]")
    hybrid = f"""
        if [ -e {CGROUPS}/cgroup.controllers ]; then
            mount -t tmpfs none {CGROUPS}
            mkdir {CGROUPS}/unified
            mount -t cgroup2 none {CGROUPS}/unified
        fi
        mount --bind {node.folder}/controllers {CGROUPS}/unified/cgroup.controllers"""
    with node.own_mounts(hybrid):
        node.sim("1xT4")
        crun_s_own = node.run(bundles(args=["true"]))
        assert crun_s_own.returncode != 0 and "hybrid mode not supported" in crun_s_own.stderr
        told = (
            "the low-level runtime /usr/bin/crun is crun, which starts no container where cgroup v2 has "
            f"controllers beside v1 (hugetlb, in {CGROUPS}/unified): name runc in low_level_runtimes in "
            f"{node.config}, or boot with systemd.unified_cgroup_hierarchy=1\n"
        )
        done = node.run(bundles("XPU_MEM=1G"))
        assert (done.returncode, done.stderr) == (1, f"xpu: {told}")
        assert node.json("ps") == []
        explained = node.xpu("explain", "-e", "XPU_MEM=1G", check=False)
        assert (explained.returncode, explained.stderr) == (1, f"xpu: {told}")
        (finding,) = about_runtime(node)
        assert (finding["state"], f"{finding['text']}: {finding['todo']}\n") == ("problem", told)


def about_runtime(node: Node) -> list[dict[str, Any]]:
    findings = json.loads(node.xpu("doctor", "--json", check=False).stdout)["findings"]
    return [each for each in findings if each["check"] == "low-level runtime"]


@pytest.mark.parametrize(
    ("says", "named"),
    [
        ("runsc version release-20240807.0", "gVisor's runsc"),
        ("kata-runtime  : 3.2.0", "that of Kata Containers"),
    ],
)
def test_a_runtime_whose_containers_we_do_not_reach_is_refused_by_name_to_those_who_ask(
    node: Node, bundles: Bundles, says: str, named: str
) -> None:
    program = stand_in(node, says)
    node.sim("1xT4")
    told = (
        f"the low-level runtime {program} is {named}: its containers have a kernel of their own, which "
        "devices and mounts of this host do not reach: "
        f"name runc or crun in low_level_runtimes in {node.config}\n"
    )
    # Also a request that the launcher itself would put hooks in for.
    for _ in range(2):
        done = node.run(bundles("XPU_MEM=1G"))
        assert (done.returncode, done.stderr) == (1, f"xpu: {told}")
    done = node.xpu("explain", "-e", "XPU_MEM=1G", check=False)
    assert (done.returncode, done.stderr) == (1, f"xpu: {told}")
    assert not (node.folder / "calls").exists()
    (finding,) = about_runtime(node)
    assert (finding["state"], f"{finding['text']}: {finding['todo']}\n") == ("problem", told)

    done = node.run(bundles(args=["echo", "as before"]))
    assert (done.returncode, done.stdout) == (0, "as before\n")
