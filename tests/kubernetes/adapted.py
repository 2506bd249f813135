"""The objects of the manifests, adapted for what the tests' cluster lacks: a network of pods (they use the
machine's), addresses of services, a systemd, and policy/v1. Helm runs this file as its post-renderer.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

OUR_NAME = "docker.io/library/xpu-kubernetes"


@dataclass(frozen=True)
class Adaptation:
    """What a cluster has in the place of what it lacks."""

    #: The API server's.
    api_port: int
    #: A process in the node's mount namespace; the DaemonSet's pods take it for the node's first one.
    init: int
    #: A free one for each port of the manifests: pods share the machine's.
    ports: dict[str, str]

    def objects(self, text: str) -> str:
        """All objects of a manifest."""
        adapted: str = yaml.safe_dump_all(self._object(each) for each in yaml.safe_load_all(text) if each)
        return adapted

    def _object(self, thing: dict[str, Any]) -> dict[str, Any]:
        if thing["kind"] == "PodDisruptionBudget":
            return {**thing, "apiVersion": "policy/v1beta1"}
        if thing["kind"] not in ("DaemonSet", "Deployment", "Job"):
            return thing
        text = json.dumps(thing)
        for theirs, ours in self.ports.items():
            text = text.replace(theirs, ours)
        found: dict[str, Any] = json.loads(text)
        if "replicas" in found["spec"]:
            found["spec"]["replicas"] = 1
        spec = found["spec"]["template"]["spec"]
        spec["hostNetwork"] = True
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            container["image"] = f"{OUR_NAME}:{container['image'].rpartition(':')[2]}"
            env = {each["name"]: each for each in container.get("env", ())}
            env["KUBERNETES_SERVICE_HOST"] = {"value": "127.0.0.1"}
            env["KUBERNETES_SERVICE_PORT"] = {"value": str(self.api_port)}
            if "CONTAINERD_UNIT" in env:
                env["CONTAINERD_UNIT"]["value"] = ""  # only the test restarts containerd
            container["env"] = [{**each, "name": name} for name, each in env.items()]
            command = container["command"]
            if container["securityContext"].get("privileged"):
                command[3:3] = ["--init", str(self.init)]
        return found

    def write_plugin(self, folder: Path) -> None:
        """Writes Helm's plugin `adapted`, which is this file with these facts."""
        folder.mkdir(parents=True)
        command = {"command": sys.executable, "args": [__file__, json.dumps(asdict(self))]}
        plugin = {
            "apiVersion": "v1",
            "type": "postrenderer/v1",
            "name": "adapted",
            "version": "0.1.0",
            "runtime": "subprocess",
            "runtimeConfig": {"platformCommand": [command]},
        }
        (folder / "plugin.yaml").write_text(json.dumps(plugin))


if __name__ == "__main__":
    print(Adaptation(**json.loads(sys.argv[1])).objects(sys.stdin.read()))
