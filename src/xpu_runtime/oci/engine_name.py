"""A container's name, as its engine has written it into the bundle or beside it; no engine is asked.

containerd's namespace is in the path of the bundle, and Kubernetes' names and nerdctl's are annotations of
the spec, as with cri-o. docker keeps the name in config.v2.json in the container's folder (moby's
container/container.go), podman in containers.json beside it (containers/storage, containers.go). A start
reads only such a file for the name, in 0.1 ms: the container may be gone before anyone asks for it. The name
is others' text: one with a character that no engine's name has, or longer than any, counts as none.
"""

from __future__ import annotations

import os

from xpu_runtime import jsonlite
from xpu_runtime.errors import SpecError
from xpu_runtime.linux import files
from xpu_runtime.oci import spec as oci_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from xpu_runtime.oci.spec import Spec

#: The folder of containerd's shims: a bundle is FOLDER/NAMESPACE/ID.
_TASKS = "io.containerd.runtime.v2.task"
#: containerd's namespaces of docker and of Kubernetes. With userns-remap docker's is moby-UID.GID.
_MOBY, _KUBERNETES = "moby", "k8s.io"
#: Annotations of containerd's CRI plugin (internal/cri/annotations): namespace, pod and container.
_CRI = tuple(f"io.kubernetes.cri.{each}" for each in ("sandbox-namespace", "sandbox-name", "container-name"))
#: cri-o's, and what podman and cri-o call themselves in a spec.
_CRI_O = tuple(f"io.kubernetes.{each}" for each in ("pod.namespace", "pod.name", "container.name"))
_MANAGER = ("io.container.manager", "cri-o")
#: Of containers/storage: a bundle is DRIVER-containers/ID/userdata, and the second file is for --rm.
_USERDATA, _CONTAINERS = "userdata", "-containers"
_STORED = ("containers.json", "volatile-containers.json")
#: Half a KiB for each container.
_MOST_STORED = 8 << 20
#: nerdctl's labels are annotations, too (its pkg/labels).
_NERDCTL = "nerdctl/name"
#: The length of docker's and nerdctl's names, and of each part of Kubernetes' (DNS names) and containerd's.
_LONGEST = 253
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_OTHERS = frozenset("_.-")
#: docker's record of a container; `Config` has the user's options.
DOCKERS_FILE = "config.v2.json"
_LENGTH_OF_DOCKERS_ID = 64
#: Folders above a root folder; devicemapper/mnt/LAYER/rootfs is the deepest.
_MOST_FOLDERS_ABOVE = 4
#: That file has some KiB; with thousands of labels it has more.
_MOST_BYTES = 1 << 20


def of(bundle: str, container: str, spec: Spec) -> str:
    """docker's or podman's name; in Kubernetes NAMESPACE/POD/CONTAINER; otherwise containerd's NAMESPACE/ID,
    with nerdctl's name for the id. "" if none is known.

    It trusts only engines' own bundles, and Kubernetes' annotations only in cri-o's and in containerd's
    namespace for it: users of other bundles can write anything into theirs.
    """
    folder, _, name = bundle.rpartition("/")
    if name == _USERDATA:
        return _of_storage(folder, container, spec)
    tasks, _, namespace = folder.rpartition("/")
    if os.path.basename(tasks) != _TASKS or name != container:
        return ""
    if _is_dockers(namespace):
        return _of_docker(container, spec)
    told = oci_spec.annotations_of(spec)
    if namespace == _KUBERNETES and (pod := _joined(*(told.get(each) for each in _CRI))):
        return pod
    return _joined(namespace, told.get(_NERDCTL)) or _joined(namespace, container)


def in_bundle(bundle: str, container: str) -> str:
    """As `of`, with the spec that is in the bundle."""
    try:
        spec = oci_spec.read(oci_spec.path_in(bundle))
    except (SpecError, RecursionError):
        spec = {}  # it is being made, or has just ended, or is hostile
    return of(bundle, container, spec)


def is_name(text: object) -> bool:
    """Whether an engine could call a container so."""
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST:
        return False
    letters = set(text)
    return text[0] in _LETTERS and letters <= _LETTERS | _OTHERS


def _is_dockers(namespace: str) -> bool:
    own, remapped, ids = namespace.partition("-")
    return own == _MOBY and (not remapped or ids.replace(".", "", 1).isdecimal())


def _of_docker(container: str, spec: Spec) -> str:
    name = docker_file(container, spec, DOCKERS_FILE).get("Name")
    return name[1:] if isinstance(name, str) and name[:1] == "/" and is_name(name[1:]) else ""


def docker_file(container: str, spec: Spec, file: str) -> dict[str, Any]:
    """docker's `file` in the container's folder; empty if there is none.

    That folder is beside those of docker's storage driver, in one of which the root folder is:
    overlay2/LAYER/merged, vfs/dir/LAYER, rootfs/SNAPSHOTTER/ID. Mounts do not tell it: users have theirs, on
    file systems that may hang, and a container in another's network has that one's."""
    if len(container) != _LENGTH_OF_DOCKERS_ID:
        return {}
    try:
        folder = oci_spec.rootfs(spec, "/")
    except SpecError:
        return {}
    for _ in range(_MOST_FOLDERS_ABOVE):
        folder = os.path.dirname(folder)
        try:
            data = files.read(os.path.join(folder, "containers", container, file), _MOST_BYTES)
        except OSError:
            continue
        try:
            told = jsonlite.loads(data.decode("utf-8", "replace"))
        except ValueError:
            return {}
        return told if isinstance(told, dict) else {}
    return {}


def _of_storage(folder: str, container: str, spec: Spec) -> str:
    containers, _, name = folder.rpartition("/")
    if name != container or not containers.endswith(_CONTAINERS):
        return ""
    # Looked for and not parsed: there may be thousands. A quote within a string has a backslash before it.
    entry = f'"id":"{container}","names":["'.encode()
    for file in _STORED:
        try:
            _, found, rest = files.read(os.path.join(containers, file), _MOST_STORED).partition(entry)
        except OSError:
            continue
        if found:
            own = rest.partition(b'"')[0].decode("utf-8", "replace")
            return own if is_name(own) else ""
    told = oci_spec.annotations_of(spec)
    # cri-o's bundles are in the folder of its running state, where no such file is.
    if told.get(_MANAGER[0]) == _MANAGER[1]:
        return _joined(*(told.get(each) for each in _CRI_O))
    return ""


def _joined(*parts: object) -> str:
    return "/".join(map(str, parts)) if all(map(is_name, parts)) else ""
