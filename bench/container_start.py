"""The cost of our part in a container's start: create + start + delete, against the low-level runtime alone.

container_start.py PREFIX [RUNS]. It uses real runc, real bundles and the simulated device, and prints medians
of interleaved runs. The slices: memory that the driver holds; the same with a cap on cores, which the
interposers hold; and both held by the interposers, on an older driver. Each is also started by the start
workers of `xpu agent`, and with a root folder that no container had before. Mount points and links are made
in such a folder, as at the first start of every container of an engine. Last, many containers start at once,
each in a root folder of its own. Root folders lie on a new ext4 in a file, state on a tmpfs; with `unshare
-m` both go with the bench. It also prints the largest resident memory of a shim and of a hook, and the cost
of a thousand grants in the ledger.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "packaging"), os.path.join(HERE, "..", "src"), HERE]

import timing  # noqa: E402

import image  # noqa: E402

RUNC = shutil.which("runc", path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin") or "runc"
PROBE = os.path.join(HERE, "..", "build", "probe", "cuda-probe")
GRANTS = 1000
#: The size of the bench's own disk. Unwritten blocks take no space.
DISK_BYTES = 4 << 30
#: Seconds for a container to end by itself.
PATIENCE_S = 60
#: The number of containers that start, and end, at once.
AT_ONCE = (50, 100)


def own_file_systems(folder: str) -> None:
    """Mounts a new ext4 at `folder`, and a tmpfs at `run` in it, as every node has at /run.

    On the machine's own disk the figures depend on earlier work: ext4 does not reuse an inode for one to five
    minutes after its file was deleted. After thousands of deletions it looks at each of these inodes for each
    new file (recently_deleted in fs/ext4/ialloc.c). That added 9 ms to a start in a new root folder.
    """
    image = f"{folder}.ext4"
    with open(image, "wb") as file:
        file.truncate(DISK_BYTES)
    # By default the kernel does this work later, in the background.
    now = "lazy_itable_init=0,lazy_journal_init=0"
    subprocess.run(["mkfs.ext4", "-q", "-F", "-N", "65536", "-E", now, image], check=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    os.unlink(image)  # the file stays until it is unmounted
    run = os.path.join(folder, "run")
    os.mkdir(run)
    subprocess.run(["mount", "-t", "tmpfs", "xpu-bench", run], check=True)


class Bench:
    """A node with a simulated card, and bundles. Its folder is removed at the end."""

    def __init__(self, prefix: str, topology: str) -> None:
        folder = tempfile.mkdtemp(prefix="xpu-b-", dir="/run")
        own_file_systems(folder)
        self.runtime = os.path.join(prefix, "bin", "xpu-container-runtime")
        self.xpu = os.path.join(prefix, "bin", "xpu")
        self.folder = folder
        self.agent: subprocess.Popen[bytes] | None = None
        self.environ = {
            **os.environ,
            "XPU_RUN_DIR": os.path.join(folder, "run"),
            "XPU_CONFIG": os.path.join(folder, "config.yaml"),
        }
        image.make(os.path.join(folder, "rootfs"), [PROBE])
        subprocess.run([RUNC, "spec"], cwd=folder, check=True)
        self.null = open(os.devnull, "r+b")  # noqa: SIM115 - open as long as the bench runs
        self.sim("up", "--topology", topology)

    def sim(self, *words: str) -> None:
        subprocess.run([self.xpu, "sim", *words], env=self.environ, stdout=self.null, check=True)

    def start_agent(self) -> None:
        """Returns when the start workers take calls."""
        self.agent = subprocess.Popen([self.xpu, "agent"], env=self.environ, stderr=subprocess.DEVNULL)
        while not os.path.exists(os.path.join(self.folder, "run", "start.sock")):
            time.sleep(0.05)
        time.sleep(1)

    def end(self) -> None:
        if self.agent is not None:
            self.agent.terminate()
            self.agent.wait()
        self.sim("down")
        self.null.close()
        subprocess.run(["umount", "-R", self.folder], check=True)
        os.rmdir(self.folder)

    def bundle(self, name: str, *env: str) -> str:
        """A bundle of the one image. Its spec is written anew before each create, as an engine does."""
        path = os.path.join(self.folder, name)
        os.mkdir(path)
        with open(os.path.join(self.folder, "config.json")) as file:
            spec = json.load(file)
        spec["process"].update(terminal=False, args=["/bin/true"], env=["PATH=/bin", *env])
        spec["root"] = {"path": os.path.join(self.folder, "rootfs"), "readonly": False}
        spec["linux"]["cgroupsPath"] = f"/{os.path.basename(self.folder)}-{name}"
        with open(os.path.join(path, "engine.json"), "w") as file:
            json.dump(spec, file)
        return path

    def call(self, program: str, *words: str) -> None:
        root = os.path.join(self.folder, "state")
        done = subprocess.run(
            [program, "--root", root, *words],
            stdin=self.null,
            stdout=self.null,
            stderr=subprocess.DEVNULL,
            env=self.environ,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{program} {' '.join(words)} failed")

    def cycle(self, program: str, bundle: str, fresh: int = 0) -> Callable[[], None]:
        """`fresh`: the number of root folders to make, one for each call; 0: all calls share one."""
        name = f"{os.path.basename(self.folder)}-{os.path.basename(bundle)}"
        root = os.path.join(self.folder, "rootfs")
        copies = [f"{bundle}/root-{number}" for number in range(fresh)]
        for copy in copies:
            subprocess.run(["cp", "-al", root, copy], check=True)
        with open(os.path.join(bundle, "engine.json")) as file:
            spec = file.read()

        def run() -> None:
            with open(os.path.join(bundle, "config.json"), "w") as file:
                file.write(spec.replace(root, copies.pop()) if fresh else spec)
            self.call(program, "create", "--bundle", bundle, "--pid-file", f"{bundle}/pid", name)
            with open(f"{bundle}/pid") as file:
                process = os.pidfd_open(int(file.read()))
            self.call(program, "start", name)
            # runc kills a running container, and looks only 100 ms later whether it has ended.
            select.select([process], [], [], PATIENCE_S)
            os.close(process)
            self.call(program, "delete", name)

        return run

    def at_once(self, program: str, count: int, *env: str) -> Callable[[], None]:
        """`count` cycles side by side, each with a container and a root folder of its own."""
        name = os.path.basename(program)
        root = os.path.join(self.folder, "rootfs")
        cycles = []
        for number in range(count):
            bundle = self.bundle(f"{name}-{count}-{number}", *env)
            subprocess.run(["cp", "-al", root, f"{bundle}/root"], check=True)
            with open(os.path.join(bundle, "engine.json"), "r+") as file:
                spec = file.read().replace(root, f"{bundle}/root")
                file.seek(0)
                file.write(spec)
                file.truncate()
            cycles.append(self.cycle(program, bundle))

        def run() -> None:
            with ThreadPoolExecutor(count) as threads:
                for done in [threads.submit(cycle) for cycle in cycles]:
                    done.result()

        return run

    def two_ledgers(self, cycle: Callable[[], None]) -> dict[str, Callable[[], None]]:
        """`cycle` with an empty ledger, and with a thousand grants of devices that the node does not have."""
        from xpu_runtime.ledger.grants import Grant, Holding, Slice
        from xpu_runtime.ledger.store import Ledger
        from xpu_runtime.linux import proc

        path = os.path.join(self.folder, "run", "ledger.db")
        shutil.copy(path, path + ".empty")
        pid = os.getpid()
        started = proc.start_time(pid) or 0
        with Ledger(path) as ledger:
            for number in range(GRANTS):
                part = Slice("9", f"GPU-of-the-bench-{number % 8}", 1 << 20, True, None, Holding())
                wanted = Grant(0, f"bench-{number}", "/b", pid, started, "", "running", "hook", 0.0, ())
                ledger.grant(wanted, lambda uses, part=part: (part,))  # type: ignore[misc]
        shutil.copy(path, path + ".full")

        def with_ledger(kind: str) -> Callable[[], None]:
            def run() -> None:
                shutil.copy(f"{path}.{kind}", path)
                cycle()

            return run

        return {"an empty ledger": with_ledger("empty"), f"{GRANTS} grants": with_ledger("full")}


def peak_memory(bench: Bench, bundle: str) -> dict[str, float]:
    """The maximum resident memory in MiB, of the shim up to its exec and of the start's hook below runc.

    The launcher leaves this bundle's request to the shim.
    """
    found = {}
    shutil.copy(os.path.join(bundle, "engine.json"), os.path.join(bundle, "config.json"))
    # /bin/true replaces the low-level runtime: it is smaller.
    config = os.path.join(bench.folder, "true.yaml")
    with open(config, "w") as file:
        file.write("low_level_runtimes: [/bin/true]\n")
    words = [bench.runtime, "create", "--bundle", bundle, "memory"]
    environ = {**bench.environ, "XPU_CONFIG": config}
    for _ in range(2):  # the first compiles the configuration
        shim = os.posix_spawn(bench.runtime, words, environ)  # the launcher becomes the shim
        found["shim"] = os.wait4(shim, 0)[2].ru_maxrss / 1024

    log = os.path.join(bundle, "memory")
    path = os.path.join(bundle, "config.json")
    with open(path) as file:
        spec = json.load(file)
    for hooks in spec["hooks"].values():
        for hook in hooks:
            measure = [sys.executable, os.path.join(HERE, "peak.py"), log, hook["args"][1]]
            hook["args"] = [*measure, hook["path"], *hook["args"][1:]]
            hook["path"] = sys.executable
    with open(path, "w") as file:
        json.dump(spec, file)
    name = f"{os.path.basename(bench.folder)}-memory"
    bench.call(RUNC, "create", "--bundle", bundle, name)
    bench.call(RUNC, "delete", "--force", name)
    with open(log) as file:
        for line in file:
            amount, stage = line.split()
            found[f"hook, {stage}"] = int(amount) / 1024
    return found


def main() -> None:
    prefix, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60
    print(timing.busy())
    with contextlib.ExitStack() as stack:
        bench = Bench(prefix, "1xT4")
        stack.callback(bench.end)
        older = Bench(prefix, "1xT4-R580")
        stack.callback(older.end)
        wanted = ("XPU_MEM=1G", "XPU_CORES=30")
        plain, slice_ = bench.bundle("plain"), bench.bundle("slice", "XPU_MEM=1G")
        cases = {
            "runc alone": bench.cycle(RUNC, plain),
            "without a device": bench.cycle(bench.runtime, plain),
            "a slice held by the driver": bench.cycle(bench.runtime, slice_),
            "the same, and cores by the interposers": bench.cycle(
                bench.runtime, bench.bundle("capped", *wanted)
            ),
            "a slice held by the interposers": older.cycle(older.runtime, older.bundle("slice", *wanted)),
        }
        print(timing.table("create + start + delete", timing.interleave(cases, runs), "runc alone"))
        print()
        warm = Bench(prefix, "1xT4")
        stack.callback(warm.end)
        warm.start_agent()
        warm_older = Bench(prefix, "1xT4-R580")
        stack.callback(warm_older.end)
        warm_older.start_agent()
        for fresh in (0, runs + 1):
            name = "fresh" if fresh else "again"
            cases = {
                "runc alone": bench.cycle(RUNC, bench.bundle(f"plain-{name}"), fresh),
                "held by the driver": bench.cycle(
                    bench.runtime, bench.bundle(f"driver-{name}", "XPU_MEM=1G"), fresh
                ),
                "the same, by start workers": warm.cycle(
                    warm.runtime, warm.bundle(f"driver-{name}", "XPU_MEM=1G"), fresh
                ),
                "held by the interposers": older.cycle(
                    older.runtime, older.bundle(f"library-{name}", *wanted), fresh
                ),
                "the same, by start workers ": warm_older.cycle(
                    warm_older.runtime, warm_older.bundle(f"library-{name}", *wanted), fresh
                ),
            }
            title = "with a fresh root folder" if fresh else "with the same root folder"
            print(timing.table(title, timing.interleave(cases, runs), "runc alone"))
        for count in AT_ONCE:
            cases = {
                "runc alone": bench.at_once(RUNC, count),
                "held by the driver": bench.at_once(bench.runtime, count, "XPU_MEM=64M"),
                "the same, by start workers": warm.at_once(warm.runtime, count, "XPU_MEM=64M"),
            }
            title = f"{count} at once, all of them"
            print(timing.table(title, timing.interleave(cases, max(2, runs // 10)), "runc alone"))
        for name, amount in peak_memory(bench, bench.bundle("memory", "XPU_MEM=1G", "XPU_LOG=off")).items():
            print(f"peak memory of the {name}: {amount:.1f} MiB")
        ledgers = bench.two_ledgers(bench.cycle(bench.runtime, slice_))
        print(timing.table("a slice, with", timing.interleave(ledgers, runs), "an empty ledger"))


if __name__ == "__main__":
    main()
