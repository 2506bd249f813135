"""A substitute bundle below the run folder, for a bundle that cannot be written (a read-only file system).

The low-level runtime must read the edited config.json, which cannot be put into the engine's bundle. So it is
given a folder of ours instead, with the edited spec and a symlink to each other entry of the engine's bundle.
The container's state and the hooks of other tools then name that folder. Its last component is that of the
engine's bundle, as some tools take the container's id from it. The ledger has the path of the engine's
bundle.

Two symlinks beside the folder record the engine's bundle, and the process that keeps the folder: first the
one that made it and became the low-level runtime (it is part of the folder's name), from the hook on the
container's own. The poststop hook removes the folder; if that never runs, the next such start or `xpu gc`
does. This module does not know the edit's content.
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

    from xpu_runtime.linux.proc import Caller
    from xpu_runtime.oci.spec import Spec

_ENGINES = ".of"
_HOLDER = ".held-by"


def _top() -> str:
    # Resolved, as the low-level runtime resolves the bundle's path that it passes to hooks.
    return os.path.realpath(paths.in_run_dir("bundles"))


def make(bundle: str, spec: Spec, caller: Caller) -> str:
    """Makes a bundle with this spec, kept by the caller's process; OSError, leaving nothing, if that
    fails."""
    remove_unused()
    real = os.path.realpath(bundle)
    top = _top()
    place = os.path.join(top, f"{proc.pid_namespace()}-{caller.pid}-{caller.start_time}")
    made = os.path.join(place, os.path.basename(real) or "bundle")
    _make_absolute(spec, real)
    data = oci_spec.encode(spec)
    try:
        # Hooks that run in the container's namespaces pass through here as its root user. The modes of the
        # engine's bundle decide which files they may read.
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
    """Gives `copy` the group and the read permissions of `path`; only root may write it."""
    there = os.stat(path)
    os.chown(copy, -1, there.st_gid)
    os.chmod(copy, stat.S_IMODE(there.st_mode) & 0o755 | 0o600)


def _make_absolute(spec: Spec, bundle: str) -> None:
    """Makes the paths of the root folder and of bind mounts absolute, which are relative to the bundle."""
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
    """The folder of ours that holds this bundle; None where it is an engine's bundle."""
    place = os.path.dirname(bundle)
    return place if os.path.dirname(place) == _top() else None


def engines(bundle: str) -> str:
    """The engine's bundle that this one replaces; an engine's bundle itself."""
    place = _place(bundle)
    try:
        return os.readlink(place + _ENGINES) if place is not None else bundle
    except OSError:
        return bundle


def hold(bundle: str, pid: int) -> None:
    """Records that the container's process `pid` keeps a bundle of ours until it ends."""
    place = _place(bundle)
    if place is not None:
        try:
            os.symlink(f"{pid}-{proc.start_time(pid)}", place + _HOLDER)
        except FileExistsError:
            pass  # the hook is called twice


def remove(bundle: str) -> None:
    """Removes a bundle of ours; does nothing for an engine's bundle or one that is gone."""
    place = _place(bundle)
    if place is not None:
        _remove(place)


def _remove(place: str) -> None:
    # Only these levels: a hook may have mounted something below.
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


def remove_unused() -> None:
    """Removes the bundles of ours that no process of this PID namespace keeps any more."""
    top = _top()
    for name in sorted({name.partition(".")[0] for name in _names(top)}):
        place = os.path.join(top, name)
        if not _is_kept(place):
            _remove(place)


def _is_kept(place: str) -> bool:
    try:
        namespace, maker = os.path.basename(place).split("-", 1)
        # Whether a process of another namespace runs is not visible from here.
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
