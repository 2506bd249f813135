"""The plugin's calls to the kubelet: registration, and the IDs of pods.

A kubelet that starts removes all plugins' sockets and makes its own anew. So the plugin looks each second
whether both are unchanged (and more often whether it is the same kubelet), and if not, listens and registers
again. A list that the kubelet follows ends before another one is registered: for kubelets of 1.25 to 1.36 the
end of any list is the end of the resource, whichever plugin has registered it by then (kubernetes#121994).
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
#: The kubelet's own limit for such an answer (podresources, DefaultPodResourcesMaxSize).
_MOST_BYTES = 16 << 20
#: sockaddr_un's (unix(7)).
_LONGEST_PATH = 107
_PREFIX = "xpu-"
#: Seconds until a resource is registered again whose list the kubelet does not follow; twice as many each
#: time, up to the last. Two plugins with one resource take it from each other.
_UNWATCHED_S, _LONGEST_UNWATCHED_S = 3.0, 60.0
#: Seconds between two looks at the Node's status; if both show none of the offered resources, the kubelet has
#: lost them. The kubelet writes the status each 10 s, and a look may read an older one. By then a kubelet
#: that does not reach the API server is known as silent (the node controller waits 40 to 50 s).
_STATUS_S = 55.0
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


class _Registration:
    """One resource: its socket, and its state with the kubelet."""

    def __init__(self, resource: str, served: Served) -> None:
        self.resource = resource
        self.served = served
        #: None, with any path: there is no socket.
        self.server: Server | None = None
        self.path = ""
        #: The kubelet has taken it.
        self.is_known = False
        #: When it was last registered, and when it was last registered or followed (time.monotonic).
        self.registered_at = self.watched_at = 0.0
        #: Seconds that it may be without that, once it was too long; 0.0: as ever.
        self.patience = 0.0
        #: Since when the Node's status is known to have nothing of it.
        self.missing_at: float | None = None

    @property
    def is_watched(self) -> bool:
        server = self.server
        return server is not None and server.is_watched

    @property
    def has_socket(self) -> bool:
        return self.server is not None and os.path.exists(self.path)

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None

    def is_not_offered(self, allocatable: tuple[float, Mapping[str, str]] | None) -> bool:
        """Whether the Node's status has lacked a resource that we offer for so long that this is no delay."""
        offered_since = self.served.offered_since
        if allocatable is None or offered_since is None or allocatable[1].get(self.resource, "0") != "0":
            self.missing_at = None
            return False
        seen_at, since = allocatable[0], max(self.registered_at, offered_since)
        if self.missing_at is None or self.missing_at <= since:
            self.missing_at = seen_at
        return self.missing_at > since and seen_at - self.missing_at > max(_STATUS_S, self.patience)


class Registrations:
    """The plugin's sockets in the kubelet's folder, and whether it knows them. One thread looks."""

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
        """`served`: the lists by resource. `log` takes each failure once, and its end. `allocatable`: as
        Reports has it."""
        self._folder = folder
        self._socket = os.path.join(folder, v1beta1.KUBELET_SOCKET)
        self._all = [_Registration(resource, each) for resource, each in served.items()]
        self._calls = calls
        self._observe = observe
        self._threads = threads
        self._log = log
        self._allocatable = allocatable
        #: Which kubelet it is.
        self._kubelet: tuple[object, ...] | None = None
        self._count = 0
        self._problem = ""
        #: How often a kubelet has taken a resource.
        self.registered = 0

    @property
    def is_registered(self) -> bool:
        """Whether the kubelet has taken all of them, and follows their lists."""
        return all(each.is_known and each.is_watched for each in self._all)

    @property
    def has_another_kubelet(self) -> bool:
        """Whether the kubelet's socket is not the one that was there at the last look."""
        return _identity(self._socket) != self._kubelet

    def look(self) -> None:
        """Registers resources that the kubelet does not know: all with a new kubelet, otherwise those that
        lost their socket. Never fails; a kubelet that does not answer costs a few seconds."""
        try:
            kubelet = _identity(self._socket)
            is_other, self._kubelet = kubelet != self._kubelet, kubelet
            if kubelet is None:
                raise KubeletError(f"there is no kubelet: no {v1beta1.KUBELET_SOCKET} in {self._folder}")
            for each in self._all:
                # A list that the kubelet follows is registered: its socket's mode or owner has changed, or
                # the kubelet has answered too late.
                each.is_known = each.has_socket and (each.is_watched or (each.is_known and not is_other))
            self._drop_unwatched()
            # A registration ends the calls on the one before: not of those that are well.
            due = [each for each in self._all if not each.is_known]
            stopped = [each for each in due if self._stop_watched(each)]
            if stopped:
                time.sleep(_NOTED_S)
            if due:
                _require_listening(self._socket)
            for each in due:
                self._register(each)
            if due:
                self._log(f"the kubelet has accepted {', '.join(each.resource for each in due)}")
            elif self._problem and self.is_registered:
                self._log("the kubelet is there again, and follows all lists")
            if due or self.is_registered:
                self._problem = ""
        except (XpuError, OSError) as error:
            problem = str(error)
            if problem != self._problem:
                self._problem = problem
                self._log(f"{problem}; it is tried again every second")

    def _drop_unwatched(self) -> None:
        """Counts resources that the kubelet has dropped as unknown: if another plugin registered the
        resource, and has ended since, the kubelet offers none of it, and may follow our list all the same
        (1.20). KubeletError if it follows none, as no kubelet runs."""
        now, allocatable = time.monotonic(), self._allocatable()
        for each in self._all:
            if not each.is_known:
                continue
            patience = each.patience or _UNWATCHED_S
            if each.is_watched and not each.is_not_offered(allocatable):
                if now - each.registered_at > _LONGEST_UNWATCHED_S:
                    each.patience = 0.0
                each.watched_at = now
            elif each.is_watched or now - each.watched_at > patience:
                if not each.is_watched:
                    _require_listening(self._socket)
                each.is_known = False
                with contextlib.suppress(OSError):
                    os.unlink(each.path)  # next on another path: the kubelet may still follow this one
                each.patience = min(2 * patience, _LONGEST_UNWATCHED_S)
                self._log(f"the kubelet has dropped {each.resource}: does another plugin offer it here?")

    def _stop_watched(self, due: _Registration) -> bool:
        """Ends a server whose socket is gone; returns whether the kubelet was watching its list."""
        if due.server is None or due.has_socket:
            return False
        was_watched = due.is_watched
        due.stop()
        return was_watched

    def _register(self, due: _Registration) -> None:
        if due.server is None:
            # Another name each time: gRPC removes a server's socket by its path when that server ends.
            self._count += 1
            name = f"{_PREFIX}{due.resource.replace('/', '-')}-{os.getpid()}-{self._count}.sock"
            path = os.path.join(self._folder, name)
            if len(os.fsencode(path)) > _LONGEST_PATH:
                raise KubeletError(f"{path} is longer than the {_LONGEST_PATH} bytes that a socket may have")
            server = Server(due.resource, due.served, self._calls, self._observe, self._threads)
            server.start(path)
            due.path, due.server = path, server
        request = RegisterRequest(v1beta1.VERSION, os.path.basename(due.path), due.resource, OPTIONS)
        due.registered_at = time.monotonic()  # it may be taken, and the answer late
        _call(self._socket, v1beta1.REGISTER, request, Empty)
        due.registered_at = due.watched_at = time.monotonic()
        due.is_known = True
        self.registered += 1

    def close(self) -> None:
        for each in self._all:
            each.stop()


def remove_sockets(folder: str) -> None:
    """Removes an earlier plugin's sockets. Call it only when no other plugin runs."""
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
    """KubeletError if the socket exists and no process listens: a killed kubelet leaves it behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            pass  # many wait there
        except OSError as error:
            raise KubeletError(f"no kubelet listens on {path} ({error.strerror})") from None


def _identity(path: str) -> tuple[object, ...] | None:
    """The identity of a kubelet's socket; None: there is none."""
    try:
        there = os.stat(path)
    except OSError:
        return None
    return there.st_ino, there.st_ctime_ns
