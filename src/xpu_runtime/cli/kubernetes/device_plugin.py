"""`xpu kubernetes device-plugin`: the service that offers this node's devices to the kubelet.

In the foreground. Takes the lock of the one plugin, and logs to stderr. kubernetes/ has the offer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import click

from xpu_runtime import paths, version
from xpu_runtime.cli.terminal.streams import log
from xpu_runtime.config.load import load
from xpu_runtime.errors import ConfigError, XpuError
from xpu_runtime.linux import files

_LOCK = "kubernetes.lock"
#: Seconds for the end of an earlier plugin, which a DaemonSet's update may still be ending.
_EARLIER_S = 30
_STOPPING = (signal.SIGTERM, signal.SIGINT)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.kubernetes.device_plugin.plugin import Plugin


@click.command(short_help="Offer this node's devices to the kubelet.")
@click.option("--node-name", metavar="NAME", help="The node; by default kubernetes.node_name, or $NODE_NAME.")
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, or the pod's service account.")
@click.option(
    "--plugins",
    default="/var/lib/kubelet/device-plugins",
    show_default=True,
    metavar="FOLDER",
    help="The folder of the kubelet's plugin sockets.",
)
@click.option(
    "--pod-resources",
    default="/var/lib/kubelet/pod-resources/kubelet.sock",
    show_default=True,
    metavar="SOCKET",
    help="The kubelet's pod-resources socket, which tells the IDs of each pod.",
)
@click.option(
    "--health-every",
    default=15.0,
    show_default=True,
    type=click.FloatRange(1, 3600),
    metavar="SECONDS",
    help="Seconds between two questions to the drivers.",
)
@click.option(
    "--health-timeout",
    default=20.0,
    show_default=True,
    type=click.FloatRange(1, 600),
    metavar="SECONDS",
    help="Seconds without an answer until a driver's devices are unhealthy.",
)
@click.option("--metrics", metavar="ADDRESS:PORT", help="Serve /metrics and /healthz at this address.")
@click.option(
    "--containerd-config",
    envvar="CONTAINERD_CONFIG",
    default="/etc/containerd/config.toml",
    show_default=True,
    metavar="FILE",
    help="containerd's configuration, for pods without a RuntimeClass; or $CONTAINERD_CONFIG.",
)
def device_plugin(
    node_name: str | None,
    kubeconfig: str | None,
    plugins: str,
    pod_resources: str,
    health_every: float,
    health_timeout: float,
    metrics: str | None,
    containerd_config: str,
) -> None:
    """Offer this node's devices to the kubelet, and reserve them for its pods.

    Runs until it is stopped. Pods and reservations stay when it ends. It needs root, the host's process
    numbers (hostPID) and run folder (/run/xpu), the kubelet's folders, and an API server on which it may
    watch pods, write events, and patch its own node.

    \b
    Example:
      xpu kubernetes device-plugin --node-name "$NODE_NAME" --metrics 0.0.0.0:9402
    """
    if os.geteuid():
        raise XpuError("the device plugin writes the ledger", "run it as root")
    try:
        import grpc  # noqa: F401 - what it is all about
    except ImportError as error:
        raise XpuError(
            f"the device plugin needs gRPC ({error}), which the packages lack",
            "let the DaemonSet run it, whose image has gRPC (docs/kubernetes.md), or from a clone, in a "
            "virtual environment, `pip install '.[kubernetes]'`",
        ) from None
    from xpu_runtime.kubernetes import access
    from xpu_runtime.kubernetes.api import Api
    from xpu_runtime.kubernetes.device_plugin.plugin import Plugin, Settings

    settings = Settings(_name(node_name), plugins, pod_resources, health_every, health_timeout, metrics)
    api = Api(access.find(kubeconfig), "xpu-device-plugin")
    os.makedirs(paths.run_dir(), mode=0o755, exist_ok=True)
    path = paths.in_run_dir(_LOCK)
    try:
        with files.Lock(path, _EARLIER_S) as lock:
            # Before there are threads, which inherit it: one of them waits for signals. A handler would
            # interrupt the main one, perhaps while that has the very lock which the handler needs.
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
            plugin = Plugin(settings, api, log, lambda: is_default_runtime(containerd_config), lock.is_held)
            threading.Thread(target=_end_on_signal, args=(plugin,), daemon=True).start()
            log(f"xpu device plugin {version.VERSION} runs for the node {settings.node_name}")
            plugin.run()
            log("the device plugin was stopped: pods keep their slices")
    except TimeoutError:
        raise XpuError(f"another device plugin runs on this node: it holds {path}", "end it") from None


def is_default_runtime(containerd_config: str) -> bool | None:
    """Whether our runtime starts a pod without a RuntimeClass; None: not known, or two engines differ."""
    # These are imported only for such a pod: a parser of TOML takes much of the plugin's memory.
    from xpu_runtime import textfile, third_party

    third_party.enable()
    from xpu_runtime.engines import containerd, crio

    found = set()
    for engine, path in ((containerd, containerd_config), (crio, crio.DEFAULT_PATH)):
        with contextlib.suppress(ConfigError):
            found.add(engine.is_default(textfile.read(path)))
    found.discard(None)
    return found.pop() if len(found) == 1 else None


def _end_on_signal(plugin: Plugin) -> None:
    signal.sigwait(_STOPPING)
    plugin.stop()


def _name(given: str | None) -> str:
    """The node's name; ConfigError if it is not known, or is not the name that containers' starts check."""
    configured = load().kubernetes_node_name
    name = given or configured or os.environ.get("NODE_NAME", "")
    if not name:
        raise ConfigError("this node's name in the cluster is not known", "give --node-name or set NODE_NAME")
    if configured not in (None, name):
        raise ConfigError(
            f"the node's name is {name}, and kubernetes.node_name in {paths.config_file()} is {configured}",
            "they must be the same: assignments are for one node",
        )
    return name
