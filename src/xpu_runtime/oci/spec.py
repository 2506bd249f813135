"""The bundle's config.json: what the shim and the hook read from it and write into it.

A spec is the plain JSON object, so that unknown members are kept as they are. The functions here know where
things are in it (OCI runtime spec, config.md and config-linux.md). A few other files know the parts that they
handle: partial_spec.py the variables and annotations, own_bundle.py the relative paths,
start/config_json.py the lists that we add to, start/hooks_in_spec.py our hooks. The engine writes this file,
but parts of it (environment, annotations) come from the image or the user: every type is checked before it
is used. This module knows neither the meaning of variables nor the plan of a container.
"""

from __future__ import annotations

import errno
import os

from xpu_runtime import jsonlite
from xpu_runtime.errors import SpecError
from xpu_runtime.linux import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Spec = dict[str, Any]

#: Engines write a few tens of KiB; a limit keeps a broken bundle from filling the memory.
MAX_BYTES = 16 << 20
#: What to do about a larger one.
SHORTEN = "give the container a shorter command, shorter variables and annotations, or fewer"

#: The spec as it was before spec mode edited it, beside config.json (start/config_json.py).
ORIGINAL = "config.json.xpu"


def path_in(bundle: str) -> str:
    """The path of a bundle's config.json."""
    return os.path.join(bundle, "config.json")


def read(path: str) -> Spec:
    """The spec in the file `path`, as runc reads it; SpecError if it cannot be read or is no JSON object.

    As with the Go decoder that runc uses, text behind the first value is ignored, and bytes that are not
    UTF-8 are accepted (here as lone surrogates, so that `encode` gives them back).
    """
    try:
        return decode(files.read(path, MAX_BYTES), path)
    except OSError as error:
        todo = SHORTEN if error.errno == errno.EFBIG else ""
        raise SpecError(f"cannot read {path}: {error.strerror}", todo) from error


def decode(data: bytes, path: str) -> Spec:
    """`read` for the bytes of the file `path`."""
    try:
        spec = jsonlite.loads_first(data.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise SpecError(f"cannot read {path}: {error}", "the engine wrote it, or you did by hand") from error
    if not isinstance(spec, dict):
        raise SpecError(f"cannot read {path}: its top level is not an object")
    return spec


def encode(spec: Spec) -> bytes:
    """The spec as JSON. SpecError if it is nested too deeply."""
    try:
        text = jsonlite.dumps(spec)
        if "\\udc" in text or len(text) > MAX_BYTES:
            try:
                # Bytes that were not UTF-8: runc reads them and their escapes alike, but crun keeps the
                # bytes. Or letters whose escapes have up to three times their bytes.
                return jsonlite.dumps(spec, ascii_only=False).encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                pass  # the spec also had escapes of lone surrogates
        return text.encode("ascii")
    except ValueError as error:
        raise SpecError(f"the container's spec cannot be written: {error}") from error


def _get(value: object, *keys: str) -> Any:
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def environment_of(spec: Spec) -> dict[str, str]:
    """The process's variables; the last one of a name counts, as with runc."""
    found = {}
    for item in _get(spec, "process", "env") or ():
        if isinstance(item, str):
            name, separator, value = item.partition("=")
            if separator:
                found[name] = value
    return found


def annotations_of(spec: Spec) -> dict[str, str]:
    """The spec's annotations, as far as they are strings."""
    found = _get(spec, "annotations")
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


#: An engine's annotation on the containers of pods: `sandbox` on the pause container, `container` on others.
BY_CONTAINERD = "io.kubernetes.cri.container-type"
BY_CRI_O = "io.kubernetes.cri-o.ContainerType"


def kind_in_pod(annotations: dict[str, str]) -> str:
    """`sandbox` for a pod's pause container, to which the pod's annotations go as well, `container` for
    another one of a pod; "" for a container of no pod."""
    # cri-o's first: it copies the pod's own annotations into the spec, and an author may write containerd's.
    return annotations.get(BY_CRI_O) or annotations.get(BY_CONTAINERD) or ""


def is_sandbox(spec: Spec) -> bool:
    """Whether this is a pod's pause container."""
    return kind_in_pod(annotations_of(spec)) == "sandbox"


def is_privileged(spec: Spec) -> bool:
    """Whether the container may have CAP_SYS_ADMIN. Only the engine's user can give it."""
    bounding = _get(spec, "process", "capabilities", "bounding")
    return isinstance(bounding, list) and "CAP_SYS_ADMIN" in bounding


_CGROUPS = "/sys/fs/cgroup"


def can_lift_limits(spec: Spec) -> str:
    """Why the container could lift a limit on its own cgroup; empty: it cannot.

    With CAP_SYS_ADMIN it can mount cgroup2 again and write to it, and the driver accepts its root's requests,
    in any cgroup namespace. In a user namespace CAP_SYS_ADMIN has no power over the host's mounts and
    devices. Without CAP_SYS_ADMIN, a cgroup file system that is mounted writable is enough.
    """
    capabilities = _get(spec, "process", "capabilities")
    sets = capabilities.values() if isinstance(capabilities, dict) else ()
    has_admin = any(isinstance(each, list) and "CAP_SYS_ADMIN" in each for each in sets)
    if has_admin and not has_namespace(spec, "user"):
        return "the container has CAP_SYS_ADMIN"
    mounts = _get(spec, "mounts")
    for mount in mounts if isinstance(mounts, list) else ():
        if _writes_cgroups(mount):
            return f"the container can write to the cgroups mounted at {_get(mount, 'destination')}"
    return ""


def _writes_cgroups(mount: object) -> bool:
    options = _get(mount, "options")
    options = options if isinstance(options, list) else []
    # `ro` of a recursive bind applies to its top mount only, `rro` also to the mounts below it.
    read_only, all_read_only = "ro" in options, "rro" in options
    if _get(mount, "type") in ("cgroup", "cgroup2"):
        return not (read_only or all_read_only)
    source = _get(mount, "source")
    if not isinstance(source, str) or not ("bind" in options or "rbind" in options):
        return False
    source = os.path.normpath(source)
    if source == _CGROUPS or source.startswith(_CGROUPS + "/"):
        # On a hybrid host each hierarchy is a separate mount below it.
        return not all_read_only and not (read_only and "rbind" not in options)
    above = _CGROUPS.startswith(source.rstrip("/") + "/")
    return above and "rbind" in options and not all_read_only


def sources(spec: Spec, destinations: tuple[str, ...]) -> list[str]:
    """The sources of the mounts at these places, as far as they are strings."""
    mounts = _get(spec, "mounts")
    there = mounts if isinstance(mounts, list) else []
    found = [_get(each, "source") for each in there if _get(each, "destination") in destinations]
    return [source for source in found if isinstance(source, str)]


def rootfs(spec: Spec, bundle: str) -> str:
    """The absolute path of the container's root folder on the host."""
    path = _get(spec, "root", "path")
    if not isinstance(path, str) or not path:
        raise SpecError(f"{path_in(bundle)} names no root.path")
    return os.path.normpath(os.path.join(bundle, path))


def working_folder(spec: Spec) -> str:
    """process.cwd, or the root folder."""
    path = _get(spec, "process", "cwd")
    return path if isinstance(path, str) and path.startswith("/") else "/"


def program(spec: Spec) -> str:
    """The first of process.args, or the empty text."""
    arguments = _get(spec, "process", "args")
    first = arguments[0] if isinstance(arguments, list) and arguments else ""
    return first if isinstance(first, str) else ""


def has_namespace(spec: Spec, kind: str) -> bool:
    """Whether the container gets (or joins) a namespace of its own of this kind, e.g. `user`."""
    return any(_get(item, "type") == kind for item in _get(spec, "linux", "namespaces") or ())


def systemd_unit(spec: Spec) -> str:
    """The unit of systemd that is the container's cgroup; "" where systemd does not manage it.

    runc and crun take a cgroupsPath SLICE:PREFIX:NAME for systemd's, and any other for a path.
    """
    path = _get(spec, "linux", "cgroupsPath")
    parts = path.split(":") if isinstance(path, str) else []
    if len(parts) != 3 or not parts[2]:
        return ""
    name: str = parts[2]
    if name.endswith(".slice"):
        return name
    return f"{parts[1]}-{name}.scope" if parts[1] else f"{name}.scope"


def root_uid(spec: Spec) -> int | None:
    """The host's uid of the root of a container with a user namespace; None where the spec does not tell it
    (the container joins one, or has none)."""
    mappings = _get(spec, "linux", "uidMappings")
    for mapping in mappings if isinstance(mappings, list) else ():
        host = _get(mapping, "hostID")
        if _get(mapping, "containerID") in (0, None) and type(host) is int and _get(mapping, "size"):
            return host
    return None


def _list(spec: Spec, *keys: str) -> list[Any]:
    """The list at `keys`, made (with the objects on the way) if absent; SpecError if it is no list."""
    place: Any = spec
    for key in keys[:-1]:
        place = _kept(place, key, {}, keys)
    found: list[Any] = _kept(place, keys[-1], [], keys)
    return found


def _kept(place: dict[str, Any], key: str, made: Any, keys: tuple[str, ...]) -> Any:
    """The value at `key`, which must have the type of `made`; where it is absent or null, `made` is put
    there."""
    if place.get(key) is None:
        place[key] = made
    if not isinstance(place[key], type(made)):
        kind = "a list" if isinstance(made, list) else "an object"
        raise SpecError(f"the container's spec is malformed: {key} (of {'.'.join(keys)}) is not {kind}")
    return place[key]


def add_hook(spec: Spec, stage: str, path: str, args: list[str], env: list[str]) -> None:
    """Adds a hook as the first of its stage, so that the hooks of other tools find the devices in place.

    A hook with the same path in that stage is replaced. `env` is always written: a hook without it can
    inherit the image's variables (CVE-2025-23266).
    """
    hooks = _list(spec, "hooks", stage)
    hooks[:] = [hook for hook in hooks if _get(hook, "path") != path]
    hooks.insert(0, {"path": path, "args": args, "env": env})


def add_mount(spec: Spec, destination: str, source: str, options: list[str]) -> None:
    """Adds a bind mount, after the existing ones."""
    _list(spec, "mounts").append(
        {"destination": destination, "type": "bind", "source": source, "options": options}
    )


def add_device(spec: Spec, path: str, kind: str, major: int, minor: int, mode: int) -> None:
    """Adds a device node for the low-level runtime to make; owner root."""
    devices = _list(spec, "linux", "devices")
    devices[:] = [device for device in devices if _get(device, "path") != path]
    devices.append(
        {"path": path, "type": kind, "major": major, "minor": minor, "fileMode": mode, "uid": 0, "gid": 0}
    )


def add_device_rule(spec: Spec, kind: str, major: int, minor: int, access: str) -> None:
    """Adds a rule to linux.resources.devices that allows one device."""
    rule = {"allow": True, "type": kind, "major": major, "minor": minor, "access": access}
    rules = _list(spec, "linux", "resources", "devices")
    if rule not in rules:
        rules.append(rule)
