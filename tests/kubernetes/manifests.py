"""The manifests of packaging/kubernetes, as far as a cluster without a controller manager can have them.

Rights, secrets, the RuntimeClass and the configuration of the extender and the scheduler are taken unchanged,
so that plugin and extender have the same rights here as in a cluster. Only addresses and folders are the
tests' own.
"""

from __future__ import annotations

import base64
import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from support import REPOSITORY

from .api import Api

NAMESPACE = "xpu-system"
FOLDER = REPOSITORY / "packaging" / "kubernetes"
TOOLS = REPOSITORY / "build" / "kubernetes-tools" / "bin"
#: The API's path of each kind; {} is the namespace.
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
#: The RuntimeClass selects nodes by this label; the installation sets it.
INSTALLED = {"yoyoworks.com/xpu.runtime": "true"}


@functools.cache
def rendered(*options: str) -> tuple[dict[str, Any], ...]:
    """The chart as helm renders it, with ACK's aliases."""
    sets = ("--set", "image.repository=xpu-kubernetes", "--set", "kubernetes.aliases={aliyun.com/gpu}")
    words = [str(TOOLS / "helm"), "template", "xpu", str(FOLDER / "chart"), "--namespace", NAMESPACE]
    done = subprocess.run([*words, *sets, *options], check=True, capture_output=True, text=True)
    return tuple(each for each in yaml.safe_load_all(done.stdout) if each)


def install(api: Api) -> None:
    """Creates the namespace, and the chart's objects whose kinds are in _PLACES."""
    namespace = yaml.safe_load((FOLDER / "namespace.yaml").read_text())
    for thing in (namespace, *rendered("--no-hooks")):
        if thing["kind"] in _PLACES:
            api.create(_PLACES[thing["kind"]].format(NAMESPACE), thing)


def make_secrets(folder: Path) -> str:
    """Writes each secret into a folder of its name, as a pod has it mounted; returns the manifest for
    kubectl.
    """
    made = subprocess.run([FOLDER / "make-secrets"], check=True, capture_output=True, text=True)
    for secret in yaml.safe_load_all(made.stdout):
        place = folder / secret["metadata"]["name"]
        place.mkdir(parents=True)
        for name, data in secret["data"].items():
            (place / name).write_bytes(base64.b64decode(data))
            (place / name).chmod(0o600)
    return made.stdout


def make_configuration(folder: Path) -> None:
    """Writes the configuration, as a pod has it mounted."""
    (found,) = (each for each in rendered("--no-hooks") if each["kind"] == "ConfigMap")
    folder.mkdir()
    for name, text in found["data"].items():
        (folder / name).write_text(text)


def extender_arguments(secrets: Path, listen: int, status: int) -> list[str]:
    """The words after `xpu kubernetes extender`, with ports of the loopback device."""
    (deployment,) = (each for each in rendered("--no-hooks") if each["kind"] == "Deployment")
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
    """The settings of the manifests' scheduler, except for its extenders."""
    found = _scheduler()
    return {name: found[name] for name in ("percentageOfNodesToScore",)}


def scheduler_extenders(secrets: Path, port: int) -> list[dict[str, Any]]:
    """The extenders in the scheduler's configuration."""
    text = json.dumps(_scheduler()["extenders"])
    (extender,) = json.loads(text.replace("/etc/kubernetes/xpu", f"{secrets}/xpu-scheduler-tls"))
    return [{**extender, "urlPrefix": f"https://127.0.0.1:{port}"}]


def _scheduler() -> dict[str, Any]:
    text = (FOLDER / "kube-scheduler.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text.replace("# - name: aliyun", "- name: aliyun"))
    return found
