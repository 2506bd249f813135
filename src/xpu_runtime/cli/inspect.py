"""`xpu inspect`: all facts about one container, and its use by process and by kind.

Only shows: facts of one backend come from that backend (`details`), so that this code depends on none. The
help text names `library`, the one that keeps an account today.
"""

from __future__ import annotations

from typing import Any

import click

from xpu_runtime.cli import completion
from xpu_runtime.cli.terminal import table
from xpu_runtime.cli.terminal.screen import Line
from xpu_runtime.cli.terminal.table import (
    Column,
    json_option,
    lines,
    memory,
    print_json,
    print_lines,
    share,
    used_of,
    wide_option,
    width_of_window,
    wrapped,
)
from xpu_runtime.config.defaults import Config
from xpu_runtime.config.load import load
from xpu_runtime.ledger.grants import CORES, KINDS, MEMORY, Grant, Use
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.ledger.quotas import granted
from xpu_runtime.limits import registry, unaccounted, unaccounted_time
from xpu_runtime.limits.backend import Detail
from xpu_runtime.limits.sharing import Shares
from xpu_runtime.limits.usage import Usage
from xpu_runtime.observe import asking, containers, names
from xpu_runtime.observe.names import Names
from xpu_runtime.request import quotas
from xpu_runtime.request.quotas import Quota

#: Rows of a device's table; --json has all.
_SHOWN = 50
_INDENT = "  "


@click.command(short_help="Show what one container holds and uses.")
@click.argument("container", metavar="ID", shell_complete=completion.containers)
@wide_option
@json_option
def inspect(container: str, wide: bool, as_json: bool) -> None:
    """Show what the container ID (its id, the start of it, or its name) holds and uses.

    For each device it shows the limit, its backend, and the use of each process.

    \b
      PID, INSIDE   the process id on the host and in the container
      USED, KINDS   from the container's own account, which the `library` backend
               keeps
      DRIVER        the process's memory as the driver reports it
      ended         memory of a process that has ended, or that it has freed. It
               is not in the total, and is given back at the next request, unless
               another process has it open.

    \b
    --json prints one object:
      container_id, name (as its engine has it: see `xpu ps --help`), grants: a list of
        bundle, pid, cgroup, mode, state, created
        pod       null, or uid, namespace and name (null: nothing is reserved for it any more), container, and
          reserved: uuid, memory_bytes (null: all of it), cores of each device that is reserved for it
        quotas    those of policy.quotas that it counts to, a list of
          name, who (what it matches; null: not in the configuration any more)
          slices, memory_bytes, cores   granted of it, to all that count to it
          max_slices, max_memory_bytes, max_cores   null: no limit
        pages     null, or the folder on the host, the quota page's abi, and valid
        slices    a list, each as `xpu ps --json` has it, and besides
          limit_in_force_bytes   what the quota page or the driver says; null: no limit, or not known
          cores_in_force         in percent, where a backend holds a cap on cores
                                 (cores_got_percent, cores_unaccounted_percent, cores_sched and
                                 cores_priority: as in `xpu ps`)
          device_memory_bytes    all of the device
          driver_used_bytes      what the driver reports for the container
          memory_unaccounted_bytes  of that, what its account has not, if more than 256 MiB a process
          processes              pid, container_pid, name, used_bytes, driver_used_bytes, ended,
                                 kept_bytes (of one that has ended: open in another process),
                                 kinds: bytes by linear, managed, pool, vmm, array, graph, external,
                                 freed_exported (open elsewhere), overhead (contexts, modules)
      problems: what could not be read, as sentences
    Unknown is null.

    \b
    Example:
      xpu inspect 3f2a91
      xpu inspect 3f2a91 --json | jq '.grants[].slices[].processes[] | {pid, used_bytes}'
    """
    grants = containers.named(container)
    config = load()
    inventory = asking.inventory(config)
    usage, beyond = asking.usage_and_unaccounted(inventory, grants)
    problems: list[str] = unaccounted.warn(grants, beyond)
    shares = asking.shares(inventory, grants)
    problems += unaccounted_time.warn(grants, shares)
    known = names.of(grants)
    details = [_details(grant) for grant in grants]
    with PodLedger() as ledger:
        counted = [{"pod": _pod(grant, ledger), "quotas": _quotas(grant, config, ledger)} for grant in grants]
    told = {
        "container_id": grants[0].container_id,
        "name": known.of_id(grants[0].container_id),
        "grants": [
            {**_grant(grant, usage, beyond, shares, known, each, problems), **counts}
            for grant, each, counts in zip(grants, details, counted)
        ],
        "problems": problems,
    }
    problems += [f"memory in use is not known: {each}" for each in usage.problems]
    if as_json:
        print_json(told)
    else:
        shown = [[detail for detail in each if detail.line] for each in details]
        _print(told, shown, width_of_window(wide))


def _grant(
    grant: Grant,
    usage: Usage,
    beyond: unaccounted.Amounts,
    shares: Shares,
    known: Names,
    details: list[Detail],
    problems: list[str],
) -> dict[str, Any]:
    problems += [str(each.problem) for each in details if each.problem]
    slices = []
    for position, slice_ in enumerate(grant.slices):
        in_force = {kind: usage.in_force(grant, position, kind) for kind in KINDS}
        problems += [
            f"GPU {slice_.device_index}: {_amount(kind, held.limit)} in force and "
            f"{_amount(kind, slice_.limit(kind))} booked: an `xpu set` was probably interrupted, repeat it"
            for kind, held in in_force.items()
            if held is not None and held.limit != slice_.limit(kind)
        ]
        memory_held, cores_held = in_force[MEMORY], in_force[CORES]
        slices.append(
            {
                **containers.entry(
                    grant,
                    position,
                    usage.in_use(grant, position),
                    beyond.get((grant.id, position)),
                    shares,
                    known,
                ),
                "device_memory_bytes": usage.device_memory(grant, position),
                "limit_in_force_bytes": memory_held.limit if memory_held else None,
                "cores_in_force": cores_held.limit if cores_held else None,
                "driver_used_bytes": usage.by_driver(grant, position),
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
                    for each in usage.processes(grant, position)
                ],
            }
        )
    return {
        "bundle": grant.bundle,
        "pid": grant.pid,
        "cgroup": grant.cgroup or None,
        "mode": grant.mode,
        "state": containers.state(grant),
        "created": containers.timestamp(grant.created),
        **{each.key: each.value for each in details},
        "slices": slices,
    }


def _pod(grant: Grant, ledger: PodLedger) -> dict[str, Any] | None:
    """The container's pod, and the pod's allocation."""
    uid, container = ledger.pods_of_grants().get(grant.id, ("", ""))
    if not uid:
        return None
    allocation = ledger.allocation(uid)
    shares = allocation.of(container) if allocation is not None else ()
    return {
        "uid": uid,
        "namespace": allocation.namespace if allocation is not None else None,
        "name": allocation.pod if allocation is not None else None,
        "container": container,
        "reserved": [
            {"uuid": share.device_uuid, "memory_bytes": share.memory_bytes, "cores": share.cores}
            for share in shares
        ],
    }


def _in_pod(pod: dict[str, Any]) -> str:
    if pod["name"] is None:
        return f"container {pod['container']} of pod {pod['uid']}, for which nothing is reserved"
    whole, parts = "the whole device", []
    for each in pod["reserved"]:
        amount = whole if each["memory_bytes"] is None else memory(each["memory_bytes"])
        cores = "" if each["cores"] is None else f" and {each['cores']}% of the cores"
        parts.append(f"{amount}{cores} of {each['uuid']}")
    text = f"container {pod['container']} of pod {pod['namespace']}/{pod['name']}"
    return f"{text}, reserved for it: {', '.join(parts) or 'nothing'}"


def _quotas(grant: Grant, config: Config, ledger: PodLedger) -> list[dict[str, Any]]:
    """The granted part of each quota that the container counts to."""
    configured = {quota.name: quota for quota in quotas.every(config.policy_quotas)}
    found = []
    for name in ledger.quotas_of(grant):
        now, quota = ledger.counted(name), configured.get(name)
        found.append(
            {
                "name": name,
                "who": quota.who if quota else None,
                "slices": now.slices,
                "memory_bytes": now.memory_bytes,
                "cores": now.cores,
                "max_slices": quota.max_slices if quota else None,
                "max_memory_bytes": quota.max_memory if quota else None,
                "max_cores": quota.max_cores if quota else None,
            }
        )
    return found


def _quota(each: dict[str, Any]) -> str:
    if each["who"] is None:
        return f"{each['name']}: not in the configuration any more"
    maxima = (each["max_slices"], each["max_memory_bytes"], each["max_cores"])
    now = Use(each["memory_bytes"], each["cores"], each["slices"])
    return granted(Quota(each["name"], each["who"], *maxima), now)


def _details(grant: Grant) -> list[Detail]:
    """The backends' facts about the container, also of backends that hold none of its limits."""
    holding = registry.known(grant.slices)
    return [detail for each in registry.every() for detail in each.details(grant, holds=each in holding)]


def _amount(kind: str, limit: int | None) -> str:
    if limit is None:
        return "no limit is"
    return f"{memory(limit)} is" if kind == MEMORY else f"a cap of {limit}% is"


def _print(told: dict[str, Any], details: list[list[Detail]], width: int | None) -> None:
    found: list[Line] = []

    def say(key: str, text: str, **options: str) -> None:
        found.extend(wrapped(f"{key:<10} {text}", width, hang=11, **options))

    for grant, more in zip(told["grants"], details):
        say("container", told["container_id"])
        say("name", told["name"] or "-")
        say("bundle", grant["bundle"])
        state = grant["state"]
        text = f"{state}, {grant['mode']} mode, process {grant['pid']}, {grant['created']}"
        say("state", text, word=state, style=containers.STATES.get(state, ""))
        say("cgroup", grant["cgroup"] or "-")
        if grant["pod"] is not None:
            say("pod", _in_pod(grant["pod"]))
        for quota in grant["quotas"]:
            say("quota", _quota(quota))
        for detail in more:
            say(detail.key, detail.line)
        for slice_ in grant["slices"]:
            found += _slice_lines(slice_, width)
    for problem in told["problems"]:
        say("note", problem, style="yellow", word="note")
    print_lines(found)


def _cores(slice_: dict[str, Any]) -> str:
    cap = table.cores(slice_)
    if slice_["cores_sched"] is None:
        return cap
    percent = share(slice_["cores_got_percent"], slice_["cores_unaccounted_percent"])
    got = f", got {percent}" if slice_["cores_got_percent"] is not None else ""
    return f"{cap} ({slice_['cores_sched']}, {slice_['cores_priority']} priority{got})"


def _slice_lines(slice_: dict[str, Any], width: int | None) -> list[Line]:
    limit = slice_["memory_bytes"]
    whole = f"the whole device, {memory(slice_['device_memory_bytes'])}"
    whole_limit = limit or slice_["device_memory_bytes"]
    used = used_of(slice_["memory_used_bytes"], whole_limit, slice_["memory_unaccounted_bytes"])
    by_driver = slice_["driver_used_bytes"]
    reported = "" if by_driver is None else f", {memory(by_driver)} reported by the driver"
    found: list[Line] = [[], *wrapped(f"GPU {slice_['device_index']} ({slice_['device_uuid']})", width)]
    for text in (
        f"  limit    {whole if limit is None else memory(limit)}, cores {_cores(slice_)}",
        f"  held by  {table.enforced(slice_)}",
        f"  used     {used}{reported}",
    ):
        found += wrapped(text, width, hang=11)
    shown = slice_["processes"][:_SHOWN]
    kinds = [
        ", ".join(f"{kind} {memory(amount)}" for kind, amount in each["kinds"].items()) or "-"
        for each in shown
    ]
    columns = [
        Column("PID", ["ended" if each["ended"] else str(each["pid"] or "-") for each in shown]),
        Column("INSIDE", [str(each["container_pid"] or "-") for each in shown]),
        Column("PROGRAM", [each["name"] or "-" for each in shown]),
        Column("USED", [memory(each["used_bytes"]) for each in shown]),
        Column("DRIVER", [memory(each["driver_used_bytes"]) for each in shown]),
        Column("KINDS", kinds, least=10),
    ]
    if shown:
        inner = None if width is None else width - len(_INDENT)
        found += [[(_INDENT, ""), *line] for line in lines(columns, ("KINDS", "INSIDE", "DRIVER"), inner)]
    if len(slice_["processes"]) > _SHOWN:
        found += wrapped(f"  and {len(slice_['processes']) - _SHOWN} more: see --json", width)
    return found
