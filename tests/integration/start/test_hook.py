"""The hook called as an engine's hooks.d would: a stage, the container's state on standard input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import GIB
from xpu_runtime.linux import proc

from ..conftest import Bundles, Node, state_of
from ..inside import tree


def by_hooks_d(node: Node, stage: str, rename: str = "bundle") -> Callable[[dict[str, Any]], None]:
    """Puts the hook into a spec as an engine's hooks.d does, `rename` being how it spells `bundle`."""
    words = [str(node.hook), stage]
    stop = [str(node.hook), "poststop"]
    environ = [f"{name}={node.environ[name]}" for name in ("XPU_RUN_DIR", "XPU_CONFIG", "PATH")]
    if rename != "bundle":
        words = ["/bin/sh", "-c", f'sed s/\'"bundle"\'/\'"{rename}"\'/ | exec "$@"', "sh", *words]

    def change(spec: dict[str, Any]) -> None:
        spec["hooks"] = {
            stage: [{"path": words[0], "args": words, "env": environ}],
            "poststop": [{"path": stop[0], "args": stop, "env": environ}],
        }

    return change


def by_a_link(node: Node, stage: str) -> Callable[[dict[str, Any]], None]:
    """The same by another file on the disk: the shim must not take the hook for its own."""
    copy = node.folder / "hook"
    copy.symlink_to(node.hook)

    def change(spec: dict[str, Any]) -> None:
        by_hooks_d(node, stage)(spec)
        for hooks in spec["hooks"].values():
            hooks[0]["path"] = str(copy)

    return change


def told_in_a_line(done: subprocess.CompletedProcess[str]) -> str:
    """Why the hook has failed, for people."""
    assert done.returncode == 1
    assert done.stderr.startswith("xpu: ")
    assert "internal error" not in done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("spelling", ["bundle", "bundlePath"])
@pytest.mark.parametrize("stage", ["createRuntime", "prestart"])
def test_hooks_of_an_engine_give_a_slice_without_the_shim(
    node: Node, bundles: Bundles, stage: str, spelling: str
) -> None:
    node.sim("1xT4")
    bundle = bundles(
        "XPU_MEM=4G", args=["cuda-probe", "info"], change=by_hooks_d(node, stage, rename=spelling)
    )
    done = node.run_by_runc(bundle)
    assert done.stdout == "device 0: 4096 MiB free of 4096 MiB\n", done.stderr
    assert node.grants() == []


def test_hooks_of_an_engine_beside_the_shims_own_give_one_slice(
    node: Node, bundles: Bundles, mode: str
) -> None:
    change = by_a_link(node, "prestart")
    container = node.start(bundles("XPU_MEM=4G", args=["sleep", "1000"], change=change))
    (entry,) = node.json("ps")
    assert entry["memory_bytes"] == 4 * GIB
    assert node.oci("exec", container, "cuda-probe", "info").stdout.endswith("of 4096 MiB\n")
    node.remove(container)
    assert node.grants() == []


@pytest.mark.parametrize("stage", ["createRuntime", "prestart", "poststop"])
@pytest.mark.parametrize("config", ["", "moed: hook", "mode: ["])
def test_a_container_that_asks_for_nothing_costs_nothing_and_says_nothing(
    node: Node, bundles: Bundles, stage: str, config: str
) -> None:
    node.configure(config)
    done = node.call_hook(stage, state=state_of(bundles()))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not node.run_dir.exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "usage: xpu-container-runtime-hook STAGE"),
        (["poststart"], "STAGE is one of createRuntime, prestart, poststop"),
        (["--help"], "usage: "),
        (["prestart", "--frobnicate", "1"], "unknown options: --frobnicate 1"),
        (["prestart", "--log"], "unknown options: --log"),
        (["prestart", "--grant", "many"], "--grant"),
    ],
)
def test_wrong_words_are_answered_with_the_right_ones(node: Node, words: list[str], told: str) -> None:
    assert told in told_in_a_line(node.call_hook(*words, state=state_of(node.folder)))


def test_options_of_a_newer_version_do_not_keep_a_container_from_its_end(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=4G", args=["sleep", "1000"])
    node.start(bundle)
    (grant,) = node.grants()
    os.kill(grant.pid, signal.SIGKILL)
    while proc.is_alive(grant.pid, grant.start_time):
        pass  # the test's own time limit ends this
    done = node.call_hook("poststop", "--of-a-newer-version", "1", state=state_of(bundle))
    assert (done.returncode, done.stderr) == (0, "")
    assert node.grants() == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cannot be read"),
        ("garbage", "cannot be read"),
        ("[]", "is not an object"),
        ("{}", "has no id"),
        ('{"id": "a"}', "no absolute bundle path"),
        ('{"id": "a", "bundle": "relative"}', "no absolute bundle path"),
        ('{"id": "a", "bundle": "/nowhere", "pid": "1"}', "no valid pid"),
        ('{"id": "a", "bundle": "/nowhere", "pid": -1}', "no valid pid"),
        ('{"id": "a", "bundle": "/nowhere", "pid": 1}', "cannot read /nowhere/config.json"),
        ("[" * 100_000, "nested too deeply"),
        ('{"id": "a\\ud83d", "bundle": "/nowhere"}', "has no id but 'a\\ud83d'"),
        ('{"id": "a", "bundle": "/a\\u0000b", "pid": 1}', "has a bundle that is not a path"),
        ('{"id": "a", "bundle": "/a\\ud83d", "pid": 1}', "has a bundle that is not a path"),
    ],
)
def test_a_state_that_makes_no_sense_is_told_in_one_line(node: Node, text: str, told: str) -> None:
    assert told in told_in_a_line(node.call_hook("createRuntime", state=text))


def test_a_container_without_a_process_cannot_be_given_anything(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    done = node.call_hook("createRuntime", state=state_of(bundles("XPU_MEM=1G")))
    assert "has no process 0 to give an XPU to" in told_in_a_line(done)
    assert node.json("ps") == []


def test_the_process_of_somebody_else_gets_nothing(node: Node, bundles: Bundles) -> None:
    """A state that names the host's own process must not change the host."""
    node.sim("1xT4")
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            bundle = bundles("XPU_MEM=1G")
            before = tree(bundle / "rootfs")
            done = node.call_hook("createRuntime", state=state_of(bundle, pid=process.pid))
            mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
            left = [place for place in mounted if place.startswith(f"{bundle}/")]
            for place in left:
                subprocess.run(["umount", place], check=True)
        finally:
            process.kill()
    assert told_in_a_line(done)
    assert left == []
    assert tree(bundle / "rootfs") == before
    assert node.grants() == []


def test_a_spec_mode_grant_that_was_released_meanwhile_stops_the_container(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G")
    done = node.call_hook("createRuntime", "--grant", "7", state=state_of(bundle, pid=1))
    assert f"grant 7 of container {bundle.name} is gone: start the container again" in told_in_a_line(done)


#: crun as its hook sees it: a log that is open, a line of its own after the hook's end; its hooks' stderr is
#: /dev/null.
_CRUN = """
exec 3>>"$4"; (exec "$1" createRuntime < "$2" 2> /dev/null)
[ "$4" = /dev/null ] && echo "error executing hook" >&2 || echo "error executing hook" >&3
"""
REASON = "xpu: refused: no device has 100G of memory free"


@pytest.mark.parametrize(
    "log", [["--log", "{}", "--log-format=json"], ["--log=x", "{}"], ["--log", "/dev/null"]]
)
def test_a_reason_that_crun_would_keep_to_itself_is_the_last_that_people_see(
    node: Node, bundles: Bundles, log: list[str]
) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=100G")
    file = bundle / "runtime.log"
    file.write_text("before\n")
    (bundle / "state.json").write_text(json.dumps(state_of(bundle, pid=os.getpid())))
    words = [each.format(file) for each in log]
    done = subprocess.run(
        ["sh", "-c", _CRUN, "crun", node.hook, str(bundle / "state.json"), *words],
        env=node.environ, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if "/dev/null" in log:
        first, second = done.stderr.splitlines()
        assert first.startswith(REASON) and second == "error executing hook"
        return
    before, last = file.read_text().splitlines()
    assert before == "before"
    said = json.loads(last)["msg"] if "--log-format=json" in log else last.partition('msg="')[2]
    assert said.startswith(REASON)
