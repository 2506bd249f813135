"""An image's libcuda for a newer CUDA than the driver's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ..conftest import Bundles, Node
from .images import ASK, REAL, REFUSED, TOO_MUCH, bring

MARK = b"of the image's own"
#: Prints the end of the library behind the interposer, and whether the limit holds.
WHAT_IS_BEHIND = ["sh", "-c", f"tail -c {len(MARK)} {REAL}; echo; {' '.join(TOO_MUCH)}"]


def bring_newer(driver: Path, folder: Path, version: str) -> None:
    """A libcuda of another version, as cuda-compat packages have it: here the driver's own, with a mark."""
    path = bring(driver, folder)
    path.with_name("libcuda.so.1").unlink()
    newer = path.rename(path.with_name(f"libcuda.so.{version}"))
    newer.write_bytes(newer.read_bytes() + MARK)
    newer.with_name("libcuda.so.1").symlink_to(newer.name)


@pytest.mark.parametrize("variable", ["LD_LIBRARY_PATH=/usr/local/cuda/compat", "A=b"])
def test_the_interposer_stands_in_front_of_a_libcuda_for_newer_cuda(
    node: Node, bundles: Bundles, driver: Path, variable: str
) -> None:
    bundle = bundles(*ASK, variable, args=WHAT_IS_BEHIND)
    bring_newer(driver, bundle / "rootfs/usr/local/cuda-13.9/compat", "620.11.02")
    (bundle / "rootfs/usr/local/cuda").symlink_to("cuda-13.9")
    done = node.run(bundle)
    assert done.stdout.startswith(MARK.decode()), done.stderr
    assert REFUSED in done.stdout
    assert list((node.run_dir / "slices").iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "version"),
    [
        ("usr/local/cuda/compat", "570.11.02"),
        ("usr/local/cuda/compat", "580.999.02"),
        ("usr/local/cuda/compat", "620"),
        # No package for newer CUDA, but a driver of another machine, which an image was made on.
        ("usr/lib/x86_64-linux-gnu", "620.11.02"),
    ],
)
def test_any_other_libcuda_is_hidden(
    node: Node, bundles: Bundles, driver: Path, folder: str, version: str
) -> None:
    bundle = bundles(*ASK, args=WHAT_IS_BEHIND)
    bring_newer(driver, bundle / "rootfs" / folder, version)
    done = node.run(bundle)
    assert MARK.decode() not in done.stdout
    assert REFUSED in done.stdout


def test_the_parts_of_a_newer_libcuda_are_found_beside_it(node: Node, bundles: Bundles, driver: Path) -> None:
    part = "libnvidia-ptxjitcompiler.so.1"
    script = f"$(ls /lib*/ld-linux-*.so.*) --preload {part} --list /usr/bin/cuda-probe"
    bundle = bundles(*ASK, args=["sh", "-c", script])
    root = bundle / "rootfs"
    bring_newer(driver, root / "usr/local/cuda/compat", "620.11.02")
    (root / "none.c").write_text("")
    made = root / "usr/local/cuda/compat" / part
    subprocess.run(["gcc", "-shared", f"-Wl,-soname,{part}", "-o", made, root / "none.c"], check=True)
    done = node.run(bundle)
    assert f"{part} => /usr/local/cuda/compat/{part}" in done.stdout, done.stderr


def test_a_link_that_leads_out_of_the_image_brings_nothing_of_the_host(
    node: Node, bundles: Bundles, driver: Path
) -> None:
    secret = node.folder / "secret"
    secret.write_text("the host's")
    bundle = bundles(*ASK, args=["grep", "-c", "the host's", REAL])
    compat = bundle / "rootfs/usr/local/cuda/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.620.11.02").symlink_to(f"{'../' * 30}{secret}")
    assert node.run(bundle).stdout == "0\n"
