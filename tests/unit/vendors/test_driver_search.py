"""Where a driver's libraries are looked for below a driver root, and in which order."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from xpu_runtime import paths
from xpu_runtime.linux import ldcache
from xpu_runtime.vendors.nvidia import driver_files, search

VERSION = "580.105.08"
FLAGS = ldcache.flags_for(os.uname().machine)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """The bytes of a shared object with that SONAME."""
    folder = tmp_path_factory.mktemp("libraries")

    def make(soname: str) -> bytes:
        made = folder / soname
        if not made.exists():
            words = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-x", "c", "-", "-o", str(made)]
            subprocess.run(words, input=b"int x;", check=True)
        return made.read_bytes()

    return make


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/etc").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def install(root: Path, library: Callable[[str], bytes]) -> Callable[..., Path]:
    """Puts a driver's libraries into a folder of the root, with the links that an installer makes."""

    def put(folder: str, version: str = VERSION, links: bool = True) -> Path:
        there = root / folder
        there.mkdir(parents=True, exist_ok=True)
        for name in ("libcuda", "libnvidia-ml"):
            (there / f"{name}.so.{version}").write_bytes(library(f"{name}.so.1"))
            if links:
                (there / f"{name}.so.1").unlink(missing_ok=True)
                (there / f"{name}.so.1").symlink_to(f"{name}.so.{version}")
        return there

    return put


def cache(root: Path, folder: str) -> None:
    names = ("libcuda.so.1", "libnvidia-ml.so.1")
    entries = [ldcache.Entry(name, f"/{folder}/{name}", FLAGS) for name in names]
    (root / "etc/ld.so.cache").write_bytes(ldcache.build(entries))


@pytest.mark.parametrize("place", [place[0] for place in search.PLACES])
def test_each_known_place_is_looked_at(root: Path, install: Callable[..., Path], place: str) -> None:
    there = install(place)
    found = driver_files.find(str(root))
    assert found.folder == str(there)
    assert (found.in_cache, found.by_caller) == (False, False)
    names = {(file.name, file.capability): file.links for file in found.select(VERSION)}
    assert names == {
        (f"libcuda.so.{VERSION}", "compute"): ("libcuda.so.1",),
        (f"libnvidia-ml.so.{VERSION}", "utility"): ("libnvidia-ml.so.1",),
    }


def test_the_loaders_cache_comes_first(root: Path, install: Callable[..., Path]) -> None:
    install("usr/local/nvidia/lib64")
    there = install("usr/lib/elsewhere")
    cache(root, "usr/lib/elsewhere")
    found = driver_files.find(str(root))
    assert (found.folder, found.in_cache) == (str(there), True)


def test_known_places_come_in_their_order(root: Path, install: Callable[..., Path]) -> None:
    for place in reversed(search.PLACES):
        there = install(place[0])
        assert driver_files.find(str(root)).folder == str(there), place


def test_a_cache_without_a_driver_or_a_broken_one_is_no_answer(
    root: Path, install: Callable[..., Path]
) -> None:
    there = install("usr/local/nvidia/lib64")
    for content in (ldcache.build([ldcache.Entry("libc.so.6", "/lib/libc.so.6", FLAGS)]), b"nonsense"):
        (root / "etc/ld.so.cache").write_bytes(content)
        assert driver_files.find(str(root)).folder == str(there)


def test_libraries_without_their_links_are_found_by_their_sonames(
    root: Path, install: Callable[..., Path]
) -> None:
    there = install("usr/local/nvidia/lib64", links=False)
    found = driver_files.find(str(root))
    assert found.path_of("libcuda.so.1") == str(there / f"libcuda.so.{VERSION}")
    assert {file.links for file in found.select(VERSION)} == {("libcuda.so.1",), ("libnvidia-ml.so.1",)}


def test_a_folder_without_nvml_is_no_drivers(root: Path, install: Callable[..., Path]) -> None:
    there = install("usr/local/nvidia/lib64")
    for file in there.glob("libnvidia-ml*"):
        file.unlink()
    (there / "libnvidia-ml.so.1").write_text("INPUT(a linker's script)")
    found = driver_files.find(str(root))
    assert found.folder == ""
    assert f"is neither in {root}/etc/ld.so.cache nor in {root}/usr/local/nvidia/lib64" in found.missing


@pytest.mark.parametrize("writable", ["usr/local", "usr/local/nvidia/lib64", "the file"])
def test_a_library_that_others_can_replace_is_not_taken_and_reported(
    root: Path, install: Callable[..., Path], writable: str
) -> None:
    there = install("usr/local/nvidia/lib64")
    path = there / f"libcuda.so.{VERSION}" if writable == "the file" else root / writable
    path.chmod(0o777)
    found = driver_files.find(str(root))
    assert found.folder == ""
    assert f"{there} has it but is not used: users other than root can write to {path}" in found.missing
    other = install("opt/nvidia/lib64")
    assert driver_files.find(str(root)).folder == str(other)
    path.chmod(0o755)
    os.chown(path, 1000, 1000)
    assert driver_files.find(str(root)).folder == str(other)


def test_a_link_leads_no_further_than_the_root(root: Path, install: Callable[..., Path]) -> None:
    there = install("usr/local/nvidia/lib64")
    (there / "libcuda.so.1").unlink()
    (there / "libcuda.so.1").symlink_to("/usr/local/nvidia/lib64/libcuda.so." + VERSION)
    assert driver_files.find(str(root)).path_of("libcuda.so.1") == str(there / f"libcuda.so.{VERSION}")


@pytest.mark.parametrize(
    ("folder", "program"),
    [
        ("usr/local/nvidia/lib64", "usr/local/nvidia/bin"),
        ("home/kubernetes/bin/nvidia/lib64", "home/kubernetes/bin/nvidia/bin"),
        ("usr/lib/wsl/lib", "usr/lib/wsl/lib"),
        (f"usr/lib/{os.uname().machine}-linux-gnu", "usr/bin"),
    ],
)
def test_programs_beside_the_libraries_come_before_all_others(
    root: Path, install: Callable[..., Path], folder: str, program: str
) -> None:
    install(folder)
    names = ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
    for place in ("usr/sbin", program):
        (root / place).mkdir(parents=True, exist_ok=True)
        for name in names:
            (root / place / name).write_text(place)
            found = driver_files.find(str(root))
            assert found.program(name) == str(root / place / name)
    given = {file.name: file.source for file in driver_files.find(str(root)).select(VERSION)}
    assert [given[name] for name in names] == [str(root / program / name) for name in names]


def test_the_data_of_a_driver_in_a_folder_of_its_own_goes_where_programs_look(
    root: Path, install: Callable[..., Path]
) -> None:
    install("usr/local/nvidia/lib64")
    own = root / "usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json"
    own.parent.mkdir(parents=True)
    own.touch()
    (file,) = (each for each in driver_files.find(str(root)).select(VERSION) if each.kind == "file")
    assert (file.source, file.name) == (str(own), "/usr/share/vulkan/icd.d/nvidia_icd.json")


def test_libraries_of_32_bits_belong_to_the_driver_beside_them(
    root: Path, install: Callable[..., Path], tmp_path: Path
) -> None:
    install("usr/local/nvidia/lib64")
    folder = root / "usr/local/nvidia/lib"
    folder.mkdir()
    made = folder / f"libcuda.so.{VERSION}"
    words = ["gcc", "-m32", "-ffreestanding", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*words, "-x", "c", "-", "-o", str(made)], input=b"int x;", check=True)
    kinds = {(file.kind, file.source) for file in driver_files.find(str(root)).select(VERSION)}
    assert ("lib32", str(made)) in kinds


def test_the_callers_variable_counts_once_it_is_taken_and_has_whole_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paths, "_caller_library_path", ())
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/a::lib:$ORIGIN/b;/opt/c:/opt/a")
    assert paths.caller_library_path() == ()
    paths.take_caller_library_path()
    assert paths.caller_library_path() == ("/opt/a", "/opt/c")


def test_the_callers_folders_come_before_known_places_and_are_of_the_host_alone(
    monkeypatch: pytest.MonkeyPatch, root: Path, install: Callable[..., Path]
) -> None:
    there = install("opt/elsewhere")
    monkeypatch.setattr(paths, "_caller_library_path", (str(there),))
    found = driver_files.find("/")
    assert (found.folder, found.by_caller) == (str(there), True)
    known = install("usr/local/nvidia/lib64")
    found = driver_files.find(str(root))
    assert (found.folder, found.by_caller) == (str(known), False)


def test_a_callers_folder_that_is_a_known_place_is_known_to_starts_too(
    monkeypatch: pytest.MonkeyPatch, root: Path, install: Callable[..., Path]
) -> None:
    known, other = install("opt/known"), install("opt/other")
    monkeypatch.setattr(search, "PLACES", ((str(known).lstrip("/"),),))
    monkeypatch.setattr(paths, "_caller_library_path", (str(known),))
    found = driver_files.find("/")
    assert (found.folder, found.by_caller) == (str(known), False)
    monkeypatch.setattr(paths, "_caller_library_path", (str(other),))
    found = driver_files.find("/")
    assert (found.folder, found.by_caller, found.engines_folder) == (str(other), True, str(known))


@pytest.fixture
def moving(root: Path, install: Callable[..., Path]) -> Path:
    """Another user's library folder, with links to root's files."""
    real = install("usr/lib/elsewhere")
    folder = root / "home/kubernetes/bin/nvidia/lib64"
    folder.mkdir(parents=True)
    for file in real.iterdir():
        (folder / file.name).symlink_to(f"/usr/lib/elsewhere/{file.name}")
    os.chown(folder, 1000, 1000)
    return folder


def test_another_users_folder_is_not_taken_wherever_its_links_lead(root: Path, moving: Path) -> None:
    found = driver_files.find(str(root))
    assert found.folder == ""
    assert f"{moving} has it but is not used: users other than root can write to {moving}" in found.missing


def test_a_link_is_followed_once_and_its_target_is_taken(root: Path, install: Callable[..., Path]) -> None:
    """A later change of the link would lead the next look elsewhere."""
    there = install("usr/local/nvidia/lib64")
    found = search.search(str(root))
    assert {entry.path for entry in found.entries} == {
        f"/usr/local/nvidia/lib64/{name}.so.{VERSION}" for name in ("libcuda", "libnvidia-ml")
    }
    assert not any((there / Path(entry.path).name).is_symlink() for entry in found.entries)


@pytest.mark.parametrize("link", ["mem", "kmsg", "fifo", "loop", "folder"])
def test_files_that_are_no_libraries_are_passed_over(
    root: Path, install: Callable[..., Path], link: str
) -> None:
    there = install("usr/local/nvidia/lib64")
    odd = there / "libcuda.so.9"
    if link == "fifo":
        os.mkfifo(odd)
    elif link == "folder":
        odd.mkdir()
    elif link == "loop":
        odd.symlink_to(odd.name)
    else:
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mem").touch()
        odd.symlink_to(f"/proc/self/{link}")
    assert driver_files.find(str(root)).folder == str(there)


def test_cudas_stubs_are_no_driver(root: Path, install: Callable[..., Path]) -> None:
    there = install("usr/local/nvidia/lib64", links=False)
    for file in there.iterdir():
        file.rename(there / f"{file.name.split('.so')[0]}.so")
    assert driver_files.find(str(root)).folder == ""


def test_programs_that_others_can_have_put_there_are_not_given(
    root: Path, install: Callable[..., Path]
) -> None:
    install("opt/nvidia/lib64")
    for place in ("opt/nvidia/bin", "usr/bin"):
        (root / place).mkdir(parents=True)
        (root / place / "nvidia-smi").touch()
    assert driver_files.find(str(root)).program("nvidia-smi") == f"{root}/opt/nvidia/bin/nvidia-smi"
    os.chown(root / "opt/nvidia/bin", 1000, 1000)
    assert driver_files.find(str(root)).program("nvidia-smi") == f"{root}/usr/bin/nvidia-smi"


@pytest.mark.parametrize("cached", [True, False])
def test_a_driver_container_is_judged_file_by_file(
    root: Path, install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    folder = "usr/lib/odd" if cached else "usr/lib64"
    there = install(folder)
    if cached:
        cache(root, folder)
    monkeypatch.setattr(search, "_cached", lambda path: () if path == "/etc/ld.so.cache" else real(path))
    monkeypatch.setattr(search, "DRIVER_CONTAINER", str(root))
    monkeypatch.setattr(search, "PLACES", (("usr/lib64",),))
    found = search.search("/")
    assert (found.folder, found.root, found.in_cache) == (str(there), str(root), False)
    there.chmod(0o777)
    assert search.search("/").folder == ""


real = search._cached
