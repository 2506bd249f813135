"""The chart as helm renders it, and the API's schemas of each release.

helm is the real one, and the schemas are the API's own (packaging/kubernetes/tools.py fetches both).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import jsonschema
import yaml

from support import REPOSITORY

MANIFESTS = REPOSITORY / "packaging" / "kubernetes"
TOOLS = REPOSITORY / "build" / "kubernetes-tools"
RELEASES = [f"1.{minor}" for minor in range(28, 38)]
#: The variants of docs/kubernetes.md.
VALUES = {
    "default": [],
    "aliyun": ["kubernetes.aliases={aliyun.com/gpu}"],
    "without-extender": ["extender.enabled=false", "kubernetes.placement=node"],
    "second-scheduler": ["scheduler.enabled=true"],
}
#: The tests' name for the registry with our image; no server answers to it.
NOWHERE = "registry.invalid/xpu-kubernetes"
SCHEDULERS = "registry.k8s.io/kube-scheduler"
#: A kind that is newer than the oldest release, and the first release with it.
_NEW = {("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"): 30,
       ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"): 30}  # fmt: skip
#: APIs that are not the API server's own: the Prometheus operator's.
_FOREIGN = {"monitoring.coreos.com/v1"}

Document = dict[str, Any]


def run(program: str, *arguments: str) -> str:
    done = subprocess.run([TOOLS / "bin" / program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(text) if document]


def rendered(*values: str, hooks: bool = False, release: str = RELEASES[-1]) -> list[Document]:
    sets = [word for value in values for word in ("--set", value)]
    options = ["--kube-version", release, "--set", f"image.repository={NOWHERE}"]
    options += [] if hooks else ["--no-hooks"]
    return documents(
        run("helm", "template", "xpu", str(MANIFESTS / "chart"), "-n", "xpu-system", *options, *sets)
    )


def uninstalling() -> list[Document]:
    """The manifest that removes the runtime from nodes that were off when everything else was removed."""
    return documents((MANIFESTS / "uninstall.yaml").read_text())


class Api:
    """The schemas of one release."""

    def __init__(self, release: str) -> None:
        self._minor = int(release.partition(".")[2])
        self._folder = TOOLS / "schemas" / release
        definitions = json.loads((self._folder / "_definitions.json").read_text())
        self._store = {"/api/_definitions.json": definitions, "file:///api/_definitions.json": definitions}

    def problems(self, document: Document) -> Iterator[str]:
        """The errors in an object; none if this release does not know its kind yet."""
        api, kind = document["apiVersion"], document["kind"]
        if api in _FOREIGN or _NEW.get((api, kind), 0) > self._minor:
            return
        group, _, name = api.rpartition("/")
        file = f"{kind.lower()}-{group.partition('.')[0] + '-' if group else ''}{name}.json"
        schema = json.loads((self._folder / file).read_text())
        resolver = jsonschema.RefResolver("file:///api/", schema, store=self._store)
        for error in jsonschema.Draft202012Validator(schema, resolver=resolver).iter_errors(document):
            yield f"{kind} {document['metadata']['name']}: {'.'.join(map(str, error.path))}: {error.message}"


def key_of(document: Document) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


def images(documents: list[Document]) -> set[str]:
    return {
        container["image"]
        for each in documents
        if each["kind"] in ("DaemonSet", "Deployment", "Job")
        for spec in [each["spec"]["template"]["spec"]]
        for container in [*spec.get("initContainers", ()), *spec["containers"]]
    }


def ours(documents: list[Document]) -> set[str]:
    return {each for each in images(documents) if not each.startswith(f"{SCHEDULERS}:")}


def daemonset(documents: list[Document]) -> Document:
    found: Document = next(
        each for each in documents if key_of(each) == ("DaemonSet", "xpu-system", "xpu-node")
    )
    return found


def pod_specs(everything: list[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
    for _, document in everything:
        if document["kind"] in ("DaemonSet", "Deployment", "Job"):
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]
