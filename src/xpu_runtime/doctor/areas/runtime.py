"""The low-level runtime that does the work behind us: runc or crun. A container keeps the one that it was
created with (start/created.py)."""

from __future__ import annotations

from collections.abc import Iterator

from xpu_runtime import finding
from xpu_runtime.config import low_level_runtime, probe
from xpu_runtime.config.low_level_runtime import find_runtime
from xpu_runtime.doctor.machine import Machine, listed, plural
from xpu_runtime.errors import ConfigError
from xpu_runtime.finding import Finding
from xpu_runtime.linux import cgroups
from xpu_runtime.start import created

ORDER = 60
_CHECK = "low-level runtime"
#: Those that our tests run.
_TRIED = ["runc", "crun"]


def look(machine: Machine) -> Iterator[Finding]:
    yield from _new_ones(machine)
    yield from _gone()


def _gone() -> Iterator[Finding]:
    """The runtimes of containers that are no longer installed."""
    try:
        left = [
            each
            for _, each in created.of_this_run_dir()
            if created.program(each) is None and not created.has_ended(each)
        ]
    except PermissionError:
        return  # we are not root
    for path in dict.fromkeys(each.runtime for each in left):
        ids = [each.container_id for each in left if each.runtime == path]
        text = (
            f"{path} is gone, and has created {plural(len(ids), 'container')} ({listed(ids)}): nothing else "
        )
        text += "can reach, stop or delete what it has created"
        yield finding.problem(_CHECK, text, "install it again until they are deleted")


def _new_ones(machine: Machine) -> Iterator[Finding]:
    try:
        path, _ = find_runtime(machine.settings.low_level_runtimes)
    except ConfigError as error:
        yield finding.problem(_CHECK, error.what, error.todo)
        return
    text = probe.version_text(path)
    if not text:
        todo = f"run `{path} --version` yourself; install it again, or name another in low_level_runtimes"
        yield finding.problem(_CHECK, f"{path} --version fails", todo)
        return
    name = low_level_runtime.own_name(path, text)
    refused = low_level_runtime.refusal(path, name)
    if refused is not None:
        yield finding.problem(_CHECK, refused.what, refused.todo)
        return
    yield of_version(path, text.splitlines()[0].strip(), cgroups.mounted(), name)


def of_version(path: str, version: str, mounted: list[cgroups.Hierarchy], name: str) -> Finding:
    """A finding on the version of the runtime `name` at `path`, with these hierarchies of cgroups."""
    # Debian 11's: it puts containers into v1 alone where both are mounted; 1.1 puts them into both.
    if version.startswith("runc version 1.0.") and {each.version for each in mounted} == {1, 2}:
        text = f"{path} ({version}) makes no cgroup v2 folders beside v1: library holds what needs one"
        todo = "for hard limits boot with systemd.unified_cgroup_hierarchy=1, or take runc 1.1 or newer"
        return finding.warning(_CHECK, text, todo)
    if name not in _TRIED:
        text = f"{path} ({version}): we have not tried it"
        return finding.warning(_CHECK, text, f"take {listed(_TRIED)} if containers do not start")
    return finding.ok(_CHECK, f"{path} ({version})")
