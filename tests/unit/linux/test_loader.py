"""The cost on the host of a hostile image's environment, when its loader's folders are searched."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from xpu_runtime.errors import ApplyError
from xpu_runtime.linux.loader import Programs, Search
from xpu_runtime.linux.rootfs import Root

MEMORY = 1 << 29


def test_tokens_that_stand_for_very_many_folders_are_refused_before_they_are_listed(
    tmp_path: Path, in_child: Callable[..., None]
) -> None:
    folders = ":".join(f"/{number}" for number in range(30_000))
    programs = Programs({"PATH": folders, "LD_LIBRARY_PATH": "${ORIGIN}$ORIGIN/lib"}, "/", "")

    def look() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        with Root(str(tmp_path)) as root, pytest.raises(ApplyError, match="too many entries to be checked"):
            Search(root, ("libcuda.so",), programs).everywhere()

    in_child(look)


def test_tokens_that_stand_for_a_path_of_gigabytes_lead_nowhere(
    tmp_path: Path, in_child: Callable[..., None]
) -> None:
    for folder in ("opt/bin", "opt/cuda"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "opt/cuda/libcuda.so.1").touch()
    path = ":".join(["/opt/bin", "/" + "b" * (1 << 20)])
    programs = Programs({"PATH": path, "LD_LIBRARY_PATH": "$ORIGIN/" * 2000 + ":$ORIGIN/../cuda"}, "/", "")

    def look() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        with Root(str(tmp_path)) as root:
            search = Search(root, ("libcuda.so",), programs)
            search.everywhere()
            assert search.files == {"/opt/cuda/libcuda.so.1": "libcuda.so"}

    in_child(look)


@pytest.mark.parametrize(
    "line",
    ["include /c/*/" + "a" * 1_000_000, "include /c/*" + "/a" * 100_000, "include /none/" + "*" * 1_000_000],
    ids=["a long name", "many parts", "letters for each of many files"],
)
def test_a_pattern_of_a_million_letters_is_refused_before_it_is_worked_on(
    tmp_path: Path, in_child: Callable[..., None], line: str
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "c").mkdir()
    (tmp_path / "c/f0").write_text(f"{line}\n")
    for number in range(1, 1000):
        os.link(tmp_path / "c/f0", tmp_path / f"c/f{number}")
    (tmp_path / "etc/ld.so.conf").write_text(f"include /c/*\n{line}\n")

    def look() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
        resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
        with Root(str(tmp_path)) as root, pytest.raises(ApplyError, match="too many entries to be checked"):
            Search(root, ("libcuda.so",), Programs({}, "/", "")).everywhere()

    in_child(look)


def test_patterns_that_take_long_to_compare_with_very_many_names_are_refused_at_once(
    tmp_path: Path, in_child: Callable[..., None]
) -> None:
    (tmp_path / "etc/d").mkdir(parents=True)
    for number in range(1000):
        (tmp_path / f"etc/d/{'a' * 250}{number}").touch()
    (tmp_path / "etc/ld.so.conf").write_text(f"include d/*{'a' * 125}b\n" * 10_000)

    def look() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))  # it would be minutes
        with Root(str(tmp_path)) as root, pytest.raises(ApplyError, match="too many entries to be checked"):
            Search(root, ("libcuda.so",), Programs({}, "/", "")).everywhere()

    in_child(look)


@pytest.mark.parametrize("folder", ["/opt/my libraries", "/opt/a,b", "/opt/next\x85line"])
def test_a_line_of_the_loaders_configuration_is_one_folder(tmp_path: Path, folder: str) -> None:
    place = tmp_path / folder[1:]
    place.mkdir(parents=True)
    (place / "libcuda.so.1").touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text(f" {folder} # CUDA\n")
    with Root(str(tmp_path)) as root:
        search = Search(root, ("libcuda.so",), Programs({}, "/", ""))
        search.everywhere()
        assert search.files == {f"{folder}/libcuda.so.1": "libcuda.so"}
