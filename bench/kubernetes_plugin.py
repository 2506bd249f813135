"""The cost of the device plugin: its memory, and its times to answer the kubelet.

kubernetes_plugin.py PREFIX [--pods N] [--idle SECONDS]. The plugin of the installation PREFIX runs with the
tests' kubelet and API server (tests/support), on eight simulated A100 of 80 GiB, with N pods (100). It prints
the calls' times as the kubelet sees them, and resident memory and processor time before, after and while
nothing happens. Needs root, and the Python that `make test` uses (build/venv).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", name) for name in ("src", "sim/python", "tests")]

from support.kubernetes_api import ApiServer, api_server  # noqa: E402
from support.stand_in_kubelet import Kubelet, until  # noqa: E402
from xpu_simulator import simulator  # noqa: E402

MEMORY, CORES = "yoyoworks.com/xpu-mem", "yoyoworks.com/xpu-cores"
NODE, TOPOLOGY = "n1", "8xA100-80GB"
_MAIN = "from xpu_runtime.cli.main import main; main()"
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prefix", type=Path)
    parser.add_argument("--pods", type=int, default=100, help="at most 160")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xpu-bench-") as folder, api_server() as api:
        os.environ["XPU_RUN_DIR"] = f"{folder}/run"
        kubelet = Kubelet(Path(folder) / "kubelet")
        kubelet.start()
        library = options.prefix / "lib" / "xpu-container-runtime"
        simulator.up(TOPOLOGY, native=str(library / "native" / "sim"))
        try:
            with _plugin(library, Path(folder), kubelet, api) as process:
                _measure(process, kubelet, api, options.pods, options.idle)
        finally:
            kubelet.stop()
            simulator.down()


@contextmanager
def _plugin(
    library: Path, folder: Path, kubelet: Kubelet, api: ApiServer
) -> Iterator[subprocess.Popen[bytes]]:
    kubeconfig = api.kubeconfig(folder / "kubeconfig")
    api.put(f"/api/v1/nodes/{NODE}", {"kind": "Node"})
    environ = {
        **os.environ,
        "PYTHONPATH": f"{library}/python:{library}/vendor",
        "XPU_CONFIG": f"{folder}/none",
    }
    where = ["--plugins", str(kubelet.plugins), "--pod-resources", str(kubelet.pod_resources)]
    how = ["--node-name", NODE, "--kubeconfig", str(kubeconfig), "--metrics", "127.0.0.1:0"]
    command = [sys.executable, "-c", _MAIN, "kubernetes", "device-plugin", *where, *how]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, stderr=log)
    try:
        for resource in (MEMORY, CORES):
            until(partial(kubelet.healthy, resource), f"{resource} is offered")
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _measure(
    process: subprocess.Popen[bytes], kubelet: Kubelet, api: ApiServer, pods: int, idle_s: float
) -> None:
    print(f"{TOPOLOGY}: {kubelet.capacity(MEMORY)} IDs of memory, {kubelet.capacity(CORES)} of cores")
    print(f"at first: {_memory(process.pid)}")
    free = list(kubelet.devices[CORES])
    endpoint = kubelet.endpoint(CORES)
    endpoint.call("GetDevicePluginOptions")
    given = [{"devices_ids": free[:30]}]
    _print("Allocate", 2000, lambda: endpoint.call("Allocate", container_requests=given))
    for number in range(pods):
        limits = {MEMORY: "4"}
        spec = {"nodeName": NODE, "containers": [{"name": "main", "resources": {"limits": limits}}]}
        api.put(f"/api/v1/namespaces/default/pods/p{number}", {"spec": spec})
        kubelet.allocate(f"p{number}", MEMORY, int(limits[MEMORY]))
    began = time.monotonic()
    for number in range(pods):
        kubelet.pre_start(f"p{number}", MEMORY)
    print(f"the first PreStartContainer of {pods} pods: {time.monotonic() - began:.2f} s in all")
    _print("PreStartContainer", 300, lambda: kubelet.pre_start("p0", MEMORY))
    print(f"with {pods} pods: {_memory(process.pid)}")
    before = _processor_s(process.pid)
    time.sleep(idle_s)
    used = _processor_s(process.pid) - before
    print(f"{idle_s:.0f} s later: {_memory(process.pid)}; {100 * used / idle_s:.2f} % of a core meanwhile")


def _print(name: str, times: int, call: Callable[[], object]) -> None:
    lasted = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        lasted.append(1000 * (time.perf_counter() - began))
    lasted.sort()
    print(f"{name}: p50 {lasted[times // 2]:.2f} ms, p99 {lasted[times * 99 // 100]:.2f} ms")


def _memory(pid: int) -> str:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return f"{kib['Rss'] / 1024:.1f} MiB resident, {kib['Anonymous'] / 1024:.1f} MiB of it anonymous"


def _processor_s(pid: int) -> float:
    """The time of the process, and of its ended children that asked the drivers."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, words[11:15])) / _TICKS


if __name__ == "__main__":
    main()
