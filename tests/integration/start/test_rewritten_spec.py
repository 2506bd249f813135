"""A bundle's config.json over its life: a tool's edits count, ours go, the file stays the same one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime.oci import spec as oci_spec

from ..conftest import Node
from ..refusals import refused

Bundles = Callable[..., Path]
MODES = pytest.mark.parametrize("mode", ["hook", "spec"])

_INFO = "device 0: 1024 MiB free of 1024 MiB\n"


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edits the spec as a tool does: reads, changes and writes it in another form."""
    config = bundle / "config.json"
    spec = json.loads(config.read_text())
    change(spec)
    config.write_text(json.dumps(spec, indent=4, sort_keys=True))


def say(text: str) -> Callable[[dict[str, Any]], object]:
    return lambda spec: spec["process"].update(args=["sh", "-c", f"echo {text}; cuda-probe info"])


def ours(bundle: Path) -> list[str]:
    """The parts of the spec that spec mode adds."""
    spec = json.loads((bundle / "config.json").read_text())
    found = [mount["destination"] for mount in spec["mounts"]]
    found += [device["path"] for device in spec["linux"].get("devices", [])]
    found += [str(rule.get("major")) for rule in spec["linux"]["resources"]["devices"]]
    found += [hook["path"] for stage in spec.get("hooks", {}).values() for hook in stage]
    return found


@MODES
def test_a_tools_edit_between_two_creates_counts_and_keeps_nothing_of_the_first_grant(
    node: Node, bundles: Bundles, mode: str
) -> None:
    node.configure(f"mode: {mode}")
    node.sim("2xT4")
    bundle = bundles("XPU_MEM=1G", "XPU_VISIBLE_DEVICES=0", args=["cuda-probe", "info"])
    before = ours(bundle)
    assert node.run(bundle).stdout == _INFO
    first = ours(bundle)
    for text in ("edited", "again"):
        edit(bundle, say(text))
        done = node.run(bundle)
        assert (done.returncode, done.stdout) == (0, f"{text}\n{_INFO}"), done.stderr
        assert sorted(ours(bundle)) == sorted(first)

    def other_card(spec: dict[str, Any]) -> None:
        spec["process"].update(
            args=["sh", "-c", "ls /dev"], env=["PATH=/bin", "XPU_MEM=2G", "XPU_VISIBLE_DEVICES=1"]
        )
        spec["mounts"].append({"destination": "/tool", "type": "tmpfs", "source": "tmpfs"})

    edit(bundle, other_card)
    listed = node.run(bundle).stdout.split()
    assert "nvidia1" in listed
    assert "nvidia0" not in listed
    assert "/tool" in ours(bundle)

    edit(bundle, lambda spec: spec["process"].update(env=["PATH=/bin"]))
    done = node.run(bundle)
    assert "nvidia" not in done.stdout
    assert done.returncode == 0
    if mode == "spec":
        assert sorted(ours(bundle)) == sorted([*before, "/tool"])
        assert sorted(path.name for path in bundle.iterdir()) == ["config.json", "rootfs"]
    assert node.grants() == []


def test_without_our_hooks_the_devices_of_the_grant_go_as_well(node: Node, bundles: Bundles) -> None:
    node.configure("mode: spec")
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G", args=["sh", "-c", "ls /dev"])
    before = ours(bundle)
    assert "nvidia0" in node.run(bundle).stdout

    def forget_the_xpu(spec: dict[str, Any]) -> None:
        del spec["hooks"]
        spec["process"]["env"] = ["PATH=/bin"]

    edit(bundle, forget_the_xpu)
    assert "nvidia" not in node.run(bundle).stdout
    assert sorted(ours(bundle)) == sorted(before)


def test_a_copy_of_an_edited_spec_is_refused_in_plain_words(node: Node, bundles: Bundles) -> None:
    node.configure("mode: spec")
    node.sim("1xT4")
    first, second = bundles("XPU_MEM=1G"), bundles("XPU_MEM=1G")
    assert node.run(first).returncode == 0
    (second / "config.json").write_bytes((first / "config.json").read_bytes())
    assert "contains the devices of an earlier start" in refused(node, second)
    assert node.run(first).returncode == 0


def test_a_spec_with_an_edit_that_cannot_be_taken_back_is_refused(node: Node, bundles: Bundles) -> None:
    """It asks for nothing any more, and would start with the devices of the grant before."""
    node.configure("mode: spec")
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G")
    assert node.run(bundle).returncode == 0

    def too_large(spec: dict[str, Any]) -> None:
        spec["process"]["env"] = ["PATH=/bin"]
        spec["annotations"] = {"padding": "x" * (17 << 20)}

    edit(bundle, too_large)
    assert "cannot take back the last edit of" in refused(node, bundle)


class ConfigFile:
    """A config.json of an odd kind; `holds` fails the test where it is no longer of that kind."""

    def __init__(self, bundle: Path) -> None:
        self.path = bundle / "config.json"
        self.other = bundle.parent / f"{bundle.name}.elsewhere"
        os.chown(self.path, 1234, 4321)
        self.path.chmod(0o640)
        os.setxattr(self.path, "user.note", b"an operator's")

    def holds(self) -> None:
        there = self.path.stat()
        assert (there.st_uid, there.st_gid, stat.S_IMODE(there.st_mode)) == (1234, 4321, 0o640)
        assert os.getxattr(self.path, "user.note") == b"an operator's"

    def end(self) -> None:
        self.other.unlink(missing_ok=True)


class Plain(ConfigFile):
    pass


class Linked(ConfigFile):
    def __init__(self, bundle: Path) -> None:
        super().__init__(bundle)
        self.path.rename(self.other)
        self.path.symlink_to(f"../{self.other.name}")

    def holds(self) -> None:
        super().holds()
        assert os.readlink(self.path) == f"../{self.other.name}"


class HardLinked(ConfigFile):
    def __init__(self, bundle: Path) -> None:
        super().__init__(bundle)
        os.link(self.path, self.other)

    def holds(self) -> None:
        super().holds()
        assert self.path.samefile(self.other)


class BindMounted(ConfigFile):
    def __init__(self, bundle: Path) -> None:
        super().__init__(bundle)
        self.path.rename(self.other)
        self.path.touch()
        subprocess.run(["mount", "--bind", self.other, self.path], check=True)

    def holds(self) -> None:
        super().holds()
        assert f" {self.path} " in Path("/proc/self/mountinfo").read_text()
        assert self.path.read_bytes() == self.other.read_bytes()

    def end(self) -> None:
        subprocess.run(["umount", self.path], check=True)
        super().end()


@pytest.fixture
def config_files() -> Iterator[list[ConfigFile]]:
    made: list[ConfigFile] = []
    yield made
    for each in made:
        each.end()


@pytest.mark.parametrize("kind", [Plain, Linked, HardLinked, BindMounted])
def test_a_config_file_that_is_rewritten_stays_what_it_is(
    node: Node,
    bundles: Bundles,
    config_files: list[ConfigFile],
    kind: type[ConfigFile],
    mode: str,
) -> None:
    bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"])
    there = kind(bundle)
    config_files.append(there)
    for _ in range(2):
        done = node.run(bundle)
        assert (done.returncode, done.stdout) == (0, _INFO), done.stderr
        there.holds()
    edit(bundle, say("edited"))
    assert node.run(bundle).stdout == f"edited\n{_INFO}"
    there.holds()
    edit(bundle, lambda spec: spec["process"].update(args=["ls", "/dev"], env=["PATH=/bin"]))
    assert "nvidia" not in node.run(bundle).stdout
    there.holds()
    assert sorted(path.name for path in bundle.iterdir()) == ["config.json", "rootfs"]


@pytest.mark.parametrize(
    ("content", "written"),
    # Ours, and the engine's, which is put back.
    [
        ("config.json", 0),
        ("config.json", 1),
        ("config.json", 100),
        ("config.json", -1),
        (oci_spec.ORIGINAL, 100),
    ],
)
def test_a_write_in_place_that_was_cut_short_is_put_right_by_the_next_create(
    node: Node, bundles: Bundles, config_files: list[ConfigFile], content: str, written: int
) -> None:
    node.configure("mode: spec")
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"])
    there = HardLinked(bundle)
    config_files.append(there)
    assert node.run(bundle).stdout == _INFO
    (bundle / "config.json").write_bytes((bundle / content).read_bytes()[:written])
    done = node.run(bundle)
    assert (done.returncode, done.stdout) == (0, _INFO), done.stderr
    there.holds()
