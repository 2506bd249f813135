"""Which specs the launcher puts our hooks into by itself, and that it does just what the shim does to them.

The low-level runtime is a script here that prints its words; so does the stand-in for the shim.
"""

from __future__ import annotations

import copy
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xpu_runtime import paths
from xpu_runtime.config import cache
from xpu_runtime.config.low_level_runtime import Runtime
from xpu_runtime.linux import proc
from xpu_runtime.start import hooks_in_spec

from .conftest import Launcher

OURS = ("createRuntime", "poststop")


class Injecting:
    """A launcher that knows of a runtime which stage it has, and a bundle."""

    def __init__(self, launcher: Launcher, folder: Path, stage: str = "createRuntime") -> None:
        self.launcher = launcher
        self.hook = launcher.path.with_name("xpu-container-runtime-hook")
        self.hook.write_text("#!/bin/sh\n")
        self.hook.chmod(0o755)
        launcher.shim.with_name("hook.py").touch()
        self.runtime = folder / "runtime"
        self.runtime.write_text('#!/bin/sh\necho the runtime "$@"\n')
        self.runtime.chmod(0o755)
        conf = launcher.compiled(self.runtime)
        conf.write_text(conf.read_text() + "inject=yes\n")
        self.kept = launcher.run_dir / "hooks.conf"
        self.knows(stage)
        self.bundle = folder / "bundle"
        self.bundle.mkdir()
        self.config = self.bundle / "config.json"

    def knows(self, stage: str) -> None:
        found = self.runtime.stat()
        stamp = f"{found.st_mtime_ns}:{found.st_size}:{found.st_ino}"
        self.kept.write_text(
            f"format={cache.FORMAT}\n/bin/other=1:2:3 prestart\n{self.runtime}={stamp} {stage}\n"
        )
        self.kept.chmod(0o644)

    def create(self, *words: str) -> str:
        """What has been started; the words of the line are the same for both."""
        done = self.launcher.run(*words, "create", "--bundle", self.bundle, "c")
        assert done.returncode == 0, done.stderr
        line = [*words, "create", "--bundle", str(self.bundle), "c"]
        if done.stdout == "\n".join(["the shim", *line]) + "\n":
            return "shim"
        assert done.stdout == f"the runtime {' '.join(line)}\n"
        return "runtime"

    def by_shim(self, spec: dict[str, Any], options: list[str], stages: bool = True) -> dict[str, Any]:
        """`spec` as the shim makes it."""
        edited = copy.deepcopy(spec)
        runtime = Runtime(str(self.runtime), "runtime", stages)
        caller = proc.this_process().replace(environment=dict(self.launcher.env))
        real, paths.HOOK = paths.HOOK, str(self.hook)
        try:
            hooks_in_spec.add_hooks(edited, runtime, options, caller)
        finally:
            paths.HOOK = real
        return edited

    def left(self) -> list[str]:
        return sorted(path.name for path in self.bundle.iterdir())


@pytest.fixture
def injecting(checked_launcher: Launcher, tmp_path: Path) -> Injecting:
    return Injecting(checked_launcher, tmp_path)


def spec(*env: str, **more: Any) -> dict[str, Any]:
    return {
        "ociVersion": "1.0.2",
        "process": {"args": ["true"], "env": ["PATH=/bin", *env]},
        "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]},
        **more,
    }


PLAIN = [
    ["XPU_MEM=4G"],
    ["XPU_CORES=30"],
    ["XPU_MEM=25%", "XPU_CORES=5", "XPU_SCHED=burst", "XPU_PRIORITY=high", "XPU_COUNT=2"],
    ["XPU_MEM=1G", "NVIDIA_VISIBLE_DEVICES=all", "CUDA_VERSION=12.2", "NVIDIA_REQUIRE_CUDA=cuda>=12.2"],
    ["XPU_MEM=1G", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
]


@pytest.mark.parametrize("env", PLAIN)
def test_a_plain_request_gets_the_hooks_that_the_shim_would_put_in(
    injecting: Injecting, env: list[str]
) -> None:
    asked = spec(*env)
    injecting.config.write_text(json.dumps(asked))
    assert injecting.create("--log", "/var/log/it.log", "--log-format", "json") == "runtime"
    options = ["--log", "/var/log/it.log", "--log-format", "json"]
    assert json.loads(injecting.config.read_text()) == injecting.by_shim(asked, options)
    assert injecting.left() == ["config.json"]


def test_a_runtime_without_the_newer_stage_gets_prestart(injecting: Injecting) -> None:
    injecting.knows("prestart")
    asked = spec("XPU_MEM=4G")
    injecting.config.write_text(json.dumps(asked))
    assert injecting.create() == "runtime"
    assert json.loads(injecting.config.read_text()) == injecting.by_shim(asked, [], stages=False)


@pytest.mark.parametrize(
    "hooks", [{}, {"prestart": [{"path": "/a", "args": ["a", '}"]{']}]}, {"prestart": []}]
)
def test_an_engine_s_hooks_stay(injecting: Injecting, hooks: dict[str, Any]) -> None:
    asked = spec("XPU_MEM=4G", hooks=hooks)
    for text in (json.dumps(asked), json.dumps(asked, indent=1), json.dumps(asked, separators=(",", ":"))):
        injecting.config.write_text(" " + text + "\n")
        assert injecting.create() == "runtime"
        assert json.loads(injecting.config.read_text()) == injecting.by_shim(asked, [])


def test_the_other_bytes_are_the_engine_s_own(injecting: Injecting) -> None:
    text = json.dumps(spec("XPU_MEM=4G", "ODD=X"), indent=1).replace('X"', '\\ud800 \xff"')
    injecting.config.write_bytes(text.encode("latin-1"))
    assert injecting.create() == "runtime"
    written = injecting.config.read_bytes()
    begin = written.index(b'"hooks":{')
    end = written.index(b"}]},", begin) + 4
    assert (written[:begin] + written[end:]).decode("latin-1") == text


def test_owner_mode_and_attributes_stay(injecting: Injecting) -> None:
    injecting.config.write_text(json.dumps(spec("XPU_MEM=4G")))
    os.chown(injecting.config, 1000, 1001)
    injecting.config.chmod(0o640)
    os.setxattr(injecting.config, "user.of-the-engine", b"kept")
    assert injecting.create() == "runtime"
    found = injecting.config.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1000, 1001, 0o640)
    assert os.getxattr(injecting.config, "user.of-the-engine") == b"kept"
    assert "hooks" in json.loads(injecting.config.read_text())


#: What the launcher must not decide: the text of config.json.
LEFT = {
    "what a pod was assigned": json.dumps(spec("XPU_MEM=4G", "XPU_KUBERNETES=allocated")),
    "another variable": json.dumps(spec("XPU_MEM=4G", "XPU_VISIBLE_DEVICES=0")),
    "a misspelt one": json.dumps(spec("XPU_MEM=4G", "XPU_CORE=5")),
    "one for programs": json.dumps(spec("XPU_MEM=4G", "XPU_LOG=debug")),
    "a wrong amount": json.dumps(spec("XPU_MEM=4X")),
    "no amount": json.dumps(spec("XPU_MEM=")),
    "no unit": json.dumps(spec("XPU_MEM=4096")),
    "nothing of it": json.dumps(spec("XPU_MEM=0G")),
    "a long number": json.dumps(spec("XPU_MEM=" + "1" * 40 + "G")),
    "cores off the step": json.dumps(spec("XPU_CORES=33")),
    "all cores": json.dumps(spec("XPU_CORES=100")),
    "a policy without a cap": json.dumps(spec("XPU_MEM=4G", "XPU_SCHED=burst")),
    "more than a device": json.dumps(spec("XPU_MEM=200%")),
    "too many devices": json.dumps(spec("XPU_COUNT=999")),
    "devices by name": json.dumps(spec("XPU_MEM=4G", "NVIDIA_VISIBLE_DEVICES=0,1")),
    "unknown capabilities": json.dumps(spec("XPU_MEM=4G", "NVIDIA_DRIVER_CAPABILITIES=utility,foo")),
    "another amount": json.dumps(spec("XPU_MEM=4G", "NVIDIA_GPU_MEMORY_LIMIT=zzz")),
    "a way past the interposers": json.dumps(spec("XPU_MEM=4G", "LD_PRELOAD=/x/libcuda.real.so")),
    "a token of the loader's": json.dumps(spec("XPU_MEM=4G", "FOO=${LIB}cuda.so")),
    "a namespace of two types": json.dumps(
        spec("XPU_MEM=4G", linux={"namespaces": [{"type": "mount", "x": 1}]})
    ).replace('"x": 1', '"type": "pid"'),
    "only an alias": json.dumps(spec("NVIDIA_VISIBLE_DEVICES=all")),
    "an annotation besides": json.dumps(spec("XPU_MEM=4G", annotations={"yoyoworks.com/xpu-mem": "1G"})),
    "a hidden letter": json.dumps(spec("XPU_MEM=4G", "A=b")).replace('"A=b"', '"\\u0058PU_CORES=30"'),
    "a user namespace": json.dumps(
        spec("XPU_MEM=4G", linux={"namespaces": [{"type": "mount"}, {"type": "user"}]})
    ),
    "no mount namespace": json.dumps(spec("XPU_MEM=4G", linux={"namespaces": [{"type": "pid"}]})),
    "no namespaces": json.dumps(spec("XPU_MEM=4G", linux={})),
    "no linux": json.dumps(spec("XPU_MEM=4G", linux=None)),
    "hooks of this stage": json.dumps(spec("XPU_MEM=4G", hooks={"createRuntime": []})),
    "hooks of the end": json.dumps(spec("XPU_MEM=4G", hooks={"poststop": [{"path": "/a"}]})),
    "no hooks": json.dumps(spec("XPU_MEM=4G", hooks=None)),
    "another case": json.dumps(spec("XPU_MEM=4G", Hooks={"createRuntime": []})),
    "a letter that Go takes for s": json.dumps({**spec("XPU_MEM=4G"), "hook\u017f": {}}, ensure_ascii=False),
    "hooks twice": json.dumps(spec("XPU_MEM=4G"))[:-1] + ', "hooks": {}, "hooks": {"createRuntime": []}}',
    "a process twice": json.dumps(spec("XPU_MEM=4G"))[:-1] + ', "process": {"env": []}}',
    "variables twice": json.dumps(spec("XPU_MEM=4G")).replace('"args"', '"env": ["XPU_CORES=x"], "args"'),
    "variables that are none": json.dumps(spec("XPU_MEM=4G")).replace('["PATH=/bin"', '[3, "PATH=/bin"'),
    "a second value": json.dumps(spec("XPU_MEM=4G")) + "{}",
    "cut off": json.dumps(spec("XPU_MEM=4G"))[:-1],
    "a comma too many": json.dumps(spec("XPU_MEM=4G"))[:-1] + ",}",
    "a list": "[" + json.dumps(spec("XPU_MEM=4G")) + "]",
    "deep": json.dumps(spec("XPU_MEM=4G", x=None)).replace("null", "[" * 200 + "]" * 200),
    "a zero byte": json.dumps(spec("XPU_MEM=4G", x="")).replace('""', '"\0"'),
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_what_is_not_plain_is_the_shim_s(injecting: Injecting, text: str) -> None:
    injecting.config.write_text(text)
    assert injecting.create() == "shim"
    assert injecting.config.read_text() == text
    assert injecting.left() == ["config.json"]


@pytest.mark.parametrize("inject", ["yes", "no-pods", "no"])
def test_of_a_pod_where_an_assignment_is_required_the_shim_decides(injecting: Injecting, inject: str) -> None:
    conf = injecting.launcher.run_dir / "launcher.conf"
    conf.write_text(conf.read_text().replace("inject=yes", f"inject={inject}"))
    of_pod = {"io.kubernetes.cri.container-type": "container"}
    for marks, by in (({}, {"yes", "no-pods"}), (of_pod, {"yes"})):
        injecting.config.write_text(json.dumps(spec("XPU_MEM=4G", annotations=marks)))
        assert injecting.create() == ("runtime" if inject in by else "shim")


def kept_beside(injecting: Injecting) -> None:
    (injecting.bundle / "config.json.xpu").write_text("{}")


def linked(injecting: Injecting) -> None:
    os.link(injecting.config, injecting.bundle / "other")


def a_symlink(injecting: Injecting) -> None:
    injecting.config.rename(injecting.bundle / "other")
    injecting.config.symlink_to("other")


def no_hook(injecting: Injecting) -> None:
    injecting.hook.unlink()


def only_the_hook_is_left(injecting: Injecting) -> None:
    """As after the package's removal, for containers that run."""
    injecting.launcher.shim.with_name("hook.py").unlink()


def another_runtime(injecting: Injecting) -> None:
    injecting.runtime.write_text(injecting.runtime.read_text() + "# newer\n")


def not_known(injecting: Injecting) -> None:
    injecting.kept.unlink()


def no_stage(injecting: Injecting) -> None:
    injecting.knows("startContainer")


def others_may_write(injecting: Injecting) -> None:
    injecting.kept.chmod(0o666)


def forbidden(injecting: Injecting) -> None:
    conf = injecting.launcher.run_dir / "launcher.conf"
    conf.write_text(conf.read_text().replace("inject=yes", "inject=no"))


def quotes_in_the_run_folder_s_name(injecting: Injecting) -> None:
    renamed = injecting.launcher.run_dir.rename(injecting.launcher.run_dir.with_name('r"n'))
    injecting.launcher.env["XPU_RUN_DIR"] = str(renamed)


@pytest.mark.parametrize(
    "change",
    [
        kept_beside,
        linked,
        a_symlink,
        no_hook,
        only_the_hook_is_left,
        another_runtime,
        not_known,
        no_stage,
        others_may_write,
    ]
    + [forbidden, quotes_in_the_run_folder_s_name],
)
def test_whatever_is_in_doubt_is_the_shim_s(injecting: Injecting, change: Any) -> None:
    text = json.dumps(spec("XPU_MEM=4G"))
    injecting.config.write_text(text)
    change(injecting)
    assert injecting.create() == "shim"
    assert injecting.config.read_text() == text


def test_a_file_that_may_not_be_so_large_is_the_shim_s_to_tell(injecting: Injecting) -> None:
    text = json.dumps(spec("XPU_MEM=4G", x="y" * 4000))
    injecting.config.write_text(text)
    line = [str(injecting.launcher.path), "create", "--bundle", str(injecting.bundle), "c"]
    done = subprocess.run(
        ["prlimit", "--fsize=2000", *line], env=injecting.launcher.env, capture_output=True, text=True
    )
    assert done.stdout.startswith("the shim\n"), done
    assert (injecting.left(), injecting.config.read_text()) == (["config.json"], text)


@pytest.mark.parametrize("name", ["XPU_CONFIG", "XPU_RUN_DIR"])
def test_files_of_ours_that_are_named_from_the_working_folder_are_made_whole(
    injecting: Injecting, name: str
) -> None:
    """The hook's working folder is another: it would read another configuration, or none."""
    there = Path(injecting.launcher.env[name])
    injecting.launcher.env[name] = there.name
    asked = spec("XPU_MEM=4G")
    injecting.config.write_text(json.dumps(asked))
    done = injecting.launcher.run("create", "--bundle", injecting.bundle, "c", cwd=there.parent)
    assert done.stdout.startswith("the shim\n"), done
    caller = proc.this_process().replace(environment={name: there.name}, working_folder=str(there.parent))
    runtime = Runtime(str(injecting.runtime), "runtime", True)
    hooks_in_spec.add_hooks(asked, runtime, [], caller)
    assert asked["hooks"]["poststop"][0]["env"][1:] == [f"{name}={there}"]


@pytest.mark.parametrize("words", [["--systemd-cgroup"], ["--log", "of-the-bundle.log"]])
def test_lines_that_the_shim_reads(injecting: Injecting, words: list[str]) -> None:
    injecting.config.write_text(json.dumps(spec("XPU_MEM=4G")))
    assert injecting.create(*words) == "shim"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    before=st.dictionaries(st.text(max_size=6), VALUES, max_size=3),
    hooks=st.none() | st.dictionaries(st.sampled_from(["prestart", "poststart", "x"]), VALUES, max_size=3),
    escaped=st.booleans(),
)
def test_any_other_member_stays_as_it_is(
    injecting: Injecting, before: dict[str, Any], hooks: dict[str, Any] | None, escaped: bool
) -> None:
    asked = {**before, **spec("XPU_MEM=4G", **({} if hooks is None else {"hooks": hooks}))}
    text = json.dumps(asked, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    injecting.config.write_bytes(text)
    if injecting.create() == "shim":
        assert injecting.config.read_bytes() == text
    else:
        assert json.loads(injecting.config.read_bytes().decode("utf-8", "surrogatepass")) == (
            injecting.by_shim(asked, [])
        )
