"""The cost of the scheduler extender: a simulated cluster asks it as kube-scheduler does, through its real
port.

    PYTHONPATH=src:tests build/venv/bin/python bench/kubernetes_extender.py [--nodes 1000] [--pods 10000]
        [--gang 1000]

An API server in memory (tests/support/scheduling_api.py), in a process of its own, has that many nodes with
eight devices each and that many pods on them, with objects of realistic size. `xpu kubernetes extender` runs
on it. Pods of several forms come, and each is filtered, scored and bound over one kept connection. Last comes
a group of pods: all of it is filtered before the first pod is bound. It prints the milliseconds of each verb,
and those of the first filter of each form, whose result later ones reuse; those of each bind without the API
server's own time; and the extender's memory.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.kubernetes_objects import GIB, Json, container, device, node, pod
from support.scheduling_api import ApiServer
from xpu_runtime.request.assignment import ANNOTATION, Assignment, Share, sign

DEVICES = 8
KEY = bytes(range(32))
#: The forms of pods, by their requests.
FORMS: list[list[dict[str, Any]]] = [
    [{"mem": 4}],
    [{"mem": 2, "cores": 20}],
    [{"shares": 10}],
    [{"mem": 3}, {"mem": 1, "cores": 10}],
    [{"whole": 1}],
    [{"mem": 17}],
]
CONCURRENT = 50


def padded(thing: Json, kind: str) -> Json:
    """Adds as much unused data as a real object has: a node's images, a pod's environment and status."""
    if kind == "node":
        names = [f"registry.example/team/image-{n}@sha256:{n:064x}" for n in range(50)]
        thing["status"] = {"images": [{"names": [name], "sizeBytes": 10**8} for name in names]}
    else:
        env = [{"name": f"VARIABLE_{n}", "value": "x" * 40} for n in range(30)]
        thing["spec"]["containers"][0]["env"] = env
        thing["metadata"]["managedFields"] = [
            {"manager": "kubelet", "fieldsV1": {f"f:{n}": {} for n in range(60)}}
        ]
    return thing


class TimedServer(ApiServer):
    """Reports the milliseconds of each Binding."""

    def __init__(self, spent: Any) -> None:
        super().__init__()
        self._spent = spent

    def bind(self, path: str, binding: Json) -> tuple[int, Json]:
        began = time.perf_counter()
        try:
            return super().bind(path, binding)
        finally:
            self._spent.put((time.perf_counter() - began) * 1000)


def serve(nodes: int, pods: int, port: Any, spent: Any) -> None:
    """The API server's process."""
    api = TimedServer(spent)
    for n in range(nodes):
        api.set("nodes", f"node-{n:05d}", padded(node(f"node-{n:05d}", DEVICES), "node"))
    for n in range(pods):
        name = f"node-{n % nodes:05d}"
        made = padded(pod(f"there-{n:05d}", mem=2, cores=5, bound=name), "pod")
        share = Share(device(name, n // nodes % DEVICES)["uuid"], 2 * GIB, 5)
        given = Assignment(made["metadata"]["uid"], name, 1.0, {"main": (share,)})
        made["metadata"]["annotations"][ANNOTATION] = sign(given, "bench", KEY)
        api.set("pods", made["metadata"]["name"], made)
    api.log.clear()
    port.send(api.port)
    signal.pause()


@contextmanager
def api_server(nodes: int, pods: int) -> Iterator[tuple[int, Any]]:
    """The server's port, and a queue with the time of each Binding."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    spent = fork.SimpleQueue()
    process = fork.Process(target=serve, args=(nodes, pods, theirs, spent))
    process.start()
    try:
        yield ours.recv(), spent
    finally:
        process.kill()
        process.join()


class Asking:
    """One kept connection, as kube-scheduler has it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path: str, body: object) -> tuple[float, Any]:
        """The milliseconds, and the answer."""
        content = json.dumps(body).encode()
        began = time.perf_counter()
        self._connection.request("POST", path, content, {"Content-Type": "application/json"})
        answer = self._connection.getresponse().read()
        return (time.perf_counter() - began) * 1000, json.loads(answer)

    def get(self, path: str) -> tuple[int, str]:
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        return answer.status, answer.read().decode()


def free_ports() -> tuple[int, int]:
    import socket

    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@contextmanager
def extender(api: int, folder: Path) -> Iterator[tuple[int, int, int]]:
    """The extender's process, its port and the port of its status, once it is ready."""
    keys, config = folder / "keys", folder / "config"
    keys.write_text(f"bench {KEY.hex()}\n")
    keys.chmod(0o600)
    named = {"name": "bench"}
    config.write_text(
        json.dumps(
            {
                "clusters": [{**named, "cluster": {"server": f"http://127.0.0.1:{api}"}}],
                "contexts": [{**named, "context": {"cluster": "bench", "namespace": "kube-system"}}],
                "current-context": "bench",
            }
        )
    )
    port, status = free_ports()
    options = ["--listen", f"127.0.0.1:{port}", "--status-listen", f"127.0.0.1:{status}", "--keys", str(keys)]
    command = [sys.executable, "-m", "xpu_runtime.cli.main", "kubernetes", "extender", *options]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--kubeconfig", str(config), f"--advertise=http://127.0.0.1:{port}"]
    )
    try:
        while not is_ready(status):
            if process.poll() is not None:
                raise SystemExit("the extender has ended")
            time.sleep(0.05)
        print(f"ready after {time.perf_counter() - began:.1f} s")
        yield process.pid, port, status
    finally:
        process.terminate()
        process.wait()


def is_ready(port: int) -> bool:
    try:
        return Asking(port).get("/readyz")[0] == 200
    except OSError:
        return False


def memory(pid: int) -> str:
    """MiB now, and the maximum so far (proc(5))."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    now, most = (int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return f"{now:.0f} MiB, at most {most:.0f} MiB"


def processor_ms(pid: int) -> float:
    """The processor time of the process so far (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def show(name: str, found: list[float]) -> None:
    if found:
        ordered = sorted(found)
        p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
        print(
            f"{name:28} p50 {p50:8.2f} ms   p99 {p99:8.2f} ms   max {ordered[-1]:8.2f} ms   n {len(ordered)}"
        )


def api_seconds(status: int) -> tuple[float, int]:
    """The API server's time for all Bindings so far, and their number."""
    text = Asking(status).get("/metrics")[1]
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    name = "xpu_extender_api_bind_seconds"
    return float(values[f"{name}_sum"]), int(float(values[f"{name}_count"]))


def schedule(api: int, spent_by_api: Any, port: int, names: list[str], rounds: int) -> None:
    """Pods come one after the other, and are scheduled."""
    verbs = "first filter", "filter", "prioritize", "bind", "bind, without the API's own"
    times: dict[str, list[float]] = {name: [] for name in verbs}
    kube, scheduler = Asking(api), Asking(port)
    for number in range(rounds):
        form = FORMS[number % len(FORMS)]
        made = pod(f"new-{uuid.uuid4()}", *(container(f"c{n}", **amounts) for n, amounts in enumerate(form)))
        kube.post("/api/v1/namespaces/default/pods", made)
        args = {"Pod": made, "NodeNames": names}
        spent, fitting = scheduler.post("/filter", args)
        times["first filter" if number < len(FORMS) else "filter"].append(spent)
        if not fitting["NodeNames"]:
            continue
        spent, scores = scheduler.post("/prioritize", {"Pod": made, "NodeNames": fitting["NodeNames"]})
        times["prioritize"].append(spent)
        best = max(scores, key=lambda each: each["Score"])["Host"]
        spent, done = scheduler.post("/bind", binding(made, best))
        times["bind"].append(spent)
        if done["Error"]:
            raise SystemExit(done["Error"])
        times["bind, without the API's own"].append(spent - spent_by_api.get())
    for name, found in times.items():
        show(name, found)


def binding(made: Json, node_name: str) -> Json:
    metadata = made["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node_name,
    }


def at_once(api: int, port: int, names: list[str]) -> None:
    """That many binds at the same time, as kube-scheduler makes them."""
    made = [pod(f"new-{uuid.uuid4()}", mem=1) for _ in range(CONCURRENT)]
    kube = Asking(api)
    names = Asking(port).post("/filter", {"Pod": made[0], "NodeNames": names})[1]["NodeNames"][::-1]
    for each in made:
        kube.post("/api/v1/namespaces/default/pods", each)

    def bind(number: int) -> float:
        spent, done = Asking(port).post("/bind", binding(made[number], names[number % len(names)]))
        if done["Error"]:
            raise SystemExit(done["Error"])
        return spent

    with ThreadPoolExecutor(CONCURRENT) as pool:
        show(f"bind, {CONCURRENT} at once", list(pool.map(bind, range(CONCURRENT))))


def gang(api: int, port: int, names: list[str], count: int) -> None:
    """A group of that many members: kube-scheduler filters all, and then binds them."""
    group = {"scheduling.x-k8s.io/pod-group": "gang"}
    members = [pod(f"member-{uuid.uuid4()}", mem=4, cores=20) for _ in range(count)]
    kube, scheduler = Asking(api), Asking(port)
    for each in members:
        each["metadata"]["labels"] = group
        kube.post("/api/v1/namespaces/default/pods", each)
    filters, binds, nodes = [], [], []
    for each in members:
        spent, fitting = scheduler.post("/filter", {"Pod": each, "NodeNames": names})
        filters.append(spent)
        nodes += fitting["NodeNames"]
    if len(nodes) != count:
        raise SystemExit(f"{len(nodes)} of {count} members have a place")
    for each, node_name in zip(members, nodes, strict=True):
        spent, done = scheduler.post("/bind", binding(each, node_name))
        binds.append(spent)
        if done["Error"]:
            raise SystemExit(done["Error"])
    show("filter of a group's pod", filters)
    print(f"{'all of them':28} {sum(filters) / 1000:12.2f} s")
    show("bind of a group's pod", binds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--gang", type=int, default=1000)
    options = parser.parse_args()
    names = [f"node-{n:05d}" for n in range(options.nodes)]
    print(f"{options.nodes} nodes with {DEVICES} devices each, {options.pods} pods")
    with (
        tempfile.TemporaryDirectory() as folder,
        api_server(options.nodes, options.pods) as (api, spent_by_api),
        extender(api, Path(folder)) as (pid, port, status),
    ):
        print(f"memory of the extender: {memory(pid)}")
        before = processor_ms(pid)
        schedule(api, spent_by_api, port, names, options.rounds)
        spent = (processor_ms(pid) - before) / options.rounds
        print(f"{'of a processor, for a pod':28} mean {spent:7.2f} ms")
        seconds, count = api_seconds(status)
        print(f"{'of bind, asking the API':28} mean {seconds / max(count, 1) * 1000:7.2f} ms")
        at_once(api, port, names)
        gang(api, port, names, options.gang)
        print(f"memory of the extender: {memory(pid)}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", "src")
    main()
