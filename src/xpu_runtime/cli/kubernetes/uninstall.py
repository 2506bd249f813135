"""`xpu kubernetes uninstall`: removes the DaemonSet from the cluster, and waits until its pods have cleaned
up."""

from __future__ import annotations

import time

import click

from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes import access
from xpu_runtime.kubernetes.api import Api, ApiError
from xpu_runtime.kubernetes.node_setup import pod


@click.command(short_help="Remove the runtime from all nodes: remove the DaemonSet, and wait.")
@click.option("--namespace", default="xpu-system", show_default=True, metavar="NAME", help="The DaemonSet's.")
@pod.daemonset_option
@click.option(
    "--timeout", default=540, show_default=True, metavar="SECONDS", help="Seconds to wait, at most."
)
@click.option("--kubeconfig", type=click.Path(), help="Use this file, not KUBECONFIG or ~/.kube/config.")
def uninstall(namespace: str, daemonset: str, timeout: int, kubeconfig: str | None) -> None:
    """Remove the DaemonSet, and wait until each of its pods has removed the runtime from its node.

    The chart does this before it is uninstalled. The same with kubectl:
    kubectl -n xpu-system delete daemonset xpu-node --cascade=foreground

    \b
    Example:
      xpu kubernetes uninstall
    """
    api = Api(access.find(kubeconfig), "xpu-uninstall")
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{daemonset}"
    until = time.monotonic() + timeout
    left = None
    try:
        api.delete(path, propagationPolicy="Foreground")
        while time.monotonic() < until:
            now = (api.get(path).get("status") or {}).get("currentNumberScheduled")
            if now != left:
                click.echo(f"nodes left: {now}")
            left = now
            time.sleep(1)
    except ApiError as error:
        if error.status != 404:
            raise
        click.echo(f"DaemonSet {daemonset} is gone, and the runtime from its nodes")
        return
    raise ConfigError(
        f"{left} nodes are not finished after {timeout} s", f"kubectl -n {namespace} get pods -o wide"
    )
