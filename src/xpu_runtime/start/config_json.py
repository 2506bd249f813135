"""Writes our edit into a bundle's config.json, and takes it back at the next create of the bundle.

Spec mode writes devices and mounts of one grant into the spec, and another create of the same bundle gets
another grant. So the engine's own bytes and ours are kept beside config.json. The content of config.json then
decides: our bytes are replaced by the engine's; a tool's edit of our bytes stays, without our additions; a
spec that the engine wrote anew is left alone. This module does not know the edit's content.
"""

from __future__ import annotations

import errno
import os

from xpu_runtime.errors import SpecError
from xpu_runtime.linux import files, proc
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.start import hooks_in_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from xpu_runtime.linux.proc import Caller
    from xpu_runtime.oci.spec import Spec

#: Our bytes, beside oci_spec.ORIGINAL.
_WRITTEN = "config.json.xpu-written"

#: The lists that we add to, with the keys that identify an entry even after a tool has rewritten it.
_LISTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("mounts",), ("destination", "source")),
    (("linux", "devices"), ("path", "major", "minor")),
    (("linux", "resources", "devices"), ("allow", "type", "major", "minor", "access")),
    (("hooks", "createRuntime"), ("path",)),
    (("hooks", "prestart"), ("path",)),
    (("hooks", "poststop"), ("path",)),
)


#: Errors of a read-only file system or mount, of chattr +i, of a network file system that does not obey root.
_MUST_NOT_WRITE = (errno.EROFS, errno.EPERM, errno.EACCES)


def write(path: str, spec: Spec, caller: Caller, *, keep: bool) -> str | None:
    """Writes our edit into the file `path`; with `keep` also the copies with which the next create takes it
    back.

    The file keeps its owner, mode, extended attributes, hard links, and a symlink that leads to it. Where the
    file cannot be written, the edit goes into a bundle of our own, which is returned, for the low-level
    runtime. SpecError, with the old bytes untouched, if that fails too.
    """
    if not proc.is_alive(caller.pid, caller.start_time):  # killed, while a start worker is at this for it
        raise SpecError(f"the process that was to start {os.path.dirname(path)} has ended")
    try:
        _write(path, spec, keep)
        return None
    except OSError as error:
        if error.errno not in _MUST_NOT_WRITE:
            raise SpecError(f"cannot write {path}: {error.strerror}", "the old file is untouched") from error
    from xpu_runtime.oci import own_bundle

    try:
        return own_bundle.make(os.path.dirname(path), spec, caller)
    except OSError as error:
        raise SpecError(
            f"cannot make a bundle in the place of {os.path.dirname(path)}, which cannot be written: "
            f"{error.filename}: {error.strerror}"
        ) from error


def _write(path: str, spec: Spec, keep: bool) -> None:
    data = oci_spec.encode(spec)
    if len(data) > oci_spec.MAX_BYTES:  # the hooks would not read it, nor the next create
        what = f"{path} would have {len(data)} bytes with the container's slice, and more than"
        raise SpecError(f"{what} {oci_spec.MAX_BYTES} bytes are not read", oci_spec.SHORTEN)
    original = files.read(path, oci_spec.MAX_BYTES) if keep else None
    try:
        if original is not None:
            _keep(path, original, data)
        if _put(path, data) and not keep:
            forget(path)
    except BaseException:
        if original is not None and files.read(path, oci_spec.MAX_BYTES) == original:
            forget(path)
        raise


def _put(path: str, data: bytes) -> bool:
    """Makes `data` the file's content. Returns whether it was written in place, with a copy kept beside
    it."""
    try:
        files.rewrite(path, data)
        return False
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    # It has another hard link, or a mount is on it. It is written in place, as the reference runtime always
    # does. If we are killed on the way, the next create finds a prefix of the kept content, and repairs the
    # file.
    original = files.read(path, oci_spec.MAX_BYTES)
    _keep(path, original, data)
    try:
        files.overwrite(path, data)
    except BaseException:
        files.overwrite(path, original)
        forget(path)
        raise
    return True


def _keep(path: str, original: bytes, data: bytes) -> None:
    folder = os.path.dirname(path)
    # The original's name last: the launcher and the next create look for it.
    files.write_atomic(os.path.join(folder, _WRITTEN), data, 0o600)
    files.write_atomic(os.path.join(folder, oci_spec.ORIGINAL), original, 0o600)


def forget(path: str) -> None:
    """Removes the copies beside `path`."""
    for name in (oci_spec.ORIGINAL, _WRITTEN):
        try:
            os.unlink(os.path.join(os.path.dirname(path), name))
        except FileNotFoundError:
            pass


def is_kept(path: str) -> bool:
    """Whether there are copies beside `path`; if so, `restore` must come first."""
    return os.path.lexists(os.path.join(os.path.dirname(path), oci_spec.ORIGINAL))


def restore(path: str) -> None:
    """Takes our last edit out of the file `path`; SpecError, and it is untouched, if that cannot be done."""
    try:
        current = files.read(path, oci_spec.MAX_BYTES)
        kept = _read_kept(path)
        if kept is None:
            check(path, oci_spec.decode(current, path))
        else:
            wanted = _without_ours(path, current, *kept)
            if wanted != current:
                _put(path, wanted)
        forget(path)
    except OSError as error:
        raise SpecError(f"cannot take back the last edit of {path}: {error.strerror}") from error


def _read_kept(path: str) -> tuple[bytes, bytes] | None:
    folder = os.path.dirname(path)
    try:
        original = files.read(os.path.join(folder, oci_spec.ORIGINAL), oci_spec.MAX_BYTES)
        return original, files.read(os.path.join(folder, _WRITTEN), oci_spec.MAX_BYTES)
    except FileNotFoundError:
        return None


def _without_ours(path: str, current: bytes, original: bytes, written: bytes) -> bytes:
    """The spec as it would be without our edit."""
    if current == original:
        return current
    if written.startswith(current) or original.startswith(current):
        return original  # ours, or we were killed while we wrote it in place
    spec = oci_spec.decode(current, path)
    changed = _take_back(spec, oci_spec.decode(original, path), oci_spec.decode(written, path))
    return oci_spec.encode(spec) if changed else current


def _take_back(spec: Spec, before: Spec, after: Spec) -> bool:
    """Removes from `spec` the entries that `after` has and `before` lacks. Returns whether it had any."""
    changed = False
    for keys, identity in _LISTS:
        there, old, new = (_list(document, keys) for document in (spec, before, after))
        added = [_named(item, identity) for item in new if item not in old]
        left = [item for item in there if _named(item, identity) not in added]
        if len(left) != len(there):
            # One of the engine's own that ours had taken the place of.
            known = [_named(item, identity) for item in left]
            left += [item for item in old if item not in new and _named(item, identity) not in known]
            there[:] = left
            changed = True
    return changed


def _list(spec: Any, keys: tuple[str, ...]) -> list[Any]:
    for key in keys:
        spec = spec.get(key) if isinstance(spec, dict) else None
    return spec if isinstance(spec, list) else []


def _named(item: Any, identity: tuple[str, ...]) -> Any:
    return [item.get(key) for key in identity] if isinstance(item, dict) else item


def check(path: str, spec: Spec) -> None:
    """SpecError where the spec has devices and mounts of an earlier grant, and nothing tells which."""
    if hooks_in_spec.has_grant(spec):
        raise SpecError(
            f"{path} contains the devices of an earlier start, and the spec as it was before is not kept "
            "beside it",
            "put a spec there that this runtime has not edited",
        )
