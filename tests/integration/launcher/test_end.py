"""The end of a container as the hook in C enters it, and all that it leaves to Python.

A stand-in for the hook in Python says that it was started, and what it was given.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime.ledger import ends
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.linux import proc

PYTHON = "import sys\nprint('python', *sys.argv[1:], sys.stdin.read())\n"
BUNDLE = "/run/containers/c 1"


class Hook:
    """An installed hook, with a run folder in which the note of a container lies that has ended."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.path = folder / "bin" / "xpu-container-runtime-hook"
        python = folder / "lib" / "xpu-container-runtime" / "hook.py"
        for each in (self.path, python):
            each.parent.mkdir(parents=True)
        os.link(program, self.path)
        python.write_text(PYTHON)
        self.run_dir = folder / "run"
        self.run_dir.mkdir()
        self.ledger = str(self.run_dir / "ledger.db")
        with subprocess.Popen(["/bin/sleep", "600"]) as process:
            started = proc.start_time(process.pid) or 0
            process.kill()
        self.grant = Grant(12, "c1", BUNDLE, process.pid, started, "", "running", "hook", 1.5, ())

    def note(self, **changes: Any) -> None:
        ends.note(self.grant.replace(**changes), self.ledger, proc.pid_namespace())

    @property
    def noted(self) -> Path:
        return self.run_dir / "running" / "c1"

    def stop(self, state: str | None = None, *options: str) -> str:
        """What the end of the container prints."""
        done = subprocess.run(
            [self.path, "poststop", *options],
            input=state if state is not None else json.dumps(self.state()),
            env={"XPU_RUN_DIR": str(self.run_dir)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout

    def state(self) -> dict[str, Any]:
        return {
            "ociVersion": "1.0.2",
            "id": "c1",
            "status": "stopped",
            "bundle": BUNDLE,
            "annotations": {"id": 'x"\\', "bundle": ""},
        }

    def entered(self) -> list[tuple[str, float]]:
        return ends.entered(self.ledger)


@pytest.fixture(params=["program", "sanitized_program"])
def hook(request: pytest.FixtureRequest, tmp_path: Path) -> Hook:
    """As it is shipped, and under the address and undefined behaviour sanitizers."""
    program = request.getfixturevalue(request.param)
    return Hook(tmp_path / "installation", program.with_name(f"{program.name}-hook"))


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "600"]) as found:
        yield found
        found.kill()


def test_an_end_of_which_nothing_is_left_starts_no_python(hook: Hook) -> None:
    hook.note()
    before = time.time()
    assert hook.stop() == ""
    ((name, when),) = hook.entered()
    assert name == hook.grant.name == "12-1500"
    assert before <= when <= time.time()
    assert not hook.noted.exists()
    # The second time there is nothing of it that C knows.
    assert hook.stop().startswith("python poststop ")


@pytest.mark.parametrize(
    "options",
    [[], ["--grant", "12"], ["--log", "/l", "--log-format", "json"], ["--log", "/l", "--grant", "12"]],
)
def test_options_of_our_own_hooks_are_known(hook: Hook, options: list[str]) -> None:
    hook.note()
    assert hook.stop(None, *options) == ""
    assert len(hook.entered()) == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--grant", "1"],
        ["--grant", "123"],
        ["--grant", "12-1500"],
        ["--grant", ""],
        ["--grant"],
        ["--of-a-newer-version", "1"],
    ],
)
def test_other_options_are_pythons(hook: Hook, options: list[str]) -> None:
    hook.note()
    assert hook.stop(None, *options).startswith(f"python poststop {' '.join(options)}")
    assert hook.entered() == [] and hook.noted.exists()


STATES = {
    "of another container": {"id": "c2"},
    "of another bundle": {"bundle": "/run/containers/c"},
    "of one as long": {"bundle": BUNDLE.replace("1", "2")},
    "of a longer one": {"bundle": BUNDLE + "/"},
    "of none": {"bundle": ""},
    "without an id": {"id": ""},
    "with an id that is a path": {"id": "../running/c1"},
    "with an id that is hidden": {"id": ".c1"},
    "with a long id": {"id": "c" * 300},
    "with another type": {"id": 1},
    "with a name that Go takes for another": {"ID": "c2"},
    "with an escape": {"bundle": BUNDLE.replace("c", "\x7fc")},
}


@pytest.mark.parametrize("change", STATES.values(), ids=STATES.keys())
def test_a_state_that_is_not_the_containers_or_odd_is_pythons(hook: Hook, change: dict[str, Any]) -> None:
    hook.note()
    state = json.dumps({**hook.state(), **change})
    assert hook.stop(state) == f"python poststop {state}\n"
    assert hook.entered() == [] and hook.noted.exists()


def test_so_is_what_is_no_state_or_says_it_twice_or_is_very_long(hook: Hook) -> None:
    hook.note()
    whole = json.dumps(hook.state())
    states = [
        "",
        "{}",
        "[]",
        whole[:-1],
        whole + "x",
        whole.replace("/c 1", "/\\u0063 1"),
        whole.replace("{", '{"id": "c1", ', 1),
        whole.replace("{", f'{{"bundle": "{BUNDLE}", ', 1),
        whole[:-1] + f', "x": "{"y" * 100_000}"}}',
    ]
    for state in states:
        assert hook.stop(state) == f"python poststop {state}\n"
    assert hook.entered() == [] and hook.noted.exists()


def test_a_bundle_of_any_letters_is_compared_as_it_is(hook: Hook) -> None:
    hook.note(bundle="/b/ä=\x7f")
    assert hook.stop(json.dumps({**hook.state(), "bundle": "/b/ä=\x7f"}, ensure_ascii=False)) == ""
    assert len(hook.entered()) == 1


def test_a_container_that_runs_or_has_its_cgroup_is_pythons(
    hook: Hook, process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    started = proc.start_time(process.pid) or 0
    hook.note(pid=process.pid, start_time=started)
    assert hook.stop().startswith("python")
    hook.note(cgroup=str(tmp_path))
    assert hook.stop().startswith("python")
    hook.note(cgroup="relative")
    assert hook.stop().startswith("python")
    hook.note(cgroup=f"/{tmp_path.name * 1000}")
    assert hook.stop().startswith("python")
    assert hook.entered() == []
    # A process of that number that started later is another one; a zombie has ended.
    hook.note(pid=process.pid, start_time=started - 1, cgroup=str(tmp_path / "gone"))
    assert hook.stop() == ""
    hook.note(pid=process.pid, start_time=started)
    process.kill()
    while proc.is_alive(process.pid, started):
        pass  # the test's own time limit ends this
    assert os.path.exists(f"/proc/{process.pid}")
    assert hook.stop() == ""


def test_a_note_that_is_damaged_or_of_another_kind_is_pythons(hook: Hook) -> None:
    hook.note()
    whole = hook.noted.read_text()
    lines = whole.splitlines(keepends=True)
    damaged = ["".join(lines[:number] + lines[number + 1 :]) for number in range(len(lines))]
    damaged += [whole[:length] for length in range(len(whole))]
    damaged += [
        whole.replace("format=1", "format=2"),
        whole.replace("format=1", "format=11"),
        whole.replace("grant=12-1500", "grant=../ledger.db"),
        whole.replace("grant=12-1500", "grant=12"),
        whole.replace("grant=12-1500", "grant=-"),
        whole.replace("grant=12-1500", f"grant={'1' * 30}-{'2' * 30}"),
        whole.replace("process=", "process=x"),
        whole.replace("process=", "process=self "),
        whole.replace("process=", "process= "),
        whole.replace("process=", f"process={'1' * 100}"),
        whole.replace(f"pid_namespace={proc.pid_namespace()}", "pid_namespace=1"),
        whole + "x" * 20_000,
    ]
    for each in damaged:
        hook.noted.write_text(each)
        assert hook.stop().startswith("python"), each
    assert hook.entered() == []
    hook.noted.write_text(whole)
    hook.noted.chmod(0o620)
    assert hook.stop().startswith("python")
    hook.noted.unlink()
    os.mkfifo(hook.noted, 0o600)
    assert hook.stop().startswith("python")
    assert hook.entered() == []


def test_the_grants_folder_goes_whatever_was_left_mounted_on_it(hook: Hook) -> None:
    hook.note()
    folder = hook.run_dir / "slices" / hook.grant.name
    other = hook.run_dir / "slices" / "13-1500"
    for each in (folder, other):
        each.mkdir(parents=True)
    for each in (folder, folder, other):
        subprocess.run(["mount", "-t", "tmpfs", "xpu", each], check=True)
    (folder / "usage").touch()
    try:
        assert hook.stop() == ""
        assert not folder.exists() and os.path.ismount(other)
    finally:
        subprocess.run(["umount", other], check=True)


def test_where_the_end_cannot_be_entered_python_does_it(hook: Hook) -> None:
    hook.note()
    (hook.run_dir / "ended").rmdir()
    assert hook.stop().startswith("python")
    assert hook.noted.exists()


def test_without_an_installation_of_python_the_end_is_entered_all_the_same(hook: Hook) -> None:
    hook.note()
    (hook.path.parent.parent / "lib" / "xpu-container-runtime" / "hook.py").unlink()
    assert hook.stop() == ""
    assert len(hook.entered()) == 1
