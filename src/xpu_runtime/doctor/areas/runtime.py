"""The low-level runtime, which does the work behind us: runc or crun."""

from __future__ import annotations

from collections.abc import Iterator

from xpu_runtime import finding
from xpu_runtime.config import probe
from xpu_runtime.config.low_level_runtime import find_runtime
from xpu_runtime.doctor.machine import Machine
from xpu_runtime.errors import ConfigError
from xpu_runtime.finding import Finding

ORDER = 60
_CHECK = "low-level runtime"


def look(machine: Machine) -> Iterator[Finding]:
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
    yield finding.ok(_CHECK, f"{path} ({text.splitlines()[0].strip()})")
