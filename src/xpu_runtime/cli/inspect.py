"""`xpu inspect`: all facts about one container, and its use by process and by kind.

Only shows: observe/inspection.py puts it together. The help text names `library`, the one backend that keeps
an account today.
"""

from __future__ import annotations

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
from xpu_runtime.config.load import load
from xpu_runtime.ledger.grants import Use
from xpu_runtime.ledger.quotas import granted
from xpu_runtime.limits.backend import Detail
from xpu_runtime.observe import containers, driver_questions, inspection
from xpu_runtime.observe.inspection import InspectedSliceJson, InspectionJson, PodJson, QuotaJson
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
    Example:
      xpu inspect 3f2a91
      xpu inspect 3f2a91 --json | jq '.grants[].slices[].processes[] | {pid, used_bytes}'
    """
    grants = containers.named(container)
    config = load()
    told, details = inspection.inspect(grants, config, driver_questions.inventory(config))
    if as_json:
        print_json(told)
    else:
        shown = [[detail for detail in each if detail.line] for each in details]
        _print(told, shown, width_of_window(wide))


def _in_pod(pod: PodJson) -> str:
    if pod["name"] is None:
        return f"container {pod['container']} of pod {pod['uid']}, for which nothing is reserved"
    whole, parts = "the whole device", []
    for each in pod["reserved"]:
        amount = whole if each["memory_bytes"] is None else memory(each["memory_bytes"])
        cores = "" if each["cores"] is None else f" and {each['cores']}% of the cores"
        parts.append(f"{amount}{cores} of {each['uuid']}")
    text = f"container {pod['container']} of pod {pod['namespace']}/{pod['name']}"
    return f"{text}, reserved for it: {', '.join(parts) or 'nothing'}"


def _quota(each: QuotaJson) -> str:
    if each["who"] is None:
        return f"{each['name']}: not in the configuration any more"
    maxima = (each["max_slices"], each["max_memory_bytes"], each["max_cores"])
    now = Use(each["memory_bytes"], each["cores"], each["slices"])
    return granted(Quota(each["name"], each["who"], *maxima), now)


def _print(told: InspectionJson, details: list[list[Detail]], width: int | None) -> None:
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


def _cores(slice_: InspectedSliceJson) -> str:
    cap = table.cores(slice_)
    if slice_["cores_sched"] is None:
        return cap
    percent = share(slice_["cores_got_percent"], slice_["cores_unaccounted_percent"])
    got = f", got {percent}" if slice_["cores_got_percent"] is not None else ""
    return f"{cap} ({slice_['cores_sched']}, {slice_['cores_priority']} priority{got})"


def _slice_lines(slice_: InspectedSliceJson, width: int | None) -> list[Line]:
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
