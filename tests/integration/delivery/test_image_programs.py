"""Programs of an image that say themselves where their libcuda lies: the limit holds for them as well."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Bundles, Node, edit_spec
from .images import ASK, bring

#: Loads the library that it is told, as frameworks do, and asks for more than the limit.
LOADS = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
    void *library = dlopen(words[count - 1], RTLD_NOW), *context = 0;
    if (!library)
        return puts(dlerror());
    int (*init)(unsigned) = dlsym(library, "cuInit");
    int (*create)(void **, unsigned, int) = dlsym(library, "cuCtxCreate_v2");
    int (*alloc)(unsigned long long *, unsigned long) = dlsym(library, "cuMemAlloc_v2");
    unsigned long long pointer = 0;
    init(0);
    create(&context, 0, 0);
    printf("answer %d\n", alloc(&pointer, 2000ul << 20));
}
"""
OUT_OF_MEMORY = "answer 2\n"


def make(root: Path, place: str, *options: str) -> None:
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / "loads.c").write_text(LOADS)
    subprocess.run(["gcc", root / "loads.c", "-o", root / place, *options], check=True)


def nix(root: Path, driver: Path) -> dict[str, object]:
    bring(driver, root / "nix/store/0123-nvidia-x11-550/lib")
    make(root, "usr/bin/probe", "-Wl,-rpath,/nowhere:/nix/store/0123-nvidia-x11-550/lib")
    return {}


def spack(root: Path, driver: Path) -> dict[str, object]:
    """An older RPATH, in a program that is none for any address."""
    bring(driver, root / "spack/opt/cuda-compat/lib")
    make(root, "usr/bin/probe", "-no-pie", "-Wl,--disable-new-dtags,-rpath,/spack/opt/cuda-compat/lib")
    return {}


def bazel(root: Path, driver: Path) -> dict[str, object]:
    bring(driver, root / "app/probe.runfiles/_solib_k8")
    make(root, "app/probe", "-Wl,-rpath,$ORIGIN/probe.runfiles/_solib_k8")
    return {"args": ["./probe"], "cwd": "/app"}


def conda_by_its_path(root: Path, driver: Path) -> dict[str, object]:
    bring(driver, root / "opt/conda/envs/x/lib")
    make(root, "opt/conda/envs/x/bin/probe", "-Wl,-rpath,$ORIGIN/../lib")
    return {"args": ["/opt/conda/envs/x/bin/probe"]}


def virtual_environment(root: Path, driver: Path) -> dict[str, object]:
    """Its python is a link; the loader's $ORIGIN is where the link leads."""
    bring(driver, root / "opt/conda/lib")
    make(root, "opt/conda/bin/python3.11", "-Wl,-rpath,$ORIGIN/../lib")
    (root / "venv/bin").mkdir(parents=True)
    (root / "venv/bin/python").symlink_to("/opt/conda/bin/python3.11")
    return {"args": ["sh", "-c", "exec python libcuda.so.1"], "env": ["PATH=/venv/bin:/bin:/usr/bin"]}


def script(root: Path, driver: Path) -> dict[str, object]:
    bring(driver, root / "opt/own")
    make(root, "usr/bin/runner", "-Wl,-rpath,/opt/own")
    (root / "usr/bin/probe").write_text("#!/usr/bin/env runner\n")
    (root / "usr/bin/env").unlink(missing_ok=True)
    (root / "usr/bin/env").symlink_to("/bin/busybox")
    (root / "usr/bin/probe").chmod(0o755)
    return {}


def conda_activated(root: Path, driver: Path) -> dict[str, object]:
    bring(driver, root / "opt/conda/envs/x/cuda-compat")
    make(root, "opt/conda/envs/x/bin/probe")
    command = "LD_LIBRARY_PATH=/opt/conda/envs/x/cuda-compat exec probe libcuda.so.1"
    return {"args": ["sh", "-c", command], "env": ["PATH=/opt/conda/envs/x/bin:/bin:/usr/bin"]}


def hpc_sdk(root: Path, driver: Path) -> dict[str, object]:
    folder = f"opt/nvidia/hpc_sdk/Linux_{os.uname().machine}/24.1/cuda/12.3/compat"
    bring(driver, root / folder)
    make(root, "usr/bin/probe")
    return {"args": ["sh", "-c", f"LD_LIBRARY_PATH=/{folder} exec probe libcuda.so.1"]}


def named_by_a_variable(root: Path, driver: Path) -> dict[str, object]:
    bring(driver, root / "opt/odd")
    make(root, "usr/bin/probe")
    command = 'exec probe "$NUMBA_CUDA_DRIVER"'
    variables = ["PATH=/bin:/usr/bin", "NUMBA_CUDA_DRIVER=/opt/odd/libcuda.so.1"]
    return {"args": ["sh", "-c", command], "env": variables}


def cache_without_version(root: Path, driver: Path) -> dict[str, object]:
    """As `ldconfig FOLDER` leaves it: in no configuration, and with `libcuda.so`, which has no version."""
    bring(driver, root / "opt/odd").with_name("libcuda.so").symlink_to("libcuda.so.1")
    make(root, "usr/bin/probe")
    subprocess.run(["ldconfig", "-r", root, "/opt/odd"], check=True)
    return {"args": ["probe", "libcuda.so"]}


@pytest.mark.parametrize(
    "layout",
    [
        nix,
        spack,
        bazel,
        conda_by_its_path,
        virtual_environment,
        script,
        conda_activated,
        hpc_sdk,
        named_by_a_variable,
        cache_without_version,
    ],
)
def test_a_program_that_says_where_its_libcuda_lies_meets_the_limit(
    node: Node, bundles: Bundles, driver: Path, layout: Callable[[Path, Path], dict[str, object]]
) -> None:
    bundle = bundles(*ASK)
    wanted = layout(bundle / "rootfs", driver)
    arguments = wanted.get("args", ["probe"])
    assert isinstance(arguments, list)
    if arguments[-1].rpartition("/")[2] == "probe":
        arguments = [*arguments, "libcuda.so.1"]
    variables = wanted.get("env", ["PATH=/bin:/usr/bin"])
    assert isinstance(variables, list)
    process = {"args": arguments, "env": [*variables, *ASK], "cwd": wanted.get("cwd", "/")}
    edit_spec(bundle, lambda spec: spec["process"].update(process))
    done = node.run(bundle)
    assert done.stdout == OUT_OF_MEMORY, done.stderr


def test_scripts_that_run_each_other_keep_nobody_waiting(node: Node, bundles: Bundles, driver: Path) -> None:
    bundle = bundles(*ASK, args=["true"])
    for name in ("python", "python3"):
        (bundle / f"rootfs/usr/bin/{name}").write_text("#!/usr/bin/python3 python\n")
    assert node.run(bundle).returncode == 0
