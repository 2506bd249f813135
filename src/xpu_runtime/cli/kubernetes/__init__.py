"""`xpu kubernetes`: the programs of a cluster, and a look at one.

Each subcommand is a file of this folder, and is imported when it is used: the device plugin needs gRPC, the
others do not.
"""

from __future__ import annotations

import importlib
import pkgutil

import click


class _Subcommands(click.Group):
    """`xpu kubernetes TWO-WORDS` is the click command `two_words` in the module of that name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(each.name.replace("_", "-") for each in pkgutil.iter_modules(__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        name = cmd_name.replace("-", "_")
        found: click.Command = getattr(importlib.import_module(f"{__name__}.{name}"), name)
        return found


@click.group(cls=_Subcommands)
def kubernetes() -> None:
    """Offer this node's devices to a Kubernetes cluster.

    packaging/kubernetes installs its programs; see docs/kubernetes.md.

    \b
    Example:
      xpu kubernetes device-plugin --node-name "$NODE_NAME"
    """
