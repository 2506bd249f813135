"""Odd specs that runc takes: a container that asks for nothing starts as with runc alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from ..conftest import Bundles, Node
from ..refusals import refused

#: Makes the launcher call the shim, and asks for nothing.
_SAY = ["echo", "XPU_", "hello"]
_SAID = "XPU_ hello\n"


def padded(text: str) -> str:
    """The spec with 17 MiB of an annotation."""
    return text.replace('"annotations": {', '"annotations": {"padding": "' + "x" * (17 << 20) + '", ')


def nested(text: str) -> str:
    """The spec with a member that runc does not know, nested almost as deep as Go's decoder takes it."""
    return text[:-1] + ', "deep": ' + "[" * 9000 + "]" * 9000 + "}"


def with_annotations(spec: dict[str, Any]) -> None:
    spec["annotations"] = {"a": "b"}


@pytest.mark.parametrize("change", [padded, nested])
def test_a_spec_that_we_cannot_read_whole_starts_where_it_asks_for_nothing(
    node: Node, bundles: Bundles, change: Callable[[str], str]
) -> None:
    bundle = bundles(args=_SAY, change=with_annotations)
    config = bundle / "config.json"
    config.write_text(change(config.read_text()))
    before = config.read_bytes()
    done = node.run(bundle)
    assert (done.returncode, done.stdout, done.stderr) == (0, _SAID, "")
    assert config.read_bytes() == before


@pytest.mark.parametrize("change", [padded, nested])
def test_an_engines_hook_lets_such_a_container_start_too(
    node: Node, bundles: Bundles, change: Callable[[str], str]
) -> None:
    def hooked(spec: dict[str, Any]) -> None:
        with_annotations(spec)
        hook = {"path": str(node.hook), "args": [node.hook.name, "createRuntime"]}
        spec["hooks"] = {"createRuntime": [{**hook, "env": [f"XPU_RUN_DIR={node.run_dir}"]}]}

    bundle = bundles(args=_SAY, change=hooked)
    config = bundle / "config.json"
    config.write_text(change(config.read_text()))
    done = node.run_by_runc(bundle)
    assert (done.returncode, done.stdout, done.stderr) == (0, _SAID, "")


def test_a_spec_that_is_too_large_and_asks_is_refused_in_plain_words(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    for asks in ("env", "annotation"):
        bundle = bundles(*["XPU_MEM=1G"] * (asks == "env"), change=with_annotations)
        config = bundle / "config.json"
        text = padded(config.read_text())
        if asks == "annotation":
            text = text.replace('"a": "b"', '"yoyoworks.com/xpu-mem": "1G"')
        config.write_text(text)
        told = refused(node, bundle)
        assert "config.json: more than 16777216 bytes: give the container a shorter command" in told


def test_a_spec_that_our_part_makes_too_large_is_refused_and_stays(
    node: Node, bundles: Bundles, mode: str
) -> None:
    bundle = bundles("XPU_MEM=1G", change=with_annotations)
    config = bundle / "config.json"
    text = config.read_text()
    filled = text.replace('"a": "b"', '"a": "' + "b" * ((16 << 20) - len(text.encode())) + '"')
    config.write_text(filled)
    for _ in range(2):
        told = refused(node, bundle)
        assert "config.json would have 167" in told and "give the container a shorter command" in told
        assert config.read_text() == filled
    assert node.grants() == []
    config.write_text(text)
    assert node.run(bundle).returncode == 0


def test_a_large_spec_of_letters_beyond_ascii_is_not_too_large(
    node: Node, bundles: Bundles, mode: str
) -> None:
    bundle = bundles("XPU_MEM=1G", change=with_annotations)
    config = bundle / "config.json"
    config.write_text(config.read_text().replace('"a": "b"', '"a": "' + "é" * (6 << 20) + '"'))
    for _ in range(2):
        done = node.run(bundle)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("through", ["launcher", "shim"])
def test_a_spec_that_comes_through_a_fifo_is_runc_s_alone(node: Node, bundles: Bundles, through: str) -> None:
    bundle = bundles(args=_SAY)
    config = bundle / "config.json"
    text = config.read_text()
    config.unlink()
    os.mkfifo(config)
    if through == "shim":  # which sees every container while the configuration is not compiled
        node.configure("mode: auto\n")
    with subprocess.Popen(["sh", "-c", 'printf %s "$1" > "$0"', config, text]) as writer:
        try:
            done = node.run(bundle)
            assert (done.returncode, done.stdout, done.stderr) == (0, _SAID, "")
            assert writer.wait(60) == 0
        finally:
            writer.kill()  # it waits for a reader if nobody has opened the FIFO


@pytest.mark.parametrize("odd", ["trailing bytes", "no UTF-8", "a large state"])
def test_specs_that_runc_accepts_are_accepted_with_a_slice_too(
    node: Node, bundles: Bundles, mode: str, odd: str
) -> None:

    def grow(spec: dict[str, Any]) -> None:
        spec["annotations"] = {"a": "<" * (1 << 20)} if odd == "a large state" else {"a": "PLACE"}

    bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"], change=grow)
    config = bundle / "config.json"
    data = config.read_bytes()
    if odd == "trailing bytes":
        data += b"\n}} trailing \xff"
    elif odd == "no UTF-8":
        data = data.replace(b"PLACE", b"a\xff\xc3\x28 \xe2\x82\xac \xf0\x9f\x98\x80")
    config.write_bytes(data)
    done = node.run(bundle)
    assert (done.returncode, done.stdout) == (0, "device 0: 1024 MiB free of 1024 MiB\n"), done.stderr
    if odd == "no UTF-8":
        assert b"a\xff\xc3\x28 \xe2\x82\xac \xf0\x9f\x98\x80" in config.read_bytes()
    assert node.grants() == []


def test_bytes_that_are_no_utf8_in_a_variable_of_ours_are_refused(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1GPLACE")
    config = bundle / "config.json"
    config.write_bytes(config.read_bytes().replace(b"PLACE", b"\xff"))
    assert "XPU_MEM" in refused(node, bundle)
