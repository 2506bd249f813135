"""A cluster that is installed from the manifests, as docs/kubernetes.md says: by helm and kubectl, with the
controllers that make pods of the applied objects.

The node is complete: /etc, /opt and /run, which a DaemonSet's pod changes, are the cluster's own. Helm gets
the chart with another `kubeVersion`, because this cluster is 1.20.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from xpu_runtime import version

from . import manifests
from .adapted import OUR_NAME, Adaptation
from .cluster import Cluster
from .daemons import PATIENCE, Daemon, answers, free_port

OUR_IMAGE = f"{OUR_NAME}:{version.VERSION}"
_CONTROLLERS = (
    "daemonset", "deployment", "replicaset", "job", "garbagecollector", "namespace", "serviceaccount",
    "serviceaccount-token", "root-ca-cert-publisher", "endpoint", "disruption",
)  # fmt: skip
_VIEW = """mkdir -p {own}/etc {own}/work {own}/opt {own}/run/{name}
mount -t overlay -o lowerdir=/etc,upperdir={own}/etc,workdir={own}/work etc /etc
mount --bind {own}/opt /opt
mount --bind {folder} {own}/run/{name}
mount --rbind {own}/run /run
mkdir -p /run/containerd
"""


class InstalledCluster(Cluster):
    """A cluster without the runtime, until `apply` installs it."""

    # A pod's token ends with the pod, as since 1.21.
    _FEATURES = (*Cluster._FEATURES, "BoundServiceAccountTokenVolume", "RootCAConfigMap")
    _ADMISSION = ("--disable-admission-plugins=TaintNodesByCondition",)

    def __init__(self, prefix: Path, image: Path) -> None:
        super().__init__(prefix, "/etc/containerd/config.toml")
        self._image = image
        self._own = self.folder / "own"
        # The paths that the node's own programs use; they do not have the tests' variables.
        self.node.environ.update(XPU_RUN_DIR="/run/xpu", XPU_CONFIG="/etc/xpu/config.yaml")
        self.controllers = self._controllers()
        self.extender_port = free_port()
        #: Pods share the machine's ports.
        self._ports = {"8443": str(self.extender_port), "9402": str(free_port()), "9403": str(free_port())}
        #: The working directory of commands.
        self.clone = self.folder / "clone"
        self._environ = {
            **os.environ,
            "HOME": str(self.folder),
            "PATH": f"{manifests.TOOLS}:{os.environ['PATH']}",
            "KUBECONFIG": f"{self.folder}/admin.kubeconfig",
            "HELM_PLUGINS": f"{self.folder}/helm",
        }

    def _controllers(self) -> Daemon:
        self._controllers_port = free_port()
        return self.daemon(
            "kube-controller-manager", lambda: answers(f"http://127.0.0.1:{self._controllers_port}/healthz"),
            self.programs / "kube-controller-manager", f"--kubeconfig={self.folder}/admin.kubeconfig",
            f"--controllers={','.join(_CONTROLLERS)}", "--leader-elect=false", "--secure-port=0",
            f"--port={self._controllers_port}", "--address=127.0.0.1",
            f"--service-account-private-key-file={self.folder}/api/sa.key",
            f"--root-ca-file={self.folder}/api/apiserver.crt", "--kube-api-qps=1000", "--kube-api-burst=2000",
        )  # fmt: skip

    @property
    def init(self) -> int:
        """A process in the node's mount namespace."""
        return int(self.node.view[self.node.view.index("--target") + 1])

    # Start, change and end.

    def start(self) -> None:
        super().start()
        self.controllers.start()
        self.adaptation = Adaptation(self._port, self.init, self._ports)
        self.adaptation.write_plugin(self.folder / "helm" / "adapted")
        shutil.copytree(manifests.FOLDER, self.clone / "packaging" / "kubernetes")
        chart = self.clone / "packaging" / "kubernetes" / "chart" / "Chart.yaml"
        text, changes = re.subn("(?m)^kubeVersion: .*", 'kubeVersion: ">=1.20.0-0"', chart.read_text())
        assert changes == 1
        chart.write_text(text)

    def _mounts(self) -> str:
        # Before the superclass's mounts: a bind mount has what is in the folder at that moment.
        own = _VIEW.format(own=self._own, folder=self.folder, name=self.name)
        return f"{own}{super()._mounts()}"

    def _configure_containerd(self, path: Path) -> None:
        super()._configure_containerd(path)
        place = self._own / "etc/containerd"
        place.mkdir(parents=True)
        path.rename(place / "config.toml")

    def _tell_containerd(self) -> None:
        """Does nothing: the DaemonSet configures containerd."""

    def _import_images(self) -> None:
        super()._import_images()
        self.ctr("image", "import", str(self._image))

    def prepare(self) -> None:
        """Creates the namespace, and the Secrets, with the same content each time."""
        self.kubectl("apply", "-f", str(manifests.FOLDER / "namespace.yaml"))
        self.kubectl("create", "-f", "-", text=self.secrets_text)

    def apply_uninstall(self) -> str:
        """Applies the manifest that removes what is left on nodes; returns it."""
        text = self.adaptation.objects((manifests.FOLDER / "uninstall.yaml").read_text())
        self.kubectl("apply", "-f", "-", text=text)
        return text

    def close(self) -> list[str]:
        # At its end the API server waits until all watches are closed.
        self.controllers.stop()
        return super().close()

    def helm(self, *words: str) -> str:
        """Runs Helm on the namespace of the manifests; returns its output."""
        return self.sh(f"helm {shlex.join(words)} --namespace {manifests.NAMESPACE}")

    def kubectl(self, *words: str, text: str = "") -> str:
        """Runs kubectl; returns its output."""
        return self.sh(f"kubectl {shlex.join(words)}", text)

    def sh(self, words: str, text: str = "", check: bool = True) -> str:
        """A line for a shell, in a folder with the clone's `packaging`; Helm's objects are adapted."""
        if words.startswith(("helm install", "helm upgrade")):
            words += " --post-renderer adapted"
        done = subprocess.run(
            ["sh", "-c", words], input=text, cwd=self.clone, env=self._environ, timeout=3 * PATIENCE,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"{words}: {done.stdout}")
        return done.stdout
