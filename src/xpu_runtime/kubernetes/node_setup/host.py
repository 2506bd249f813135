"""Into the node, out of a pod: its mount namespace, which has its files, its driver and its engine.

The pod sees the node's processes (hostPID), so the node's init is process 1. Open files stay open: that is
how the image's own files and the service account are read from there. A process that has entered does not
come back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence

from xpu_runtime.errors import ConfigError, XpuError
from xpu_runtime.kubernetes import access
from xpu_runtime.linux import mounts

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Where k3s and RKE2 have their containerd.
_OTHERS = (
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
)
#: Seconds; the restart of an engine on a busy node takes some.
_LONGEST_S = 180


def enter(init: int = 1) -> None:
    """Enters the mount namespace of process `init`, where this one is not in it yet; ConfigError."""
    try:
        if os.path.samefile(f"/proc/{init}/ns/mnt", "/proc/self/ns/mnt"):
            return
        mounts.enter_mount_namespace(init)
        os.chdir("/")
    except OSError as error:
        raise ConfigError(
            f"the node's mount namespace cannot be entered ({error.strerror})",
            "the pod has to be privileged, with hostPID: true",
        ) from None


def there(init: int, work: Callable[[], object]) -> int:
    """Does `work` on the node, in a process of its own, so that this one stays in the pod. Returns the exit
    status: a number that `work` returned, or 0; after an exception 1, with its text as the last line on
    stderr."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            enter(init)
            found = work()
            status = found if type(found) is int else 0
        except XpuError as error:
            say(str(error), error=True)
        except OSError as error:
            say(f"{error.filename or 'the node'}: {error.strerror or error}", error=True)
        except Exception as error:
            say(f"{type(error).__name__}: {error}", error=True)
        finally:
            os._exit(status)
    _, waited = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(waited)


def say(text: str, *, error: bool = False) -> None:
    """A line in the container's log."""
    os.write(2 if error else 1, f"xpu: {text}\n".encode())


def run(*words: str) -> str:
    """Runs a program of the node with its paths, and returns its output, which is logged too; ConfigError if
    it fails."""
    environ = {"PATH": ":".join((_PATH, *_OTHERS)), "LANG": "C.UTF-8", "HOME": "/root"}
    try:
        done = subprocess.run(
            words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=_LONGEST_S, check=False, cwd="/",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{words[0]} cannot be run on the node: {error}") from None
    said = done.stdout.decode(errors="replace").strip()
    for line in said.splitlines():
        say(f"{os.path.basename(words[0])}: {line}")
    if done.returncode:
        last = said.splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise ConfigError(f"`{' '.join(words)}` failed on the node: {last[0]}")
    return said


def has_systemd() -> bool:
    """Whether systemd is the node's init (sd_booted(3)), and can be asked."""
    return os.path.isdir("/run/systemd/system") and shutil.which("systemctl", path=_PATH) is not None


def execute(prefix: str, arguments: Sequence[str], init: int = 1) -> None:
    """Becomes the node's own `xpu` with these arguments, in its mount namespace; ConfigError.

    The service account's folder is not there: it is named by a descriptor, so that a renewed token is seen.
    """
    environ = {**os.environ, "PATH": _PATH}
    if os.environ.get("KUBERNETES_SERVICE_HOST") and os.path.isdir(access.SERVICE_ACCOUNT):
        folder = os.open(access.SERVICE_ACCOUNT, os.O_PATH | os.O_DIRECTORY)
        os.set_inheritable(folder, True)
        environ.pop("KUBECONFIG", None)  # a path of the pod's, which is another file on the node
        environ[access.FOLDER] = f"/proc/self/fd/{folder}"
    program = os.path.join(prefix, "bin", "xpu")
    enter(init)
    try:
        os.execve(program, [program, *arguments], environ)
    except OSError as error:
        raise ConfigError(
            f"{program} cannot be run on the node ({error.strerror})", "is it installed there?"
        ) from None
