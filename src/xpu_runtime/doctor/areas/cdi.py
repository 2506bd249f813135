"""The CDI file, by which engines give slices without our runtime, and files that give devices past the
ledger, or have ours again.

docker.py tells whether a running docker reads it.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from xpu_runtime import finding, paths
from xpu_runtime.doctor.machine import Machine, plural
from xpu_runtime.finding import Finding, printable
from xpu_runtime.linux import files
from xpu_runtime.request.cdi import KIND
from xpu_runtime.vendors import cdi_file

ORDER = 74
_CHECK = "cdi"
#: Where engines look for such files (SPEC.md of CDI).
_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_AGAIN = "xpu cdi generate"
#: The kinds of the vendors' own files, which have whole devices, and ours. JSON may be on one line.
_KIND = re.compile(
    r"""(?:^|[{,])\s*["']?kind["']?\s*:\s*["']?((?:nvidia|amd)\.com/\w+|yoyoworks\.com/xpu\b)""", re.MULTILINE
)
_MAX_BYTES = 4 << 20


def look(machine: Machine) -> Iterator[Finding]:
    yield from own(machine, paths.cdi_file())
    yield from others(tuple(dict.fromkeys(map(os.path.realpath, _FOLDERS))), paths.cdi_file())


def own(machine: Machine, path: str) -> Iterator[Finding]:
    """What is so of our file at `path`."""
    try:
        found = cdi_file.there(path)
    except OSError as error:
        todo = "run it as root" if isinstance(error, PermissionError) else f"move it away, then {_AGAIN}"
        yield finding.unknown(_CHECK, f"{path} cannot be read: {error.strerror}", todo)
        return
    if found is None and not os.path.exists(path):
        text = f"{path} is not there: containers get slices by the runtime xpu alone, until `{_AGAIN}`"
        yield finding.ok(_CHECK, text)
    elif found is None:
        text = f"{path} is not ours, so xpu does not keep it up to date"
        yield finding.warning(_CHECK, text, f"move it away, then {_AGAIN}")
    elif not (hook := _hook(found)):
        text = f"{path} names no hook of ours: it was edited or cut short, and engines may give none of it"
        yield finding.problem(_CHECK, text, _AGAIN)
    elif not os.access(hook, os.X_OK):
        text = f"{path} names {hook}, which is not there: no container with such a device starts"
        yield finding.problem(_CHECK, text, f"{_AGAIN}, or remove that file")
    elif hook != paths.HOOK:
        text = f"{path} names {hook}, of another installation than this one ({paths.HOOK})"
        yield finding.warning(_CHECK, text, f"{_AGAIN}, if it is to be this one's")
    elif machine.inventory is None:
        yield finding.unknown(_CHECK, f"{path} cannot be compared with the devices, which are not known")
    elif _variables(found) != _variables(now := cdi_file.text(machine.inventory, machine.settings)):
        text = f"{path} is of another configuration than this command's: its hook has {_variables(found)}"
        yield finding.warning(_CHECK, text, f"look with these variables; {_AGAIN}, if it is to be this one's")
    elif found != now:
        text = f"{path} does not match the present devices, settings or version"
        yield finding.warning(_CHECK, text, _AGAIN)
    else:
        count = len(cdi_file.devices(machine.inventory, machine.settings))
        yield finding.ok(_CHECK, f"{path} has {plural(count, 'device')} (xpu cdi list)")


def _hook(text: str) -> str:
    """The program that a file of ours names."""
    found = re.search(r'^ *path: "(.*)"$', text, re.MULTILINE)
    return found[1] if found else ""


def _variables(text: str) -> str:
    """The environment of the hook in a file of ours, as the file has it."""
    found = re.search(r"^ *env: (\[.*\])$", text, re.MULTILINE)
    return printable(found[1]) if found else "no environment"


def others(folders: tuple[str, ...], own: str) -> Iterator[Finding]:
    """Files in `folders` that give whole devices, or the devices of our file `own` once more."""
    own = os.path.realpath(own)
    is_beside = os.path.exists(own) and os.path.dirname(own) in folders
    for path in sorted(each for folder in folders for each in glob.glob(f"{glob.escape(folder)}/*")):
        if not path.endswith((".yaml", ".json")):
            continue
        try:
            kind = _KIND.search(files.read(path, _MAX_BYTES).decode("utf-8", "replace"))
        except OSError:
            continue  # an engine reads as little of it
        if kind is None:
            continue
        if kind[1] == KIND:
            if is_beside and os.path.realpath(path) != own:
                text = f"{path} has devices {KIND}=... as {own} has: engines give no device that is in "
                text += "both, or only those of /var/run/cdi"
                yield finding.problem(_CHECK, text, f"remove one of them (rm {path})")
        else:
            text = f"{path} has devices {kind[1]}=...: a container with one gets a whole device past the "
            text += "ledger, neither booked nor limited, which may have slices of others"
            todo = f"ask for yoyoworks.com/xpu=... instead, and remove that file (rm {path})"
            yield finding.warning(_CHECK, text, todo)
