"""`xpu release`: gives a grant back by hand.

For a grant that no hook and no reaping has given back; the container itself is not touched.
"""

from __future__ import annotations

import click

from xpu_runtime import granting
from xpu_runtime.cli import completion, reaping
from xpu_runtime.cli.terminal.screen import printable
from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.observe import containers


@click.command(short_help="Give back the slices of one container by hand.")
@click.argument("container", metavar="ID", required=False, shell_complete=completion.containers)
@click.option("--force", is_flag=True, help="Release it even if its container is running.")
@click.option(
    "--pod", metavar="NAMESPACE/NAME", help="Release the reservation of this pod (its name or UID) instead."
)
def release(container: str | None, force: bool, pod: str | None) -> None:
    """Give back the slices of container ID (its id, the start of it, or its name).

    A running container needs --force. It keeps its devices, and loses the memory limits that the driver
    holds.

    Kubernetes' device plugin releases the reservation of a pod once the pod is gone. --pod does so if
    the plugin does not run any more. A pod that still exists gets its reservation again. Its containers
    keep their slices.

    \b
    Example:
      xpu release 3f2a91
      xpu release --pod default/trainer-0
    """
    if (container is None) == (pod is None):
        raise click.UsageError("Give the ID of a container, or --pod.")
    if pod is not None:
        _release_pod(pod)
        return
    assert container is not None
    if not force:
        containers.require_known_processes()
    grants = containers.named(container)
    name = grants[0].container_id
    if not force and any(containers.is_alive(grant) for grant in grants):
        raise XpuError(
            f"container {name} still runs (process {grants[0].pid})",
            "stop it first, or give --force: it then keeps using the device beside the next container there",
        )
    granting.release(load(), grants, reaping.clear)
    click.echo(f"{printable(name)}: released")


def _release_pod(pod: str) -> None:
    with PodLedger() as ledger:
        known = ledger.allocations()
        uids = [each.uid for each in known if pod in (each.uid, f"{each.namespace}/{each.pod}")]
        if not uids:
            raise XpuError(f"nothing is reserved for a pod {pod!r}", "`xpu ps` shows the reservations")
        ledger.deallocate(uids)
    click.echo(f"pod {printable(pod)}: released")
