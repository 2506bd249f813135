"""The image for Kubernetes: equal bytes of two builds, both image formats, and all our programs run in it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from distributions.root import Root
from distributions.ways import Docker, Way
from support import REPOSITORY, pages
from support.kubernetes_api import ApiServer
from xpu_runtime import version
from xpu_runtime.kubernetes.node_annotation import ANNOTATION, NodeAnnotation, write

from .building import commit, copy_tree

pytestmark = pytest.mark.timeout(900)

_ENGINE = ("busybox-static", "docker-registry", "docker.io", "runc")
#: Without the password that the package's own configuration asks for.
_REGISTRY = """version: 0.1
storage: {filesystem: {rootdirectory: /run/registry}}
http: {addr: ":5000"}
"""
_MIB = 1 << 20
#: Imports all our modules and their dependencies of the extra, with the image's own Python.
_IMPORTS = """
import importlib, pkgutil, sys
sys.path[:0] = [f"/opt/xpu/lib/xpu-container-runtime/{name}" for name in ("python", "vendor")]
import xpu_runtime
for each in pkgutil.walk_packages(xpu_runtime.__path__, "xpu_runtime."):
    importlib.import_module(each.name)
import grpc, prometheus_client, sqlite3, ssl
"""


@pytest.fixture(scope="module")
def blobs(kubernetes_image: Path) -> dict[str, bytes]:
    """The files of the archive."""
    with tarfile.open(kubernetes_image) as archive:
        return {each.name: _read(archive, each) for each in archive}


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


@pytest.fixture(scope="module")
def layer(blobs: dict[str, bytes]) -> tarfile.TarFile:
    (path,) = json.loads(blobs["manifest.json"])[0]["Layers"]
    return tarfile.open(fileobj=io.BytesIO(blobs[path]), mode="r:gz")


def test_each_blobs_name_is_its_digest_and_both_formats_name_the_same_blobs(blobs: dict[str, bytes]) -> None:
    for name, data in blobs.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(data).hexdigest() == name.rpartition("/")[2]
    (entry,) = json.loads(blobs["index.json"])["manifests"]
    manifest: dict[str, Any] = json.loads(blobs[f"blobs/sha256/{entry['digest'][7:]}"])
    (docker,) = json.loads(blobs["manifest.json"])
    assert docker["Config"].rpartition("/")[2] == manifest["config"]["digest"][7:]
    assert [each.rpartition("/")[2] for each in docker["Layers"]] == [
        each["digest"][7:] for each in manifest["layers"]
    ]
    config = json.loads(blobs[docker["Config"]])
    assert config["config"]["User"] == "65532:65532"


def test_the_image_has_our_folder_and_almost_nothing_else(
    layer: tarfile.TarFile, blobs: dict[str, bytes]
) -> None:
    files = [each for each in layer if not each.isdir()]
    elsewhere = {each.name for each in files if not each.name.startswith("opt/xpu/")}

    assert elsewhere == {"etc/passwd", "etc/group", "etc/nsswitch.conf"}
    assert not [each.name for each in layer if each.mode & 0o6000 or each.uid or each.gid]
    assert sum(map(len, blobs.values())) < 26 * _MIB


def test_our_programs_run_in_the_image_as_nobody_on_a_read_only_root(
    blobs: dict[str, bytes], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (path,) = json.loads(blobs["manifest.json"])[0]["Layers"]
    subprocess.run(["tar", "-C", root, "-xz"], input=blobs[path], check=True)

    done = _run(tmp_path, "/opt/xpu/python/bin/python3", "-ISBc", _IMPORTS)
    assert done.returncode == 0, done.stdout + done.stderr
    done = _run(tmp_path, "/opt/xpu/bin/xpu", "kubernetes", "--help")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "device-plugin" in done.stdout


def test_the_image_can_show_the_clusters_state(
    blobs: dict[str, bytes], api_server: ApiServer, tmp_path: Path
) -> None:
    (tmp_path / "root").mkdir()
    (docker,) = json.loads(blobs["manifest.json"])
    subprocess.run(["tar", "-C", tmp_path / "root", "-xz"], input=blobs[docker["Layers"][0]], check=True)
    (entrypoint,) = json.loads(blobs[docker["Config"]])["config"]["Entrypoint"]
    annotation = NodeAnnotation("615.00", "extender", (), {})
    api_server.put("/api/v1/nodes/n1", {"metadata": {"annotations": {ANNOTATION: write(annotation)}}})
    kubeconfig = api_server.kubeconfig(tmp_path / "kubeconfig")

    done = _run(
        tmp_path,
        *(entrypoint, "kubernetes", "status", "--kubeconfig=/kubeconfig", "--json"),
        mounts={"/kubeconfig": kubeconfig},
        on_host_network=True,
    )

    assert entrypoint == "/opt/xpu/bin/xpu"  # the page's kubectl exec has this path
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each["name"] for each in json.loads(done.stdout)["nodes"]] == ["n1"]


def _run(
    folder: Path,
    *command: str,
    mounts: Mapping[str, Path] | None = None,
    on_host_network: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs a command in folder/root by runc, as the extender runs: without rights, with a read-only root."""
    (folder / "config.json").unlink(missing_ok=True)
    subprocess.run(["runc", "spec"], cwd=folder, check=True)
    spec = json.loads((folder / "config.json").read_text())
    user = {"uid": 65532, "gid": 65532}
    spec["process"] |= {"terminal": False, "args": list(command), "user": user, "capabilities": {}}
    spec["root"] = {"path": "root", "readonly": True}
    for inside, file in (mounts or {}).items():
        (folder / "root" / inside.lstrip("/")).touch()
        mount = {"destination": inside, "source": str(file), "type": "bind", "options": ["bind", "ro"]}
        spec["mounts"].append(mount)
    if on_host_network:
        namespaces = spec["linux"]["namespaces"]
        spec["linux"]["namespaces"] = [each for each in namespaces if each["type"] != "network"]
    name = f"xpu-image-{uuid.uuid4().hex[:8]}"
    spec["linux"]["cgroupsPath"] = f"/{name}"
    (folder / "config.json").write_text(json.dumps(spec))
    runc = ["runc", "--root", str(folder / "state"), "run", "--bundle", str(folder), name]
    return subprocess.run(runc, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


class Reader(Docker):
    """A reader who makes the image in a clone here, and has docker and a registry on another machine."""

    REGISTRY = "localhost:5000"

    def __init__(self, machine: Root, clone: Path) -> None:
        Way.__init__(self, machine)
        self._clone = clone
        self._done("busybox", "ip", "link", "set", "lo", "up")
        self.serve()
        machine.path("/run/registry.yml").write_text(_REGISTRY)
        answers = ["busybox", "wget", "-qO-", f"http://{self.REGISTRY}/v2/"]
        self._serve("docker-registry serve /run/registry.yml", answers)

    def says(self, command: str) -> str:
        if command.startswith("make "):
            # In another time zone and under another umask than the tests' image was made.
            environ = {**os.environ, **commit(), "TZ": "Asia/Kathmandu"}
            done = subprocess.run(
                command.split(), cwd=self._clone, env=environ, umask=0o077, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout
        return self._done("sh", "-c", command.replace("REGISTRY", self.REGISTRY)).stdout


def test_the_tutorials_image_is_the_same_bytes_and_gets_into_a_registry(
    kubernetes_image: Path, tmp_path: Path
) -> None:
    copy_tree(tmp_path)
    (tmp_path / "build/venv").symlink_to(REPOSITORY / "build/venv")
    (tmp_path / "build/venv.stamp").touch()
    (tmp_path / "dist").mkdir()
    binds = [(str(tmp_path / "dist"), "/root/dist")]
    machine = Root("bookworm", packages=_ENGINE, network=False, binds=binds)
    try:
        reader = Reader(machine, tmp_path)
        for step in pages.steps(REPOSITORY / "docs/tutorials/cluster.md", "tests/packages/test_image.py"):
            assert isinstance(step, pages.Command)
            said = reader.says(step.words)
            assert pages.matches(said, step.prints), f"# {step.words}\n{said}"
        tags = machine.run("busybox", "wget", "-qO-", f"http://{Reader.REGISTRY}/v2/xpu-kubernetes/tags/list")
    finally:
        machine.close()

    assert json.loads(tags.stdout)["tags"] == [version.VERSION]
    assert (
        hashlib.sha256((tmp_path / "dist/xpu-kubernetes.tar").read_bytes()).digest()
        == hashlib.sha256(kubernetes_image.read_bytes()).digest()
    )
