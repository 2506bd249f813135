"""A bundle's config.json over its life: a tool's edits count, ours go, the file stays the same one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime.oci import spec as oci_spec

from ..conftest import Bundles, Node, edit_spec
from ..refusals import refused

_INFO = "device 0: 1024 MiB free of 1024 MiB\n"


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edits the spec as a tool does: reads, changes and writes it in another form."""
    edit_spec(bundle, change, indent=4, sort_keys=True)


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


def test_a_tools_edit_between_two_creates_counts_and_keeps_nothing_of_the_first_grant(
    node: Node, bundles: Bundles, any_mode: str
) -> None:
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
    if any_mode == "spec":
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


# A config.json of an odd kind; `elsewhere` is another path for its file.


def plain(config: Path, elsewhere: Path) -> None:
    pass


def linked(config: Path, elsewhere: Path) -> None:
    config.rename(elsewhere)
    config.symlink_to(f"../{elsewhere.name}")


def hard_linked(config: Path, elsewhere: Path) -> None:
    os.link(config, elsewhere)


def is_mounted(file: Path) -> bool:
    return f" {file} " in Path("/proc/self/mountinfo").read_text()


def bind_mounted(config: Path, elsewhere: Path) -> None:
    config.rename(elsewhere)
    config.touch()
    subprocess.run(["mount", "--bind", elsewhere, config], check=True)


@pytest.fixture
def turn_into() -> Iterator[Callable[..., Callable[[], None]]]:
    """`turn_into(KIND, BUNDLE)`; the returned function fails the test where the file is of another kind."""
    configs: list[Path] = []

    def turn(kind: Callable[[Path, Path], None], bundle: Path) -> Callable[[], None]:
        config, elsewhere = bundle / "config.json", bundle.parent / f"{bundle.name}.elsewhere"
        configs.append(config)
        os.chown(config, 1234, 4321)
        config.chmod(0o640)
        os.setxattr(config, "user.note", b"an operator's")
        kind(config, elsewhere)

        def look() -> tuple[object, ...]:
            there = config.stat()
            link = os.readlink(config) if config.is_symlink() else ""
            is_there = elsewhere.exists() and config.samefile(elsewhere)
            owner = there.st_uid, there.st_gid, there.st_mode
            return owner, os.getxattr(config, "user.note"), link, is_there, is_mounted(config)

        before = look()

        def is_still() -> None:
            assert look() == before

        return is_still

    yield turn
    for config in filter(is_mounted, configs):
        subprocess.run(["umount", config], check=True)


@pytest.mark.parametrize("kind", [plain, linked, hard_linked, bind_mounted])
def test_a_config_file_that_is_rewritten_stays_what_it_is(
    node: Node,
    bundles: Bundles,
    turn_into: Callable[..., Callable[[], None]],
    kind: Callable[[Path, Path], None],
    mode: str,
) -> None:
    bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"])
    is_still = turn_into(kind, bundle)
    for _ in range(2):
        done = node.run(bundle)
        assert (done.returncode, done.stdout) == (0, _INFO), done.stderr
        is_still()
    edit(bundle, say("edited"))
    assert node.run(bundle).stdout == f"edited\n{_INFO}"
    is_still()
    edit(bundle, lambda spec: spec["process"].update(args=["ls", "/dev"], env=["PATH=/bin"]))
    assert "nvidia" not in node.run(bundle).stdout
    is_still()
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
    node: Node,
    bundles: Bundles,
    turn_into: Callable[..., Callable[[], None]],
    content: str,
    written: int,
) -> None:
    node.configure("mode: spec")
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"])
    is_still = turn_into(hard_linked, bundle)
    assert node.run(bundle).stdout == _INFO
    (bundle / "config.json").write_bytes((bundle / content).read_bytes()[:written])
    done = node.run(bundle)
    assert (done.returncode, done.stdout) == (0, _INFO), done.stderr
    is_still()
