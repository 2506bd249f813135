"""Containers' names beside their ids: those of containerd and Kubernetes, also hostile ones.

docker's are in engines/test_names.py.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import GIB

from ..conftest import SLEEP, Bundles, Node

POD = {
    "io.kubernetes.cri.sandbox-namespace": "ml",
    "io.kubernetes.cri.sandbox-name": "trainer-0",
    "io.kubernetes.cri.container-name": "cuda",
}
TASKS = "io.containerd.runtime.v2.task"


@pytest.fixture
def task(node: Node, bundles: Bundles) -> Callable[..., Path]:
    """Makes a bundle where containerd has one: `task("k8s.io", POD)`."""

    def make(
        namespace: str,
        annotations: dict[str, str],
        tasks: str = TASKS,
        variables: tuple[str, ...] = ("XPU_MEM=2G",),
    ) -> Path:
        made = bundles(*variables, args=SLEEP, change=lambda spec: spec.update(annotations=annotations))
        folder = node.folder / "c" / tasks / namespace / made.name
        folder.parent.mkdir(parents=True, exist_ok=True)
        return made.rename(folder)

    return make


def names(node: Node) -> list[str | None]:
    return [entry["name"] for entry in node.json("ps")]


def test_a_pods_container_has_a_name_that_commands_show_and_take(
    node: Node, task: Callable[..., Path]
) -> None:
    node.sim("1xT4-R580")
    container = node.start(task("k8s.io", POD))
    name = "ml/trainer-0/cuda"
    assert names(node) == [name]
    assert name in node.xpu("ps").stdout.splitlines()[1]
    told = node.json("inspect", name)
    assert (told["container_id"], told["name"]) == (container, name)
    assert f"name       {name}" in node.xpu("inspect", container).stdout
    node.xpu("set", name, "--mem", "3G")
    (changed,) = json.loads(node.xpu("set", name, "--mem", "4G", "--json").stdout)
    assert (changed["container_id"], changed["name"], changed["memory_bytes"]) == (container, name, 4 * GIB)
    (device,) = node.json("top", "--interval", "0.1")["devices"]
    assert [each["name"] for each in device["containers"]] == [name]
    assert name in node.xpu("top", "--once", "--interval", "0.1").stdout
    assert [(each["event"], each["name"]) for each in node.events("--container", name)] == [
        ("granted", name), ("resized", name), ("resized", name),
    ]  # fmt: skip
    assert f"  ({name})  " in node.xpu("events").stdout
    assert node.xpu("events", "--container", "ml/trainer-0/other").stdout == ""
    assert f'name="{name}"' in node.xpu("metrics").stdout
    assert f"{container[:12]} ({name}) keeps 4G of it" in node.xpu("drain", "0").stdout
    node.xpu("release", "--force", name)
    assert node.json("ps") == []
    shutil.rmtree(node.folder / "c" / TASKS)
    assert [each["event"] for each in node.events("--container", name)] == [
        "granted",
        *["resized"] * 2,
        "released",
    ]


def test_a_file_system_of_the_users_is_not_looked_at_for_dockers_name(
    node: Node, task: Callable[..., Path], tmp_path: Path
) -> None:
    node.sim("1xT4-R580")
    bundle = task("moby", {})
    others = tmp_path / "containers" / ("a" * 64)
    others.mkdir(parents=True)
    for folder in (others, others.parent / bundle.name):
        folder.mkdir(exist_ok=True)
        (folder / "hostname").write_text("mine")
        os.mkfifo(folder / "config.v2.json")
    spec = json.loads((bundle / "config.json").read_text())
    mount = {"destination": "/etc/hostname", "type": "bind", "options": ["bind"]}
    for folder in (others, others.parent / bundle.name):  # another's; its own, which is no file
        spec["mounts"].append({**mount, "source": str(folder / "hostname")})
        (bundle / "config.json").write_text(json.dumps(spec))
        container = node.start(bundle)
        assert names(node) == [None]
        node.oci("delete", "--force", container)


def test_events_of_two_containers_with_one_id_have_their_own_names(
    node: Node, task: Callable[..., Path]
) -> None:
    node.sim("1xT4-R580")
    first = task("default", {})
    container = node.start(first)
    node.oci("delete", "--force", container)
    second = first.parent.parent / "other" / container
    second.parent.mkdir()
    first.rename(second)
    node.start(second)
    assert [(each["event"], each["name"]) for each in node.events()] == [
        ("granted", f"default/{container}"), ("released", f"default/{container}"),
        ("granted", f"other/{container}"),
    ]  # fmt: skip
    assert len(node.events("--container", f"default/{container}")) == 2


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_a_refused_pods_name_is_in_its_event(node: Node, task: Callable[..., Path], mode: str) -> None:
    node.sim("1xT4-R580")
    node.configure(f"mode: {mode}\n")
    bundle = task("k8s.io", POD, variables=("XPU_MEM=200G",))
    assert node.oci("create", "--bundle", bundle, bundle.name).returncode != 0
    shutil.rmtree(bundle)
    (told,) = node.events("--container", "ml/trainer-0/cuda")
    assert (told["event"], told["container_id"]) == ("refused", bundle.name)


def test_a_container_of_containerd_is_named_by_its_namespace(
    node: Node, task: Callable[..., Path], bundles: Bundles
) -> None:
    node.sim("1xT4-R580")
    plain = node.start(task("default", {}))
    node.start(task("default", {"nerdctl/name": "web"}))
    node.start(task("moby", {"nerdctl/name": "web"}))  # docker's: its files have no such name
    node.start(bundles("XPU_MEM=1G", args=SLEEP))
    assert names(node) == [f"default/{plain}", "default/web", None, None]
    assert node.json("inspect", f"default/{plain}")["container_id"] == plain


def test_a_name_of_several_containers_is_refused_with_their_ids(
    node: Node, task: Callable[..., Path]
) -> None:
    node.sim("1xT4-R580")
    ids = [node.start(task("k8s.io", POD)) for _ in range(2)]
    for command in (["inspect"], ["set", "--mem", "3G"], ["release", "--force"]):
        done = node.xpu(command[0], "ml/trainer-0/cuda", *command[1:], check=False)
        assert done.returncode == 1
        told = f"'ml/trainer-0/cuda' is the name of several containers: {', '.join(sorted(ids))}"
        assert f"{told}: give the id of one" in done.stderr
    assert {entry["memory_bytes"] for entry in node.json("ps")} == {2 * GIB}


@pytest.mark.parametrize("text", ["\x1b[2J\x1b[31mroot\n", "a/b", "x" * 5000, "", "né", "-rf", " "])
def test_a_name_that_no_engine_could_give_is_none(node: Node, task: Callable[..., Path], text: str) -> None:
    node.sim("1xT4-R580")
    pod = node.start(task("k8s.io", {**POD, "io.kubernetes.cri.container-name": text}))
    other = node.start(task("default", {"nerdctl/name": text}))
    assert names(node) == [f"k8s.io/{pod}", f"default/{other}"]
    for command in (["ps"], ["inspect", pod], ["events"], ["top", "--once", "--interval", "0.1"]):
        told = node.xpu(*command).stdout
        assert max(map(len, told.splitlines())) < 400
        assert all(letter.isprintable() or letter == "\n" for letter in told)


def test_names_are_believed_only_where_containerd_writes_them(node: Node, task: Callable[..., Path]) -> None:
    node.sim("1xT4-R580")
    elsewhere = task("k8s.io", POD, tasks="mine")
    in_another_namespace = task("default", POD)
    nested = task("k8s.io", POD)
    hostile: dict[str, Any] = json.loads((nested / "config.json").read_text())
    node.start(elsewhere)
    node.start(in_another_namespace)
    node.start(nested)
    # Changed since: deeper than any parser goes, and then no JSON at all.
    hostile["annotations"] = 0
    deep = json.dumps(hostile).replace('"annotations": 0', '"annotations": ' + "[" * 200_000)
    for text in (deep, "\x00", "[]"):
        (nested / "config.json").write_text(text)
        assert names(node) == [None, f"default/{in_another_namespace.name}", f"k8s.io/{nested.name}"]


def test_an_id_that_is_none_draws_on_no_terminal(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4-R580")
    node.configure("mode: spec\n")
    bundle = bundles("XPU_MEM=2G", args=SLEEP)
    hostile = "x\x1b[2J\x1b]0;me\x07\n" + "y" * 3000
    done = node.oci("create", "--bundle", bundle, hostile)
    assert done.returncode != 0  # runc's own answer; the slice was booked before
    shown = [node.xpu(*words, check=False) for words in (
        ["ps", "--no-trunc"], ["ps", "-q"], ["ps", "--format", "{{.ID}}"], ["events"], ["doctor"],
        ["inspect", "x\x1b"], ["set", "x\x1b[", "--mem", "1G"], ["drain", "0"], ["gc"], ["release", "x\x1b["],
    )]  # fmt: skip
    assert "y" * 3000 in shown[0].stdout
    for each in shown:
        told = each.stdout + each.stderr
        assert all(letter.isprintable() or letter == "\n" for letter in told), each
