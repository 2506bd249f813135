"""The checks in the machine: systemd runs them there as root, with the serial port for results.

Each check reports one JSON line: its name, whether it holds, its commands with their output, and seconds. Its
name says what must hold. It leaves no container behind, and relies on earlier checks only for the engine and
the simulated cards, which the first two start.
"""

from __future__ import annotations

import json
import os
import sys
import time

from .checking import (
    ALLOWED,
    CHECKS,
    CONFIG,
    DENIED,
    DRIVER,
    GIB,
    GPU0,
    GPU1,
    HERE,
    IMAGE,
    RUNTIME,
    SLICE,
    SYSTEM,
    XPU,
    Podman,
    check,
    limit_on,
    main,
    nothing_is_held,
    private_engine,
    run,
    xpu,
)
from .following import FOLLOWED


@check
def the_installed_runtime_is_made_known_to_docker_by_two_commands() -> None:
    run(XPU, "runtime", "configure", "docker")
    run("systemctl", "restart", "docker")
    info = json.loads(SYSTEM.docker("info", "--format", "{{json .}}"))
    assert info["Runtimes"]["xpu"]["path"] == RUNTIME
    # The checks below need a machine with these properties.
    assert (info["CgroupDriver"], info["CgroupVersion"]) == ("systemd", "2")
    SYSTEM.load_image()


@check
def the_simulation_comes_up_where_no_device_can_be_opened_below_run() -> None:
    options = run("findmnt", "--noheadings", "--output=OPTIONS", "/run").split(",")
    assert {"nosuid", "nodev"} <= set(options)
    run(XPU, "sim", "up", "--topology", "2xT4")
    assert [device["memory_bytes"] // GIB for device in xpu("devices")] == [15, 15]
    assert ALLOWED in run("cat", f"{DRIVER}/dev/nvidia0", fails=True)


@check
def when_a_driver_is_loaded_udev_has_systemd_look_at_the_devices() -> None:
    # The package's files, with this installation's path, and with a module that this machine has in place of
    # the driver's.
    for name, folder in (
        ("60-xpu-container-runtime.rules", "udev/rules.d"),
        ("xpu-inventory.service", "systemd/system"),
        ("xpu-agent.service", "systemd/system"),
    ):
        with open(f"{HERE}/{name}") as file:
            text = file.read()
        assert "nvidia|amdgpu" in text or "/usr/bin/xpu" in text
        with open(f"/etc/{folder}/{name}", "w") as file:
            file.write(text.replace("nvidia|amdgpu", "dummy").replace("/usr/bin/xpu", XPU))
    run("systemctl", "daemon-reload")
    run("udevadm", "control", "--reload")
    os.unlink("/run/xpu/inventory.json")
    run("modprobe", "dummy")
    deadline = time.monotonic() + 60
    while not os.path.exists("/run/xpu/inventory.json") or not os.path.exists("/run/xpu/start.sock"):
        assert time.monotonic() < deadline, run("systemctl", "status", "xpu-inventory.service", fails=True)
        time.sleep(0.2)
    # The service must succeed and end.
    while (state := run("systemctl", "show", "--property=ActiveState,Result", "xpu-inventory.service")) != (
        "Result=success\nActiveState=inactive\n"
    ):
        assert time.monotonic() < deadline, state
        time.sleep(0.2)
    run("systemctl", "stop", "xpu-agent.service")


@check
def a_container_gets_its_slice_in_spec_mode_with_the_limit_on_its_own_scope() -> None:
    with SYSTEM.container(*SLICE) as container:
        (entry,) = xpu("ps")
        assert (entry["container_id"], entry["mode"], entry["state"]) == (container, "spec", "running")
        assert (entry["memory_bytes"], entry["memory_strength"]) == (4 * GIB, "hard")
        assert "/   4096MiB" in SYSTEM.docker("exec", "checked", "nvidia-smi")
        said = SYSTEM.docker("exec", "checked", "cuda-probe", "alloc", "3000", "2000", fails=True)
        assert "3000 MiB: CUDA_SUCCESS" in said
        assert "2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in said
        assert limit_on(f"/sys/fs/cgroup/system.slice/docker-{container}.scope") == 4 * GIB
        assert limit_on("/sys/fs/cgroup/system.slice") is None
    assert nothing_is_held()


@check
def a_container_opens_its_own_gpu_and_not_the_other_also_after_a_daemon_reload() -> None:
    shared = ("/dev/nvidiactl", "/dev/nvidia-uvm")
    expected = {"/dev/nvidia0": ALLOWED, **dict.fromkeys(shared, ALLOWED), GPU0: ALLOWED, GPU1: DENIED}
    with SYSTEM.container(*SLICE, "--env=XPU_VISIBLE_DEVICES=0"):
        assert SYSTEM.openings(*expected) == expected
        # systemd finds a unit's allowed device by this link.
        assert os.readlink("/dev/char/195:0") == f"{DRIVER}/dev/nvidia0"
        run("systemctl", "daemon-reload")
        assert SYSTEM.openings(*expected) == expected


@check
def in_hook_mode_systemd_is_told_so_that_a_daemon_reload_leaves_the_gpu() -> None:
    os.makedirs(os.path.dirname(CONFIG), exist_ok=True)
    with open(CONFIG, "w") as file:
        file.write("mode: hook\n")
    try:
        with SYSTEM.container(*SLICE, "--env=XPU_VISIBLE_DEVICES=0"):
            assert xpu("ps")[0]["mode"] == "hook"
            assert SYSTEM.openings("/dev/nvidia0", GPU1) == {"/dev/nvidia0": ALLOWED, GPU1: DENIED}
            run("systemctl", "daemon-reload")
            assert SYSTEM.openings("/dev/nvidia0", GPU1) == {"/dev/nvidia0": ALLOWED, GPU1: DENIED}
    finally:
        os.unlink(CONFIG)


@check
def podman_gives_a_slice_as_a_cdi_device_and_a_daemon_reload_leaves_it() -> None:
    run(XPU, "cdi", "generate")
    podman = Podman()
    devices = ("--device=yoyoworks.com/xpu=slice", "--env=XPU_MEM=4G", "--env=XPU_VISIBLE_DEVICES=0")
    expected = {"/dev/nvidia0": ALLOWED, "/dev/nvidiactl": ALLOWED, GPU1: DENIED}
    with podman.container(*devices, "--cap-add=MKNOD") as container:
        (entry,) = xpu("ps")
        assert (entry["container_id"], entry["mode"], entry["memory_bytes"]) == (container, "hook", 4 * GIB)
        assert podman.openings(*expected) == expected
        run("systemctl", "daemon-reload")
        assert podman.openings(*expected) == expected
    assert nothing_is_held()
    # Without a systemd that answers there is no slice, which the next daemon-reload would take away.
    run("mount", "--bind", "/usr/bin/false", "/usr/bin/busctl")
    try:
        said = podman.docker("run", "--rm", *devices, "--network=none", IMAGE, "true", fails=True)
    finally:
        run("umount", "/usr/bin/busctl")
    assert "systemd manages the container's cgroup (libpod-" in said
    assert "cannot be told of its devices" in said and "start the container with the runtime xpu" in said
    assert nothing_is_held()


@check
def a_slice_is_given_back_by_docker_stop_taken_again_by_start_and_given_back_by_rm() -> None:
    with SYSTEM.container(*SLICE, "--env=XPU_VISIBLE_DEVICES=0"):
        SYSTEM.docker("stop", "--time=0", "checked")
        assert nothing_is_held()
        SYSTEM.docker("start", "checked")
        assert [entry["memory_bytes"] for entry in xpu("ps")] == [4 * GIB]
        assert SYSTEM.openings("/dev/nvidia0", GPU1) == {"/dev/nvidia0": ALLOWED, GPU1: DENIED}
        SYSTEM.docker("rm", "--force", "checked")
        assert nothing_is_held()
        # The name is free for the next container, and the end of `with` needs a container to remove.
        SYSTEM.docker("create", "--name=checked", IMAGE, "true")


@check
def with_cgroupfs_on_pure_cgroup_v2_the_hook_opens_the_gpu_and_docker_update_keeps_it() -> None:
    with private_engine("cgroupfs") as engine, engine.container(*SLICE, "--env=XPU_VISIBLE_DEVICES=0"):
        assert xpu("ps")[0]["mode"] == "hook"
        expected = {"/dev/nvidia0": ALLOWED, GPU0: ALLOWED, GPU1: DENIED}
        assert engine.openings(*expected) == expected
        engine.docker("update", "--memory=256m", "--memory-swap=256m", "checked")
        assert engine.openings(*expected) == expected
        assert "/   4096MiB" in engine.docker("exec", "checked", "nvidia-smi")
    assert nothing_is_held()


@check
def a_container_in_a_user_namespace_gets_its_slice_in_spec_mode() -> None:
    other = f"--volume={DRIVER}/dev/nvidia1:/dev/other"
    with (
        private_engine("remapped", "--userns-remap=default") as engine,
        engine.container(*SLICE, "--env=XPU_VISIBLE_DEVICES=0", other),
    ):
        assert xpu("ps")[0]["mode"] == "spec"
        assert engine.docker("exec", "checked", "cat", "/proc/self/uid_map").split()[1] != "0"
        assert "/   4096MiB" in engine.docker("exec", "checked", "nvidia-smi")
        assert engine.openings("/dev/nvidia0", "/dev/other") == {
            "/dev/nvidia0": ALLOWED,
            "/dev/other": DENIED,
        }
    assert nothing_is_held()


@check
def the_interposer_libraries_hold_a_limit_with_systemd_and_in_a_user_namespace() -> None:
    library = (*SLICE, "--env=XPU_ENFORCE=library")
    with private_engine("interposed", "--userns-remap=default") as remapped:
        for engine in (SYSTEM, remapped):
            with engine.container(*library):
                assert xpu("ps")[0]["memory_backend"] == "library"
                assert "/   4096MiB" in engine.docker("exec", "checked", "nvidia-smi")
                told = engine.docker(
                    "exec", "checked", "cuda-probe", "alloc", "3000", "2000", "500", fails=True
                )
                assert "2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in told
                assert "500 MiB: CUDA_SUCCESS" in told
            assert nothing_is_held()


@check
def the_agents_workers_start_containers_and_the_journal_has_the_events_with_fields() -> None:
    run("systemctl", "start", "xpu-agent.service")
    deadline = time.monotonic() + 60
    while not os.path.exists("/run/xpu/start.sock"):
        assert time.monotonic() < deadline, run("journalctl", "--unit=xpu-agent")
        time.sleep(0.2)
    try:
        with SYSTEM.container(*SLICE) as container:
            command = ("run", "--rm", "--runtime=xpu", "--network=none", "--env=XPU_MEM=40G", IMAGE, "true")
            assert "40G requested" in SYSTEM.docker(*command, fails=True)
        wanted = ("journalctl", "--output=json", "SYSLOG_IDENTIFIER=xpu")
        while '"released"' not in (said := run(*wanted, f"XPU_CONTAINER_ID={container}")):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        granted, released = map(json.loads, said.splitlines())
        assert (granted["XPU_EVENT"], released["XPU_EVENT"]) == ("granted", "released")
        assert (granted["XPU_MEMORY_BYTES"], granted["XPU_CORES"]) == (str(4 * GIB), "30")
        assert granted["XPU_DEVICE"] in {device["uuid"] for device in xpu("devices")}
        refused = json.loads(run(*wanted, "XPU_EVENT=refused").splitlines()[-1])
        assert refused["PRIORITY"] == "4" and "40G requested" in refused["XPU_REASON"]
    finally:
        run("systemctl", "stop", "xpu-agent")
    assert not os.path.exists("/run/xpu/start.sock")
    os.unlink("/etc/systemd/system/xpu-agent.service")
    run("systemctl", "daemon-reload")


class ClusterNode:
    """This machine as a node of a cluster; containerd's client runs the DaemonSet's containers."""

    ROOT, POD = "/var/lib/cluster/image", "/var/lib/cluster/pod"
    PROBE = "/var/lib/cluster/probe"
    LIB = "/opt/xpu/lib/xpu-container-runtime"

    def set_up(self) -> None:
        for folder in (self.ROOT, self.PROBE, f"{self.POD}/configuration", f"{self.POD}/keys"):
            os.makedirs(folder)
        run("tar", "-C", self.PROBE, "-xf", f"{HERE}/image.tar")
        run("ctr", "images", "import", f"{HERE}/xpu-kubernetes.tar")
        name = run("ctr", "images", "ls", "--quiet", "name~=xpu-kubernetes").strip()
        run("ctr", "images", "mount", "--rw", name, self.ROOT)
        with open(f"{self.POD}/configuration/config.yaml", "w") as file:
            file.write("kubernetes: {require_assignment: true, placement: extender}\n")
        with open(f"{self.POD}/keys/keys", "w") as file:
            file.write(f"k1 {'ab' * 32}\n")

    def pod(self, *words: str) -> str:
        """Runs `xpu kubernetes WORDS` as the kubelet runs it, even if containerd restarts; its output."""
        name = f"pod-{time.monotonic_ns()}"
        log = f"/run/{name}.log"
        mounts = [
            f"--mount=type=bind,src={self.POD}/{each},dst=/etc/xpu-kubernetes/{each},options=rbind:ro"
            for each in ("configuration", "keys")
        ]
        run(
            "ctr", "run", "--detach", "--rootfs", "--privileged", "--log-uri", f"file://{log}",
            "--with-ns", "pid:/proc/1/ns/pid", "--env", "NODE_NAME=n1",
            "--env", "CONTAINERD_UNIT=containerd.service", *mounts, self.ROOT, name,
            "/opt/xpu/bin/xpu", "kubernetes", *words,
        )  # fmt: skip
        deadline = time.monotonic() + 110
        while f"{name} " in (tasks := run("ctr", "tasks", "ls")) and "STOPPED" not in tasks:
            assert time.monotonic() < deadline, run("cat", log)
            time.sleep(0.5)
        said = run("cat", log)
        run("ctr", "tasks", "rm", name)
        run("ctr", "containers", "rm", name)
        return said

    def agent(self) -> str:
        """The process of the node's agent; it serves the starts of the node's containerd."""
        deadline = time.monotonic() + 60
        while not os.path.exists("/run/xpu/start.sock"):
            assert time.monotonic() < deadline, run("systemctl", "status", "xpu-agent.service", fails=True)
            time.sleep(0.2)
        process = run("systemctl", "show", "--property=MainPID", "--value", "xpu-agent.service").strip()
        assert "/opt/xpu/bin/xpu" in run("cat", f"/proc/{process}/cmdline")
        return process


CLUSTER_NODE = ClusterNode()


@check
def a_clusters_image_puts_the_runtime_on_the_node_and_restarts_containerd() -> None:
    CLUSTER_NODE.set_up()
    before = run("systemctl", "show", "--property=MainPID", "containerd.service")

    said = CLUSTER_NODE.pod("install-node")

    assert "containerd.service is restarted" in said, said
    assert run("systemctl", "show", "--property=MainPID", "containerd.service") != before
    assert "/opt/xpu/bin/xpu-container-runtime" in run("containerd", "config", "dump")
    # The image's own Python runs, and finds the same devices.
    assert len(json.loads(run("/opt/xpu/bin/xpu", "devices", "--json"))) == 2
    agent = CLUSTER_NODE.agent()
    assert "is restarted" not in CLUSTER_NODE.pod("install-node")
    assert CLUSTER_NODE.agent() == agent


@check
def a_container_goes_on_while_the_runtime_goes_and_a_timer_removes_the_rest() -> None:
    runtime = ["--runc-binary", "/opt/xpu/bin/xpu-container-runtime", "--env", "PATH=/usr/bin:/bin"]
    asked = ["--env", "XPU_MEM=4G"]
    # Only the agent's workers can start this container.
    os.rename(f"{ClusterNode.LIB}/hook.py", f"{ClusterNode.LIB}/hook.py.away")
    run("ctr", "run", "--detach", "--rootfs", *runtime, *asked, ClusterNode.PROBE, "slice", "sleep", "1000")
    os.rename(f"{ClusterNode.LIB}/hook.py.away", f"{ClusterNode.LIB}/hook.py")
    inside = ("ctr", "tasks", "exec", "--exec-id=e1", "slice", "nvidia-smi")
    assert "/   4096MiB" in run(*inside)

    said = CLUSTER_NODE.pod("uninstall-node")

    assert "containerd.service is restarted" in said and "xpu-node-removal.timer" in said, said
    assert "/opt/xpu" not in run("containerd", "config", "dump")
    assert "/   4096MiB" in run(*inside)
    run("systemctl", "start", "xpu-node-removal.service")
    assert os.path.exists("/opt/xpu/bin/xpu")

    run("ctr", "tasks", "rm", "--force", "slice")
    run("ctr", "containers", "rm", "slice")
    left = ["/opt/xpu", "/etc/xpu", "/etc/systemd/system/xpu-node-removal.timer"]
    deadline = time.monotonic() + 110
    while any(map(os.path.exists, left)):
        assert time.monotonic() < deadline, run("systemctl", "status", "xpu-node-removal.timer")
        time.sleep(0.5)
    run("systemctl", "is-active", "xpu-node-removal.timer", fails=True)
    run("systemctl", "is-active", "xpu-agent.service", fails=True)
    assert not os.path.lexists("/etc/systemd/system/xpu-agent.service")
    run("ctr", "images", "unmount", ClusterNode.ROOT)
    assert nothing_is_held()


@check
def the_simulation_goes_down_and_leaves_no_mount() -> None:
    run(XPU, "sim", "down")
    assert "/run/xpu" not in run("findmnt", "--list", "--noheadings", "--output=TARGET")


ALL = (*CHECKS, *FOLLOWED)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], ALL))
