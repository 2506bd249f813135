"""`xpu kubernetes`: what runs in a cluster, and looks at one.

Each subcommand is a file beside this one, kubernetes_NAME.py, and is imported when it is used: the device
plugin needs gRPC, the others do not.
"""

from __future__ import annotations

import importlib
import pkgutil

import click

from xpu_runtime import cli

_PREFIX = "kubernetes_"


class _Subcommands(click.Group):
    """`xpu kubernetes TWO-WORDS` is the click command `two_words` in xpu_runtime.cli.kubernetes_two_words."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = [each.name for each in pkgutil.iter_modules(cli.__path__)]
        return sorted(name[len(_PREFIX) :].replace("_", "-") for name in names if name.startswith(_PREFIX))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        name = cmd_name.replace("-", "_")
        found: click.Command = getattr(importlib.import_module(f"{cli.__name__}.{_PREFIX}{name}"), name)
        return found


@click.group(cls=_Subcommands)
def kubernetes() -> None:
    """Offer this node's devices to a Kubernetes cluster.

    What runs there is installed by packaging/kubernetes; see docs/kubernetes.md.

    \b
    Example:
      xpu kubernetes device-plugin --node-name "$NODE_NAME"
    """
