"""The cost of a slice in `docker run --rm`, against the same container with runc alone.

docker_run.py PREFIX [RUNS]. It starts a containerd and a dockerd, with roots, sockets and a cgroup below one
folder, and prints medians of interleaved runs, with and without `xpu agent`. Needs root.
"""

from __future__ import annotations

import contextlib
import glob
import os
import subprocess
import sys
import time
from collections.abc import Callable

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import timing  # noqa: E402
from container_start import Bench  # noqa: E402

IMAGE = "xpu-bench:1"
PATIENCE_S = 60


class Docker:
    """dockerd on a containerd, for the node of `bench`."""

    def __init__(self, bench: Bench) -> None:
        self.folder = os.path.join(bench.folder, "d")
        os.mkdir(self.folder)
        config, socket = f"{self.folder}/daemon.json", f"{self.folder}/c.sock"
        subprocess.run(
            [bench.xpu, "runtime", "configure", "docker", "--config", config],
            env=bench.environ,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self._client = ["docker", "--host", f"unix://{self.folder}/d.sock"]
        self._environ = bench.environ
        self._cgroup = os.path.basename(bench.folder)
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._start(
            ["containerd", "--config", "/dev/null", "--address", socket]
            + ["--root", f"{self.folder}/c-root", "--state", f"{self.folder}/c-state"],
            ["ctr", "--address", socket, "version"],
        )
        self._start(
            ["dockerd", "--config-file", config, "--containerd", socket, "--host", self._client[-1]]
            + ["--data-root", f"{self.folder}/root", "--exec-root", f"{self.folder}/exec"]
            + ["--pidfile", f"{self.folder}/pid", f"--cgroup-parent=/{self._cgroup}"]
            + ["--iptables=false", "--ip6tables=false", "--bridge=none"],
            [*self._client, "version"],
        )
        archive = subprocess.run(
            ["tar", "-C", os.path.join(bench.folder, "rootfs"), "-c", "."], stdout=subprocess.PIPE, check=True
        )
        self._call("import", "-", IMAGE, given=archive.stdout)

    def _start(self, words: list[str], ready: list[str]) -> None:
        with open(f"{self.folder}/{words[0]}.log", "ab") as log:
            daemon = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environ
            )
        self._daemons.append(daemon)
        end = time.monotonic() + PATIENCE_S
        while subprocess.run(ready, capture_output=True).returncode:
            if daemon.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{words[0]} does not run: see {self.folder}/{words[0]}.log")
            time.sleep(0.1)

    def _call(self, *words: str, given: bytes = b"") -> None:
        done = subprocess.run([*self._client, *words], input=given, capture_output=True)
        if done.returncode:
            raise SystemExit(f"docker {' '.join(words)}: {done.stderr.decode(errors='replace')}")

    def run(self, *words: str) -> Callable[[], None]:
        return lambda: self._call("run", "--rm", "--network=none", *words, IMAGE, "/bin/true")

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait()
        with open("/proc/self/mounts") as lines:
            below = [line.split()[1] for line in lines if line.split()[1].startswith(f"{self.folder}/")]
        for point in reversed(below):
            subprocess.run(["umount", "--lazy", point], check=False)
        for hierarchy in glob.glob("/sys/fs/cgroup/*/") + ["/sys/fs/cgroup/"]:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(hierarchy, self._cgroup))


def main() -> None:
    prefix, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    print(timing.busy())
    for with_agent in (False, True):
        with contextlib.ExitStack() as stack:
            bench = Bench(prefix, "1xT4")
            stack.callback(bench.end)
            if with_agent:
                bench.start_agent()
            docker = Docker(bench)
            stack.callback(docker.close)
            cases = {
                "runc": docker.run(),
                "xpu, without a device": docker.run("--runtime=xpu"),
                "xpu, a slice held by the driver": docker.run("--runtime=xpu", "-e", "XPU_MEM=1G"),
                "the same, and cores": docker.run("--runtime=xpu", "-e", "XPU_MEM=1G", "-e", "XPU_CORES=30"),
            }
            title = f"docker run --rm, {'with' if with_agent else 'without'} xpu agent"
            print(timing.table(title, timing.interleave(cases, runs), "runc"))


if __name__ == "__main__":
    main()
