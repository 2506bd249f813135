"""A pod's assignment: the devices, and the amount of each, that a cluster's scheduler gave its containers.

It is an annotation of the pod, and the pod's author can change annotations. Only its signature proves it
(HMAC-SHA256, RFC 2104), made with a key that the scheduler and the nodes share. The hook reads it for every
container of such a pod, so `hmac`, `hashlib` and `base64` are not imported: their import takes longer than
all of this. Nothing here knows containers or the ledger.
"""

from __future__ import annotations

import binascii

from xpu_runtime import jsonlite
from xpu_runtime.errors import RequestError
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

#: The pod's annotation with the assignment.
ANNOTATION = "yoyoworks.com/xpu-assignment"

_VERSION = "v1"
#: A pod's annotations have together at most 256 KiB (Kubernetes' TotalAnnotationSizeLimitB).
_MOST_CHARACTERS = 256 << 10
_MOST_KEYS_BYTES = 64 << 10
#: RFC 2104: a key shorter than the hash's output weakens it.
_LEAST_KEY_BYTES = 32
_BLOCK = 64  # of SHA-256 (FIPS 180-4)
_LONGEST_KEY_ID = 63
#: In seconds since the epoch: the year 5138.
_LATEST = 10**11
#: SQLite's largest integer.
_MOST_BYTES = (1 << 63) - 1


class AssignmentError(RequestError):
    """An assignment or the key file is missing, unreadable or not valid; nothing is granted."""

    code = "wrong-assignment"


class Share(Value):
    """A container's share of one device."""

    device_uuid: str
    #: None: the whole device, for itself.
    memory_bytes: int | None
    #: In percent; None: no cap.
    cores: int | None


class Assignment(Value):
    """The shares of one pod's containers on one node, by container name; `made` in seconds since the epoch.

    The shares of one container are of different devices. All have memory, or all are whole devices. All have
    one number of cores.
    """

    uid: str
    node: str
    made: float
    containers: dict[str, tuple[Share, ...]]
    #: Init containers that end before the containers start, one after the other.
    init: dict[str, tuple[Share, ...]] = {}
    #: Init containers that run on beside all later ones (restartPolicy: Always).
    sidecars: dict[str, tuple[Share, ...]] = {}

    def of(self, container: str) -> tuple[Share, ...]:
        """The shares of the container of that name; none if it is not named."""
        for group in (self.containers, self.init, self.sidecars):
            if container in group:
                return group[container]
        return ()


def sign(assignment: Assignment, key_id: str, key: bytes) -> str:
    """The annotation's value: `v1.KEYID.PAYLOAD.MAC`, with the MAC over all before it.

    AssignmentError if `read` would refuse the assignment.
    """
    payload = {
        "uid": assignment.uid,
        "node": assignment.node,
        "made": float(assignment.made),
        "containers": plain(assignment.containers),
    }
    for name, group in (("init", assignment.init), ("sidecars", assignment.sidecars)):
        if group:
            payload[name] = plain(group)
    _checked(payload)
    if not is_key_id(key_id) or len(key) < _LEAST_KEY_BYTES:
        raise AssignmentError(f"{key_id[:_LONGEST_KEY_ID]!r} is not a usable key", _KEYS_TODO)
    signed = f"{_VERSION}.{key_id}.{_to_text(jsonlite.dumps(payload).encode())}"
    return f"{signed}.{_to_text(_hmac(key, signed.encode('ascii')))}"


def read(text: str, keys: Mapping[str, bytes]) -> Assignment:
    """The assignment in the annotation's value `text`, if one of `keys` has signed it; otherwise
    AssignmentError.

    The signature is checked before anything of the payload is read.
    """
    parts = text.split(".") if len(text) <= _MOST_CHARACTERS and text.isascii() else []
    if len(parts) != 4 or not is_key_id(parts[1]):
        raise AssignmentError(f"{ANNOTATION} has not the form {_VERSION}.KEYID.PAYLOAD.MAC", _TODO)
    version, key_id, payload, mac = parts
    if version != _VERSION:
        raise AssignmentError(
            f"{ANNOTATION} has the version {version[:8]!r}, and this runtime knows {_VERSION}",
            "install the same version on the nodes and for the scheduler extender",
        )
    key = keys.get(key_id)
    if key is None:
        known = ", ".join(list(keys)[:8]) or "none"
        raise AssignmentError(
            f"{ANNOTATION} is signed with the key {key_id!r}, which this node does not have (it has {known})",
            "delete the pod, if that key was withdrawn; otherwise the node lacks a new one (kubernetes.keys)",
        )
    expected = _to_text(_hmac(key, f"{version}.{key_id}.{payload}".encode("ascii")))
    if not _is_same(expected.encode("ascii"), mac.encode("ascii")):
        raise AssignmentError(f"{ANNOTATION} is forged or damaged: its signature is wrong", _TODO)
    return _of_payload(payload)


def key_id(text: str) -> str:
    """The id of the key in an annotation's value; "" if there is none."""
    parts = text.split(".")
    return parts[1] if len(parts) == 4 and is_key_id(parts[1]) else ""


_TODO = "only the scheduler extender writes it: delete the pod, and create it again without it"
_KEYS_TODO = (
    "a line is KEYID HEX, with letters, digits, _ and - in KEYID and "
    f"at least {2 * _LEAST_KEY_BYTES} hex digits"
)


def read_keys(path: str) -> dict[str, bytes]:
    """The keys in the file `path` by their ids, in its order: the first one signs, and all verify.

    AssignmentError if the file cannot be read, has no key, or has a wrong line.
    """
    from xpu_runtime.linux import files

    try:
        lines = files.read(path, _MOST_KEYS_BYTES).decode("ascii").splitlines()
    except OSError as error:
        raise AssignmentError(
            f"the keys of assignments, {path}, cannot be read ({error.strerror})",
            "put the scheduler extender's keys there (kubernetes.keys)",
        ) from None
    except ValueError:
        raise AssignmentError(f"the keys of assignments, {path}, are not text", _KEYS_TODO) from None
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        key = _key(words[1]) if len(words) == 2 and is_key_id(words[0]) else b""
        if not key or words[0] in keys:
            # The message does not quote the line: it has a secret in it.
            why = "has a key's id again" if key else "is not a key"
            raise AssignmentError(f"{path}: line {number} {why}", _KEYS_TODO)
        keys[words[0]] = key
    if not keys:
        raise AssignmentError(f"{path} has no key", _KEYS_TODO)
    return keys


def _key(text: str) -> bytes:
    """The key, empty if the text is none."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        return b""
    return key if len(key) >= _LEAST_KEY_BYTES else b""


def is_key_id(text: str) -> bool:
    """Whether this is a valid id of a key. Control characters are not allowed."""
    rest = text.replace("_", "a").replace("-", "a")
    return 0 < len(text) <= _LONGEST_KEY_ID and rest.isascii() and rest.isalnum()


def plain(group: Mapping[str, tuple[Share, ...]]) -> dict[str, Any]:
    """The JSON form of containers' shares. The ledger keeps allocations in it too, also those of earlier
    versions."""
    return {
        name: [[share.device_uuid, share.memory_bytes, share.cores] for share in shares]
        for name, shares in group.items()
    }


def of_plain(value: Any) -> dict[str, tuple[Share, ...]]:
    """Containers' shares from their JSON form; ValueError if it is not valid."""
    if not isinstance(value, dict):
        raise ValueError("containers is not an object")
    return {name: _shares(name, rows) for name, rows in value.items()}


def _shares(name: str, rows: Any) -> tuple[Share, ...]:
    if not name or not isinstance(rows, list) or not rows:
        raise ValueError(f"container {name[:63]!r} has no list of shares")
    shares = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 3:
            raise ValueError(f"a share of container {name[:63]!r} is not [UUID, MEMORY, CORES]")
        uuid, memory, cores = row
        if not isinstance(uuid, str) or not uuid:
            raise ValueError(f"a share of container {name[:63]!r} names no device")
        if memory is not None and not (type(memory) is int and 0 < memory <= _MOST_BYTES):
            raise ValueError(f"a share of container {name[:63]!r} has memory that is not a number of bytes")
        if cores is not None and not (type(cores) is int and 0 < cores <= 100):
            raise ValueError(f"a share of container {name[:63]!r} has cores that are not a percentage")
        shares.append(Share(uuid, memory, cores))
    if len({share.device_uuid for share in shares}) < len(shares):
        raise ValueError(f"container {name[:63]!r} has two shares of one device")
    if len({(share.memory_bytes is None, share.cores) for share in shares}) > 1:
        raise ValueError(f"the shares of container {name[:63]!r} differ in their kind or cores")
    return tuple(shares)


def _of_payload(text: str) -> Assignment:
    try:
        return _checked(jsonlite.loads(_to_bytes(text).decode()))
    except ValueError as error:
        raise AssignmentError(f"{ANNOTATION} cannot be read ({error})", _TODO) from None


def _checked(payload: Any) -> Assignment:
    """The assignment in a payload; AssignmentError if it is not valid."""
    try:
        if not isinstance(payload, dict):
            raise ValueError("not an object")
        uid, node, made = payload.get("uid"), payload.get("node"), payload.get("made")
        if not isinstance(uid, str) or not uid or not isinstance(node, str) or not node:
            raise ValueError("it names no pod or no node")
        if not isinstance(made, (int, float)) or isinstance(made, bool) or not 0 <= made < _LATEST:
            raise ValueError("it does not say when it was made")
        groups = [of_plain(payload.get(name, {})) for name in ("containers", "init", "sidecars")]
    except ValueError as error:
        raise AssignmentError(f"{ANNOTATION} cannot be read ({error})", _TODO) from None
    names = [name for group in groups for name in group]
    if not names or len(set(names)) < len(names):
        what = "names a container twice" if names else "names no container"
        raise AssignmentError(f"{ANNOTATION} {what}", _TODO)
    return Assignment(uid, node, float(made), *groups)


def _to_text(data: bytes) -> str:
    """base64url without padding (RFC 4648, section 5)."""
    text = binascii.b2a_base64(data, newline=False).decode("ascii")
    return text.rstrip("=").replace("+", "-").replace("/", "_")


def _to_bytes(text: str) -> bytes:
    plain_text = text.replace("-", "+").replace("_", "/")
    return binascii.a2b_base64(plain_text + "=" * (-len(text) % 4))


def _sha256() -> Callable[[bytes], Any]:
    """SHA-256 by the interpreter's C module (3.12 renamed it). It starts in a tenth of the time of hashlib's
    OpenSSL. If a distribution has built neither name, hashlib computes it."""
    try:
        import _sha2  # type: ignore[import-not-found, unused-ignore]

        return _sha2.sha256  # type: ignore[no-any-return, unused-ignore]
    except (ImportError, AttributeError):
        pass
    try:
        import _sha256  # type: ignore[import-not-found, unused-ignore]

        return _sha256.sha256  # type: ignore[no-any-return, unused-ignore]
    except (ImportError, AttributeError):
        import hashlib

        return hashlib.sha256


def _hmac(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104)."""
    sha256 = _sha256()
    if len(key) > _BLOCK:
        key = sha256(key).digest()
    key = key.ljust(_BLOCK, b"\0")
    inner = sha256(bytes(byte ^ 0x36 for byte in key) + message).digest()
    found: bytes = sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()
    return found


def _is_same(one: bytes, other: bytes) -> bool:
    """Compares in a time that does not show how much of it is right."""
    try:
        from _operator import _compare_digest
    except ImportError:
        import hmac

        return hmac.compare_digest(one, other)
    return _compare_digest(one, other)
