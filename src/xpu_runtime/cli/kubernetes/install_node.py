"""`xpu kubernetes install-node`, for the DaemonSet's init container. node_setup/ does the work."""

from __future__ import annotations

import click

from xpu_runtime.kubernetes.node_setup import pod


@click.command(short_help="Put the runtime on the node, from the image.")
@pod.init_option
@click.option(
    "--configuration",
    default=pod.CONFIGURATION,
    show_default=True,
    metavar="FILE",
    help="The configuration with the section kubernetes.",
)
@pod.keys_option
@click.option(
    "--containerd-config",
    envvar="CONTAINERD_CONFIG",
    default="/etc/containerd/config.toml",
    show_default=True,
    metavar="FILE",
    help="containerd's configuration file; or $CONTAINERD_CONFIG.",
)
@click.option(
    "--containerd-unit",
    envvar="CONTAINERD_UNIT",
    default="",
    metavar="UNIT",
    help="The systemd unit to restart after a change of that file; or $CONTAINERD_UNIT.  [default: none]",
)
def install_node(
    init: int, configuration: str, keys: str, containerd_config: str, containerd_unit: str
) -> None:
    """Put the runtime on the node, from the image that this runs in, and tell containerd.

    It can be run again. It changes on the node: /opt/xpu, the section `kubernetes` of /etc/xpu/config.yaml,
    /etc/xpu/kubernetes, containerd's configuration. In the cluster the node gets the label
    yoyoworks.com/xpu.runtime. It needs root, a privileged container, and the node's processes (hostPID).

    \b
    Example:
      xpu kubernetes install-node --containerd-unit containerd.service
    """
    pod.install(init, configuration, keys, containerd_config, containerd_unit)
