"""The plugin's side of gRPC: a socket for each resource, on which the kubelet calls.

Each has a server of its own, as a request does not name its resource. Bytes become messages and refusals
become gRPC's errors here; the caller (`Calls`) answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import grpc

from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes.device_plugin import v1beta1
from xpu_runtime.kubernetes.device_plugin.offer import Offer
from xpu_runtime.kubernetes.device_plugin.v1beta1 import (
    AllocateRequest,
    AllocateResponse,
    Device,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
    PreStartContainerRequest,
)
from xpu_runtime.kubernetes.device_plugin.wire import Message
from xpu_runtime.messages import line_of

OPTIONS = DevicePluginOptions(pre_start_required=True)
#: Starts of containers that wait at one time; each takes a thread.
_MOST_CALLS = 64
#: Seconds for calls that are under way when a server ends.
_GRACE_S = 1.0

#: Called for each call with its name, its result (`ok`, ...), and its seconds.
Observe = Callable[[str, str, float], None]


class Calls(Protocol):
    """The handlers of the kubelet's calls; XpuError refuses one."""

    def allocate(self, resource: str, request: AllocateRequest) -> AllocateResponse: ...

    def pre_start(self, resource: str, request: PreStartContainerRequest) -> None: ...


def pool() -> ThreadPoolExecutor:
    """The threads in which calls are answered, for all servers together."""
    return ThreadPoolExecutor(_MOST_CALLS, thread_name_prefix="call")


class Served:
    """The list of one resource's devices, as all streams of ListAndWatch tell it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._offer: Offer | None = None
        #: Since when it has healthy ones, by the monotonic clock; None: it has none.
        self.offered_since: float | None = None
        self._version = 0
        self._bytes = b""

    def tell(self, offer: Offer) -> bool:
        """Returns whether that is news."""
        with self._changed:
            if self._offer == offer:
                return False
            self._offer = offer
            if not offer.healthy:
                self.offered_since = None
            elif self.offered_since is None:
                self.offered_since = time.monotonic()
            states = (v1beta1.UNHEALTHY, v1beta1.HEALTHY)
            devices = tuple(Device(each, states[each in offer.healthy]) for each in offer.ids)
            self._bytes = ListAndWatchResponse(devices).encoded()
            self._version += 1
            self._changed.notify_all()
        return True

    def stream(self, is_open: Callable[[], bool]) -> Iterator[bytes]:
        """The list, and again with each change, until `is_open` says no (`wake` has it look)."""
        told = 0
        while True:
            with self._changed:
                while self._version == told and is_open():
                    self._changed.wait()
                if not is_open():
                    return
                told, content = self._version, self._bytes
            yield content

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Server:
    """Serves one resource on one socket, from `start` to `stop`."""

    def __init__(
        self, resource: str, served: Served, calls: Calls, observe: Observe, threads: ThreadPoolExecutor
    ) -> None:
        self._resource = resource
        self._served = served
        self._calls = calls
        self._observe = observe
        self._server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        self._open = True
        self._streams, self._counting = 0, threading.Lock()
        handlers = {
            "GetDevicePluginOptions": self._unary("options", Empty, lambda _: OPTIONS),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "Allocate": self._unary("allocate", AllocateRequest, lambda r: calls.allocate(resource, r)),
            "PreStartContainer": self._unary(
                "pre_start", PreStartContainerRequest, lambda r: calls.pre_start(resource, r)
            ),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(v1beta1.PLUGIN_SERVICE, handlers),)
        )

    def start(self, path: str) -> None:
        """OSError if it cannot listen there."""
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:  # gRPC's own words are a page long
            raise OSError(0, f"cannot listen there ({str(error).splitlines()[0][:200]})", path) from None
        self._server.start()

    def stop(self) -> None:
        """Ends it, and its streams; the socket goes too."""
        self._open = False
        self._served.wake()
        self._server.stop(_GRACE_S).wait(2 * _GRACE_S)

    def _unary(
        self, name: str, request: type[Message], answer: Callable[[Any], Message | None]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        def call(message: Any, context: grpc.ServicerContext) -> Message:
            began, outcome = time.monotonic(), "error"
            try:
                answered = answer(message) or Empty()
                outcome = "ok"
            except XpuError as error:
                outcome = "refused"
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            except Exception as error:  # the kubelet gets the error, and its next call may succeed
                context.abort(grpc.StatusCode.INTERNAL, line_of(error))
            finally:
                self._observe(name, outcome, time.monotonic() - began)
            return answered

        return grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=request.decoded, response_serializer=_encoded
        )

    def _list_and_watch(self, _: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        if not context.add_callback(self._served.wake):
            return
        self._count_streams(1)
        try:
            yield from self._served.stream(lambda: self._open and context.is_active())
        finally:
            self._count_streams(-1)

    def _count_streams(self, more: int) -> None:
        with self._counting:
            self._streams += more

    @property
    def is_watched(self) -> bool:
        """Whether the kubelet follows its list: it has dropped a plugin whose list it does not follow."""
        return self._streams > 0


def _encoded(message: Message) -> bytes:
    return message.encoded()
