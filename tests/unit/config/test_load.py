"""The effective configuration: compiled once, read fast, and no obstacle for containers that do not need
it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from support import REPOSITORY, STAND_INS
from xpu_runtime import version
from xpu_runtime.config import cache
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.config.load import load
from xpu_runtime.config.low_level_runtime import find_runtime, low_level_runtime, refusal
from xpu_runtime.config.probe import knows_create_runtime, spec_version, version_text
from xpu_runtime.errors import ConfigError

Write = Callable[[str], Path]

RUNC = str(STAND_INS / "runc")
SRC = str(REPOSITORY / "src")


def program(path: Path, script: str) -> Path:
    """An executable made for this test, put in place whole."""
    aside = path.with_name(path.name + ".new")
    aside.write_text("#!/bin/sh\n" + script)
    aside.chmod(0o755)
    aside.rename(path)
    return path


def launcher(run_dir: Path) -> dict[str, str]:
    lines = (run_dir / "launcher.conf").read_text().splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def modules_of(code: str) -> set[str]:
    """The modules that a fresh `python3 -I -S`, like the shim's, has imported after `code`."""
    script = (
        f"import sys; sys.path[:0] = [{SRC!r}]; before = set(sys.modules); {code}; "
        "print(' '.join(set(sys.modules) - before))"
    )
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-S", "-c", script], capture_output=True, check=True, text=True
    )
    return set(done.stdout.split())


def test_without_a_file_the_defaults_hold_and_nothing_is_written(config_file: Path, run_dir: Path) -> None:
    assert load() == DEFAULTS
    assert not run_dir.exists()


def test_a_file_is_compiled_for_the_next_call_and_for_the_launcher(
    write_config: Write, run_dir: Path
) -> None:
    file = write_config(f"low_level_runtimes: [{RUNC}]\nmode: spec\npolicy: {{devices: [0, GPU-1]}}\n")
    first = load()
    assert first == load()
    assert (first.mode, first.policy_devices) == ("spec", ("0", "GPU-1"))
    found = file.stat()
    assert launcher(run_dir) == {
        "format": str(cache.FORMAT),
        "config": str(file),
        "stamp": f"{found.st_mtime_ns}:{found.st_size}:{found.st_ino}",
        "runtime": RUNC,
    }
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o755
    assert stat.S_IMODE((run_dir / "config.json").stat().st_mode) == 0o644


def test_a_compiled_file_is_read_without_yaml_and_its_kin(write_config: Write) -> None:
    write_config(f"low_level_runtimes: [{RUNC}]\n")
    low_level_runtime(load())
    loaded = modules_of(
        "from xpu_runtime.config.load import load; "
        "from xpu_runtime.config.low_level_runtime import low_level_runtime as r; r(load())"
    )
    heavy = {
        "json",
        "re",
        "typing",
        "dataclasses",
        "pathlib",
        "subprocess",
        "enum",
        "functools",
        "collections",
    }
    assert not loaded & (heavy | {"yaml", "jsonschema", "tempfile", "hashlib", "contextlib", "logging"})
    assert "xpu_runtime.config.compile" not in loaded


@pytest.mark.parametrize("vendored", [True, False])
def test_a_bare_interpreter_finds_the_yaml_reader_that_was_installed_beside_us(
    tmp_path: Path, write_config: Write, vendored: bool
) -> None:
    file = write_config("mode: spec\n")
    shutil.copytree(f"{SRC}/xpu_runtime", tmp_path / "lib/python/xpu_runtime")
    shutil.copytree(Path(SRC).parent / "config", tmp_path / "lib/config")
    if vendored:
        (tmp_path / "lib/vendor").symlink_to(Path(yaml.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'lib/python')!r})\n"
    code += "from xpu_runtime.config.load import load; from xpu_runtime.errors import XpuError\n"
    code += "try: print(load().mode)\nexcept XpuError as error: print(error)"
    done = subprocess.run(["/usr/bin/python3", "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    if vendored:
        assert done.stdout == "spec\n"
    else:
        assert done.stdout.startswith(
            f"PyYAML and jsonschema, which read {file}, cannot be imported (No module"
        )


def test_a_changed_file_is_taken_up_by_the_next_call(write_config: Write) -> None:
    write_config("mode: spec\n")
    assert load().mode == "spec"
    write_config("mode: hook\n")  # same length, same times
    assert load().mode == "hook"


def test_a_file_changed_in_place_with_its_times_put_back_is_taken_up_too(write_config: Write) -> None:
    file = write_config("mode: spec\n")
    assert load().mode == "spec"
    before = file.stat()
    file.write_text("mode: hook\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load().mode == "hook"


def test_a_file_written_many_times_within_one_tick_of_its_clock_is_read_as_it_is(
    config_file: Path, run_dir: Path
) -> None:
    for mode in ["spec", "hook"] * 20:
        config_file.write_text(f"mode: {mode}\n")
        assert load().mode == mode


def test_a_removed_file_means_the_defaults_again(write_config: Write) -> None:
    file = write_config("mode: spec\n")
    assert load().mode == "spec"
    file.unlink()
    assert load() == DEFAULTS


@pytest.mark.parametrize(
    "left", [b"", b"{", b"[]", b"\xff", b'{"stamp": 1}', b'{"stamp": [], "config": {"x": 1}}']
)
def test_a_damaged_compiled_file_is_made_anew(write_config: Write, run_dir: Path, left: bytes) -> None:
    write_config("mode: spec\n")
    load()
    (run_dir / "config.json").write_bytes(left)
    assert load().mode == "spec"
    assert b'"mode":"spec"' in (run_dir / "config.json").read_bytes()


def test_a_compiled_file_of_another_version_of_ours_is_made_anew(write_config: Write, run_dir: Path) -> None:
    write_config("mode: spec\n")
    load()
    compiled = run_dir / "config.json"
    compiled.write_text(compiled.read_text().replace('"mode":', '"old_name_of_mode":'))
    assert load().mode == "spec"


def test_files_that_another_build_has_compiled_are_not_used(
    write_config: Write, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config("mode: spec\n")
    load()
    compiled = run_dir / "config.json"
    compiled.write_text(compiled.read_text().replace('"cores_step":5', '"cores_step":10'))
    assert load().cores_step == 10, "a default, compiled by this build"
    monkeypatch.setattr(version, "BUILD", "another")
    assert load().cores_step == 5


@pytest.mark.parametrize("run", ["/dev/null", "/proc/xpu"])
def test_a_run_folder_that_cannot_be_made_changes_nothing(
    write_config: Write, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    write_config("mode: spec\n")
    monkeypatch.setenv("XPU_RUN_DIR", run)
    assert load().mode == load().mode == "spec"
    assert low_level_runtime(load()).create_runtime_hooks is True


def test_a_broken_file_is_an_error_in_one_line_with_the_first_mistake(write_config: Write) -> None:
    file = write_config("mode: hok\nbogus: 1\n")
    with pytest.raises(ConfigError) as caught:
        load()
    told, _, todo = str(caught.value).rpartition(": ")
    assert told == f'{file}:1:1: mode: "hok" is not allowed: use auto, hook or spec (and 1 more)'
    assert todo == f"see `xpu config check {file}`"


def test_a_broken_file_leaves_the_launcher_the_last_runtime_that_worked(
    write_config: Write, run_dir: Path
) -> None:
    mine = program(run_dir.parent / "my-runc", f'exec {RUNC} "$@"')
    write_config(f"low_level_runtimes: [{mine}]\n")
    load()
    file = write_config("mode: [\n")
    with pytest.raises(ConfigError):
        load()
    assert launcher(run_dir)["runtime"] == str(mine)
    assert launcher(run_dir)["stamp"].endswith(f":{file.stat().st_ino}")
    mine.unlink()
    write_config("mode: [ \n")
    with pytest.raises(ConfigError):
        load()
    assert launcher(run_dir)["runtime"] == find_runtime(DEFAULTS.low_level_runtimes)[0]


def test_many_processes_that_meet_a_changed_file_at_once_all_read_it(
    write_config: Write, run_dir: Path
) -> None:
    write_config(f"low_level_runtimes: [{RUNC}]\nmode: spec\n")
    code = "from xpu_runtime.config.load import load; print(load().mode)"
    environment = {**os.environ, "PYTHONPATH": SRC}
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(6)
    ]
    assert [process.communicate()[0] for process in running] == ["spec\n"] * 6
    assert sorted(path.name for path in run_dir.iterdir()) == ["config.json", "launcher.conf"]


def test_the_first_runtime_that_exists_is_taken(run_dir: Path, config_file: Path) -> None:
    config = DEFAULTS.replace(low_level_runtimes=("/nowhere/runc", "no-such-runtime", "runc", "crun"))
    assert low_level_runtime(config).name == "runc"


def test_names_are_not_looked_up_in_path(
    tmp_path: Path, run_dir: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "only-in-path", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no low-level runtime found: only-in-path"):
        low_level_runtime(DEFAULTS.replace(low_level_runtimes=("only-in-path",)))


def test_files_that_cannot_be_executed_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="no low-level runtime"):
        find_runtime((str(tmp_path / "plain"), str(tmp_path / "folder")))


def test_this_runtime_cannot_be_its_own_low_level_runtime(tmp_path: Path) -> None:
    ours = program(tmp_path / "xpu-container-runtime", "exit 0")
    (tmp_path / "runc").symlink_to(ours)
    with pytest.raises(ConfigError, match="this runtime itself"):
        find_runtime((str(tmp_path / "runc"),))


def test_a_name_that_was_given_to_this_runtime_still_finds_the_one_that_does_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = program(tmp_path / "xpu-container-runtime", "exit 0")
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    (tmp_path / "first/runc").symlink_to(ours)
    real = program(tmp_path / "second/runc", "exit 0")
    folders = (str(tmp_path / "first"), str(tmp_path / "second"))
    monkeypatch.setattr("xpu_runtime.config.low_level_runtime.RUNTIME_FOLDERS", folders)
    assert find_runtime(("runc",))[0] == str(real)


def test_a_runtime_is_asked_for_its_version_once_and_again_when_it_was_replaced(
    tmp_path: Path, run_dir: Path
) -> None:
    asked = tmp_path / "asked"
    path = tmp_path / "runc"
    config = DEFAULTS.replace(low_level_runtimes=(str(path),))
    program(path, f"echo x >> {asked}; echo 'runc version 1'; echo 'spec: 1.0.1-dev'")
    assert [low_level_runtime(config).create_runtime_hooks for _ in range(3)] == [False] * 3
    assert asked.read_text() == "x\n"
    program(path, f"echo x >> {asked}; echo 'spec: 1.2.1'")
    assert [low_level_runtime(config).create_runtime_hooks for _ in range(3)] == [True] * 3
    assert asked.read_text() == "x\nx\n"


@pytest.fixture
def cgroup_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of cgroups for crun: a host with v1 only."""
    root = tmp_path / "cgroup"
    root.mkdir()
    monkeypatch.setattr("xpu_runtime.config.low_level_runtime._CGROUPS", str(root))
    return root


@pytest.mark.parametrize(
    ("file", "first", "name", "is_reached"),
    [
        ("runc", "runc version 1.1.5", "runc", True),
        ("crun", "crun version 1.8.1", "crun", True),
        ("runc", "crun version 1.8.1", "crun", True),
        ("krun", "crun version 1.8.1", "krun", False),
        ("runc", "runsc version release-20240807.0", "runsc", False),
        ("kata", "kata-runtime  : 3.2.0", "kata-runtime", False),
        ("my-runtime", "", "my-runtime", True),
    ],
)
def test_a_runtime_is_what_it_says_it_is(
    tmp_path: Path,
    run_dir: Path,
    config_file: Path,
    cgroup_root: Path,
    file: str,
    first: str,
    name: str,
    is_reached: bool,
) -> None:
    path = program(tmp_path / file, f"echo '{first}'; echo 'spec: 1.1.0'")
    runtime = low_level_runtime(DEFAULTS.replace(low_level_runtimes=(str(path),)))
    assert runtime.name == name
    refused = refusal(runtime.path, runtime.name)
    assert (refused is None) is is_reached
    if refused is not None:
        assert refused.what.startswith(f"the low-level runtime {path} is ")
        assert refused.todo == f"name runc or crun in low_level_runtimes in {config_file}"


def test_crun_is_refused_where_cgroup_v2_has_controllers_beside_v1(cgroup_root: Path) -> None:
    beside = cgroup_root / "unified" / "cgroup.controllers"
    beside.parent.mkdir()
    beside.write_text("")
    assert refusal("/usr/bin/crun", "crun") is None
    beside.write_text("hugetlb misc\n")
    refused = refusal("/usr/bin/crun", "crun")
    assert refused is not None and f"beside v1 (hugetlb misc, in {cgroup_root}/unified)" in refused.what
    assert refusal("/usr/sbin/runc", "runc") is None
    # v2 alone, with a cgroup of that name.
    (cgroup_root / "cgroup.controllers").write_text("hugetlb misc\n")
    assert refusal("/usr/bin/crun", "crun") is None


def test_facts_of_one_runtime_stay_when_another_is_asked(tmp_path: Path, run_dir: Path) -> None:
    asked = tmp_path / "asked"
    for name in ("one", "two"):
        program(tmp_path / name, f"echo {name} >> {asked}; echo 'spec: 1.1.0'")
    for _ in range(3):
        for name in ("one", "two"):
            low_level_runtime(DEFAULTS.replace(low_level_runtimes=(str(tmp_path / name),)))
    assert asked.read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    "script",
    [
        "exit 1",
        "echo 'spec: 1.1.0'; exit 1",
        "kill -9 $$",
        "echo spec: x.y.z",
        "exec yes spec: 1.1.0",
        "echo",
    ],
)
def test_a_runtime_without_a_feature_list_gets_the_older_hooks(tmp_path: Path, script: str) -> None:
    assert knows_create_runtime(version_text(str(program(tmp_path / "odd", script)))) is False


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("runc version 1.1.5\nspec: 1.0.2-dev\ngo: go1.19\n", (1, 0, 2)),
        ("spec: 1.2.0+git", (1, 2, 0)),
        ("runc version 1.0.0-rc8\nspec: 1.0.1-dev", (1, 0, 1)),
        ("specification: 1.1.0", (0, 0, 0)),
        ("spec: 1.1", (0, 0, 0)),
        ("spec: 1.1.99999999999999999999", (0, 0, 0)),
        ("", (0, 0, 0)),
    ],
)
def test_the_spec_version_is_read_from_what_runc_prints(text: str, version: tuple[int, int, int]) -> None:
    assert spec_version(text) == version
