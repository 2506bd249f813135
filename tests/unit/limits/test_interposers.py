"""The libcuda behind the interposer: the driver's, or one that an image has for newer CUDA."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support import inventories
from xpu_runtime.ledger.grants import Holding, Slice
from xpu_runtime.limits import interposers
from xpu_runtime.linux import loader
from xpu_runtime.linux.rootfs import Root
from xpu_runtime.vendors.inventory import Device, Inventory

GIB = 1 << 30
COMPAT = "/usr/local/cuda/compat"
NOBODY = Holding(None, None, None, None)


def node(*brands: str) -> tuple[Inventory, tuple[Slice, ...]]:
    """A node with R580 and a granted card of each brand."""
    cards = tuple(
        Device(str(number), f"GPU-{number}", "a card", 8 * GIB, (), "nvidia", facts=(("brand", brand),))
        for number, brand in enumerate(brands)
    )
    return inventories.node(inventories.nvidia("580.82.07"), *cards), tuple(
        Slice(card.index, card.uuid, GIB, True, None, NOBODY) for card in cards
    )


def behind(image: Path, *brands: str, environment: dict[str, str] | None = None) -> str | None:
    with Root(str(image)) as root:
        spec = {"process": {"env": [f"{name}={value}" for name, value in (environment or {}).items()]}}
        return interposers.newer_cuda(interposers.search_image(root, spec), *node(*brands))


def bring(image: Path, path: str) -> None:
    file = image / path[1:]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("a library")


@pytest.mark.parametrize(
    ("brands", "takes_it"),
    [
        (("tesla",), True),
        (("nvidia", "tesla"), True),
        (("geforce",), False),
        (("nvidia", "nvidiartx"), False),
        (("",), False),
    ],
)
def test_only_cards_for_data_centers_take_a_newer_libcuda(
    tmp_path: Path, brands: tuple[str, ...], takes_it: bool
) -> None:
    bring(tmp_path, f"{COMPAT}/libcuda.so.620.11.02")
    assert behind(tmp_path, *brands) == (f"{COMPAT}/libcuda.so.620.11.02" if takes_it else None)


@pytest.mark.parametrize("version", ["570.1", "580.999.1", "620", "1", "620.x", "620.", "", "999999.stub"])
def test_one_that_is_not_newer_by_its_name_is_not_taken(tmp_path: Path, version: str) -> None:
    bring(tmp_path, f"{COMPAT}/libcuda.so.{version}")
    assert behind(tmp_path, "tesla") is None


def test_of_several_the_newest_of_the_folder_that_the_image_names_is_taken(tmp_path: Path) -> None:
    for path in (
        f"{COMPAT}/libcuda.so.999.1",
        "/opt/conda/cuda-compat/libcuda.so.615.9",
        "/opt/conda/cuda-compat/libcuda.so.620.10",
        "/opt/conda/cuda-compat/libcuda.so.620.9",
    ):
        bring(tmp_path, path)
    named = {"LD_LIBRARY_PATH": "/opt/conda/cuda-compat"}
    assert behind(tmp_path, "tesla", environment=named) == "/opt/conda/cuda-compat/libcuda.so.620.10"
    assert behind(tmp_path, "tesla") == f"{COMPAT}/libcuda.so.999.1"


def test_the_newest_of_a_folder_is_taken_in_whatever_order_it_lists_its_files(tmp_path: Path) -> None:
    newest = f"{COMPAT}/libcuda.so.620.10"
    for path in (newest, f"{COMPAT}/libcuda.so.620.9"):
        bring(tmp_path, path)
    with Root(str(tmp_path)) as root:
        search = interposers.search_image(root, {})
        for _ in range(2):
            search.files = dict(reversed(search.files.items()))
            assert interposers.newer_cuda(search, *node("tesla")) == newest


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("a.conf", "*.conf"),
        ("a.conf", "*"),
        ("a.conf", "?.conf"),
        ("a.b.conf", "*.*.conf"),
        ("a", "a**"),
        ("x.conf", "[xyz].conf"),
        ("].conf", "[]x].conf"),
        ("[x.conf", "[x*.conf"),
        ("a*.conf", "a\\*.conf"),
    ],
)
def test_an_include_takes_each_file_that_its_pattern_matches(name: str, pattern: str) -> None:
    begin, end = loader.fixed(pattern)
    assert name.startswith(begin)
    assert name.endswith(end)


def test_an_include_takes_no_file_that_begins_or_ends_otherwise() -> None:
    assert loader.fixed("a[1-9]*?.conf") == ("a", ".conf")


def files(image: Path, **environment: str) -> set[str]:
    """The covered files of an image."""
    with Root(str(image)) as root:
        spec = {"process": {"env": [f"{name}={value}" for name, value in environment.items()]}}
        return set(interposers.search_image(root, spec).files)


@pytest.mark.parametrize("text", ["/opt/one:/opt/two\n", "/opt/one\n/opt/two"])
def test_the_folders_of_musls_loader_are_looked_through(tmp_path: Path, text: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / f"etc/ld-musl-{os.uname().machine}.path").write_text(text)
    bring(tmp_path, "/opt/two/libnvidia-ml.so.1")
    bring(tmp_path, "/usr/local/lib/libcuda.so")
    assert files(tmp_path) == {"/opt/two/libnvidia-ml.so.1", "/usr/local/lib/libcuda.so"}


def test_files_that_no_loader_takes_are_left_alone(tmp_path: Path) -> None:
    for path in (
        "/opt/libs/libcuda.sox",
        "/opt/libs/libcudart.so.13",
        "/srv/libcuda.so.1",
        "/usr/bin/libcuda.so",
    ):
        bring(tmp_path, path)
    (tmp_path / "opt/libs/libcuda.so.1").mkdir()
    os.mkfifo(tmp_path / "opt/libs/libcuda.so.2")
    assert files(tmp_path, LD_LIBRARY_PATH="/opt/libs", PATH="/usr/bin:/bin") == set()
