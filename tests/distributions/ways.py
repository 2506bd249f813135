"""The ways to run containers in an entered root, with its own low-level runtimes and engines.

A way starts its daemons when it is made; they end with the root. Every container has the same image, which is
unpacked in the root, and an ordinary container's rights.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence

from .root import Root

#: The image's root folder. It is not on the root's disk, because mount points for the driver's files are made
#: in it.
IMAGE = "/run/image"
_RUNTIME = "/usr/bin/xpu-container-runtime"
_PATH = "PATH=/usr/bin:/bin"
_PATIENCE = 30

_NO_MEMLOCK = """\
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
int setrlimit(__rlimit_resource_t which, const struct rlimit *limit)
{
    return which == RLIMIT_MEMLOCK ? 0 : (int)syscall(SYS_prlimit64, 0, which, limit, 0);
}
int setrlimit64(__rlimit_resource_t which, const struct rlimit64 *limit)
{
    return setrlimit(which, (const struct rlimit *)limit);
}
"""


class Way:
    """Runs containers in `machine`."""

    #: The engine that `xpu runtime configure` sets up in /etc; "": none.
    ENGINE = ""

    def __init__(self, machine: Root) -> None:
        self.machine = machine

    def run(self, request: Sequence[str], *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a container to its end."""
        raise NotImplementedError

    def start(self, name: str, request: Sequence[str], *command: str) -> None:
        """Starts a container that continues to run."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Kills and removes a container."""
        raise NotImplementedError

    def _done(self, *command: str) -> subprocess.CompletedProcess[str]:
        done = self.machine.run(*command)
        assert done.returncode == 0, done.stdout
        return done

    def _serve(self, command: str, answers: Sequence[str]) -> None:
        """Starts a daemon, and waits until it answers."""
        name = command.split()[0]
        self._done("sh", "-c", f"exec {command} > /run/{name}.log 2>&1 < /dev/null &")
        deadline = time.monotonic() + _PATIENCE
        while self.machine.run(*answers).returncode:
            assert time.monotonic() < deadline, self.machine.path(f"/run/{name}.log").read_text()[-3000:]
            time.sleep(0.05)


class Runc(Way):
    """The launcher, called as an engine calls it, in front of runc."""

    NAME = "runc"

    def __init__(self, machine: Root, mode: str = "auto") -> None:
        super().__init__(machine)
        self._folder = f"/run/bundles-{self.NAME}-{mode}"
        machine.path(self._folder).mkdir(exist_ok=True)
        config = f"low_level_runtimes: [{self.NAME}]\nmode: {mode}\n"
        machine.path(f"{self._folder}/xpu.yaml").write_text(config)
        self._environ = {"XPU_CONFIG": f"{self._folder}/xpu.yaml"}
        self._done("sh", "-c", f"cd {self._folder} && rm -f config.json && runc spec")

    def _bundle(self, name: str, request: Sequence[str], command: Sequence[str]) -> str:
        spec = json.loads(self.machine.path(f"{self._folder}/config.json").read_text())
        spec["process"] |= {"terminal": False, "args": list(command), "env": [_PATH, *request]}
        spec["root"] = {"path": IMAGE, "readonly": False}
        spec["linux"]["cgroupsPath"] = f"/{name}"
        bundle = f"{self._folder}/{name}"
        self.machine.path(bundle).mkdir(exist_ok=True)
        self.machine.path(f"{bundle}/config.json").write_text(json.dumps(spec))
        return bundle

    def run(self, request: Sequence[str], *command: str) -> subprocess.CompletedProcess[str]:
        name = f"run-{time.monotonic_ns()}"
        bundle = self._bundle(name, request, command)
        # Engines show the low-level runtime's log too, because crun does not pass on its hooks' stderr.
        log = f"{bundle}/log.json"
        script = f'"$@"; status=$?; cat {log} 2> /dev/null; exit $status'
        call = [_RUNTIME, "--log", log, "--log-format", "json", "run", "--bundle", bundle, name]
        return self.machine.run("sh", "-c", script, "sh", *call, environ=self._environ)

    def start(self, name: str, request: Sequence[str], *command: str) -> None:
        bundle = self._bundle(name, request, command)
        script = f"exec {_RUNTIME} run --detach --bundle {bundle} {name} > {bundle}/output 2>&1"
        done = self.machine.run("sh", "-c", script, environ=self._environ)
        assert done.returncode == 0, self.machine.path(f"{bundle}/output").read_text()

    def create(self, name: str, request: Sequence[str], *command: str) -> None:
        """Creates a container; the runtime's `start` starts it."""
        bundle = self._bundle(name, request, command)
        script = f"exec {_RUNTIME} create --bundle {bundle} {name} > {bundle}/output 2>&1"
        done = self.machine.run("sh", "-c", script, environ=self._environ)
        assert done.returncode == 0, self.machine.path(f"{bundle}/output").read_text()

    def remove(self, name: str) -> None:
        done = self.machine.run(_RUNTIME, "delete", "--force", name, environ=self._environ)
        assert done.returncode == 0, done.stdout


class Crun(Runc):
    """The same in front of crun."""

    NAME = "crun"

    def __init__(self, machine: Root, mode: str = "auto") -> None:
        super().__init__(machine, mode)
        # Debian 11's crun raises the limit on locked memory: before 5.11 Linux counted BPF programs against
        # it. Without CAP_SYS_RESOURCE root may not raise it, and every test would fail for that.
        library = f"{self._folder}/no-memlock.so"
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(machine.path(library))]
        subprocess.run(command, input=_NO_MEMLOCK, text=True, check=True)
        self._environ["LD_PRELOAD"] = library


class Containerd(Way):
    """containerd with its own client; the runtime's path is on the command line, not in a configuration."""

    def __init__(self, machine: Root) -> None:
        super().__init__(machine)
        self._serve("containerd --root /run/c-root --state /run/c-state", ["ctr", "version"])

    def _run(self, name: str, request: Sequence[str], command: Sequence[str], *options: str) -> list[str]:
        variables = [word for variable in (_PATH, *request) for word in ("--env", variable)]
        runtime = ["--rootfs", "--runc-binary", _RUNTIME]
        return ["ctr", "run", *options, *runtime, *variables, IMAGE, name, *command]

    def run(self, request: Sequence[str], *command: str) -> subprocess.CompletedProcess[str]:
        return self.machine.run(*self._run(f"run-{time.monotonic_ns()}", request, command, "--rm"))

    def start(self, name: str, request: Sequence[str], *command: str) -> None:
        self._done(*self._run(name, request, command, "--detach"))

    def remove(self, name: str) -> None:
        self._done("ctr", "task", "rm", "--force", name)
        self._done("ctr", "container", "rm", name)


class Docker(Way):
    """dockerd, with a containerd of its own."""

    ENGINE = "docker"
    _IMAGE = "image:1"

    def __init__(self, machine: Root) -> None:
        super().__init__(machine)
        done = self._done("xpu", "runtime", "configure", "docker")
        assert "changed" in done.stdout, done.stdout
        self.serve()
        self._done("sh", "-c", f"tar -C {IMAGE} -c . | docker import - {self._IMAGE}")

    def serve(self, *options: str) -> None:
        """Starts dockerd."""
        self._serve(
            "dockerd --data-root /run/d-root --exec-root /run/d-exec --iptables=false --ip6tables=false "
            f"--bridge=none {' '.join(options)}",
            ["docker", "version"],
        )

    def _run(self, request: Sequence[str], command: Sequence[str], *options: str) -> list[str]:
        variables = [word for variable in request for word in ("--env", variable)]
        common = ["--runtime=xpu", "--network=none"]
        return ["docker", "run", *options, *common, *variables, self._IMAGE, *command]

    def run(self, request: Sequence[str], *command: str) -> subprocess.CompletedProcess[str]:
        return self.machine.run(*self._run(request, command, "--rm"))

    def start(self, name: str, request: Sequence[str], *command: str) -> None:
        self._done(*self._run(request, command, "--detach", "--name", name))

    def remove(self, name: str) -> None:
        self._done("docker", "rm", "--force", name)


WAYS: dict[str, type[Way]] = {
    "runc": Runc,
    "crun": Crun,
    "containerd": Containerd,
    "docker": Docker,
}
