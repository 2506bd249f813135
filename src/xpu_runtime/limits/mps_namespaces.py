"""Namespaces of an MPS server (protocol 3, R615) for containers, and the configuration file that makes them.

As NVIDIA documents it (docs.nvidia.com/deploy/mps): "Namespaces", "MPS v3 Configuration File". With an
earlier driver, our libcuda gives a container's processes the same values. Knows no daemon.
"""

from __future__ import annotations

from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Namespace(Value):
    """The limits of each process of a container; 0: no limit."""

    name: str
    percent: int
    pinned_mib: int

    @property
    def limits(self) -> list[tuple[str, str]]:
        """As the configuration file has them; on the command line `_` is `-`."""
        found = [("active_thread_percentage", str(self.percent))] if self.percent else []
        return found + ([("pinned_memory_limit", f"{self.pinned_mib}M")] if self.pinned_mib else [])


def configuration(server: str, uuid: str, namespaces: Iterable[Namespace]) -> str:
    """The file: one server, of one device, with these namespaces."""
    server = f"servers.{server}"
    lines = ['schema_version = "1.0"', f"[{server}]", f'allowed_devices = "{uuid}"', "uid = 0"]
    for each in namespaces:
        lines += ["", f"[{server}.namespaces.{each.name}]"]
        lines += [f'{key} = "{value}"' for key, value in each.limits]
    return "\n".join(lines) + "\n"
