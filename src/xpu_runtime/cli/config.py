"""`xpu config`: checks and shows the configuration, and prints the default one.

The only commands that must work with a broken configuration.
"""

from __future__ import annotations

import json
import os
from typing import Any, Literal, TypedDict

import click

from xpu_runtime import paths
from xpu_runtime.config import compile as compiler
from xpu_runtime.config.defaults import DEFAULTS, Config
from xpu_runtime.config.low_level_runtime import find_runtime, low_level_runtime
from xpu_runtime.errors import ConfigError, XpuError
from xpu_runtime.observe import driver_questions
from xpu_runtime.vendors import inventory as node


@click.group()
def config() -> None:
    """Check and show the configuration.

    \b
    Example:
      mkdir -p /etc/xpu && xpu config default > /etc/xpu/config.yaml
      xpu config check
    """


@config.command()
@click.argument("path", required=False, type=click.Path())
@click.pass_context
def check(context: click.Context, path: str | None) -> None:
    """Print all problems of the configuration.

    Checks PATH, or the file in use. For the file in use it also checks that the low-level runtime and the
    devices in policy.devices exist. Exit status: 0 no problem, 1 at least one.

    \b
    Example:
      xpu config check /etc/xpu/config.yaml
    """
    file = path or paths.config_file()
    if path is None and not os.path.lexists(file):
        find_runtime(DEFAULTS.low_level_runtimes)
        click.echo(f"{file}: no such file, so the defaults apply")
        return
    settings, lines, problems = compiler.read_config(file)
    complaints = [problem.at(file) for problem in problems]
    if path is None and not problems:
        try:
            find_runtime(settings.low_level_runtimes)
        except ConfigError as error:
            complaints.append(f"{file}:{lines.get('low_level_runtimes', 1)}:1: {error}")
        complaints += [f"{file}:{lines['policy_devices']}:1: {what}" for what in _unknown_devices(settings)]
    for complaint in complaints:
        click.echo(complaint)
    if complaints:
        context.exit(1)
    click.echo(f"{file}: ok")


class SettingJson(TypedDict):
    """A setting in effect."""

    #: As in the file, with dots: `policy.max_memory`.
    key: str
    #: As the file would have it.
    value: Any
    source: Literal["file", "default"]
    #: The line in the file; null: the default applies.
    line: int | None


class ConfigurationJson(TypedDict):
    """The configuration in effect."""

    #: Path of the file.
    file: str
    #: Whether there is such a file.
    found: bool
    settings: list[SettingJson]
    #: Path of the low-level runtime that is used; null: none was found.
    low_level_runtime: str | None


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(as_json: bool) -> None:
    """Show the values in effect, and where each comes from.

    \b
    Example:
      xpu config show --json
    """
    file = paths.config_file()
    there = os.path.lexists(file)
    settings, lines, problems = compiler.read_config(file) if there else (DEFAULTS, {}, [])
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(problems[0].at(file) + more, "see `xpu config check`")
    rows: list[SettingJson] = [
        {
            "key": key,
            "value": _written(settings, attribute),
            "source": "file" if attribute in lines else "default",
            "line": lines.get(attribute),
        }
        for attribute, key in compiler.setting_names().items()
    ]
    if as_json:
        runtime, _ = _runtime(settings)
        document: ConfigurationJson = {
            "file": file,
            "found": there,
            "settings": rows,
            "low_level_runtime": runtime,
        }
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"# {file}" + ("" if there else " (no such file, so the defaults apply)"))
    texts = [(str(row["key"]), json.dumps(row["value"]), row) for row in rows]
    key_width = max(len(key) for key, _, _ in texts)
    value_width = max(len(value) for _, value, _ in texts)
    for key, value, row in texts:
        source = f"line {row['line']}" if row["source"] == "file" else "default"
        click.echo(f"{key:<{key_width}}  {value:<{value_width}}  {source}")
    runtime, problem = _runtime(settings)
    click.echo(f"# low-level runtime: {runtime or problem}")


@config.command()
def default() -> None:
    """Print the default configuration file, comments included.

    \b
    Example:
      mkdir -p /etc/xpu && xpu config default > /etc/xpu/config.yaml
    """
    with open(compiler.default_file(), encoding="utf-8") as file:
        click.echo(file.read(), nl=False)


def _unknown_devices(settings: Config) -> list[str]:
    """A problem for each entry of policy.devices that the node lacks; none where its devices are unknown."""
    if settings.policy_devices is None:
        return []
    try:
        inventory = driver_questions.inventory(settings)
    except XpuError as error:
        click.echo(f"xpu: policy.devices is not checked: {error}", err=True)
        return []
    if not inventory.devices:
        click.echo(f"xpu: policy.devices is not checked: {node.why_empty(inventory)}", err=True)
        return []
    return node.unlisted(settings.policy_devices, inventory)


def _written(settings: Config, attribute: str) -> Any:
    """A setting as the file would have it."""
    value = getattr(settings, attribute)
    return "all" if attribute == "policy_devices" and value is None else value


def _runtime(settings: Config) -> tuple[str | None, str]:
    try:
        return low_level_runtime(settings).path, ""
    except ConfigError as error:
        return None, str(error)
