"""The pod that sets up a node: its settings, its cluster, and its work on the node.

setup.py has the steps on the node, host.py the way there.
"""

from __future__ import annotations

import os

import click

from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes import access
from xpu_runtime.kubernetes.api import Api
from xpu_runtime.kubernetes.node_setup import host, keeper, setup, tree

#: Where the DaemonSet's pod has its ConfigMap and its Secret.
CONFIGURATION = "/etc/xpu-kubernetes/configuration/config.yaml"
KEYS = "/etc/xpu-kubernetes/keys/keys"

init_option = click.option("--init", default=1, hidden=True, help="A process of the node; for tests.")
daemonset_option = click.option(
    "--daemonset", default="xpu-node", show_default=True, metavar="NAME", help="The DaemonSet's name."
)
keys_option = click.option(
    "--keys", default=KEYS, show_default=True, metavar="FILE", help="The keys that verify assignments."
)


def install(init: int, configuration: str, keys: str, containerd_config: str, containerd_unit: str) -> None:
    """Puts the runtime on the node, and says so in the cluster. ConfigError, ApiError."""
    from xpu_runtime.kubernetes.configuration import read

    api = cluster()
    if api is not None and uid():
        keeper.check_pod(api, namespace(), node_name(), uid())
    values = {**read(configuration).kubernetes, "node_name": node_name()}
    settings = setup.Settings(values, keeper.read(keys), containerd_config, containerd_unit, uid())
    source = os.open(tree.PREFIX, os.O_PATH | os.O_DIRECTORY)
    if host.there(init, lambda: setup.install(f"/proc/self/fd/{source}", settings)):
        raise ConfigError("the runtime is not installed on the node", "see the line above")
    if api is not None:
        keeper.label(api, node_name())


def write_keys(init: int, content: bytes) -> bool:
    """Gives the node these keys, unless it has them; returns whether it has them then."""
    if host.there(init, lambda: _write_keys(content)):
        host.say("the node keeps its old keys", error=True)
        return False
    return True


def _write_keys(content: bytes) -> None:
    if setup.write_keys(content):
        host.say("the node has the Secret's new keys")


def uninstall(init: int, api: Api | None, installer: str = "") -> None:
    """Removes the runtime from the node, and its labels from the cluster; does nothing if another pod than
    that of the UID `installer`, if given, has installed it since. ConfigError."""
    status = host.there(init, lambda: setup.uninstall(installer))
    if status == setup.KEPT:
        return
    if status not in (0, setup.PENDING):
        raise ConfigError("the runtime was not removed from the node", "see the line above")
    if api is not None:
        keeper.unlabel(api, node_name(), is_pending=status == setup.PENDING)


def cluster() -> Api | None:
    """The API of the cluster in which this is a pod; None if it is no pod."""
    variables = ("KUBERNETES_SERVICE_HOST", "KUBECONFIG")
    return Api(access.find(), "xpu-node") if any(map(os.environ.get, variables)) else None


def uid() -> str:
    """This pod's UID, by POD_UID of its environment; "": it is not known."""
    return os.environ.get("POD_UID", "")


def namespace() -> str:
    """The DaemonSet's, by POD_NAMESPACE of the pod's environment."""
    return os.environ.get("POD_NAMESPACE", "xpu-system")


def node_name() -> str:
    """This node's name in the cluster: NODE_NAME of the pod's environment, or the machine's name."""
    return os.environ.get("NODE_NAME") or os.uname().nodename.lower()
