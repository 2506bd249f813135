"""The part of a kubelet that device plugins use, over real gRPC, with protoc's messages.

It has the registration server, the client of plugins, and PodResources; tests/kubernetes has a real kubelet.
It behaves as the real one (pkg/kubelet/cm/devicemanager of 1.20 to 1.36): it removes all sockets when it
starts, takes any healthy IDs that are free, and calls without naming the pod. It gives a regular container
the IDs of its pod's init containers first, and does not list these in PodResources. It marks a resource's
devices unhealthy when the stream of the last registered endpoint ends.
"""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_tools import protoc

_PROTO = Path(__file__).with_name("proto")
#: Seconds that a test waits for anything.
WAIT_S = 30.0


def _compiled(name: str) -> Any:
    """protoc's module of NAME.proto."""
    with tempfile.TemporaryDirectory() as folder:
        assert protoc.main(["protoc", f"-I{_PROTO}", f"--python_out={folder}", f"{name}.proto"]) == 0
        sys.path.insert(0, folder)
        try:
            return importlib.import_module(f"{name}_pb2")
        finally:
            sys.path.remove(folder)


PLUGIN, RESOURCES = _compiled("deviceplugin_v1beta1"), _compiled("podresources_v1")
_CALLS = {
    "GetDevicePluginOptions": (PLUGIN.Empty, PLUGIN.DevicePluginOptions),
    "Allocate": (PLUGIN.AllocateRequest, PLUGIN.AllocateResponse),
    "PreStartContainer": (PLUGIN.PreStartContainerRequest, PLUGIN.PreStartContainerResponse),
}


#: Programs whose work a test waits for, each with its log.
needed: dict[subprocess.Popen[bytes], Path] = {}


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true result of `condition`. If a program of `needed` has ended, for example because a package
    is missing, it fails at once with the program's log: otherwise every test would wait, half an hour in all.
    """
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        for program, log in needed.items():
            assert program.poll() is None, f"{what}: the program has ended; its log: {log.read_text()}"
        assert time.monotonic() < deadline, f"it did not come to it that {what}"
        time.sleep(0.01)
    return found


class Endpoint:
    """A plugin's socket, as a kubelet holds it."""

    def __init__(self, kubelet: Kubelet, resource: str, path: Path) -> None:
        self.path = path
        self._kubelet = kubelet
        self._resource = resource
        self._channel = grpc.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)])
        watch = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            PLUGIN.Empty.SerializeToString,
            PLUGIN.ListAndWatchResponse.FromString,
        )
        self._stream = watch(PLUGIN.Empty(), wait_for_ready=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for answer in self._stream:
                self._kubelet.tell(self._resource, {each.ID: each.health for each in answer.devices})
        except grpc.RpcError:
            pass
        self._kubelet.lost(self._resource, self)

    def call(self, name: str, **fields: Any) -> Any:
        request, response = _CALLS[name]
        method = self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{name}", request.SerializeToString, response.FromString
        )
        return method(request(**fields), timeout=30)

    def disconnect(self) -> None:
        self._channel.close()

    def close(self) -> None:
        self.disconnect()
        self._thread.join()


class Kubelet:
    """The kubelet of one node. A test may `start` and `stop` it often; the allocations stay, as in the real
    one's checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.plugins = folder / "device-plugins"
        self.pod_resources = folder / "pod-resources.sock"
        self.plugins.mkdir(parents=True)
        #: By resource: the health of each ID.
        self.devices: dict[str, dict[str, str]] = {}
        #: By (namespace, pod, container, resource).
        self.given: dict[tuple[str, str, str, str], list[str]] = {}
        self.registered: list[str] = []
        #: Kubelets of 1.25 to 1.36 do so (kubernetes#121994): they leave an earlier list to its plugin. When
        #: that list ends, the resource ends, whichever plugin has registered it by then.
        self.ends_by_name = False
        self._endpoints: dict[str, Endpoint] = {}
        self._lock = threading.RLock()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        for each in self.plugins.iterdir():
            each.unlink()
        self._server = grpc.server(ThreadPoolExecutor(4))
        register = grpc.unary_unary_rpc_method_handler(
            self._register, PLUGIN.RegisterRequest.FromString, PLUGIN.Empty.SerializeToString
        )
        listing = grpc.unary_unary_rpc_method_handler(
            self._list,
            RESOURCES.ListPodResourcesRequest.FromString,
            RESOURCES.ListPodResourcesResponse.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register}),
                grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": listing}),
            )
        )
        self._server.add_insecure_port(f"unix:{self.plugins}/kubelet.sock")
        self._server.add_insecure_port(f"unix:{self.pod_resources}")
        self._server.start()

    def stop(self) -> None:
        with self._lock:
            endpoints, self._endpoints = list(self._endpoints.values()), {}
        for endpoint in endpoints:
            endpoint.close()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def _register(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.version != "v1beta1":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unsupported version")
        assert request.options.pre_start_required and not request.options.get_preferred_allocation_available
        # The real one connects after it has answered, too.
        threading.Thread(target=self._connect, args=(request.resource_name, request.endpoint)).start()
        return PLUGIN.Empty()

    def _connect(self, resource: str, endpoint: str) -> None:
        with self._lock:
            before = self._endpoints.get(resource)
            self._endpoints[resource] = Endpoint(self, resource, self.plugins / endpoint)
            self.registered.append(resource)
        if before is not None and not self.ends_by_name:
            before.close()

    def tell(self, resource: str, devices: dict[str, str]) -> None:
        with self._lock:
            self.devices[resource] = devices

    def lost(self, resource: str, endpoint: Endpoint) -> None:
        with self._lock:
            current = self._endpoints.get(resource)
            if current is endpoint or (current is not None and self.ends_by_name):
                if self.ends_by_name:
                    del self._endpoints[resource]
                    current.disconnect()
                self.tell(resource, dict.fromkeys(self.devices.get(resource, {}), "Unhealthy"))

    def _list(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = RESOURCES.ListPodResourcesResponse()
        with self._lock:
            for (namespace, pod, container, resource), ids in self.given.items():
                one = answer.pod_resources.add(name=pod, namespace=namespace)
                holder = one.containers.add(name=container, cpu_ids=[1, 2])
                devices = holder.devices.add(resource_name=resource, device_ids=ids)
                devices.topology.nodes.add(ID=1)
        return answer

    def resource_status(self, pod: str) -> dict[str, dict[str, str]]:
        """The pod's status.allocatedResourcesStatus from 1.36 on, by resource and ID
        (ManagerImpl.UpdateAllocatedResourcesStatus): an ID that is not in the list any more is healthy."""
        with self._lock:
            return {
                resource: {each: self.devices.get(resource, {}).get(each, "Healthy") for each in ids}
                for (_, name, _, resource), ids in self.given.items()
                if name == pod
            }

    # Calls of tests

    def healthy(self, resource: str) -> int:
        """The resource's part in the node's status.allocatable."""
        with self._lock:
            return sum(each == "Healthy" for each in self.devices.get(resource, {}).values())

    def capacity(self, resource: str) -> int:
        with self._lock:
            return len(self.devices.get(resource, {}))

    def endpoint(self, resource: str) -> Endpoint:
        found: Endpoint = until(lambda: self._endpoints.get(resource), f"{resource} is registered")
        return found

    def allocate(self, pod: str, resource: str, number: int) -> dict[str, str]:
        """Admits a pod's container, as the kubelet does; returns its variables. AssertionError: too few
        devices are free."""
        # Resources are registered one after the other.
        listed = until(lambda: self.devices.get(resource), f"{resource} is listed")
        taken = {each for ids in self.given.values() for each in ids}
        free = [each for each, health in listed.items() if health == "Healthy"]
        free = [each for each in free if each not in taken]
        assert len(free) >= number, f"UnexpectedAdmissionError: {len(free)} of {resource}, {number} requested"
        endpoint = self.endpoint(resource)
        ids = random.sample(free, number)  # the real one iterates over a map
        answer = endpoint.call("Allocate", container_requests=[{"devices_ids": ids}])
        with self._lock:
            self.given["default", pod, "main", resource] = ids
        return dict(answer.container_responses[0].envs)

    def pre_start(self, pod: str, resource: str) -> None:
        """grpc.RpcError if the plugin refuses it."""
        ids = self.given["default", pod, "main", resource]
        self.endpoint(resource).call("PreStartContainer", devices_ids=ids)

    def remove(self, pod: str) -> None:
        with self._lock:
            self.given = {key: ids for key, ids in self.given.items() if key[1] != pod}


@contextmanager
def running() -> Iterator[Kubelet]:
    """A running kubelet, in a short folder: socket paths have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="xpu-k-") as folder:
        found = Kubelet(Path(folder))
        found.start()
        try:
            yield found
        finally:
            found.stop()
