"""How an engine learns why a container was not created: the exit status, stderr, and the file of `--log`."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from .conftest import Node

_LOGRUS = re.compile(r'time="(?P<time>[^"]*)" level=(?P<level>\w+) msg=(?P<msg>"(?:[^"\\]|\\.)*"|\S+)')


def log_entries(path: Path, form: str) -> list[dict[str, Any]]:
    """The lines of a runtime's log, each of which must be in the requested format."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_text().splitlines():
        if form == "json":
            entry = json.loads(line)
            assert set(entry) == {"level", "msg", "time"}, line
        else:
            match = _LOGRUS.fullmatch(line)
            assert match, line
            entry = match.groupdict()
            if entry["msg"].startswith('"'):
                entry["msg"] = json.loads(entry["msg"])
        entries.append(entry)
    return entries


def refused(node: Node, bundle: Path, *options: str, form: str = "json") -> str:
    """Why `create` of this bundle fails: our one line, which stderr and the log's last error must have."""
    log = bundle / "log"
    log.unlink(missing_ok=True)
    options = ("--log", str(log), "--log-format", form, *options)
    command = node.command(*options, "create", "--bundle", bundle, bundle.name)
    # A file: a container that is not refused would keep a pipe open.
    with (bundle / "stderr").open("w") as file:
        done = subprocess.run(command, env=node.environ, stdout=file, stderr=file, timeout=60)
    stderr = (bundle / "stderr").read_text()
    assert done.returncode == 1, stderr
    errors = [entry["msg"] for entry in log_entries(log, form) if entry["level"] == "error"]
    assert errors, "nothing in the log"
    ours: list[str] = [line for line in errors if line.startswith("xpu: ")]
    assert ours, errors
    assert "\n" not in ours[0]
    assert ours[0] in errors[-1]
    assert ours[0] in stderr
    assert "internal error" not in ours[0]
    assert not (node.state_root / bundle.name).exists()
    return ours[0].removeprefix("xpu: ")
