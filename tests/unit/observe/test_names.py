"""Names of containers: those in engines' files; and no more are remembered than are needed, even in a long
watch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from xpu_runtime.ledger.grants import Grant
from xpu_runtime.linux import deadline
from xpu_runtime.observe import names
from xpu_runtime.oci import engine_name


def test_a_long_watch_remembers_only_the_latest_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_REMEMBERED", 10)

    def together(calls: list[object], _: float) -> list[deadline.Answer]:
        """A bundle's name is asked of containerd, all others of docker."""
        return [deadline.Answer(tuple(_named(number))), deadline.Answer(((f"{number:064x}", f"d{number}"),))]

    monkeypatch.setattr(deadline, "together", together)
    known = names.Names()
    for number in range(100):
        known.learn([_grant(number)], [f"{number:064x}"])
    assert [known.of_id(f"{number:064x}") for number in (89, 90, 99)] == [None, "d90", "d99"]
    assert [known.of(_grant(number)) for number in (89, 90, 99)] == [None, "k8s.io/90", "k8s.io/99"]
    sizes = [len(each) for each in vars(known).values() if isinstance(each, dict)]
    assert max(sizes) == 10 and len(sizes) == 4


def _grant(number: int) -> Grant:
    return Grant(number, f"c{number}", f"/bundle/{number}", 1, 1, "", "running", "hook", 0.0, ())


def _named(number: int) -> Iterator[tuple[str, str]]:
    yield f"/bundle/{number}", f"k8s.io/{number}"


ID = "4f1c" * 16
OF_POD = {
    "io.kubernetes.pod.namespace": "ml",
    "io.kubernetes.pod.name": "trainer-0",
    "io.kubernetes.container.name": "cuda",
}


@pytest.mark.parametrize(
    ("stored", "annotations", "name"),
    [
        # podman, as containers/storage writes it; the second container's metadata says what the first's does.
        ({"containers.json": [(ID, "web")]}, {}, "web"),
        ({"containers.json": [("0" * 64, "other")], "volatile-containers.json": [(ID, "web")]}, {}, "web"),
        ({"containers.json": [("0" * 64, f'x","id":"{ID}","names":["mine')]}, {}, ""),
        ({"containers.json": [(ID, "a\nb")]}, {}, ""),
        ({}, {}, ""),
        # cri-o's bundles are in another folder than that file.
        ({}, {**OF_POD, "io.container.manager": "cri-o"}, "ml/trainer-0/cuda"),
        ({}, {**OF_POD, "io.container.manager": "libpod"}, ""),
    ],
)
def test_a_container_of_podman_or_cri_o_is_called_as_its_engine_calls_it(
    tmp_path: Path, stored: dict[str, list[tuple[str, str]]], annotations: dict[str, str], name: str
) -> None:
    folder = tmp_path / "overlay-containers"
    bundle = folder / ID / "userdata"
    bundle.mkdir(parents=True)
    for file, entries in stored.items():
        told = [{"id": each, "names": [called], "metadata": json.dumps(called)} for each, called in entries]
        (folder / file).write_text(json.dumps(told, separators=(",", ":")))
    assert engine_name.of(str(bundle), ID, {"annotations": annotations}) == name
    assert engine_name.of(str(bundle), ID[:-1], {"annotations": annotations}) == ""


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("moby", "web"), ("moby-200000.200000", "web"), ("moby-lab", f"moby-lab/{ID}")],
)
def test_a_container_of_docker_has_its_name_also_where_docker_remaps_users(
    tmp_path: Path, namespace: str, name: str
) -> None:
    record = tmp_path / "containers" / ID / engine_name.DOCKERS_FILE
    record.parent.mkdir(parents=True)
    record.write_text('{"Name": "/web"}')
    bundle = f"/run/c/io.containerd.runtime.v2.task/{namespace}/{ID}"
    spec = {"root": {"path": str(tmp_path / "overlay2" / "layer" / "merged")}}
    assert engine_name.of(bundle, ID, spec) == name
