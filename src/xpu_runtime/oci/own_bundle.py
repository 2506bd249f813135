"""A bundle of our own in the place of one that cannot be written, as on a read-only file system.

The low-level runtime must see our edit of config.json, and cannot write it into the bundle either. So it is
given a folder below the run folder instead, with the edited spec and a symlink to each other entry of the
engine's bundle. The container's state and other tools' hooks name that folder; its last component is the same
as the engine's bundle has, as some take the container's id from it. The ledger has the engine's.

Beside the folder two symlinks say what it is of, and which process keeps it: until the hook runs, the one
that made it and became the low-level runtime (its name has that), and then the container's own. The poststop
hook removes it. Where that never ran, whoever comes next does: another such start, or `xpu gc`.
"""

from __future__ import annotations

import os
import stat

from xpu_runtime import paths
from xpu_runtime.linux import files, proc
from xpu_runtime.oci import spec as oci_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from xpu_runtime.oci.spec import Spec

_ENGINES = ".of"
_HOLDER = ".held-by"


def _top() -> str:
    # As the low-level runtime tells hooks its working directory.
    return os.path.realpath(paths.in_run_dir("bundles"))


def make(bundle: str, spec: Spec) -> str:
    """A new bundle with this spec, for the calling process; OSError, and nothing is left, if it cannot be."""
    sweep()
    real = os.path.realpath(bundle)
    top, pid = _top(), os.getpid()
    place = os.path.join(top, f"{proc.pid_namespace()}-{pid}-{proc.start_time(pid)}")
    made = os.path.join(place, os.path.basename(real) or "bundle")
    _make_absolute(spec, real)
    data = oci_spec.encode(spec)
    try:
        # Hooks of the container's own namespaces pass here as its root user. What may be read is up to the
        # modes of the engine's bundle.
        _make_folder(top, 0o711)
        os.symlink(real, place + _ENGINES)
        _make_folder(place, 0o711)
        _make_folder(made, 0o700)
        for name in os.listdir(real):
            if name != "config.json":
                os.symlink(os.path.join(real, name), os.path.join(made, name))
        config = oci_spec.path_in(made)
        files.write_atomic(config, data, 0o600)
        _copy_access(oci_spec.path_in(real), config)
        _copy_access(real, made)
    except BaseException:
        _remove(place)
        raise
    return made


def _make_folder(path: str, mode: int) -> None:
    os.makedirs(path, exist_ok=True)
    os.chmod(path, mode)


def _copy_access(path: str, copy: str) -> None:
    """Who may read `path` may read its copy; who may write is root alone."""
    there = os.stat(path)
    os.chown(copy, -1, there.st_gid)
    os.chmod(copy, stat.S_IMODE(there.st_mode) & 0o755 | 0o600)


def _make_absolute(spec: Spec, bundle: str) -> None:
    """Names the root folder and what is mounted by paths that do not start at the bundle."""
    if isinstance(spec.get("root"), dict):
        spec["root"]["path"] = oci_spec.rootfs(spec, bundle)
    mounts = spec.get("mounts")
    for mount in mounts if isinstance(mounts, list) else ():
        if not isinstance(mount, dict) or not isinstance(mount.get("source"), str):
            continue
        options = mount.get("options") or ()
        if mount.get("type") == "bind" or "bind" in options or "rbind" in options:
            mount["source"] = os.path.join(bundle, mount["source"])


def _place(bundle: str) -> str | None:
    """Our folder that the bundle of a container's state is in; None where it is the engine's."""
    place = os.path.dirname(bundle)
    return place if os.path.dirname(place) == _top() else None


def engines(bundle: str) -> str:
    """The engine's bundle that this one stands for, or itself."""
    place = _place(bundle)
    try:
        return os.readlink(place + _ENGINES) if place is not None else bundle
    except OSError:
        return bundle


def hold(bundle: str, pid: int) -> None:
    """Keeps a bundle of ours until the container's process `pid` has ended."""
    place = _place(bundle)
    if place is not None:
        try:
            os.symlink(f"{pid}-{proc.start_time(pid)}", place + _HOLDER)
        except FileExistsError:
            pass  # the hook is called twice


def remove(bundle: str) -> None:
    """Removes a bundle of ours; nothing for an engine's, or where it is gone."""
    place = _place(bundle)
    if place is not None:
        _remove(place)


def _remove(place: str) -> None:
    # Only what lies in it, never what a hook may have mounted there.
    for name in _names(place):
        made = os.path.join(place, name)
        for entry in _names(made):
            _try(os.unlink, os.path.join(made, entry))
        _try(os.rmdir, made)
    _try(os.rmdir, place)
    if not os.path.lexists(place):
        for note in (_HOLDER, _ENGINES):
            _try(os.unlink, place + note)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _try(call: Callable[[str], None], path: str) -> None:
    try:
        call(path)
    except OSError:
        pass


def sweep() -> None:
    """Removes the bundles of ours that no process keeps any more, of this PID namespace."""
    top = _top()
    for name in sorted({name.partition(".")[0] for name in _names(top)}):
        place = os.path.join(top, name)
        if not _is_kept(place):
            _remove(place)


def _is_kept(place: str) -> bool:
    try:
        namespace, maker = os.path.basename(place).split("-", 1)
        # Nobody can tell from here whether a process of another namespace runs.
        if int(namespace) != proc.pid_namespace() or _runs(maker):
            return True
    except ValueError:
        return True  # not ours
    try:
        return _runs(os.readlink(place + _HOLDER))
    except (OSError, ValueError):
        return False


def _runs(process: str) -> bool:
    pid, started = process.split("-")
    return proc.is_alive(int(pid), int(started))
