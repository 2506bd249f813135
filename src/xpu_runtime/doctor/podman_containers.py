"""podman's containers that only our name in its configuration can stop and remove, stopped ones too.

podman writes down a runtime's name with each container, and looks for its path at each command. Without it
5.4 neither stops nor removes the container, and 4.3 forgets one that goes on.
"""

from __future__ import annotations

import subprocess

from xpu_runtime.doctor.machine import listed
from xpu_runtime.engines import RUNTIME_NAME, Engine, podman
from xpu_runtime.errors import ConfigError
from xpu_runtime.observe import engine

_ANSWER_S = 30.0


def in_the_way(known: Engine) -> ConfigError | None:
    """Why podman has to keep our name; None where it need not or does not tell, and for other engines."""
    if known.PROGRAM != podman.PROGRAM or engine.program(podman.PROGRAM) is None:
        return None
    made = _told("inspect", "--format", "{{.OCIRuntime}} {{.Name}}", *_told("ps", "--all", "--quiet"))
    found = [each.split() for each in made]
    names = [each[-1] for each in found if each[:-1] == [RUNTIME_NAME]]
    if not names:
        return None
    return ConfigError(
        f"podman has containers of the runtime {RUNTIME_NAME} ({listed(names)}), and could neither stop nor "
        "remove them without its name",
        f"podman rm --force {' '.join(names[:3])}{' ...' if names[3:] else ''} first",
    )


def _told(command: str, *words: str) -> list[str]:
    try:
        done = subprocess.run(
            [podman.PROGRAM, "container", command, *words], capture_output=True, text=True, timeout=_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    # Without a container's name `inspect` fails.
    return done.stdout.splitlines()
