"""`xpu kubernetes keep-node`, beside the device plugin in the DaemonSet's pod. node_setup/ does the work."""

from __future__ import annotations

import click

from xpu_runtime.kubernetes.node_setup import keeper, pod


@click.command(short_help="Keep the node's keys in step; clean up when the DaemonSet is removed.")
@pod.init_option
@pod.keys_option
@pod.daemonset_option
def keep_node(init: int, keys: str, daemonset: str) -> None:
    """Keep the node's keys in step with the Secret, until SIGTERM. The DaemonSet's pod runs this.

    Then remove the runtime from the node, as `xpu kubernetes uninstall-node` does, if the DaemonSet was
    removed, or the node is labelled yoyoworks.com/xpu=disabled. After an update or restart of the pod the
    runtime stays.

    \b
    Example:
      xpu kubernetes keep-node
    """
    keeper.keep(keys, lambda content: pod.write_keys(init, content))
    api = pod.cluster()
    if api is not None and keeper.is_removed(api, pod.namespace(), daemonset, pod.node_name()):
        pod.uninstall(init, api, pod.uid())
