"""`xpu kubernetes on-node`: from a pod into the node. node_setup/host.py does it."""

from __future__ import annotations

import click

from xpu_runtime.kubernetes.node_setup import host, pod, tree


@click.command(
    short_help="Run `xpu kubernetes ...` on the node.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@pod.init_option
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def on_node(init: int, arguments: tuple[str, ...]) -> None:
    """Run `xpu kubernetes ARGUMENTS` in the node's own environment, with its driver, its ledger and its
    kubelet's sockets. It keeps the pod's service account. It needs the rights of install-node, which must
    have run before.

    \b
    Example:
      xpu kubernetes on-node device-plugin
    """
    host.execute(tree.PREFIX, ["kubernetes", *arguments], init)
