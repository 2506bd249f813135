"""Processes that are killed, steps and drivers that fail: nothing stays booked, nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support import script
from xpu_runtime.config.load import load
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import enforce
from xpu_runtime.vendors import discovery

from ..conftest import Bundles, Node, state_of
from ..inside import may_mknod, tree
from ..refusals import refused

# A hook or a shim that is killed.

#: Calls that change something, for the instants between them.
CHANGES = (
    "pwrite64,write,ftruncate,unlink,unlinkat,rename,renameat,renameat2,open_tree,move_mount,mount_setattr,"
    "mount,umount2,setns,mknodat,symlinkat,mkdir,mkdirat,chmod,fchmod,chown,fchown,flock,sendmsg,connect"
)


def run_hooks_through(node: Node, mode: str, *words: str, stage: str = "createRuntime") -> None:
    """Has the low-level runtime run hooks of that stage behind `words`, such as `strace`."""
    program = node.folder / "low" / "runc"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f"""#!/usr/bin/python3 -IS
import json, os, sys
arguments = sys.argv[1:]
if "create" in arguments or "run" in arguments:
    path = os.path.join(arguments[arguments.index("--bundle") + 1], "config.json")
    with open(path) as file:
        spec = json.load(file)
    for hook in spec.get("hooks", {{}}).get({stage!r}, []):
        hook["args"] = [*{list(words)!r}, hook["path"], *hook["args"][1:]]
        hook["path"] = {words[0]!r}
    with open(path, "w") as file:
        json.dump(spec, file)
os.execv("/usr/sbin/runc", ["/usr/sbin/runc", *arguments])
"""
    )
    program.chmod(0o755)
    node.configure(f"mode: {mode}\nlow_level_runtimes: [{program}]\n")


def instants(trace: Path) -> list[str]:
    """Options of strace that kill the traced program at each of its calls, until it runs runc."""
    seen: dict[str, int] = {}
    found = []
    for line in trace.read_text().splitlines():
        name, parenthesis, rest = line.partition("(")
        if name == "execve" and 'runc"' in rest:
            break
        if parenthesis and name != "execve":
            # strace counts each kind of system call separately.
            seen[name] = seen.get(name, 0) + 1
            found.append(f"--inject={name}:signal=KILL:when={seen[name]}")
    return found


#: A driver that holds memory limits itself, and one for which the interposers do.
DRIVERS = pytest.mark.parametrize("topology", ["1xT4", "1xT4-R580"])


@DRIVERS
@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_a_hook_killed_at_any_instant_leaves_nothing_behind(
    node: Node, bundles: Bundles, mode: str, topology: str
) -> None:
    node.sim(topology)
    bundle = bundles("XPU_MEM=15G", "XPU_CORES=100", args=["nvidia-smi", "-L"])
    pristine = (bundle / "config.json").read_bytes()
    before = bundles("XPU_MEM=15G")
    trace = node.folder / "trace"

    def attempt(*options: str) -> int:
        node.configure(f"mode: {mode}")
        assert node.run(before).returncode == 0
        run_hooks_through(node, mode, "/usr/bin/strace", "-o", str(trace), "-e", f"trace={CHANGES}", *options)
        (bundle / "config.json").write_bytes(pristine)
        return node.run(bundle).returncode

    assert (attempt(), attempt()) == (0, 0)  # the second finds all caches made
    kills = instants(trace)
    assert len(kills) > 10
    for kill in kills[::4]:
        assert attempt(kill) == 1, kill
        assert not (node.state_root / bundle.name).exists()
        node.xpu("gc")
        assert node.grants() == [], kill
        assert list(node.run_dir.glob("slices/*")) == [], kill
    assert attempt() == 0


@DRIVERS
@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_a_shim_killed_at_any_instant_leaves_nothing_behind(
    node: Node, bundles: Bundles, mode: str, topology: str
) -> None:
    node.configure(f"mode: {mode}")
    node.sim(topology)
    bundle = bundles("XPU_MEM=15G", "XPU_CORES=100", args=["nvidia-smi", "-L"])
    pristine = (bundle / "config.json").read_bytes()
    trace = node.folder / "trace"

    def attempt(*options: str) -> int:
        traced = ["strace", "-o", str(trace), "-e", f"trace=execve,{CHANGES}", *options]
        command = [*traced, *node.command("run", "--bundle", bundle, bundle.name)]
        (bundle / "config.json").write_bytes(pristine)
        return subprocess.run(command, env=node.environ, stdout=subprocess.DEVNULL, timeout=60).returncode

    assert attempt() == 0
    node.xpu("gc")  # as below: the first has left its end to be taken in
    assert attempt() == 0  # finds all caches made
    kills = instants(trace)
    assert len(kills) > 1
    for kill in kills if mode == "hook" else kills[::4]:
        assert attempt(kill) == -signal.SIGKILL, kill
        left = (bundle / "config.json").read_bytes()
        assert left == pristine or hooks_in(bundle) == {"createRuntime": 1, "poststop": 1}
        node.xpu("gc")
        assert node.grants() == [], kill
        assert list(node.run_dir.glob("slices/*")) == [], kill
    # The engine may try the very same bundle again.
    done = node.run(bundle)
    assert "Tesla T4" in done.stdout, done.stderr
    assert hooks_in(bundle) == {"createRuntime": 1, "poststop": 1}


def hooks_in(bundle: Path) -> dict[str, int]:
    hooks = json.loads((bundle / "config.json").read_text())["hooks"]
    return {stage: len(found) for stage, found in hooks.items()}


# A hook that fails.


def test_a_step_that_fails_takes_back_all_that_was_done_before_it(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G")
    (bundle / "rootfs/usr/bin/nvidia-smi").mkdir()
    before = tree(bundle / "rootfs")
    told = refused(node, bundle)
    assert "at /usr/bin/nvidia-smi: Is a directory: the image has something else at that place" in told
    assert tree(bundle / "rootfs") == before
    assert node.grants() == []


def test_a_container_that_outlives_its_failed_hook_has_nothing_of_ours(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    program = script(node.folder / "forgiving", '"$@" 2>/dev/null && exit 1\nexit 0')
    run_hooks_through(node, "hook", str(program))
    look = "cat /proc/self/mountinfo; ls /dev; mknod /dev/n c 195 0; cat /dev/n 2>&1"

    bundle = bundles("XPU_MEM=1G", args=["sh", "-c", look], change=may_mknod)
    (bundle / "rootfs/usr/bin/nvidia-smi").mkdir()
    done = node.run(bundle)
    assert done.returncode == 1
    assert "nvidia" not in done.stdout.rpartition("cat: ")[0]
    assert "Operation not permitted" in done.stdout
    assert node.grants() == []


def test_a_spec_that_cannot_be_edited_leaves_no_grant(node: Node, bundles: Bundles) -> None:
    node.configure("mode: spec")
    node.sim("1xT4-R580")
    told = refused(node, bundles("XPU_MEM=1G", change=lambda spec: spec.update(hooks=[])))
    assert "the container's spec is malformed: hooks (of hooks.createRuntime) is not an object" in told
    assert node.grants() == []
    assert list(node.run_dir.glob("slices/*")) == []


def failing_topology(node: Node) -> Path:
    path = node.folder / "failing.yaml"
    path.write_text(
        "gpus:\n- {model: T4}\n"
        "- {model: T4, fail: {nvmlDeviceSetMemoryLimits_v1: NVML_ERROR_INSUFFICIENT_RESOURCES}}\n"
    )
    return path


def test_a_limit_that_the_driver_refuses_refuses_the_container(
    node: Node, bundles: Bundles, any_mode: str
) -> None:
    node.sim(failing_topology(node))
    bundle = bundles("XPU_MEM=1G", "XPU_VISIBLE_DEVICES=0,1")
    before = tree(bundle / "rootfs")
    told = refused(node, bundle)
    uuid = node.json("devices")[1]["uuid"]
    assert f"setting a memory limit of device {uuid}" in told
    assert "Insufficient Resources" in told
    if any_mode == "hook":
        assert tree(bundle / "rootfs") == before
    assert node.grants() == []
    assert node.run(bundles("XPU_MEM=15G", "XPU_VISIBLE_DEVICES=0")).returncode == 0


def test_a_limit_set_before_another_one_fails_is_lifted_again(node: Node, bundles: Bundles) -> None:
    node.sim(failing_topology(node))
    program = node.folder / "look"
    program.write_text(
        f"""#!/usr/bin/python3 -IS
import os, subprocess, sys
failed = subprocess.run(sys.argv[1:]).returncode
sys.path[:0] = [{str(node.prefix)!r} + "/lib/xpu-container-runtime/python"]
from xpu_runtime.config.load import load
from xpu_runtime.vendors import discovery
from xpu_runtime.linux import cgroups
from xpu_runtime.limits.backends import driver
import glob
found = discovery.load(load())
name = "{node.folder.name}-*"
(folder,) = glob.glob("/sys/fs/cgroup/unified/" + name) or glob.glob("/sys/fs/cgroup/" + name)
with driver.Nvml(found) as nvml, open({str(node.folder / "seen")!r}, "w") as file:
    print(failed, nvml.read(found.devices[0], folder).limit, file=file)
sys.exit(failed)
"""
    )
    program.chmod(0o755)
    run_hooks_through(node, "hook", str(program))
    assert node.run(bundles("XPU_MEM=1G", "XPU_VISIBLE_DEVICES=0,1")).returncode == 1
    assert (node.folder / "seen").read_text() == "1 None\n"


# The next start.


def die_unseen(node: Node, container: str) -> None:
    """It dies, and its hooks are not run, as when they are killed."""
    subprocess.run(["runc", "--root", node.state_root, "kill", container, "KILL"], check=True)
    while node.json("ps")[0]["state"] != "dead":
        pass  # the test's own time limit ends this


def test_giving_back_twice_or_for_nobody_or_with_a_broken_configuration_is_no_error(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G", args=["sleep", "1000"])
    container = node.start(bundle)
    node.configure("moed: hook\n")

    def poststop(name: str) -> tuple[int, str]:
        done = node.call_hook("poststop", state={**state_of(bundle, status="stopped"), "id": name})
        return done.returncode, done.stdout + done.stderr

    assert poststop("nobody") == (0, "")
    # One of this name has ended, and it was not this one.
    assert poststop(container) == (0, "")
    assert [entry["state"] for entry in node.json("ps")] == ["running"]
    die_unseen(node, container)
    for _ in range(2):
        assert poststop(container) == (0, "")
        assert node.grants() == []
    node.remove(container)


def test_clearing_up_after_a_dead_container_leaves_the_limit_of_its_next_life(
    node: Node, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting NVML takes its time: by then the container may run again, in a cgroup of the same name."""
    node.sim("1xT4")
    monkeypatch.setenv("XPU_RUN_DIR", str(node.run_dir))
    monkeypatch.setenv("XPU_CONFIG", str(node.config))
    bundle = bundles("XPU_MEM=4G", args=["sleep", "1000"])
    pristine = (bundle / "config.json").read_bytes()
    node.start(bundle)
    dead = node.grants()
    die_unseen(node, bundle.name)
    with Ledger() as ledger:
        assert [grant.id for grant in ledger.reap()] == [dead[0].id]
    node.remove(bundle.name)
    (bundle / "config.json").write_bytes(pristine)
    container = node.start(bundle)
    assert node.grants()[0].cgroup == dead[0].cgroup
    enforce.clear(discovery.load(load()), dead)
    assert node.oci("exec", container, "cuda-probe", "info").stdout.endswith("of 4096 MiB\n")


def test_a_next_life_without_a_limit_has_none_of_the_one_before(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=4G", args=["sleep", "1000"])
    pristine = (bundle / "config.json").read_text()
    node.start(bundle)
    (dead,) = node.grants()
    die_unseen(node, bundle.name)
    # The host's record of it is lost, and its cgroup is left.
    shutil.rmtree(node.state_root / bundle.name)
    assert Path(dead.cgroup).is_dir()
    (bundle / "config.json").write_text(pristine.replace("XPU_MEM=4G", "XPU_COUNT=1"))
    container = node.start(bundle)
    assert node.grants()[0].cgroup == dead.cgroup
    assert node.oci("exec", container, "cuda-probe", "info").stdout.endswith("of 15360 MiB\n")


def test_a_container_ends_as_ever_when_the_driver_has_died(node: Node, bundles: Bundles, mode: str) -> None:
    container = node.start(bundles("XPU_MEM=1G", args=["sleep", "1000"]))
    driver = json.loads((node.run_dir / "sim/state.json").read_text())["pid"]
    pidfd = os.pidfd_open(driver)
    os.kill(driver, signal.SIGKILL)
    os.close(pidfd)
    done = node.oci("delete", "--force", container)
    assert (done.returncode, done.stderr) == (0, "")
    assert node.grants() == []
    told = refused(node, bundles("XPU_MEM=1G"))
    assert "driver" in told.lower()
    assert node.grants() == []
