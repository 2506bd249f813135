"""The product's services in the cluster: the device plugin on its node, and the scheduler extender."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import manifests
from .cluster import NODE, Cluster
from .daemons import Daemon, answers, free_port, until

#: kubelet registers them one after the other.
_RESOURCES = (
    "yoyoworks.com/xpu", "yoyoworks.com/xpu-shares", "yoyoworks.com/xpu-mem", "yoyoworks.com/xpu-cores",
    "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage",
)  # fmt: skip


class Extender:
    """The scheduler extender, as its Deployment starts it, with an address of this machine."""

    def __init__(self, cluster: Cluster, *options: str) -> None:
        self.port, status = free_port(), free_port()
        self.daemon: Daemon = cluster.xpu(
            "extender", lambda: answers(f"http://127.0.0.1:{status}/readyz"),
            "extender", *manifests.extender_arguments(cluster.secrets, self.port, status),
            # In a pod the cluster gives these values.
            f"--advertise=https://127.0.0.1:{self.port}", f"--namespace={manifests.NAMESPACE}",
            *options,
        )  # fmt: skip


class DevicePlugin:
    """The device plugin, with its part of the node's configuration."""

    def __init__(self, cluster: Cluster, placement: str) -> None:
        self._cluster = cluster
        self._placement = placement
        # The plugin looks at the cards every second, because tests would wait for the usual 15 s.
        self.daemon = cluster.xpu(
            "plugin", self._is_registered, "device-plugin", "--health-every=1",
            f"--containerd-config={cluster.containerd_config}",
        )  # fmt: skip

    def start(self) -> None:
        self._cluster.node.configure(
            f"""kubernetes:
  require_assignment: true
  node_name: {NODE}
  keys: {self._cluster.secrets}/xpu-keys/keys
  placement: {self._placement}
  aliases: [aliyun.com/gpu]
"""
        )
        self.daemon.start()

    def stop(self) -> None:
        """Ends the plugin and waits until the node offers nothing: the next plugin's test would take it for
        its own.
        """
        self.daemon.stop()
        until(lambda: not self._is_registered(1), "kubelet knows that the plugin is gone")
        self._cluster.node.config.unlink()

    @contextmanager
    def registers_again(self) -> Iterator[None]:
        """The block ends the plugin's registration; afterwards kubelet must know it again within five
        seconds.

        Until then kubelet refuses the pods that the scheduler continues to send it.
        """
        text = "the kubelet has accepted"
        before = self.daemon.has_said(text)
        yield
        until(lambda: self.daemon.has_said(text) > before, "kubelet knows it again", 5, self.daemon.log)

    def _is_registered(self, number: int = len(_RESOURCES)) -> bool:
        """Whether the node offers at least `number` of the resources."""
        found = self._cluster.api.node(NODE)["status"]["allocatable"]
        return len([name for name in _RESOURCES if found.get(name, "0") != "0"]) >= number
