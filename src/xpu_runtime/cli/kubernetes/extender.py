"""`xpu kubernetes extender`: the scheduler extender, in the foreground.

Reads options and puts the parts together; kubernetes/extender/ decides.
"""

from __future__ import annotations

import signal
import socket
import threading

import click

from xpu_runtime.cli.terminal.streams import log
from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes import access
from xpu_runtime.kubernetes.api import Api
from xpu_runtime.kubernetes.extender.certificate import Certificate
from xpu_runtime.kubernetes.extender.keys import Keys
from xpu_runtime.kubernetes.extender.leader_election import LeaderElection
from xpu_runtime.kubernetes.extender.service import Extender
from xpu_runtime.kubernetes.resources import POLICIES, Resources
from xpu_runtime.linux import address
from xpu_runtime.version import VERSION

_KEYS = "/etc/xpu/kubernetes/keys"
#: The Lease of the leading replica; the manifests make it.
_LEASE = "xpu-extender"


@click.command(short_help="Place pods on devices, for kube-scheduler.")
@click.option(
    "--listen",
    default="0.0.0.0:8443",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Serve kube-scheduler at this address.",
)
@click.option("--tls-cert", metavar="FILE", help="Serve HTTPS with this certificate (with its chain).")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option("--client-ca", metavar="FILE", help="Answer only clients with a certificate of this authority.")
@click.option(
    "--status-listen",
    default="0.0.0.0:9403",
    show_default=True,
    metavar="ADDRESS:PORT",
    help='Serve /metrics, /healthz and /readyz here, without TLS; "" for none.',
)
@click.option(
    "--keys",
    "keys_file",
    default=_KEYS,
    show_default=True,
    metavar="FILE",
    help="The keys that sign assignments.",
)
@click.option(
    "--configuration",
    metavar="FILE",
    help="The nodes' ConfigMap: unit, aliases, placement.policy.  [default: 1GiB, none, binpack]",
)
@click.option("--namespace", metavar="NAME", help="The Lease's namespace.  [default: the pod's own]")
@click.option(
    "--advertise",
    metavar="URL",
    help="The address at which other replicas reach this one.  [default: its address]",
)
@click.option("--kubeconfig", metavar="FILE", help="A kubeconfig, if this does not run in the cluster.")
def extender(
    listen: str,
    tls_cert: str | None,
    tls_key: str | None,
    client_ca: str | None,
    status_listen: str,
    keys_file: str,
    configuration: str | None,
    namespace: str | None,
    advertise: str | None,
    kubeconfig: str | None,
) -> None:
    """Tell kube-scheduler which nodes have a place for a pod on their devices, and bind pods to them.

    Runs until it is stopped. It signs its decision into an annotation of the pod, which the nodes check.
    Several replicas may run: one leads, and the others pass their questions on to it. Keys, certificate and
    authority are read again when their files change.

    \b
    Example:
      xpu kubernetes extender --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt
    """
    resources, policy = _resources_and_policy(configuration)
    serves, status = _address(listen), _address(status_listen) if status_listen else None
    certificate = _certificate(tls_cert, tls_key, client_ca)
    where = access.find(kubeconfig)
    api = Api(where, "xpu-extender")
    url = advertise or f"{'https' if certificate else 'http'}://{_own_address()}:{serves[1]}"
    # Only this replica listens at this address, so that it need not wait for its own Lease's end after a
    # restart.
    identity = f"{socket.gethostname()}_{url}"
    election = LeaderElection(api, namespace or where.namespace, _LEASE, identity, url, log)
    end = threading.Event()
    keys = Keys(keys_file, log)
    service = Extender(api, resources, keys, policy, log, election, certificate, end.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    ports = service.start(serves, status)
    log(f"xpu kubernetes extender {VERSION} serves port {', '.join(map(str, ports))}")
    if certificate is None:
        log(
            "without --tls-cert every client that reaches the port can have pods bound, "
            "and no client can verify this server"
        )
    end.wait()
    service.stop()
    if service.failed is not None:
        raise service.failed
    log("stopped")


def _resources_and_policy(configuration: str | None) -> tuple[Resources, str]:
    """The resources, and the policy for pods and nodes that name none."""
    if configuration is None:
        return Resources(), POLICIES[0]
    from xpu_runtime.kubernetes.configuration import read

    found = read(configuration)
    return found.resources, found.policy or POLICIES[0]


def _address(text: str) -> tuple[str, int]:
    try:
        return address.parsed(text)
    except ValueError as error:
        raise ConfigError(str(error), "give one such as 0.0.0.0:8443 or [::]:8443") from None


def _certificate(certificate: str | None, key: str | None, client_ca: str | None) -> Certificate | None:
    if (certificate is None) != (key is None) or (client_ca and certificate is None):
        raise ConfigError(
            "--tls-cert, --tls-key and --client-ca belong together", "give the first two, or none"
        )
    return None if certificate is None or key is None else Certificate(certificate, key, client_ca)


def _own_address() -> str:
    """A pod's host name is its address, by its hosts file."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise ConfigError(f"the name of this host has no address ({error})", "give --advertise") from None
    return f"[{found}]" if ":" in str(found) else str(found)
