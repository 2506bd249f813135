"""The kubelet's two gRPC interfaces, as values: device plugins v1beta1 and PodResources v1.

Fields and numbers are those of k8s.io/kubelet/pkg/apis, deviceplugin/v1beta1/api.proto and
podresources/v1/api.proto; unused fields are left out, and skipped when the kubelet sends them. A test
compares them with protoc's output for tests/support/*.proto. Knows no gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping

from xpu_runtime.kubernetes.device_plugin.wire import FLAG, MANY, ONE, PAIRS, TEXT, TEXTS, Message

VERSION = "v1beta1"
#: The kubelet's own socket, in the folder of plugins' sockets.
KUBELET_SOCKET = "kubelet.sock"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
#: The largest message that gRPC takes by default, and so the kubelet.
MOST_BYTES = 4 << 20
#: The length of a device's ID, by the comment in api.proto.
LONGEST_ID = 63

REGISTER = "/v1beta1.Registration/Register"
PLUGIN_SERVICE = "v1beta1.DevicePlugin"
LIST_POD_RESOURCES = "/v1.PodResourcesLister/List"


class Empty(Message):
    pass


class DevicePluginOptions(Message):
    pre_start_required: bool = False
    WIRE = {"pre_start_required": (1, FLAG)}


class RegisterRequest(Message):
    version: str = ""
    endpoint: str = ""
    resource_name: str = ""
    options: DevicePluginOptions | None = None
    WIRE = {
        "version": (1, TEXT),
        "endpoint": (2, TEXT),
        "resource_name": (3, TEXT),
        "options": (4, ONE, DevicePluginOptions),
    }


class Device(Message):
    ID: str = ""
    health: str = ""
    WIRE = {"ID": (1, TEXT), "health": (2, TEXT)}


class ListAndWatchResponse(Message):
    devices: tuple[Device, ...] = ()
    WIRE = {"devices": (1, MANY, Device)}


class ContainerAllocateRequest(Message):
    ids: tuple[str, ...] = ()
    WIRE = {"ids": (1, TEXTS)}


class AllocateRequest(Message):
    containers: tuple[ContainerAllocateRequest, ...] = ()
    WIRE = {"containers": (1, MANY, ContainerAllocateRequest)}


class ContainerAllocateResponse(Message):
    environment: Mapping[str, str] = {}
    WIRE = {"environment": (1, PAIRS)}


class AllocateResponse(Message):
    containers: tuple[ContainerAllocateResponse, ...] = ()
    WIRE = {"containers": (1, MANY, ContainerAllocateResponse)}


class PreStartContainerRequest(Message):
    ids: tuple[str, ...] = ()
    WIRE = {"ids": (1, TEXTS)}


class ContainerDevices(Message):
    resource: str = ""
    ids: tuple[str, ...] = ()
    WIRE = {"resource": (1, TEXT), "ids": (2, TEXTS)}


class ContainerResources(Message):
    name: str = ""
    devices: tuple[ContainerDevices, ...] = ()
    WIRE = {"name": (1, TEXT), "devices": (2, MANY, ContainerDevices)}


class PodResources(Message):
    name: str = ""
    namespace: str = ""
    containers: tuple[ContainerResources, ...] = ()
    WIRE = {"name": (1, TEXT), "namespace": (2, TEXT), "containers": (3, MANY, ContainerResources)}


class ListPodResourcesResponse(Message):
    pods: tuple[PodResources, ...] = ()
    WIRE = {"pods": (1, MANY, PodResources)}
