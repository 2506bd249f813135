"""The kubelet, as the plugin calls it: registration, and which pods have which IDs.

A kubelet that starts removes all sockets of plugins and makes its own anew; so the plugin looks each second
whether both are as they were, and otherwise listens and registers again. A list that the kubelet follows ends
before another one is registered: to kubelets of 1.25 to 1.35 the end of any list is the end of the resource,
whoever has registered it by then (kubernetes#121994).
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import grpc

from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes.device_plugin import v1beta1
from xpu_runtime.kubernetes.device_plugin.server import OPTIONS, Calls, Observe, Served, Server
from xpu_runtime.kubernetes.device_plugin.v1beta1 import (
    Empty,
    ListPodResourcesResponse,
    PodResources,
    RegisterRequest,
)
from xpu_runtime.kubernetes.device_plugin.wire import Message

#: Seconds for an answer of the kubelet.
_ANSWER_S = 3.0
#: What the kubelet itself lets such an answer be (podresources, DefaultPodResourcesMaxSize).
_MOST_BYTES = 16 << 20
#: sockaddr_un's (unix(7)).
_LONGEST_PATH = 107
_PREFIX = "xpu-"
#: Seconds until a resource is registered again whose list the kubelet does not follow; twice as many each
#: time, up to the last. Two plugins with one resource take it from each other.
_UNWATCHED_S, _LONGEST_UNWATCHED_S = 3.0, 60.0
#: Seconds between two looks at the Node's status that both tell of nothing, until that is true of what is
#: offered: the kubelet writes it each 10 s, and what is read may have been written before.
_STATUS_S = 30.0
#: Seconds for the kubelet to take note of a list's end. In these none of the resource is to be had, and a pod
#: that is admitted then fails.
_NOTED_S = 0.2


class KubeletError(XpuError):
    """The kubelet does not answer, or refuses."""


def _call(path: str, method: str, request: Message, response: type[Message]) -> Message:
    """One call on a channel of its own: one that is kept waits ever longer to connect again."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", _MOST_BYTES)]
    with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
        call: grpc.UnaryUnaryMultiCallable[Message, Message]
        call = channel.unary_unary(method, lambda m: m.encoded(), response.decoded)
        try:
            return call(request, timeout=_ANSWER_S)
        except grpc.RpcError as error:
            code = error.code().name if isinstance(error, grpc.Call) else ""
            details = error.details() if isinstance(error, grpc.Call) else str(error)
            raise KubeletError(f"the kubelet on {path}: {details or 'no answer'} ({code})") from None
        except ValueError as error:  # the channel was closed, or the answer is none
            raise KubeletError(f"the kubelet on {path}: {error}") from None


def pods(path: str) -> tuple[PodResources, ...]:
    """The pods of the node, with the IDs of all plugins that each container has; KubeletError.

    `path`: the socket of PodResources, by default /var/lib/kubelet/pod-resources/kubelet.sock.
    """
    answer = _call(path, v1beta1.LIST_POD_RESOURCES, Empty(), ListPodResourcesResponse)
    assert isinstance(answer, ListPodResourcesResponse)
    return answer.pods


class Registrations:
    """The plugin's sockets in the kubelet's folder, and whether it knows them. One thread."""

    def __init__(
        self,
        folder: str,
        served: dict[str, Served],
        calls: Calls,
        observe: Observe,
        threads: ThreadPoolExecutor,
        log: Callable[[str], None],
        allocatable: Callable[[], tuple[float, Mapping[str, str]] | None] = lambda: None,
    ) -> None:
        """`served`: the lists by resource. `log` is told what goes wrong, once, and what is well again.
        `allocatable`: as Reports has it."""
        self._folder = folder
        self._served = served
        self._calls = calls
        self._observe = observe
        self._threads = threads
        self._log = log
        self._allocatable = allocatable
        self._servers: dict[str, tuple[str, Server]] = {}
        #: Which kubelet it is, and the resources that it has taken.
        self._kubelet: tuple[object, ...] | None = None
        self._known: set[str] = set()
        #: By resource: when it was last registered, when last registered or followed, and how long it may be
        #: without that.
        self._registered_at: dict[str, float] = {}
        self._watched_at: dict[str, float] = {}
        self._patience: dict[str, float] = {}
        #: By resource: since when the Node's status is known to have nothing of it.
        self._missing_at: dict[str, float] = {}
        self._count = 0
        self._problem = ""
        #: How often a kubelet has taken a resource.
        self.registered = 0

    @property
    def is_registered(self) -> bool:
        """Whether the kubelet has taken all of them, and follows their lists."""
        watched = (server.is_watched for _, server in self._servers.values())
        return len(self._known) == len(self._served) and all(watched)

    def look(self) -> None:
        """Registers with the kubelet what that does not know: all where it is another one, otherwise what has
        lost its socket. Never fails; a kubelet that does not answer costs a few seconds."""
        try:
            kubelet = _identity(os.path.join(self._folder, v1beta1.KUBELET_SOCKET))
            if kubelet != self._kubelet:
                # Followed is what this one has taken: somebody has only changed the socket's mode or owner.
                self._kubelet = kubelet
                self._known = {each for each in self._known if self._servers[each][1].is_watched}
            if kubelet is None:
                raise KubeletError(f"there is no kubelet: no {v1beta1.KUBELET_SOCKET} in {self._folder}")
            self._known -= {
                resource for resource, (path, _) in self._servers.items() if not os.path.exists(path)
            }
            self._drop_unwatched()
            # A registration ends the calls on the one before: not of those that are well.
            due = [resource for resource in self._served if resource not in self._known]
            stopped = [resource for resource in due if self._stop_watched(resource)]
            if stopped:
                time.sleep(_NOTED_S)
            for resource in due:
                self._register(resource)
                self._known.add(resource)
            if due:
                self._log(f"the kubelet has taken {', '.join(due)}")
                self._problem = ""
        except (XpuError, OSError) as error:
            problem = str(error)
            if problem != self._problem:
                self._problem = problem
                self._log(f"{problem}; it is tried again each second")

    def _drop_unwatched(self) -> None:
        """Counts as unknown what the kubelet has dropped: where another plugin has registered the resource,
        and has ended since, it offers nothing of it, and may follow our list all the same (1.20).
        KubeletError where it does not follow one, as none runs."""
        now = time.monotonic()
        for resource in sorted(self._known):
            patience = self._patience.get(resource, _UNWATCHED_S)
            path, server = self._servers[resource]
            if server.is_watched and not self._is_not_offered(resource):
                if now - self._registered_at[resource] > _LONGEST_UNWATCHED_S:
                    self._patience.pop(resource, None)
                self._watched_at[resource] = now
            elif server.is_watched or now - self._watched_at[resource] > patience:
                if not server.is_watched:
                    _require_listening(os.path.join(self._folder, v1beta1.KUBELET_SOCKET))
                self._known.remove(resource)
                with contextlib.suppress(OSError):
                    os.unlink(path)  # on another one: the kubelet may follow this one as that of nobody
                self._patience[resource] = min(2 * patience, _LONGEST_UNWATCHED_S)
                self._log(f"the kubelet has dropped {resource}: does another plugin offer it here?")

    def _is_not_offered(self, resource: str) -> bool:
        """Whether the Node's status has nothing of a resource of which we offer something, and has not had
        any for so long that it would tell."""
        told, offered_since = self._allocatable(), self._served[resource].offered_since
        if told is None or offered_since is None or told[1].get(resource, "0") != "0":
            self._missing_at.pop(resource, None)
            return False
        seen_at = told[0]
        since = max(self._registered_at[resource], offered_since)
        first = self._missing_at.setdefault(resource, seen_at)
        if first <= since:
            first = self._missing_at[resource] = seen_at
        return first > since and seen_at - first > max(_STATUS_S, self._patience.get(resource, 0.0))

    def _stop_watched(self, resource: str) -> bool:
        """Ends a server whose socket is gone; whether the kubelet was watching its list."""
        path, server = self._servers.get(resource, ("", None))
        if server is None or os.path.exists(path):
            return False
        was_watched = server.is_watched
        server.stop()
        del self._servers[resource]
        return was_watched

    def _register(self, resource: str) -> None:
        if resource not in self._servers:
            # Another name each time: gRPC removes a server's socket by its path when that server ends.
            self._count += 1
            name = f"{_PREFIX}{resource.replace('/', '-')}-{os.getpid()}-{self._count}.sock"
            path = os.path.join(self._folder, name)
            if len(os.fsencode(path)) > _LONGEST_PATH:
                raise KubeletError(f"{path} is longer than the {_LONGEST_PATH} bytes that a socket may have")
            server = Server(resource, self._served[resource], self._calls, self._observe, self._threads)
            server.start(path)
            self._servers[resource] = path, server
        endpoint = os.path.basename(self._servers[resource][0])
        request = RegisterRequest(v1beta1.VERSION, endpoint, resource, OPTIONS)
        _call(os.path.join(self._folder, v1beta1.KUBELET_SOCKET), v1beta1.REGISTER, request, Empty)
        self.registered += 1
        self._registered_at[resource] = self._watched_at[resource] = time.monotonic()

    def close(self) -> None:
        for _, server in self._servers.values():
            server.stop()
        self._servers = {}


def sweep(folder: str) -> None:
    """Removes the sockets that an earlier plugin has left there. Only for who knows that none runs."""
    for name in _names(folder):
        path = os.path.join(folder, name)
        try:
            if name.startswith(_PREFIX) and stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
        except OSError:
            pass  # the kubelet was quicker


def _names(folder: str) -> Iterable[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return ()  # no kubelet yet


def _require_listening(path: str) -> None:
    """KubeletError where nobody listens on a socket that is there: a kubelet that was killed leaves it."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            pass  # many wait there
        except OSError as error:
            raise KubeletError(f"no kubelet listens on {path} ({error.strerror})") from None


def _identity(path: str) -> tuple[object, ...] | None:
    """What tells one kubelet's socket from the next one's; None: there is none."""
    try:
        there = os.stat(path)
    except OSError:
        return None
    return there.st_ino, there.st_ctime_ns
