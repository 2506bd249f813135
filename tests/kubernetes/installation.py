"""A cluster that is installed from the manifests, as docs/kubernetes.md says: by helm and kubectl, with the
controllers that make pods of the applied objects.

The node is complete: /etc, /opt and /run, which a DaemonSet's pod changes, are the cluster's own. The
manifests are patched for what this cluster lacks: a network of pods (they use the machine's), and addresses
of services.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from xpu_runtime import version

from . import manifests
from .cluster import Cluster
from .daemons import PATIENCE, answers, free_port

OUR_NAME = "docker.io/library/xpu-kubernetes"
OUR_IMAGE = f"{OUR_NAME}:{version.VERSION}"
_CONTROLLERS = (
    "daemonset", "deployment", "replicaset", "job", "garbagecollector", "namespace", "serviceaccount",
    "serviceaccount-token", "root-ca-cert-publisher", "endpoint", "disruption",
)  # fmt: skip
#: Kinds that came with 1.30.
_NEWER = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
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
        self.ports = {"8443": self.extender_port, "9402": free_port(), "9403": free_port()}

    def _controllers(self) -> Any:
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
        """A process in the node's mount namespace; the DaemonSet's pods take it for the node's first one."""
        return int(self.node.view[self.node.view.index("--target") + 1])

    # Start, change and end.

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

    def manifests(self) -> str:
        """The namespace, and the chart as helm renders it."""
        namespace = (manifests.FOLDER / "namespace.yaml").read_text()
        rest = yaml.safe_dump_all(manifests.rendered("--no-hooks"))
        return self.as_applied(f"{namespace}---\n{rest}")

    def uninstall(self) -> str:
        """The manifest that removes the runtime from nodes after everything else is deleted."""
        return self.as_applied((manifests.FOLDER / "uninstall.yaml").read_text())

    def hooks(self) -> str:
        """The objects that `helm uninstall` creates before it removes anything."""
        found = [
            each
            for each in manifests.rendered()
            if "pre-delete" in each["metadata"].get("annotations", {}).get("helm.sh/hook", "")
        ]
        assert [each["kind"] for each in found].count("Job") == 1
        return self.as_applied(yaml.safe_dump_all(found))

    def as_applied(self, text: str) -> str:
        """The objects, adapted to this cluster; kinds that it does not know are left out."""
        found = yaml.safe_load_all(text)
        changed: str = yaml.safe_dump_all(
            self.changed(each) for each in found if each and each["kind"] not in _NEWER
        )
        return changed

    def changed(self, thing: dict[str, Any]) -> dict[str, Any]:
        """The object, adapted to this cluster."""
        if thing["kind"] == "PodDisruptionBudget":
            return {**thing, "apiVersion": "policy/v1beta1"}
        if thing["kind"] not in ("DaemonSet", "Deployment", "Job"):
            return thing
        text = json.dumps(thing)
        for theirs, ours in self.ports.items():
            text = text.replace(theirs, str(ours))
        found: dict[str, Any] = json.loads(text)
        if "replicas" in found["spec"]:
            found["spec"]["replicas"] = 1
        spec = found["spec"]["template"]["spec"]
        spec["hostNetwork"] = True
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            container["image"] = f"{OUR_NAME}:{container['image'].rpartition(':')[2]}"
            env = {each["name"]: each for each in container.get("env", ())}
            env["KUBERNETES_SERVICE_HOST"] = {"value": "127.0.0.1"}
            env["KUBERNETES_SERVICE_PORT"] = {"value": str(self._port)}
            if "CONTAINERD_UNIT" in env:
                env["CONTAINERD_UNIT"]["value"] = ""  # only the test restarts containerd
            container["env"] = [{**each, "name": name} for name, each in env.items()]
            command = container["command"]
            if container["securityContext"].get("privileged"):
                command[3:3] = ["--init", str(self.init)]
        return found

    def close(self) -> list[str]:
        # At its end the API server waits until all watches are closed.
        self.controllers.stop()
        return super().close()

    def kubectl(self, *words: str, text: str = "", check: bool = True) -> str:
        """Runs kubectl; returns its output."""
        done = subprocess.run(
            [manifests.TOOLS / "kubectl", f"--kubeconfig={self.folder}/admin.kubeconfig", *words],
            input=text,
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
            env={**os.environ, "HOME": str(self.folder)},
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr
