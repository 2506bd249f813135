"""A plan carried out in a container that is being created: mounts, links, the loader's cache, device nodes.

Called from a prestart or createRuntime hook: the container's namespaces and cgroup exist, its root folder and
its volumes are mounted in its mount namespace, and its init waits. The host's files are copied as detached
mounts first; then this process enters the container's mount namespace and attaches them. It runs in spec mode
too, where the low-level runtime sets the device rules: only here, by descriptors, is it certain what lies in
a volume and where a link of the image leads. The plan decides the content; this module knows no backend and
no vendor.
"""

from __future__ import annotations

import errno
import os
import stat

from xpu_runtime import paths
from xpu_runtime.delivery import in_root
from xpu_runtime.errors import ApplyError
from xpu_runtime.linux import cgroups, files, mountinfo, mounts, proc
from xpu_runtime.linux.credentials import MakingFilesAs
from xpu_runtime.linux.device_rule import DeviceRule
from xpu_runtime.oci import spec as oci_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from xpu_runtime.delivery.plan import Plan
    from xpu_runtime.linux.rootfs import Root
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.vendors.inventory import Node

_NODE_MODE = stat.S_IFCHR | 0o666


def carry_out(plan: Plan, pid: int, rootfs: str, spec: Spec, *, allow: bool = True, step: str = "") -> None:
    """Carries out the plan for the container whose init is `pid`; ApplyError, with all undone, if that fails.

    Without `allow` its device cgroup has the rules already. `step`: the id of a container that is a step of a
    build; build_step_files.py removes its files at its end.
    """
    if os.path.samefile(f"/proc/{pid}/ns/mnt", "/proc/self/ns/mnt"):
        raise ApplyError(
            f"process {pid} has no mount namespace of its own, so this would mount on the host; refusing",
            "give the container a mount namespace, or set mode: spec in the configuration",
        )
    nodes = [each.node for each in plan.nodes]
    allowed = _allow(pid, nodes, spec, plan.driver_root) if allow else None
    try:
        copies = Copies(pid)
        try:
            for file in plan.files:
                copies.add(file.source)
            if copies.bind_nodes:
                for node in nodes:
                    copies.add(_host_node(node, plan.driver_root))
            copies.enter()
            with (
                MakingFilesAs(*copies.root_user),
                in_root.open_root(rootfs, copies.host_devices) as root,
            ):
                target = Container(root, copies, plan.driver_root)
                in_root.carry_out(plan.in_image(root, spec), target)
                told = root.made() if step else []
        finally:
            copies.close()
        if told:
            from xpu_runtime.delivery import build_step_files  # few containers are steps of a build

            build_step_files.write(step, rootfs, pid, told)
    except BaseException:
        if allowed is not None:
            _disallow(allowed)
        raise


class Copies:
    """Detached copies of the host's files, and the way into a container's mount namespace and back."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fds: dict[str, int] = {}
        self._attached: set[str] = set()
        self._entered = False
        self._host = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._run_dir = os.open(paths.run_dir(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.host_devices = mountinfo.devices()
        #: A device node that is made in a user namespace cannot be opened: the host's is mounted instead.
        self.bind_nodes = not os.path.samefile(f"/proc/{pid}/ns/user", "/proc/self/ns/user")
        self.root_user = proc.root_user(pid) if self.bind_nodes else (0, 0)

    def add(self, source: str) -> None:
        """Copies the mount of a file or folder of the host, once; before `enter`."""
        if source in self._fds:
            return
        try:
            self._fds[source] = mounts.clone(source)
        except OSError as error:
            raise ApplyError(f"cannot copy the mount of {source}: {error.strerror}") from error

    def enter(self) -> None:
        """Enters the container's mount namespace; ApplyError if that fails."""
        try:
            mounts.enter_mount_namespace(self._pid)
        except OSError as error:
            raise ApplyError(
                f"cannot enter the mount namespace of process {self._pid}: {error.strerror}"
            ) from error
        self._entered = True

    def take(self, source: str) -> int:
        """A copy that can be attached, the caller's to close: an image may have two places for one file."""
        if source in self._attached:
            return mounts.copy(self._fds[source])
        self._attached.add(source)
        return os.dup(self._fds[source])

    def attach_data(self, data: bytes, attach: Callable[[int], None]) -> None:
        """Has `attach` mount a file with `data`, which keeps no name on the host."""
        name = files.create_aside(self._run_dir, "mounted", data, 0o644)
        try:
            mounts.enter(self._host)
            try:
                fd = mounts.clone(os.path.join(paths.run_dir(), name))
            finally:
                self.enter()
            attach(fd)
        finally:
            os.unlink(name, dir_fd=self._run_dir)  # last: the kernel does not attach a file without a name

    def close(self) -> None:
        """Goes back to the host's mount namespace, and drops mounts that were not attached."""
        try:
            if self._entered:
                mounts.enter(self._host)
        finally:
            for fd in (self._host, self._run_dir, *self._fds.values()):
                os.close(fd)


class Container(in_root.InRoot):
    """The container that is being created; this process is in its mount namespace while steps are taken."""

    def __init__(self, root: Root, copies: Copies, driver_root: str) -> None:
        super().__init__(root)
        self._copies = copies
        self._driver_root = driver_root

    def device(self, node: Node) -> None:
        if not self._copies.bind_nodes:
            self.root.make_node(node.path, _NODE_MODE, node.major, node.minor)
            return
        if self.root.exists(node.path):
            there = self.root.stat(node.path)
            if stat.S_ISCHR(there.st_mode) and there.st_rdev == os.makedev(node.major, node.minor):
                return
            raise OSError(errno.EEXIST, "something else is in the device's place", node.path)
        fd = self._copies.take(_host_node(node, self._driver_root))
        self._attach(node.path, fd, read_only=False, nodev=False, noexec=True)

    def mount(self, source: str, destination: str, *, executable: bool, writable: bool) -> None:
        self._attach(destination, self._copies.take(source), read_only=not writable, noexec=not executable)

    def image_file(self, source: str, destination: str) -> None:
        # Resolved inside the root, by descriptor: no link of the image can lead to the host's files.
        there = self.root.open(source, os.O_PATH)
        try:
            fd = mounts.copy(there)
        finally:
            os.close(there)
        self._attach(destination, fd)

    def cover(self, path: str, data: bytes) -> None:
        self._copies.attach_data(data, lambda fd: self._attach(path, fd, noexec=True))

    def _attach(
        self, path: str, fd: int, *, read_only: bool = True, nodev: bool = True, noexec: bool = False
    ) -> None:
        """Attaches the detached mount `fd`, and closes it."""
        try:
            mounts.attach(fd, self.root, path, read_only=read_only, nodev=nodev, noexec=noexec)
        finally:
            os.close(fd)


def _host_node(node: Node, driver_root: str) -> str:
    return os.path.join(driver_root, node.path.lstrip("/"))


def _allow(pid: int, nodes: list[Node], spec: Spec, driver_root: str) -> cgroups.Allowed:
    rules = [DeviceRule("c", node.major, node.minor) for node in nodes]
    unit = oci_spec.systemd_unit(spec)
    if unit and rules and os.path.isdir("/run/systemd/system"):  # sd_booted(3)
        # Only CDI devices and `mode: hook` come here: where the shim chooses, it is spec mode.
        from xpu_runtime.delivery.spec import link_for_systemd
        from xpu_runtime.linux import systemd

        for node in nodes:
            link_for_systemd(node, driver_root)
        systemd.allow_devices(unit, rules)  # systemd first, because it writes its rules again at once
    try:
        return cgroups.allow_devices(pid, rules)
    except OSError as error:
        raise ApplyError(
            f"cannot allow the devices in the cgroup of process {pid}: {error.strerror or error}",
            "set mode: spec in the configuration",
        ) from error


def _disallow(allowed: cgroups.Allowed) -> None:
    try:
        cgroups.deny_devices(allowed)
    except (OSError, ApplyError):
        pass  # the container that could use them is about to be killed
