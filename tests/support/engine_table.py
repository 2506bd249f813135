"""The table of docs/how-to/engines.md: what an engine does with slices, and the tests that say so.

A test that shows a line of it has `@tried(key)`. packaging/docs writes the table, and lint fails on a line
that no test shows. Imports nothing of the tests: the generator of pages reads it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., object])

#: Key: the way in which a container is run, and what happens.
LINES = {
    "runc": ("runc, crun", "a slice; a refusal is the last line of the log"),
    "ctr": ("containerd by `ctr`", "a slice by variable or annotation; a refusal is `ctr`'s error"),
    "docker": ("`docker run`, `create`, `start`", "a slice from start to end; a refusal is docker's error"),
    "userns": ("dockerd with `userns-remap`", "a slice"),
    "api": ("clients of docker's API", "as `docker run`: `HostConfig.Runtime` and `Env`"),
    "default": ("xpu as docker's default runtime", "slices; containers without a request are runc's"),
    "live-restore": (
        "dockerd killed or restarted, live-restore",
        "containers and slices stay; `stop` frees them",
    ),
    "dockerd-dead": (
        "a container ends while dockerd is away",
        "`xpu ps` says `dead`; the next request or `xpu gc` frees it",
    ),
    "restart": (
        "`--restart always`, `unless-stopped`, `on-failure`",
        "one slice booked anew at each restart",
    ),
    "restart-refused": (
        "a restart by policy that does not fit",
        "docker gives up: `State.Error` and `xpu events` say why",
    ),
    "boot": ("dockerd starts, as at a boot", "containers with a policy get a slice again"),
    "gpus": (
        "`--gpus`, `gpus:`, `reservations.devices`",
        "docker refuses them without NVIDIA's toolkit",
    ),
    "cdi": ("`--device yoyoworks.com/xpu=...`, compose's `driver: cdi`", "see [CDI devices](cdi.md)"),
    "compose": ("compose v2", "a slice for each replica; a refusal is its error"),
    "swarm": ("services of a swarm", "slices by the default runtime; a refusal is in `service ps`"),
    "build": ("`docker build`, BuildKit, `podman build`", "see [builds](build.md)"),
    "podman": ("podman as root", "see [podman](podman.md)"),
    "podman-service": (
        "`podman --remote`, compose on its socket",
        "slices by the default runtime or CDI; a refusal is the error",
    ),
    "hooks.d": ("podman, hooks.d", "a slice by annotation"),
    "cri": ("a kubelet's containerd (CRI)", "see [Kubernetes](../kubernetes.md)"),
}


def tried(*keys: str) -> Callable[[Test], Test]:
    """Marks a test that shows these lines of the table."""
    for key in keys:
        assert key in LINES, key
    return lambda test: test
