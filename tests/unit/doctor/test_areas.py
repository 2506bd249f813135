"""Areas' findings about parts of a machine that this machine has in one state only."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.inventories import node, nvidia
from xpu_runtime import engines, paths
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.doctor import docker_flags
from xpu_runtime.doctor.areas import (
    containerd,
    docker,
    installation,
    kernel,
    limits,
    nodes,
    podman,
    runtime,
    security,
)
from xpu_runtime.doctor.machine import Machine
from xpu_runtime.engines import crio
from xpu_runtime.engines import docker as docker_engine
from xpu_runtime.finding import OK, PROBLEM, WARNING
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.linux.cgroups import Hierarchy
from xpu_runtime.observe import docker_api, engine
from xpu_runtime.observe.engine import Process, changed_since
from xpu_runtime.vendors.inventory import Device, Driver, Inventory, Node

GPU = Device("0", "GPU-1", "T4", 1 << 30, (Node("/dev/nvidia0", 195, 0),), "nvidia")
V1 = Hierarchy(1, ("devices",), "/", "/sys/fs/cgroup/devices")
V2 = Hierarchy(2, (), "/", "/sys/fs/cgroup/unified")


def machine(inventory: Inventory, *grants: Grant) -> Machine:
    return Machine(DEFAULTS, (), inventory.root, True, inventory, "", "", grants, True)


def granted(uuid: str) -> Grant:
    slice_ = Slice("0", uuid, 1 << 20, True, None, Holding())
    return Grant(1, "web", "/b", os.getpid(), 0, "", "running", "hook", 0.0, (slice_,))


@pytest.mark.parametrize(
    ("mounted", "state", "says"),
    [
        ([], PROBLEM, "no cgroup hierarchy"),
        ([V1], WARNING, "v1 only"),
        ([V1, Hierarchy(2, (), "/", "{0}")], OK, "hybrid"),
        ([Hierarchy(2, (), "/", "{0}")], OK, "with dmem controller"),
        ([V2, Hierarchy(2, (), "/", "{0}")], OK, "with dmem controller"),
        ([V2], PROBLEM, "cgroup v2 is at /sys/fs/cgroup/unified and not at"),
        ([Hierarchy(1, ("memory",), "/", "/sys/fs/cgroup/memory"), V2], PROBLEM, "no container can start"),
    ],
)
def test_cgroups(tmp_path: Path, mounted: list[Hierarchy], state: str, says: str) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory dmem\n")
    here = [each.replace(mountpoint=each.mountpoint.format(tmp_path)) for each in mounted]
    finding = kernel.of_cgroups(
        here, systemd=True, top=str(tmp_path), own=("devices",) if V1 in mounted else ()
    )
    assert finding.state == state
    assert says in finding.text
    assert (finding.todo is None) == (state == OK)


@pytest.mark.parametrize(
    ("v1", "own", "todo"),
    [
        ((), (), "mount -t cgroup2 none {0}"),
        (("memory",), (), "boot with systemd.unified_cgroup_hierarchy=1"),
        (
            ("memory",),
            ("memory", "devices"),
            "mkdir -p {0}/devices; mount -t cgroup -o devices none {0}/devices",
        ),
    ],
)
def test_nothing_is_to_be_mounted_over_hierarchies_of_v1(
    tmp_path: Path, v1: tuple[str, ...], own: tuple[str, ...], todo: str
) -> None:
    mounted = [Hierarchy(1, (each,), "/", f"{tmp_path}/{each}") for each in v1]
    here = [*mounted, Hierarchy(2, (), "/", f"{tmp_path}/unified")]
    finding = kernel.of_cgroups(here, systemd=True, top=str(tmp_path), own=own)
    assert (finding.state, finding.todo) == (PROBLEM, todo.format(tmp_path))


@pytest.mark.parametrize(
    ("version", "mounted", "state"),
    [
        ("runc version 1.0.0~rc93+ds1", [V1, V2], WARNING),
        ("runc version 1.0.0~rc93+ds1", [V2], OK),
        ("runc version 1.1.5+ds1", [V1, V2], OK),
        ("runc version 1.10.0", [V1, V2], OK),
    ],
)
def test_a_runc_that_makes_no_cgroup_v2_folder(version: str, mounted: list[Hierarchy], state: str) -> None:
    finding = runtime.of_version("/usr/sbin/runc", version, mounted, "runc")
    assert finding.state == state and version in finding.text
    assert (finding.todo is None) == (state == OK)


def test_a_runtime_that_was_never_tried() -> None:
    def state(name: str) -> str:
        return runtime.of_version(f"/usr/bin/{name}", f"{name} version 1.8", [V1, V2], name).state

    assert [state(name) for name in ("runc", "crun", "youki")] == [OK, OK, WARNING]


def test_a_kernel_without_seccomp(tmp_path: Path) -> None:
    assert kernel.seccomp(str(tmp_path / "none")).state == WARNING
    (tmp_path / "actions").write_text("kill_process errno allow\n")
    assert kernel.seccomp(str(tmp_path / "actions")).state == OK


def test_enforcing_selinux_is_reported_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "enforce"
    assert security.selinux(str(file)).text == "off"
    file.write_text("0")
    assert security.selinux(str(file)).text == "permissive"
    file.write_text("1")
    finding = security.selinux(str(file))
    assert finding.state == WARNING
    assert "setsebool" in str(finding.todo)


def test_apparmor(tmp_path: Path) -> None:
    assert security.apparmor(str(tmp_path / "none")).text == "off"
    (tmp_path / "enabled").write_text("Y\n")
    assert security.apparmor(str(tmp_path / "enabled")).text.startswith("on")


def test_a_missing_link_for_systemd_is_reported_and_the_advice_makes_it(
    tmp_path: Path,
) -> None:
    root, links = tmp_path / "root", tmp_path / "char"
    (root / "dev").mkdir(parents=True)
    links.mkdir()
    os.mknod(root / "dev/nvidia0", 0o20666, os.makedev(195, 0))
    there = node(nvidia("580.82.07"), GPU).replace(root=str(root))
    assert list(nodes.links(machine(there), str(links))) == []  # nothing runs
    asked = machine(there, granted("GPU-1"))
    (finding,) = nodes.links(asked, str(links))
    assert finding.state == PROBLEM
    assert "daemon-reload" in finding.text
    assert os.system(str(finding.todo)) == 0
    assert list(nodes.links(asked, str(links))) == []


def test_a_hook_file_that_names_a_missing_program_is_told(tmp_path: Path) -> None:
    hook = tmp_path / os.path.basename(paths.HOOK)
    (tmp_path / "90-xpu.json").write_text(json.dumps({"version": "1.0.0", "hook": {"path": str(hook)}}))
    (tmp_path / "other.json").write_text("not ours")
    (finding,) = podman.hooks((str(tmp_path), str(tmp_path / "none")))
    assert finding.state == PROBLEM
    assert f"names {hook}, which is not" in finding.text
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    (finding,) = podman.hooks((str(tmp_path),))
    assert finding.state == OK
    (tmp_path / "90-xpu.json").write_text(f"{{{hook}")
    (finding,) = podman.hooks((str(tmp_path),))
    assert finding.state == PROBLEM


def test_a_second_installation_is_told(tmp_path: Path) -> None:
    for prefix in ("usr", "local"):
        (tmp_path / prefix / "bin").mkdir(parents=True)
        (tmp_path / prefix / "bin" / "xpu-container-runtime").write_text("")
    first = str(tmp_path / "usr/bin/xpu-container-runtime")
    prefixes = (str(tmp_path / "usr"), str(tmp_path / "local"), str(tmp_path / "none"))
    (finding,) = installation.others(first, prefixes)
    assert finding.state == WARNING
    assert str(tmp_path / "local/bin/xpu-container-runtime") in finding.text
    (tmp_path / "local/bin/xpu-container-runtime").unlink()
    assert list(installation.others(first, prefixes)) == []


def test_a_default_runtime_that_gives_whole_devices_is_told() -> None:
    told = {"Runtimes": {"runc": {}, "nvidia": {}}, "DefaultRuntime": "nvidia"}
    first, second = docker.compared(Process(1, ("dockerd",), 0.0), "/daemon.json", {}, None, told)
    assert first.state == second.state == WARNING
    assert "past the ledger" in second.text


@pytest.mark.parametrize(
    ("flags", "said", "is_reload"),
    [
        ("", {}, True),
        ("--default-runtime runc", {}, True),
        ("--add-runtime foo=/f", {}, False),
        ("--add-runtime=foo=/f --add-runtime a=/a", {"runtimes": {"a": {}}}, False),
        ("--add-runtime=foo=/f", {"runtimes": {"foo": {"path": "/f"}}}, True),
        ("--default-runtime=foo", {"runtimes": {"a": {}}}, False),
        ("--default-runtime=foo", {"runtimes": {"foo": {}}}, True),
        ("--default-runtime io.containerd.runc.v2", {}, False),
        ("--add-runtime foo=/f", {"runtimes": []}, False),
    ],
)
def test_docker_is_reloaded_only_where_it_forgets_nothing(
    flags: str, said: dict[str, Any], is_reload: bool
) -> None:
    process = Process(7, ("dockerd", *flags.split()), 0.0)
    told = docker_flags.after_configure(process, said)
    assert (told == docker_engine.AFTER_CONFIGURE) is is_reload
    assert is_reload or ("systemctl restart docker" in told and "process 7" in told)
    # doctor's finding before docker has read the file.
    here: dict[str, Any] = {"Runtimes": {"runc": {}, **{name: {} for name in docker_flags.added(process)}}}
    (finding,) = docker.compared(process, "/daemon.json", said, "/x", here)
    assert finding.state == PROBLEM and finding.todo == told


def test_a_setting_that_docker_has_forgotten_is_reported_with_a_restart() -> None:
    process = Process(7, ("dockerd", "--add-runtime", "foo=/f"), 0.0)
    told = {"Runtimes": {"runc": {}, "xpu": {"path": "/x"}}}
    fine, lost = docker.compared(process, "/daemon.json", {}, "/x", told)
    assert (fine.state, lost.state, lost.todo) == (OK, PROBLEM, docker_engine.AFTER_UNCONFIGURE)
    assert "foo" in lost.text


def test_a_default_that_a_flag_names_is_changed_there() -> None:
    process = Process(7, ("dockerd", "--default-runtime=nvidia"), 0.0)
    told = {"Runtimes": {"runc": {}, "nvidia": {}, "xpu": {"path": "/x"}}, "DefaultRuntime": "nvidia"}
    _, warned = docker.compared(process, "/daemon.json", {}, "/x", told)
    assert "--set-as-default" not in (warned.todo or "")
    assert (warned.todo or "").startswith("say --default-runtime xpu on its command line")


def test_rootless_docker_is_not_supported() -> None:
    told = {"Runtimes": {}, "SecurityOptions": ["name=seccomp", "name=rootless"]}
    process = Process(1, ("dockerd",), 0.0)
    assert next(docker.compared(process, "/daemon.json", {}, None, told)).state == PROBLEM


@pytest.mark.parametrize("words", ["-H unix:///a -H fd://", "--host=unix:///a", "--host unix:///a"])
def test_the_socket_of_docker_is_found_in_its_words(words: str) -> None:
    process = Process(1, ("dockerd", *words.split()), 0.0)
    assert docker_api.socket_of(process.option("-H", "--host")) == "/a"


def test_a_file_is_younger_than_a_process_or_not(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("")
    os.utime(file, (1000, 1000))
    assert changed_since(Process(1, ("x",), 999.0), [str(file), "/no/such"]) == [str(file)]
    assert changed_since(Process(1, ("x",), 1000.0), [str(file)]) == []


def test_alike_devices_share_a_line_and_others_have_their_own() -> None:
    mig = GPU.replace(index="1:0", uuid="MIG-1", parent="GPU-2")
    there = node(nvidia("580.82.07"), GPU, GPU.replace(index="2", uuid="GPU-3"), mig)
    texts = [finding.text for finding in limits.look(machine(there))]
    assert len(texts) == 5
    assert texts[0].startswith("GPU 0, 2: nothing on this node holds a limit of memory")
    assert any(text.startswith("MIG device 1:0: ") and "all of it: mig (hard)" in text for text in texts)
    assert texts[-1].startswith("the backend mig: experimental: no card has tried it yet")


def test_parts_untried_on_a_card_are_named_if_the_node_would_use_them() -> None:
    def experimental(there: Inventory) -> list[str]:
        texts = [finding.text for finding in limits.look(machine(there))]
        return [text.partition(": experimental")[0] for text in texts if ": experimental" in text]

    assert experimental(node(nvidia("580.82.07"), GPU)) == []
    amd = Driver("amd", "6.14")
    assert experimental(node(amd, GPU.replace(vendor="amd"))) == ["GPUs of amd"]


@pytest.mark.parametrize(
    ("version", "warned"), [(None, 0), ((1, 6), 0), ((1, 7), 1), ((2, 0), 1), ((2, 1), 0), ((3, 0), 0)]
)
def test_a_containerd_that_forgets_the_runtime_in_user_namespaces_is_named(
    version: tuple[int, int] | None, warned: int
) -> None:
    findings = list(containerd.of_version(version))
    assert [(each.state, "hostUsers: false" in each.text) for each in findings] == [(WARNING, True)] * warned
    assert all(each.todo for each in findings)


def test_a_runtime_that_containerd_does_not_see_is_a_problem_and_one_unlike_runc_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpu_runtime.engines.installed_version", lambda _: (2, 1))
    (tmp_path / "conf.d").mkdir()
    config, ours = tmp_path / "config.toml", tmp_path / "conf.d" / "99-xpu.toml"

    def found(version: str, plugin: str, runc: str) -> list[tuple[str, bool]]:
        config.write_text(f"{version}imports = ['{tmp_path}/conf.d/*.toml']\n")
        (tmp_path / "conf.d" / "10.toml").write_text(f"{version}{runc}")
        ours.write_text(f"{version}[plugins.'{plugin}'.containerd.runtimes.xpu.options]\nBinaryName = '/x'\n")
        said = containerd._look(str(config), None)
        told = ("ignores plugins.cri", "SystemdCgroup is true for runc and false for xpu")
        return [(each.state, bool(each.todo)) for each in said if any(text in each.text for text in told)]

    name = "io.containerd.cri.v1.runtime"
    systemd = f"[plugins.'{name}'.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
    assert found("", "cri", "") == [(PROBLEM, True)]
    assert found("version = 3\n", name, systemd) == [(WARNING, True)]
    assert found("version = 3\n", name, systemd.replace("true", "false")) == []


def test_a_runtime_that_cri_o_does_not_see_is_named_before_a_restart_that_would_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tmp_path / "99-xpu.conf"
    monkeypatch.setattr(crio, "DEFAULT_PATH", str(ours))
    monkeypatch.setattr(engine, "LAUNCHER", "/bin/true")
    entry = "[crio.runtime.runtimes.xpu]\nruntime_path = '/bin/{}'\n"
    ours.write_text(entry.format("true"))
    (tmp_path / "zz").write_text(entry.format("false"))
    crio_since_long = [Process(7, ("crio",), 0.0)]
    found = podman._found("cri-o", engines.engine("crio"), crio.FILE, crio_since_long)
    assert found.text.startswith(f"{tmp_path}/zz is read after {ours}")
    (tmp_path / "zz").unlink()
    found = podman._found("cri-o", engines.engine("crio"), crio.FILE, crio_since_long)
    assert found.text.startswith(f"crio (process 7) has not read {ours}")
    found = podman._found("cri-o", engines.engine("crio"), crio.FILE, [])
    assert found.text == f"{ours} names xpu (/bin/true)"
