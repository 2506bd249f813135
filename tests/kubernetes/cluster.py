"""A cluster of one node, of real parts: etcd, API server, scheduler, kubelet, containerd with our runtime.

Everything is in one folder with a short name, on ports of the loopback device, and in a mount namespace of
its own. kubelet's plugins, logs and containerd's sockets have fixed paths (/var/lib/kubelet, /var/log/pods,
/run/containerd); in that namespace these are the cluster's own. No controller manager runs, so that only the
tests change nodes. Pods use the machine's network, because there is no other one.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import image
from integration.conftest import Node
from support import REPOSITORY
from support.oci_images import write_archive

from . import manifests, parts
from .api import Api, ApiError
from .daemons import PATIENCE, Daemon, answers, free_port, until

NODE = "node-1"
IMAGE = "test.invalid/xpu-test:1"
PAUSE = "test.invalid/pause:1"
#: Values that kubelet would set on the machine; here it finds them set (util/sysctl/sysctl.go).
_SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
#: Paths that no option of the programs changes.
_PLACES = ("/var/lib", "/var/log", "/run/containerd")
#: The API server's users and their groups; the groups are those of a real Kubernetes.
_USERS = {
    "admin": ("admin", "system:masters"),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "scheduler": ("system:kube-scheduler", ""),
    "plugin": ("system:serviceaccount:xpu-system:xpu-node", "system:serviceaccounts"),
    "extender": ("system:serviceaccount:xpu-system:xpu-extender", "system:serviceaccounts"),
}


_MAIN = "from xpu_runtime.cli.main import main; main()"


class Cluster:
    """The folder, the node and the parts. `start` it; `close` returns what was left behind.

    The runtime on the node is the one under test; `install` creates the rest of the manifests in the cluster.
    """

    #: Both plugins need a controller manager: it makes service accounts, and removes a new node's taint.
    _ADMISSION: tuple[str, ...] = ("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",)
    _FEATURES: tuple[str, ...] = ("EphemeralContainers",)

    def __init__(self, prefix: Path, containerd_config: str = "") -> None:
        """`containerd_config`: the file's path on the node; "": a file in the cluster's folder."""
        self.folder = Path("/run", f"xpu-k-{secrets.token_hex(4)}")
        self.name = self.folder.name
        self.folder.mkdir()
        #: The kubelet's folder of static pods.
        self.static_pods = self.folder / "static"
        self.node = Node(prefix, self.folder)
        self.programs = parts.prepare()
        self.node.environ["PATH"] = f"{self.programs}:{os.environ['PATH']}"
        self.containerd_socket = f"{self.folder}/containerd.sock"
        self.containerd_config = containerd_config or f"{self.folder}/containerd.toml"
        self._stack = ExitStack()
        self._tokens = {name: secrets.token_hex(16) for name in _USERS}
        self._etcd_port, port = free_port(), free_port()
        self._apis = {
            name: Api(port, self.folder / "api" / "apiserver.crt", token)
            for name, token in self._tokens.items()
        }
        self.api = self._apis["admin"]
        self._port = port
        self.etcd = self._etcd()
        self.apiserver = self._apiserver()
        self.containerd = self._containerd()
        self.scheduler = self._scheduler()
        self.kubelet = self._kubelet()

    # How each part is configured.

    def daemon(self, name: str, ready: Callable[[], bool], *words: str | Path) -> Daemon:
        """A part of the cluster on its node; its log is beside the others."""
        return Daemon(self.node, name, ready, *words)

    def _etcd(self) -> Daemon:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, free_port()))
        return self.daemon(
            "etcd", lambda: answers(f"{client}/health"),
            self.programs / "etcd", "--name=test", f"--data-dir={self.folder}/etcd/data",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=test={peer}",
        )  # fmt: skip

    def _apiserver(self) -> Daemon:
        return self.daemon(
            "kube-apiserver", self.api.is_ready,
            self.programs / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self._port}",
            "--external-hostname=localhost", f"--cert-dir={self.folder}/api",
            f"--token-auth-file={self.folder}/api/tokens", "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.99.0.0/24", "--endpoint-reconciler-type=none",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder}/api/sa.key",
            f"--service-account-signing-key-file={self.folder}/api/sa.key",
            *self._ADMISSION, "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
            "--enable-priority-and-fairness=false",
            f"--feature-gates={','.join(f'{name}=true' for name in self._FEATURES)}",
            "--max-requests-inflight=0", "--max-mutating-requests-inflight=0",
        )  # fmt: skip

    def _containerd(self) -> Daemon:
        return self.daemon(
            "containerd", lambda: self.ctr("version", check=False).returncode == 0,
            self.programs / "containerd", f"--config={self.containerd_config}",
            f"--address={self.containerd_socket}", f"--root={self.folder}/c-root",
            f"--state={self.folder}/c-state",
        )  # fmt: skip

    def _scheduler(self) -> Daemon:
        self._scheduler_port = free_port()
        return self.daemon(
            "kube-scheduler", lambda: answers(f"http://127.0.0.1:{self._scheduler_port}/healthz"),
            self.programs / "kube-scheduler", f"--config={self.folder}/scheduler.json",
            "--port=0", "--secure-port=0",
        )  # fmt: skip

    def _kubelet(self) -> Daemon:
        self._kubelet_port = free_port()
        return self.daemon(
            "kubelet", self._is_registered,
            self.programs / "kubelet", f"--config={self.folder}/kubelet.json",
            f"--kubeconfig={self.folder}/kubelet.kubeconfig", f"--hostname-override={NODE}",
            "--container-runtime=remote", f"--container-runtime-endpoint=unix://{self.containerd_socket}",
        )  # fmt: skip

    def _is_registered(self) -> bool:
        if not answers(f"http://127.0.0.1:{self._kubelet_port}/healthz"):
            return False
        try:
            conditions = self.api.node(NODE)["status"]["conditions"]
        except ApiError:
            return False
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def configure_scheduler(self, **settings: Any) -> None:
        """Writes the scheduler's configuration: where the API server is, and `settings`."""
        client = {"kubeconfig": f"{self.folder}/scheduler.kubeconfig", "qps": 1000, "burst": 2000}
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": client,
            "leaderElection": {"leaderElect": False},
            "healthzBindAddress": f"127.0.0.1:{self._scheduler_port}",
            "metricsBindAddress": f"127.0.0.1:{self._scheduler_port}",
            **manifests.scheduler_settings(),
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 2,
            **settings,
        }
        (self.folder / "scheduler.json").write_text(json.dumps(config))

    def _configure_kubelet(self) -> None:
        signals = ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": self._kubelet_port,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.name}",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "enableControllerAttachDetach": False,
            "evictionHard": dict.fromkeys(signals, "0%"),
            "failSwapOn": False,
            "featureGates": {"EphemeralContainers": True},
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            # kubelet's default interval is a minute, and a test would wait for it.
            "nodeStatusUpdateFrequency": "1s",
            "nodeStatusReportFrequency": "1s",
            "syncFrequency": "2s",
            "kubeAPIQPS": 1000,
            "kubeAPIBurst": 2000,
            "eventRecordQPS": 1000,
            "eventBurst": 2000,
            "maxPods": 250,
            "staticPodPath": str(self.static_pods),
            "fileCheckFrequency": "1s",
        }
        (self.folder / "kubelet.json").write_text(json.dumps(config))

    def _configure_containerd(self, path: Path) -> None:
        network = self.folder / "cni"
        network.mkdir()
        # A node is ready only with a network. No pod uses the network, so the program need not exist.
        (network / "10-none.conflist").write_text(
            json.dumps({"cniVersion": "0.3.1", "name": "none", "plugins": [{"type": "none"}]})
        )
        path.write_text(
            f"""version = 2
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.devmapper"]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
disable_tcp_service = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{network}"
conf_dir = "{network}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
        )

    # Start, change and end.

    def start(self) -> None:
        self._stack.enter_context(self.node.own_mounts(self._mounts()))
        self.node.sim("4xT4")
        api = self.folder / "api"
        api.mkdir()
        curve = ["-name", "prime256v1", "-genkey", "-noout"]
        subprocess.run(["openssl", "ecparam", *curve, "-out", api / "sa.key"], check=True)
        tokens = [(self._tokens[name], user, name, f'"{groups}"') for name, (user, groups) in _USERS.items()]
        (api / "tokens").write_text("".join(",".join(words) + "\n" for words in tokens))
        for name, each in self._apis.items():
            each.kubeconfig(self.folder / f"{name}.kubeconfig")
        self.secrets = self.folder / "secrets"
        self.static_pods.mkdir()
        self.secrets_text = manifests.make_secrets(self.secrets)
        manifests.make_configuration(self.secrets / "configuration")
        self._configure_containerd(self.folder / "containerd.toml")
        self._tell_containerd()
        self._configure_kubelet()
        self.configure_scheduler()
        self.etcd.start()
        self.apiserver.launch()
        self.containerd.start()
        self._import_images()
        self.apiserver.wait()
        self.scheduler.launch()
        self.kubelet.start()
        self.scheduler.wait()

    def _tell_containerd(self) -> None:
        """Adds the runtime to containerd's configuration, before containerd starts."""
        self.node.xpu("runtime", "configure", "containerd", "--config", self.containerd_config)

    def install(self) -> None:
        """Creates the objects of the manifests that work in this cluster."""
        manifests.install(self.api)
        self.api.patch_node(NODE, {"metadata": {"labels": manifests.INSTALLED}})

    def _mounts(self) -> str:
        lines = [f"mkdir {self.folder}/etcd; mount -t tmpfs {self.name} {self.folder}/etcd"]
        for place in _PLACES:
            own = self.folder / place.strip("/").replace("/", "-")
            own.mkdir()
            Path(place).mkdir(parents=True, exist_ok=True)
            lines.append(f"mount --bind {own} {place}")
        (self.folder / "sysctls").mkdir()
        for name, value in _SYSCTLS.items():
            own = self.folder / "sysctls" / name.replace("/", ".")
            own.write_text(f"{value}\n")
            lines.append(f"mount --bind {own} /proc/sys/{name}")
        return "\n".join(lines)

    def _import_images(self) -> None:
        root, archive = self.folder / "image", self.folder / "image.tar"
        image.make(str(root), [str(REPOSITORY / "build" / "probe" / "cuda-probe")])
        # The pause container: it runs until it is killed.
        for name, words in ((IMAGE, []), (PAUSE, ["sleep", "infinity"])):
            write_archive(root, archive, name, words)
            self.ctr("image", "import", str(archive))
        archive.unlink()
        shutil.rmtree(root)

    def restart_scheduler(self, **settings: Any) -> None:
        """Restarts the scheduler with these settings besides its usual ones."""
        self.scheduler.stop()
        self.configure_scheduler(**settings)
        self.scheduler.start()

    def xpu(self, name: str, ready: Callable[[], bool], *words: str) -> Daemon:
        """`xpu kubernetes ...` in this interpreter, which has gRPC: the packages bring none."""
        lib = self.node.prefix / "lib" / "xpu-container-runtime"
        code = f"import sys; sys.path[:0] = ['{lib}/python', '{lib}/vendor']; " + _MAIN
        kubeconfig = f"--kubeconfig={self.folder}/{name}.kubeconfig"
        return self.daemon(name, ready, sys.executable, "-c", code, "kubernetes", *words, kubeconfig)

    def ctr(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs containerd's client in Kubernetes' namespace, past kubelet."""
        command = [*self.node.view, str(self.programs / "ctr"), "--address", self.containerd_socket]
        return subprocess.run(
            [*command, "--namespace", "k8s.io", *words],
            capture_output=True,
            text=True,
            check=check,
            timeout=PATIENCE,
        )

    def log_of(self, pod: dict[str, Any], container: str) -> str:
        """The output of a pod's container, over all its restarts."""
        facts = pod["metadata"]
        place = f"pods/{facts['namespace']}_{facts['name']}_{facts['uid']}/{container}"
        texts = [path.read_text() for path in sorted((self.folder / "var-log" / place).glob("*.log"))]
        # Each line begins with a time, a stream and whether it is complete (the CRI's format of logs).
        return "".join(f"{line.split(' ', 3)[3]}\n" for text in texts for line in text.splitlines())

    def processes(self) -> dict[int, str]:
        """The running processes that the parts have started: shims, containers."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit():
                    continue
                words = (entry / "cmdline").read_bytes()
                facts = words + (entry / "environ").read_bytes() + (entry / "cgroup").read_bytes()
                if os.fsencode(self.name) in facts:
                    found[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it has ended
        return found

    def close(self) -> list[str]:
        """Ends everything; returns what should not have been left behind."""
        for part in (self.scheduler, self.kubelet):
            part.stop()
        if self.containerd.runs:
            # kubelet removes the sandbox and the records of an ended pod only some time later.
            for task in self.ctr("task", "ls", "--quiet", check=False).stdout.split():
                self.ctr("task", "delete", "--force", task, check=False)
        for part in (self.containerd, self.apiserver, self.etcd):
            part.stop()
        listed = self.node.xpu("ps", "--json", check=False)
        left = [] if listed.stdout.strip() == "[]" else [f"xpu ps: {listed.stdout}{listed.stderr}"]
        self._stack.close()
        for pid, command in self.processes().items():
            left.append(f"the process {pid}: {command}")
            os.kill(pid, signal.SIGKILL)
        until(lambda: not self.processes(), "the last process has ended")
        for top in Path("/sys/fs/cgroup").glob(f"*/{self.name}"):
            for path, _, _ in os.walk(top, topdown=False):
                if path != str(top):
                    left.append(f"the cgroup {path}")
                os.rmdir(path)
        with open("/proc/self/mounts") as mounts:
            left += [line for line in mounts if self.name in line]
        shutil.rmtree(self.folder)
        return left
