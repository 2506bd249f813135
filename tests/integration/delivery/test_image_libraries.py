"""Images with a libcuda or libnvidia-ml of their own: wherever the loader finds it, the limit holds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Bundles, Node, edit_spec
from ..inside import LDCONFIG, MULTIARCH
from ..refusals import refused
from .images import ASK, REAL, REFUSED, TOO_MUCH, binds, bring

Layout = Callable[[Path, Path], tuple[str, ...]]
#: The loader's $LIB on Debian.
LIB = MULTIARCH.removeprefix("usr/")


def ldconfig(root: Path, *folders: str) -> None:
    (root / "etc/ld.so.conf").write_text("".join(f"{folder}\n" for folder in folders))
    subprocess.run(["ldconfig", "-r", root], check=True)


# Layouts of images; each gives the variables that the image sets.


def ngc(root: Path, driver: Path) -> tuple[str, ...]:
    """As NVIDIA's own images: `lib` is a link to `lib.real`, in a toolkit that is behind a link itself."""
    compat = root / "usr/local/cuda-12.8/compat"
    bring(driver, compat / "lib.real")
    (compat / "lib").symlink_to("lib.real")
    (root / "usr/local/cuda").symlink_to("cuda-12.8")
    return ("LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:/usr/local/nvidia/lib",)


def ngc_absolute(root: Path, driver: Path) -> tuple[str, ...]:
    bring(driver, root / "usr/local/cuda-12.8/compat/lib.real")
    (root / "usr/local/cuda-12.8/compat/lib").symlink_to("/usr/local/cuda-12.8/compat/lib.real")
    return ("LD_LIBRARY_PATH=/usr/local/cuda-12.8/compat/lib",)


def conda_lib(root: Path, driver: Path) -> tuple[str, ...]:
    bring(driver, root / "opt/conda/lib")
    return ("LD_LIBRARY_PATH=/opt/conda/lib",)


def usr_lib64(root: Path, driver: Path) -> tuple[str, ...]:
    bring(driver, root / "usr/lib64")
    return ("LD_LIBRARY_PATH=/usr/lib64",)


def a_file_for_the_soname(root: Path, driver: Path) -> tuple[str, ...]:
    bring(driver, root / "opt/plain").rename(root / "opt/plain/file")
    (root / "opt/plain/libcuda.so.1").unlink()
    (root / "opt/plain/file").rename(root / "opt/plain/libcuda.so.1")
    return ("LD_LIBRARY_PATH=/opt/other:/opt/plain",)


def a_link_out_of_the_folder(root: Path, driver: Path) -> tuple[str, ...]:
    bring(driver, root / "srv/hidden").rename(root / "srv/hidden/data.bin")
    (root / "opt/links").mkdir(parents=True)
    (root / "opt/links/libcuda.so.1").symlink_to("../../srv/hidden/data.bin")
    return ("LD_LIBRARY_PATH=/opt/links",)


def hard_links(root: Path, driver: Path) -> tuple[str, ...]:
    first = bring(driver, root / "usr/local/cuda/compat")
    (root / "opt/hard").mkdir(parents=True)
    os.link(first, root / "opt/hard/libcuda.so.1")
    return ("LD_LIBRARY_PATH=/opt/hard",)


def an_empty_element(root: Path, driver: Path) -> tuple[str, ...]:
    bring(driver, root / "work")
    return ("LD_LIBRARY_PATH=/nowhere:",)


def a_relative_element(root: Path, driver: Path) -> tuple[str, ...]:
    bring(driver, root / "work/libs")
    return ("LD_LIBRARY_PATH=libs;/nowhere",)


def lib_token(root: Path, driver: Path) -> tuple[str, ...]:
    bring(driver, root / f"opt/{LIB}")
    return ("LD_LIBRARY_PATH=/opt/${LIB}",)


def platform_token(root: Path, driver: Path) -> tuple[str, ...]:
    # `haswell` where the processor is one.
    for name in ("x86_64", "haswell", os.uname().machine):
        (root / "opt" / name).mkdir(parents=True, exist_ok=True)
        if not (root / "opt" / name / "libcuda.so.1").exists():
            bring(driver, root / "opt" / name)
    return ("LD_LIBRARY_PATH=/opt/$PLATFORM",)


def origin_token(root: Path, driver: Path) -> tuple[str, ...]:
    bring(driver, root / "usr/own")
    return ("LD_LIBRARY_PATH=$ORIGIN/../own",)


def hardware_levels(root: Path, driver: Path) -> tuple[str, ...]:
    for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "atomics"):
        bring(driver, root / "opt/levels/glibc-hwcaps" / level)
    return ("LD_LIBRARY_PATH=/opt/levels",)


def a_link_to_the_real_one(root: Path, driver: Path) -> tuple[str, ...]:
    (root / "opt/round").mkdir(parents=True)
    (root / "opt/round/libcuda.so.1").symlink_to(REAL)
    return ("LD_LIBRARY_PATH=/opt/round",)


def links_to_the_real_one(root: Path, driver: Path) -> tuple[str, ...]:
    """Also with the rest of a mountpoint in an image by `docker commit`."""
    (root / "usr/lib/xpu").mkdir(parents=True)
    (root / REAL[1:]).touch()
    (root / "opt/round").mkdir(parents=True)
    (root / "opt/round/next").symlink_to("../../usr/lib/../lib/xpu/libcuda.real")
    (root / "opt/round/libcuda.so.1").symlink_to("next")
    return ("LD_LIBRARY_PATH=/opt/round",)


def preloaded(root: Path, driver: Path) -> tuple[str, ...]:
    path = bring(driver, root / "opt/preload")
    return (f"LD_PRELOAD=/opt/preload/{path.name}",)


def preloaded_under_another_name(root: Path, driver: Path) -> tuple[str, ...]:
    bring(driver, root / "opt/preload").rename(root / "opt/preload/fast.so")
    return ("LD_PRELOAD=fast.so", "LD_LIBRARY_PATH=/opt/preload")


def preloaded_by_a_link(root: Path, driver: Path) -> tuple[str, ...]:
    (root / "opt/lib").mkdir(parents=True)
    (root / "opt/lib/fast.so").symlink_to(REAL)
    (root / f"opt/{LIB}").mkdir()
    (root / f"opt/{LIB}/fast.so").symlink_to(REAL)
    return ("LD_PRELOAD=/opt/$LIB/fast.so",)


LAYOUTS: list[Layout] = [
    ngc,
    ngc_absolute,
    conda_lib,
    usr_lib64,
    a_file_for_the_soname,
    a_link_out_of_the_folder,
    hard_links,
    an_empty_element,
    a_relative_element,
    lib_token,
    platform_token,
    origin_token,
    hardware_levels,
    a_link_to_the_real_one,
    links_to_the_real_one,
    preloaded,
    preloaded_under_another_name,
    preloaded_by_a_link,
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_libcuda_of_the_images_own_is_no_way_round_the_limit(
    node: Node, bundles: Bundles, driver: Path, layout: Layout
) -> None:
    bundle = bundles(*ASK, args=TOO_MUCH, change=lambda spec: spec["process"].update(cwd="/work"))
    (bundle / "rootfs/work").mkdir()
    variables = layout(bundle / "rootfs", driver)
    edit_spec(bundle, lambda spec: spec["process"]["env"].extend(variables))
    done = node.run(bundle)
    assert REFUSED in done.stdout, done.stdout + done.stderr
    assert "of 1024 MiB" in done.stdout


def test_libraries_that_an_entry_point_names_later_are_covered_too(
    node: Node, bundles: Bundles, driver: Path
) -> None:
    """Entry points make `lib` or set LD_LIBRARY_PATH themselves, where they see that it works."""
    script = "ln -s lib.real /usr/local/cuda/compat/lib; LD_LIBRARY_PATH=/usr/local/cuda/compat/lib exec "
    bundle = bundles(*ASK, args=["sh", "-c", script + " ".join(TOO_MUCH)])
    bring(driver, bundle / "rootfs/usr/local/cuda/compat/lib.real")
    assert REFUSED in node.run(bundle).stdout


def test_an_ldconfig_in_the_container_brings_none_of_the_images_to_the_front(
    node: Node, bundles: Bundles, driver: Path
) -> None:
    bundle = bundles(*ASK, args=["sh", "-c", f"/usr/ldconfig && {' '.join(TOO_MUCH)}"])
    root = bundle / "rootfs"
    shutil.copy(LDCONFIG, root / "usr/ldconfig")
    bring(driver, root / "opt/compat").with_name("libcuda.so.1").unlink()
    (root / "etc/ld.so.conf.d").mkdir()
    (root / "etc/ld.so.conf.d/000-newer.conf").write_text("# for newer CUDA\n/opt/compat\n")
    (root / "etc/ld.so.conf").write_text("include ld.so.conf.d/*.conf\n")
    assert REFUSED in node.run(bundle).stdout


def test_a_libnvidia_ml_of_the_images_own_shows_the_slice(node: Node, bundles: Bundles, driver: Path) -> None:
    bundle = bundles(*ASK, "LD_LIBRARY_PATH=/usr/local/nvidia/lib64", args=["nvidia-smi"])
    bring(driver, bundle / "rootfs/usr/local/nvidia/lib64", "libnvidia-ml.so")
    assert "/   1024MiB" in node.run(bundle).stdout


@pytest.mark.parametrize(
    "variable",
    [
        "LD_PRELOAD=/usr/lib/xpu/${LIB}cuda.real",
        "LD_AUDIT=/lib/x.so:/usr/lib/xpu/$LIB" + "nvidia-ml.real",
        "NUMBA_CUDA_DRIVER=/usr/lib/xpu/${LIB}cuda.real",
        "LD_PRELOAD=/usr/lib/xpu$ORIGIN",
    ],
)
def test_no_token_of_the_loader_hides_the_name_of_the_real_one(
    node: Node, bundles: Bundles, driver: Path, variable: str
) -> None:
    told = refused(node, bundles(*ASK, variable))
    assert f"bypasses the memory limit: leave {variable.partition('=')[0]} out" in told


def many_folders(root: Path) -> str:
    return "LD_LIBRARY_PATH=" + ":".join(f"/{number:x}" for number in range(20_000))


def a_huge_configuration(root: Path) -> str:
    (root / "etc/ld.so.conf").write_text("".join(f"/opt/{number}\n" for number in range(200_000)))
    return "A=b"


def many_includes(root: Path) -> str:
    (root / "etc/conf").mkdir()
    for number in range(1000):
        (root / f"etc/conf/{number}").write_text("include *\n" * 200)
    (root / "etc/ld.so.conf").write_text("include conf/*\n")
    return "A=b"


def a_crowded_folder(root: Path) -> str:
    (root / "usr/lib64").mkdir(exist_ok=True)
    for number in range(220_000):
        (root / f"usr/lib64/{number}").symlink_to("x")
    return "A=b"


@pytest.mark.parametrize("plant", [many_folders, a_huge_configuration, many_includes, a_crowded_folder])
def test_an_image_that_would_keep_us_searching_is_refused_soon(
    node: Node, bundles: Bundles, plant: Callable[[Path], str]
) -> None:
    node.sim("1xT4-R580")
    bundle = bundles(*ASK)
    variable = plant(bundle / "rootfs")
    edit_spec(bundle, lambda spec: spec["process"]["env"].append(variable))
    assert "have too many entries to be checked" in refused(node, bundle)
    assert node.grants() == []


def test_includes_in_a_circle_end(node: Node, bundles: Bundles, driver: Path) -> None:
    bundle = bundles(*ASK, args=TOO_MUCH)
    root = bundle / "rootfs"
    bring(driver, root / "opt/last")
    ldconfig(root, "/opt/last")
    (root / "etc/ld.so.conf").write_text("include ld.so.c*f\ninclude other.conf\n")
    (root / "etc/other.conf").write_text("include ld.so.conf\n/opt/last\n")
    assert REFUSED in node.run(bundle).stdout


def test_a_libcuda_in_a_volume_is_covered_and_the_volume_is_as_it_was(
    node: Node, bundles: Bundles, driver: Path
) -> None:
    """As where the host's driver is mounted at /usr/local/nvidia by hand."""
    volume = node.folder / "volume"
    path = bring(driver, volume / "lib64")
    before = path.read_bytes()
    change = binds(volume, "/usr/local/nvidia", "rprivate", "ro")
    bundle = bundles(*ASK, "LD_LIBRARY_PATH=/usr/local/nvidia/lib64", args=TOO_MUCH, change=change)
    assert REFUSED in node.run(bundle).stdout
    assert path.read_bytes() == before
    assert sorted(file.name for file in (volume / "lib64").iterdir()) == ["libcuda.so.1", path.name]
