#!/usr/bin/python3 -IS
"""A container's slice on real containers: `make demo`, or packaging/demo.py PREFIX.

It uses the machine's NVIDIA driver if there is one from R470 on, and the simulated device if not. It uses the
running docker engine if that knows the xpu runtime, and an engine of its own if not. Its own files are below
/run/xpu-demo and are removed at the end. The exit status is 0 only if every step succeeded.
"""

from __future__ import annotations

import glob
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
FOLDER = "/run/xpu-demo"
SOCKET = f"unix://{FOLDER}/docker.sock"
IMAGE = "xpu-demo:1"
CGROUP = "/xpu-demo"
BUILD = os.path.join(os.path.dirname(HERE), "build")
MIB = 1 << 20
#: How many times a start is timed in each way.
_STARTS = 5

sys.path.insert(0, HERE)


def say(text: str) -> None:
    print(f"\n\033[1m# {text}\033[0m" if sys.stdout.isatty() else f"\n# {text}", flush=True)


class Demo:
    """The demo's engine, driver and containers."""

    def __init__(self, prefix: str) -> None:
        self.xpu = os.path.join(prefix, "bin", "xpu")
        self.runtime = os.path.join(prefix, "bin", "xpu-container-runtime")
        self.environ = {**os.environ, "XPU_RUN_DIR": FOLDER, "XPU_CONFIG": f"{FOLDER}/config.yaml"}
        self.docker = ["docker", "--host", SOCKET]
        self.engine: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None
        self.simulated = False
        self.wrong: list[str] = []

    # Set-up and end.

    def set_up(self) -> None:
        self.tear_down()
        os.makedirs(FOLDER, mode=0o755)
        self._choose_driver()
        self._start_engine()
        say("an image with busybox, the C library and a small CUDA program: nothing of ours in it")
        image = f"{FOLDER}/image"
        sys.dont_write_bytecode = True
        from image import make

        make(image, [f"{BUILD}/probe/cuda-probe"])
        archive = subprocess.run(["tar", "-C", image, "-c", "."], stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(
            [*self.docker, "import", "-", IMAGE], input=archive, stdout=subprocess.DEVNULL, check=True
        )

    def _choose_driver(self) -> None:
        devices = self._xpu_json("devices") if os.path.exists("/proc/driver/nvidia/version") else []
        explained = self.run([self.xpu, "explain", "-e", "XPU_MEM=1G"], show=False) if devices else None
        if explained is not None and explained.returncode == 0:
            say("using this machine's NVIDIA driver")
            return
        why = (
            "no memory limit can be held with this machine's driver"
            if devices
            else "this machine has no NVIDIA driver"
        )
        say(f"{why}: a simulated Tesla T4 stands in for the hardware, everything else is real")
        self.simulated = True
        force = ["--force"] if devices else []
        self.run([self.xpu, "sim", "up", "--topology", "1xT4", *force], check=True)

    def _start_engine(self) -> None:
        for program in ("docker", "dockerd"):
            if shutil.which(program) is None:
                sys.exit(f"there is no {program}: install docker (Debian: docker.io, from 13 on docker-cli)")
        info = subprocess.run(
            ["docker", "info", "--format", "{{json .Runtimes}}"], capture_output=True, text=True, check=False
        )
        if not self.simulated and info.returncode == 0 and '"xpu"' in info.stdout:
            say("using the docker engine that runs here")
            self.docker = ["docker"]
            self.environ.pop("XPU_RUN_DIR")
            self.environ.pop("XPU_CONFIG")
            return
        say("starting a docker engine of the demo's own")
        config = f"{FOLDER}/daemon.json"
        self.run([self.xpu, "runtime", "configure", "docker", "--config", config], check=True)
        command = [
            "dockerd", "--config-file", config, "--host", SOCKET, "--data-root", f"{FOLDER}/docker",
            "--exec-root", f"{FOLDER}/exec", "--pidfile", f"{FOLDER}/docker.pid",
            "--iptables=false", "--ip6tables=false", "--bridge=none", f"--cgroup-parent={CGROUP}",
        ]  # fmt: skip
        with open(f"{FOLDER}/dockerd.log", "wb") as log:
            self.engine = subprocess.Popen(command, stdout=log, stderr=log, env=self.environ)
        deadline = time.monotonic() + 60
        while subprocess.run([*self.docker, "version"], capture_output=True, check=False).returncode:
            if self.engine.poll() is not None or time.monotonic() > deadline:
                with open(f"{FOLDER}/dockerd.log") as log:
                    sys.exit("dockerd does not start:\n" + log.read()[-3000:])
            time.sleep(0.1)

    def tear_down(self) -> None:
        """Removes everything, of this run or of one that was killed."""
        if not os.path.isdir(FOLDER):
            return
        if os.path.exists(f"{FOLDER}/docker.sock"):
            names = subprocess.run([*self.docker, "ps", "-aq"], capture_output=True, text=True, check=False)
            if names.stdout.split():
                subprocess.run(
                    [*self.docker, "rm", "-f", *names.stdout.split()], capture_output=True, check=False
                )
        self._stop("docker", self.engine)
        self._stop("agent", self.agent)
        subprocess.run([self.xpu, "sim", "down"], env=self.environ, capture_output=True, check=False)
        with open("/proc/self/mounts") as mounts:
            points = [line.split()[1] for line in mounts if line.split()[1].startswith(FOLDER + "/")]
        for point in reversed(points):
            subprocess.run(["umount", "--lazy", point], check=False)
        for folder in glob.glob(f"/sys/fs/cgroup/*{CGROUP}") + glob.glob(f"/sys/fs/cgroup{CGROUP}"):
            os.rmdir(folder)
        shutil.rmtree(FOLDER)

    def _stop(self, name: str, child: subprocess.Popen[bytes] | None) -> None:
        """Ends the dockerd or agent whose process id is in a file; an earlier run may have been killed."""
        try:
            with open(f"{FOLDER}/{name}.pid") as file:
                pid = int(file.read())
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"={FOLDER}\0".encode() not in file.read():
                    return
            os.kill(pid, signal.SIGTERM)
        except (OSError, ValueError):
            return
        if child is not None:
            child.wait()
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.05)

    # Running and showing.

    def run(
        self, command: list[str], *, show: bool = True, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command, shows it and its output."""
        shown = [os.path.basename(command[0]), *command[1:]]
        if command[: len(self.docker)] == self.docker:
            shown = ["docker", *command[len(self.docker) :]]
        if show:
            print("$ " + " ".join(shown), flush=True)
        done = subprocess.run(
            command,
            env=self.environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if show:
            print(done.stdout.rstrip(), flush=True)
        if check and done.returncode:
            sys.exit(f"{' '.join(shown)} failed with status {done.returncode}")
        return done

    def container(self, request: str, *command: str, detach: str = "") -> subprocess.CompletedProcess[str]:
        variables = [word for item in request.split() for word in ("-e", item)]
        options = ["-d", "--name", detach] if detach else ["--rm"]
        return self.run(
            [*self.docker, "run", *options, "--runtime=xpu", "--network=none", *variables, IMAGE, *command]
        )

    def _xpu_json(self, command: str) -> list[dict[str, object]]:
        done = self.run([self.xpu, command, "--json"], show=False)
        return json.loads(done.stdout) if done.returncode == 0 else []

    def expect(self, met: bool, what: str) -> None:
        print(f"{'ok' if met else 'WRONG'}: {what}", flush=True)
        if not met:
            self.wrong.append(what)

    # The main job.

    def show(self) -> None:
        say("what the node has")
        self.run([self.xpu, "devices"])
        total = int(str(self._xpu_json("devices")[0]["memory_bytes"])) // MIB

        say("a container with 4 GiB and 30 % of the cores sees a 4 GiB card")
        done = self.container("XPU_MEM=4G XPU_CORES=30", "nvidia-smi")
        self.expect("4096MiB" in done.stdout.replace(" ", ""), "nvidia-smi inside reports 4096 MiB")

        say("below its limit an allocation succeeds, past it one is refused, and the program goes on")
        done = self.container("XPU_MEM=4G XPU_CORES=30", "cuda-probe", "alloc", "3000", "2000", "500")
        self.expect(
            "3000 MiB: CUDA_SUCCESS" in done.stdout
            and "2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in done.stdout
            and "500 MiB: CUDA_SUCCESS" in done.stdout,
            "3000 MiB granted, 2000 MiB more refused, 500 MiB granted",
        )

        say("a driver before R615 holds no limit: there the interposers do (here asked for by name)")
        library = "XPU_MEM=4G XPU_ENFORCE=library"
        done = self.container(library, "nvidia-smi")
        self.expect("4096MiB" in done.stdout.replace(" ", ""), "nvidia-smi inside reports 4096 MiB")
        done = self.container(library, "cuda-probe", "alloc", "3000", "2000", "500")
        self.expect(
            "2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in done.stdout and "500 MiB: CUDA_SUCCESS" in done.stdout,
            "2000 MiB more refused, and the program goes on",
        )

        say("30 % of the cores: a program with that cap completes 30 % of what it does alone")
        alone = self._kernels_a_second(self.container("XPU_MEM=4G", "cuda-probe", "busy", "3"))
        capped = self._kernels_a_second(self.container("XPU_MEM=4G XPU_CORES=30", "cuda-probe", "busy", "4"))
        self.expect(0.25 < capped / alone < 0.35, f"{100 * capped / alone:.1f} % of {alone:.0f} a second")

        say("two containers side by side on one card")
        self.container("XPU_MEM=4G XPU_CORES=30", "cuda-probe", "alloc", "3000", "--hold", detach="first")
        second = f"XPU_MEM={total - 4096 - 2048}M XPU_CORES=50 XPU_ENFORCE=library"
        self.container(second, "cuda-probe", "alloc", "1000", "--hold", detach="second")
        for name in ("first", "second"):
            self._wait_for(name, "MiB free of")
            self.run([*self.docker, "logs", name])
        self.run([self.xpu, "ps"])
        self.run([self.xpu, "devices"])
        self.expect(len(self._xpu_json("ps")) == 2, "xpu ps lists both")

        say("the limit of a running container is changed at once")
        named = self.run([*self.docker, "inspect", "--format", "{{.Id}}", "second"], show=False).stdout[:12]
        self.run([self.xpu, "set", named, "--mem", "2G"])
        done = self.run([*self.docker, "exec", "second", "cuda-probe", "info"])
        self.expect("1048 MiB free of 2048 MiB" in done.stdout, "the container has 2 GiB, 1000 MiB in use")
        self.run([self.xpu, "inspect", named])
        self.run([self.xpu, "set", named, "--mem", f"{total - 4096 - 2048}M"])

        say("a third that does not fit is refused, with what is free and what would fit")
        done = self.container("XPU_MEM=4G XPU_CORES=30", "true")
        self.expect(
            done.returncode != 0 and "XPU_MEM=2G XPU_CORES=20" in done.stdout,
            "the refusal names what would fit",
        )
        done = self.container("XPU_MEM=2G XPU_CORES=20", "cuda-probe", "info")
        self.expect(done.returncode == 0 and "of 2048 MiB" in done.stdout, "what was offered is granted")

        say("nothing is left when the containers are gone")
        self.run([*self.docker, "rm", "-f", "first", "second"])
        self.run([self.xpu, "ps"])
        self.run([self.xpu, "devices"])
        free = all(device["memory_granted_bytes"] == 0 for device in self._xpu_json("devices"))
        self.expect(self._xpu_json("ps") == [] and free, "no slice is held, every device is free")

        self._show_agent()

    def _show_agent(self) -> None:
        """The same with `xpu agent`, unless one runs already: everything before was without it."""
        socket = os.path.join(self.environ.get("XPU_RUN_DIR", "/run/xpu"), "start.sock")
        if os.path.exists(socket):
            say("all of that was with xpu agent, which runs here")
            return
        say("`xpu agent`, which packages start with the driver, has processes that wait for starts")
        runc, before = self._start_ms("--runtime=runc"), self._start_ms("--runtime=xpu")
        environ = {**self.environ, "XPU_DEMO": FOLDER}  # we recognise our agent by this path
        self.agent = subprocess.Popen([self.xpu, "agent"], env=environ, stderr=subprocess.DEVNULL)
        with open(f"{FOLDER}/agent.pid", "w") as file:
            file.write(str(self.agent.pid))
        deadline = time.monotonic() + 30
        while not os.path.exists(socket) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.expect(os.path.exists(socket), "they are there")
        print(
            f"docker run --rm, median of {_STARTS}: {runc:.0f} ms with runc alone; with a slice "
            f"{before:.0f} ms without the agent, {self._start_ms('--runtime=xpu'):.0f} ms with it",
            flush=True,
        )
        done = self.container("XPU_MEM=4G XPU_CORES=30", "nvidia-smi")
        self.expect("4096MiB" in done.stdout.replace(" ", ""), "what a container gets is the same")

    def _start_ms(self, runtime: str) -> float:
        """The median time of a whole `docker run --rm` in milliseconds."""
        command = [*self.docker, "run", "--rm", "--network=none", runtime, "-e", "XPU_MEM=4G", IMAGE, "true"]
        times = []
        for _ in range(_STARTS):
            began = time.monotonic()
            self.run(command, show=False, check=True)
            times.append(time.monotonic() - began)
        return statistics.median(times) * 1000

    @staticmethod
    def _kernels_a_second(done: subprocess.CompletedProcess[str]) -> float:
        """The mean rate that `cuda-probe busy` prints after its first second; in that second it gets a little
        more."""
        found = [float(each) for each in re.findall("([0-9]+) kernels a second", done.stdout)][1:]
        return sum(found) / len(found) if found else math.nan

    def _wait_for(self, name: str, text: str) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if text in self.run([*self.docker, "logs", name], show=False).stdout:
                return
            time.sleep(0.1)


def main() -> int:
    demo = Demo(os.path.abspath(sys.argv[1]))
    started = time.monotonic()
    try:
        demo.set_up()
        demo.show()
    finally:
        demo.tear_down()
    if demo.wrong:
        print("\nthe demo did not go as it should: " + "; ".join(demo.wrong))
        return 1
    print(f"\neverything as it should be, in {time.monotonic() - started:.0f} s, and nothing left behind")
    print("next, with docker and the packages: docs/tutorials/first-slice.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
