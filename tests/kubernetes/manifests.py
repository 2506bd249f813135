"""What packaging/kubernetes installs, as far as a cluster without a controller manager can have it.

Rights, secrets, the RuntimeClass, what the extender and the scheduler are told: all is taken as it is, so
that plugin and extender can do no more here than in a cluster. Addresses and folders alone are the test's.
"""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from support import REPOSITORY

from .api import Api

NAMESPACE = "xpu-system"
FOLDER = REPOSITORY / "packaging" / "kubernetes"
_FILES = (
    "namespace.yaml",
    "node-access.yaml",
    "extender/access.yaml",
    "extender/lease.yaml",
    "runtimeclass.yaml",
)
#: Where the API has what; {} is the namespace.
_PLACES = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "RuntimeClass": "/apis/node.k8s.io/v1/runtimeclasses",
}
#: The label that the RuntimeClass looks for, and what sets a node up gives it.
INSTALLED = {"yoyoworks.com/xpu.runtime": "true"}


def install(api: Api) -> None:
    """Creates what is in _FILES, in the namespace that kustomize puts it in."""
    for name in _FILES:
        for thing in yaml.safe_load_all((FOLDER / "base" / name).read_text()):
            api.create(_PLACES[thing["kind"]].format(NAMESPACE), thing)


def make_secrets(folder: Path) -> str:
    """Writes each secret into a folder of its name, as a pod would have it mounted; what kubectl is given."""
    made = subprocess.run([FOLDER / "make-secrets"], check=True, capture_output=True, text=True)
    for secret in yaml.safe_load_all(made.stdout):
        place = folder / secret["metadata"]["name"]
        place.mkdir(parents=True)
        for name, data in secret["data"].items():
            (place / name).write_bytes(base64.b64decode(data))
            (place / name).chmod(0o600)
    return made.stdout


def make_configuration(folder: Path) -> None:
    """Writes the configuration of the overlay with aliases, as a pod would have it mounted."""
    found = yaml.safe_load((FOLDER / "overlays/aliyun/configuration.yaml").read_text())
    folder.mkdir()
    for name, text in found["data"].items():
        (folder / name).write_text(text)


def extender_arguments(secrets: Path, listen: int, status: int) -> list[str]:
    """The words after `xpu kubernetes extender`, with ports of the loopback device."""
    (deployment,) = (
        each
        for each in yaml.safe_load_all((FOLDER / "base/extender/deployment.yaml").read_text())
        if each["kind"] == "Deployment"
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    places = {
        "/etc/xpu-kubernetes/tls": f"{secrets}/xpu-extender-tls",
        "/etc/xpu-kubernetes/keys": f"{secrets}/xpu-keys",
        "/etc/xpu-kubernetes/configuration": f"{secrets}/configuration",
        "--listen=0.0.0.0:8443": f"--listen=127.0.0.1:{listen}",
        "--status-listen=0.0.0.0:9403": f"--status-listen=127.0.0.1:{status}",
    }
    found = []
    for word in container["args"]:
        for theirs, ours in places.items():
            word = word.replace(theirs, ours)
        found.append(word)
    return found


def scheduler_settings() -> dict[str, Any]:
    """What the scheduler is told of its work, besides its extenders."""
    found = _scheduler()
    return {name: found[name] for name in ("percentageOfNodesToScore",)}


def scheduler_extenders(secrets: Path, port: int) -> list[dict[str, Any]]:
    """The extenders of the scheduler's configuration."""
    text = json.dumps(_scheduler()["extenders"])
    (extender,) = json.loads(text.replace("/etc/kubernetes/xpu", f"{secrets}/xpu-scheduler-tls"))
    return [{**extender, "urlPrefix": f"https://127.0.0.1:{port}"}]


def _scheduler() -> dict[str, Any]:
    text = (FOLDER / "scheduler/kube-scheduler-aliyun.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    return found
