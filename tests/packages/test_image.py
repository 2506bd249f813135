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

from support.kubernetes_api import ApiServer
from support.packages import make_image
from xpu_runtime.kubernetes.node_annotation import ANNOTATION, NodeAnnotation, write

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
    cluster = {"name": "c", "cluster": {"server": api_server.url}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "any"}}
    kubeconfig = {"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "c"}
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))

    done = _run(
        tmp_path,
        *(entrypoint, "kubernetes", "status", "--kubeconfig=/kubeconfig", "--json"),
        mounts={"/kubeconfig": tmp_path / "kubeconfig"},
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


def test_the_same_package_gives_the_same_bytes(
    kubernetes_image: Path, debs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    before = os.umask(0o077)
    try:
        make_image(debs[0], tmp_path / "again.tar", tmp_path / "work")
    finally:
        os.umask(before)

    assert (
        hashlib.sha256((tmp_path / "again.tar").read_bytes()).digest()
        == hashlib.sha256(kubernetes_image.read_bytes()).digest()
    )
