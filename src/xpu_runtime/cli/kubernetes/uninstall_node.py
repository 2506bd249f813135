"""`xpu kubernetes uninstall-node`: the opposite of install-node. node_setup/ does it."""

from __future__ import annotations

import click

from xpu_runtime.kubernetes.node_setup import pod, setup


@click.command(short_help="Remove the runtime from the node.")
@pod.init_option
@click.option("--finish", is_flag=True, hidden=True, help="Finish the removal; the node's timer runs this.")
def uninstall_node(init: int, finish: bool) -> None:
    """Remove the files that `xpu kubernetes install-node` has put on the node.

    Running containers go on. The programs that they call stay until they have ended. A timer of the node's
    systemd then removes these programs.

    \b
    Example:
      xpu kubernetes uninstall-node
    """
    if finish:
        setup.finish()
    else:
        pod.uninstall(init, pod.cluster())
