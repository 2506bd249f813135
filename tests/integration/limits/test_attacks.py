"""A hostile image that wants more than its slice: its files, variables and claims reach nothing outside."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Bundles, Node
from ..inside import tree
from ..refusals import log_entries, refused


@pytest.fixture
def canary(node: Node) -> Path:
    """A folder of the host with something of every kind that an image may be after."""
    folder = node.folder / "canary"
    for name in ("etc", "lib", "bin", "run"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text(name)
    (folder / "etc/ld.so.cache").write_text("the host's cache")
    (folder / "lib/libcuda.so.1").write_text("the host's library")
    (folder / "bin/nvidia-smi").write_text("the host's program")
    return folder


# Links in the image's root.

LIBRARIES = "usr/lib/x86_64-linux-gnu"
#: Links that are planted together: their paths, and the part of the canary that each leads to.
PLACES: tuple[dict[str, str], ...] = (
    {LIBRARIES: "lib", "etc/ld.so.cache": "etc/ld.so.cache"},
    {f"{LIBRARIES}/libcuda.so.1": "lib/libcuda.so.1", "run": "run"},
    {f"{LIBRARIES}/libcuda.so.615.36.02": "lib/libcuda.so.1", "etc": "etc"},
    {f"{LIBRARIES}/libnvidia-ml.so.615.36.02": "lib/not-there", "usr/bin/nvidia-smi": "bin/nvidia-smi"},
    {"run/nvidia-sim": "run"},
)
WAYS = {
    "an absolute path": "{canary}",
    "a chain of dots": "../../../../../../../../../../../..{canary}",
    "the process's root": "/proc/self/root{canary}",
    "the host's init": "/proc/1/root{canary}",
    "a working directory": "/proc/self/cwd/../../../../../../..{canary}",
}


def plant(root: Path, place: str, target: str) -> None:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.old"))
    path.unlink(missing_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("way", WAYS)
def test_links_out_of_the_root_lead_nowhere(
    node: Node, bundles: Bundles, mode: str, canary: Path, way: str
) -> None:
    before = tree(canary)
    driver = tree(node.run_dir / "sim/root/usr")
    for places in PLACES:
        bundle = bundles("XPU_MEM=1G", args=["cat", "/proc/self/mountinfo"])
        for place, inside in places.items():
            plant(bundle / "rootfs", place, WAYS[way].format(canary=canary) + f"/{inside}")
        beside = set(node.folder.iterdir())
        done = node.run(bundle)
        assert tree(canary) == before, f"{places}: {done.stderr}"
        assert tree(node.run_dir / "sim/root/usr") == driver
        assert set(node.folder.iterdir()) == beside
        assert "/canary/" not in "".join(line.split()[3] for line in done.stdout.splitlines())
        if done.returncode:
            assert "internal error" not in done.stderr
        assert node.grants() == []
    assert str(canary) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("way", ["an absolute path", "the process's root"])
def test_a_dev_folder_that_leads_out_of_the_root_gets_no_node_of_ours(
    node: Node, bundles: Bundles, mode: str, canary: Path, way: str
) -> None:
    def left_by(*env: str) -> dict[str, tuple[str, ...]]:
        bundle = bundles(*env)
        plant(bundle / "rootfs", "dev", WAYS[way].format(canary=canary) + "/etc")
        node.run(bundle)
        return tree(canary)

    # runc's own links, such as /dev/stdin, may go there: its fault, and not more than that.
    silent = left_by()
    assert left_by("XPU_MEM=1G") == silent
    assert "nvidia0" not in str(silent)
    assert node.grants() == []


def test_no_file_of_the_host_but_the_drivers_is_mounted(
    node: Node, bundles: Bundles, mode: str, canary: Path
) -> None:
    def sources(*env: str, links: dict[str, str]) -> set[tuple[str, str]]:
        bundle = bundles(*env, args=["cat", "/proc/self/mountinfo"])
        for place, target in links.items():
            plant(bundle / "rootfs", place, target)
        done = node.run(bundle)
        assert done.returncode == 0, done.stderr
        fields = [line.split() for line in done.stdout.splitlines()]
        return {(each[3].replace(bundle.name, ""), each[4]) for each in fields}

    links = {f"{LIBRARIES}/libcuda.so": f"{canary}/lib/libcuda.so.1", "usr/bin/nvidia-smi": f"{canary}/bin/x"}
    ours = sources("XPU_MEM=1G", links=links) - sources(links={})
    assert len(ours) > 3
    root = f"{node.run_dir}/sim/root/"
    files = {source for source, place in ours if not place.startswith("/dev/")}
    # mountinfo's paths are relative to the root of the file system with the driver root.
    assert all(root.endswith(source[: source.index("/sim/root/") + 10]) for source in files), files


def test_a_mountpoint_that_leads_to_the_kernels_files_is_refused(
    node: Node, bundles: Bundles, mode: str
) -> None:
    for place, target in (
        (f"{LIBRARIES}/libcuda.so.615.36.02", "/proc/self/attr/exec"),
        (f"{LIBRARIES}/libcuda.so.615.36.02", "/sys/kernel/uevent_helper"),
        ("run/nvidia-sim", "/proc/self/fd"),
    ):
        bundle = bundles("XPU_MEM=1G")
        plant(bundle / "rootfs", place, target)
        done = node.run(bundle)
        assert done.returncode == 1, (place, target)
        assert "internal error" not in done.stderr
        node.xpu("gc")
        assert node.grants() == []


def test_a_library_folder_of_the_kernels_is_stepped_over(node: Node, bundles: Bundles, mode: str) -> None:
    bundle = bundles("XPU_MEM=1G", args=["cat", "/proc/self/mountinfo"])
    plant(bundle / "rootfs", LIBRARIES, "/proc")
    done = node.run(bundle)
    assert done.returncode == 0, done.stderr
    places = [line.split()[4] for line in done.stdout.splitlines()]
    libraries = [place for place in places if "libcuda.so" in place]
    assert len(libraries) == 1 and not libraries[0].startswith("/proc/")


# Variables of an image, for programs that run with the host's rights.


def test_the_images_environment_reaches_neither_hook_nor_shim(
    node: Node, bundles: Bundles, mode: str
) -> None:
    proof = node.folder / "proof"
    proof.mkdir()
    library = node.folder / "evil.so"
    source = node.folder / "evil.c"
    source.write_text(
        "#include <fcntl.h>\n#include <unistd.h>\n"
        "__attribute__((constructor)) static void run(void) {\n"
        f'    close(open("{proof}/library", O_CREAT | O_WRONLY, 0644));\n}}\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    evil = f"open({str(proof / 'module')!r}, 'w')\n"
    bundle = bundles(
        *("XPU_MEM=1G", f"LD_PRELOAD={library}", "PYTHONPATH=.:/:/rootfs", "PYTHONHOME=/", "PYTHONINSPECT=1"),
        *(f"PYTHONSTARTUP={bundle_file(node)}", f"LD_AUDIT={library}", "PATH=/:/bin:/usr/bin:."),
        args=["/bin/busybox", "true"],
    )
    for folder in (bundle, bundle / "rootfs", bundle / "rootfs/usr/bin"):
        for name in (
            "json",
            "os",
            "site",
            "sitecustomize",
            "usercustomize",
            "xpu_runtime",
            "_json",
            "encodings",
        ):
            (folder / f"{name}.py").write_text(evil)
        for name in ("python3", "runc", "xpu-container-runtime-hook"):
            program = folder / name
            program.write_text(f"#!/bin/sh\n: > {proof}/program\n")
            program.chmod(0o755)
    bundle_file(node).write_text(evil)
    done = node.oci("run", bundle.name, cwd=bundle)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in proof.iterdir()) == []
    subprocess.run(["true"], env={"LD_PRELOAD": str(library)}, check=True)
    assert [path.name for path in proof.iterdir()] == ["library"]  # the trap works


def bundle_file(node: Node) -> Path:
    return node.folder / "startup.py"


@pytest.mark.parametrize("name", ["XPU_CONFIG", "XPU_RUN_DIR"])
def test_our_own_variables_are_taken_from_the_engine_only(
    node: Node, bundles: Bundles, mode: str, name: str
) -> None:
    theirs = node.folder / "theirs"
    theirs.write_text("low_level_runtimes: [/bin/true]\n")
    assert f"{name}=" in refused(node, bundles("XPU_MEM=1G", f"{name}={theirs}"))
    assert theirs.read_text() == "low_level_runtimes: [/bin/true]\n"
    assert f"{name}=" in refused(node, bundles(f"{name}={theirs}"))


def test_a_containers_environment_cannot_lift_its_limit(node: Node, bundles: Bundles, mode: str) -> None:
    variables = "XPU_MEM=15G XPU_VISIBLE_DEVICES=all XPU_ENFORCE=none NVIDIA_VISIBLE_DEVICES=all"
    script = ["sh", "-c", f"export {variables} CUDA_VISIBLE_DEVICES=0; cuda-probe alloc 2000 500"]
    container = node.start(bundles("XPU_MEM=1G", args=["sleep", "1000"]))
    done = node.oci("exec", container, *script)
    assert done.stdout.splitlines()[:2] == [
        "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY",
        "allocating 500 MiB: CUDA_SUCCESS",
    ]
    (grant,) = node.grants()
    assert grant.slices[0].memory_bytes == 1 << 30


# Claims of a container.


def test_annotations_prove_nothing(node: Node, bundles: Bundles, mode: str) -> None:
    def annotated(**marks: str) -> Callable[[dict[str, Any]], object]:
        return lambda spec: spec.update(annotations={k.replace("__", "/"): v for k, v in marks.items()})

    prefix = "yoyoworks.com__xpu-"
    holder = node.start(bundles("XPU_MEM=15G", args=["sleep", "1000"]))
    for marks, told in (
        (
            {f"{prefix}mem": "1G", f"{prefix}granted": "true"},
            "unknown annotation yoyoworks.com/xpu-granted; known are",
        ),
        ({f"{prefix}mem": "1G"}, "refused: no device has 1G of memory free"),
        ({f"{prefix}enforce": "none", f"{prefix}mem": "1G"}, "allow_unenforced does not list memory"),
        ({f"{prefix}mem": "lots"}, "yoyoworks.com/xpu-mem: 'lots'"),
    ):
        assert told in refused(node, bundles(change=annotated(**marks)))
    (grant,) = node.grants()
    assert grant.container_id == holder


def test_ten_thousand_variables_are_no_hindrance(node: Node, bundles: Bundles, mode: str) -> None:
    many = [f"VARIABLE_{number}={'x' * 20}" for number in range(10_000)]
    done = node.run(bundles(*many, "XPU_MEM=1G", *many, args=["cuda-probe", "info"]))
    assert done.stdout == "device 0: 1024 MiB free of 1024 MiB\n", done.stderr
    done = node.run(bundles(*many, args=["echo", "hello"]))
    assert done.stdout == "hello\n", done.stderr


@pytest.mark.parametrize(
    "env",
    [
        [f"XPU_MEM={'9' * 4_000_000}G"],
        [f"XPU_{'M' * 4_000_000}=1"],
        [f"XPU_WRONG_{number}=1" for number in range(10_000)],
        [f"XPU_VISIBLE_DEVICES={','.join(['0'] * 100_000)}"],
        [f"XPU_VISIBLE_DEVICES={','.join(f'GPU-{number:08x}' for number in range(256))}"],
        [f"XPU_REQUIRE={'cuda>=12.0 ' * 100_000}"],
        [f"XPU_REQUIRE=brand={'x' * 8_000}"],
        [f"XPU_MEM={','.join(['1Q'] * 256)}"],
        [f"XPU_VISIBLE_DEVICES={','.join(['card'] * 256)}"],
        [f"XPU_CAPABILITIES={','.join(['sight'] * 256)}"],
    ],
    ids=[
        *("a long number", "a long name", "many names", "many indexes", "many devices", "a long requirement"),
        *("a long brand", "many sizes", "many words", "many capabilities"),
    ],
)
def test_a_refusal_is_short_however_much_is_wrong(node: Node, bundles: Bundles, env: list[str]) -> None:
    node.sim("1xT4")
    told = refused(node, bundles(*env))
    assert 20 < len(told) < 4096, told[:300]
    assert node.grants() == []


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_value_cannot_forge_lines_of_the_log(node: Node, bundles: Bundles, mode: str, form: str) -> None:
    value = '1G\ntime="2026-01-01T00:00:00Z" level=info msg="all is well"\r\x1b[2J\x00"}'
    bundle = bundles(f"XPU_MEM={value}", "XPU_MEMM\n\x1b[31m=1")
    told = refused(node, bundle, form=form)
    assert not any(ord(letter) < 32 for letter in told), told
    assert {entry["level"] for entry in log_entries(bundle / "log", form)} == {"error"}


@pytest.mark.parametrize("name", ["\\u0058PU_MEM", "X\\u0050U_MEM", "XPU\\u005fMEM", "XPU_M\\u0045M"])
def test_a_name_written_in_escapes_is_the_same_name(
    node: Node, bundles: Bundles, mode: str, name: str
) -> None:
    bundle = bundles("XPU_MEM=2G", args=["cuda-probe", "info"])
    path = bundle / "config.json"
    text = path.read_text()
    assert text.count('"XPU_MEM=') == 1
    path.write_text(text.replace('"XPU_MEM=', f'"{name}='))
    done = node.run(bundle)
    assert done.stdout == "device 0: 2048 MiB free of 2048 MiB\n", done.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("process.env", "XPU_MEM=1G"),
        ("process.env", {"XPU_MEM": "1G"}),
        ("process.env", [["XPU_MEM=1G"], 7, None, "XPU_MEM=1G"]),
        ("annotations", ["yoyoworks.com/xpu-mem"]),
        ("root", {"path": 7}),
        ("root", None),
        ("linux.namespaces", "user"),
        ("linux.resources.devices", {"XPU_": 1}),
        ("mounts", {"XPU_": 1}),
    ],
)
def test_a_spec_of_wrong_types_never_gets_a_device(
    node: Node, bundles: Bundles, mode: str, key: str, value: Any
) -> None:
    def change(spec: dict[str, Any]) -> None:
        *above, last = key.split(".")
        for name in above:
            spec = spec[name]
        spec[last] = value

    done = node.run(bundles("XPU_MEM=1G", args=["/bin/true"], change=change))
    assert done.returncode == 1
    assert "internal error" not in done.stderr
    assert "Traceback" not in done.stderr
    node.xpu("gc")
    assert node.grants() == []


def test_a_container_that_overwrites_its_libraries_harms_no_other(
    node: Node, bundles: Bundles, mode: str
) -> None:
    driver = tree(node.run_dir / "sim/root/usr")
    script = (
        f"for each in /{LIBRARIES}/lib*.615* /usr/bin/nvidia-smi /run/nvidia-sim/socket; do\n"
        "echo evil > $each; rm -f $each; mv /bin/busybox $each; chmod 0 $each; umount $each\n"
        "done 2>/dev/null\n"
        "mount -o remount,rw /usr/bin/nvidia-smi 2>/dev/null; echo evil > /usr/bin/nvidia-smi; nvidia-smi -L"
    )
    done = node.run(bundles("XPU_MEM=1G", args=["sh", "-c", script]))
    assert "Tesla T4" in done.stdout, done.stderr
    assert tree(node.run_dir / "sim/root/usr") == driver
    assert json.loads(node.xpu("devices", "--json").stdout)[0]["healthy"]
