"""`xpu inspect`: all that is known of one container, and what it uses by process and by kind."""

from __future__ import annotations

from typing import Any

import click

from xpu_runtime.cli import containers
from xpu_runtime.cli.table import json_option, memory, percent, print_json, print_table, timestamp, used_of
from xpu_runtime.config.load import load
from xpu_runtime.devices import inventory
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.quota import library, limits, pages, unaccounted
from xpu_runtime.quota.usage import Figures

#: Rows of a device's table; --json has all.
_SHOWN = 50


@click.command(short_help="Show what one container holds and uses.")
@click.argument("container", metavar="ID")
@json_option
def inspect(container: str, as_json: bool) -> None:
    """Show what the container ID (its id or the start of it) holds and uses.

    For each device: the limit, what holds it, and what each process has. USED and KINDS are what the
    container's own account says (the `library` backend keeps one), DRIVER is what the driver says of the
    process. PID is the process on the host, INSIDE the same as the container sees it. `ended` marks what is
    still counted of a process that is gone, or freed: what no other process has open is given back when
    the next one needs the room, or asks how much is used.

    \b
    --json prints one object:
      container_id, grants: a list of
        bundle, pid, cgroup, mode, state, created
        pages     null, or the folder on the host, the quota page's abi, and valid
        slices    a list, each as `xpu ps --json` has it, and besides
          limit_in_force_bytes   what the quota page or the driver says; null: no limit, or not known
          device_memory_bytes    all of the device
          driver_used_bytes      the driver's figure for the container
          memory_unaccounted_bytes  of that, what its account has not, if more than 256 MiB a process
          processes              pid, container_pid, name, used_bytes, driver_used_bytes, ended,
                                 kept_bytes (of one that has ended: open in another process),
                                 kinds: bytes by linear, managed, pool, vmm, array, graph, external,
                                 orphan (freed, and open elsewhere), overhead (contexts, modules)
      problems: sentences on what could not be read
    Unknown is null.

    \b
    Example:
      xpu inspect 3f2a91
      xpu inspect 3f2a91 --json | jq '.grants[].slices[].processes[] | {pid, used_bytes}'
    """
    grants = containers.named(container)
    found = inventory.load(load())
    figures = Figures(found)
    beyond = unaccounted.find(found, grants)
    problems: list[str] = unaccounted.warn(grants, beyond)
    told = {
        "container_id": grants[0].container_id,
        "grants": [_grant(grant, figures, beyond, problems) for grant in grants],
        "problems": problems,
    }
    problems += figures.problems
    if as_json:
        print_json(told)
    else:
        _print(told)


def _grant(
    grant: Grant, figures: Figures, beyond: unaccounted.Amounts, problems: list[str]
) -> dict[str, Any]:
    page = _pages(grant, problems)
    slices = []
    for position, part in enumerate(grant.slices):
        known, limit = _in_force(grant, position, page, figures)
        if known and limit != part.memory_bytes:
            problems.append(
                f"GPU {part.device_index}: {'no limit' if limit is None else memory(limit)} is in force and "
                f"{memory(part.memory_bytes)} is booked, as if an `xpu set` had been cut short: repeat it"
            )
        slices.append(
            {
                **containers.entry(
                    grant, part, figures.in_use(grant, position), beyond.get((grant.id, position))
                ),
                "device_memory_bytes": figures.device_memory(grant, position),
                "limit_in_force_bytes": limit,
                "driver_used_bytes": figures.by_driver(grant, position),
                "processes": [
                    {
                        "pid": each.pid,
                        "container_pid": each.container_pid,
                        "name": each.name,
                        "used_bytes": each.used,
                        "driver_used_bytes": each.driver,
                        "ended": each.dead,
                        "kept_bytes": each.kept,
                        "kinds": each.kinds,
                    }
                    for each in figures.processes(grant, position)
                ],
            }
        )
    return {
        "bundle": grant.bundle,
        "pid": grant.pid,
        "cgroup": grant.cgroup or None,
        "mode": grant.mode,
        "state": containers.state(grant),
        "created": timestamp(grant.created),
        "pages": {"folder": limits.pages(grant), "abi": page.abi, "valid": page.valid} if page else None,
        "slices": slices,
    }


def _in_force(
    grant: Grant, position: int, page: pages.Quota | None, figures: Figures
) -> tuple[bool, int | None]:
    """Whether a slice's limit is known where it is held, and the limit in bytes (None: none)."""
    if grant.slices[position].held_by(library.NAME):
        known = page is not None and position < len(page.limits)
        return known, page.limits[position] if page and known else None
    held = figures.driver_limit(grant, position)
    return held is not None, held.limit if held else None


def _pages(grant: Grant, problems: list[str]) -> pages.Quota | None:
    folder = limits.pages(grant)
    if folder is None:
        return None
    try:
        return pages.quota(folder)
    except (OSError, ValueError) as error:
        problems.append(
            f"the quota page in {folder} cannot be read: {getattr(error, 'strerror', None) or error}"
        )
    return None


def _print(told: dict[str, Any]) -> None:
    for grant in told["grants"]:
        click.echo(f"container  {told['container_id']}")
        click.echo(f"bundle     {grant['bundle']}")
        click.echo(
            f"state      {grant['state']}, {grant['mode']} mode, process {grant['pid']}, {grant['created']}"
        )
        click.echo(f"cgroup     {grant['cgroup'] or '-'}")
        if grant["pages"]:
            damaged = "" if grant["pages"]["valid"] else ", damaged"
            click.echo(f"pages      {grant['pages']['folder']} (ABI {grant['pages']['abi']}{damaged})")
        for part in grant["slices"]:
            _print_slice(part)
    for problem in told["problems"]:
        click.echo(f"note       {problem}")


def _print_slice(part: dict[str, Any]) -> None:
    limit = part["memory_bytes"]
    whole = f"the whole device, {memory(part['device_memory_bytes'])}"
    click.echo(f"\nGPU {part['device_index']} ({part['device_uuid']})")
    click.echo(f"  limit    {whole if limit is None else memory(limit)}, cores {percent(part['cores'])}")
    click.echo(f"  held by  {containers.enforced(part)}")
    whole_limit = limit or part["device_memory_bytes"]
    used = used_of(part["memory_used_bytes"], whole_limit, part["memory_unaccounted_bytes"])
    click.echo(f"  used     {used}, {memory(part['driver_used_bytes'])} by the driver's figure")
    rows = [
        (
            "ended" if each["ended"] else str(each["pid"] or "-"),
            str(each["container_pid"] or "-"),
            each["name"] or "-",
            memory(each["used_bytes"]),
            memory(each["driver_used_bytes"]),
            ", ".join(f"{kind} {memory(amount)}" for kind, amount in each["kinds"].items()) or "-",
        )
        for each in part["processes"]
    ]
    if rows:
        print_table(
            ("  PID", "INSIDE", "PROGRAM", "USED", "DRIVER", "KINDS"),
            [(f"  {r[0]}", *r[1:]) for r in rows[:_SHOWN]],
        )
    if len(rows) > _SHOWN:
        click.echo(f"  and {len(rows) - _SHOWN} more: see --json")
