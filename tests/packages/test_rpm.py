"""The rpms: equal bytes of two builds, nothing that passes for a driver, and their life on a machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributions.root import Root
from support import REPOSITORY
from support.packages import build

from . import building

RUNTIME, SIMULATOR = "xpu-container-runtime", "xpu-simulator"
#: Names that RHEL 9 and 10 have in BaseOS and AppStream. RHEL 10 has only crun: runc was removed (its
#: "Considerations in adopting RHEL 10").
IN_RHEL = {
    "(runc or crun)", "python3 >= 3.9",
    "/bin/sh", "/usr/bin/python3", "coreutils", "findutils", "grep", "sed", "shadow-utils",
    "util-linux",
}  # fmt: skip
#: RHEL 9 has 2.34; Debian 11, the release of these tests' roots, has 2.31.
GLIBC = (2, 27)
LIB = "/usr/lib/xpu-container-runtime"
#: Folders of RHEL's filesystem, systemd and others; a Debian root need not have them, and rpm leaves them.
OF_OTHERS = {"/usr/lib/systemd", "/usr/lib/systemd/system", "/usr/share/licenses"}
#: groupadd leaves these files, because the group stays.
OF_GROUPS = {"/etc/group-", "/etc/gshadow-", "/etc/.pwd.lock"}
RPM = ("rpm", "--dbpath", "/var/lib/rpm")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def rpms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The rpms by package name; the source's is "source"."""
    return building.by_name(build(REPOSITORY, tmp_path_factory.mktemp("rpm"), "rpm"))


def query(file: Path, what: str) -> str:
    command = ["rpm", "-qp", "--queryformat", what, str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="xpu-rpm-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_another_user_without_a_network_builds_the_same_bytes(
    rpms: dict[str, Path], open_folder: Path
) -> None:
    again = building.by_name(building.build_elsewhere("rpm", open_folder))
    assert set(again) == set(rpms) == {RUNTIME, SIMULATOR, "source"}
    for name, file in rpms.items():
        assert file.name == again[name].name
        digests = [hashlib.sha256(each.read_bytes()).hexdigest() for each in (file, again[name])]
        assert digests[0] == digests[1], name


def test_rpmlint_finds_nothing(rpms: dict[str, Path]) -> None:
    done = subprocess.run(
        ["rpmlint", "--config", REPOSITORY / "packaging/rpm/rpmlint.toml", *rpms.values()],
        capture_output=True,
        text=True,
    )
    assert "3 packages and 0 specfiles checked; 0 errors, 0 warnings" in done.stdout, done.stdout
    assert done.returncode == 0


def test_the_rpms_need_only_rhels_packages_and_provide_no_driver(rpms: dict[str, Path]) -> None:
    needs = {name: required(file) for name, file in rpms.items()}
    assert needs[RUNTIME] == IN_RHEL | {f"config({RUNTIME}) = {version(rpms)}"}
    parts = re.compile(r"(libc|libdl|libpthread|ld-linux).*\.so\.|rtld\(")
    of_glibc = {each for each in needs[SIMULATOR] if parts.match(each)}
    assert needs[SIMULATOR] - of_glibc == {"/bin/sh", f"{RUNTIME}(x86-64) = {version(rpms)}"}
    versions = {
        tuple(map(int, each.split("."))) for each in re.findall(r"GLIBC_([\d.]+)", " ".join(of_glibc))
    }
    assert max(versions) <= GLIBC
    # If a package provided the libraries of containers, engines and compilers would take them for the
    # driver's.
    for name in (RUNTIME, SIMULATOR):
        provided = query(rpms[name], "[%{PROVIDES}\n]").split()
        assert set(provided) <= {name, f"{name}(x86-64)", f"config({name})"}


def version(rpms: dict[str, Path]) -> str:
    return query(rpms[RUNTIME], "%{VERSION}-%{RELEASE}")


def required(file: Path) -> set[str]:
    """A package's requirements, without those for rpm itself."""
    lines = query(file, "[%{REQUIRENAME} %{REQUIREFLAGS:depflags} %{REQUIREVERSION}\n]").splitlines()
    return {" ".join(line.split()) for line in lines if not line.startswith("rpmlib(")}


def test_root_owns_all_files_and_none_is_compiled_for_the_builders_python(rpms: dict[str, Path]) -> None:
    for name in (RUNTIME, SIMULATOR):
        lines = query(rpms[name], "[%{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILENAMES}\n]")
        for line in lines.splitlines():
            mode, owner, path = line.split(" ", 2)
            assert owner == "root:root"
            programs = path.startswith("/usr/bin/") or "/native/" in path or path.endswith("/make-secrets")
            allowed = {"drwxr-xr-x", "-rwxr-xr-x"} if programs else {"drwxr-xr-x", "-rw-r--r--"}
            assert mode in allowed, line
            assert not path.endswith((".pyc", "start.bundle")), path
    flags = query(rpms[RUNTIME], "[%{FILEFLAGS:fflags} %{FILENAMES}\n]").splitlines()
    assert [line.split() for line in flags if "c" in line.partition(" ")[0]] == [
        ["cn", "/etc/xpu/config.yaml"]
    ]


@pytest.fixture
def machine(rpms: dict[str, Path], tmp_path: Path) -> Iterator[Root]:
    """A root with our rpms in /srv, and a small image's root folder in /srv/bundle."""
    root = Root("bullseye", packages=["python3", "rpm", "runc", "busybox-static"], network=False)
    try:
        for file in [*rpms.values(), *pythons(tmp_path)]:
            (root.path("/srv") / file.name).write_bytes(file.read_bytes())
        (root.path("/srv") / "image.py").write_bytes((REPOSITORY / "packaging/image.py").read_bytes())
        done = root.run("python3", "-IS", "/srv/image.py", "/srv/bundle/rootfs")
        assert done.returncode == 0, done.stdout
        yield root
    finally:
        root.close()


def pythons(folder: Path) -> list[Path]:
    """Two versions of a package with /usr/bin/python3, as the distribution's package has it."""
    spec = folder / "python3.spec"
    for version in (1, 2):
        spec.write_text(
            f"Name: python3\nVersion: {version}\nRelease: 1\nSummary: Python\nLicense: none\n"
            "BuildArch: noarch\n"
            "%description\n%install\nmkdir -p %{buildroot}/usr/bin\n"
            "ln -s python3.9 %{buildroot}/usr/bin/python3\n%files\n/usr/bin/python3\n"
        )
        subprocess.run(
            ["rpmbuild", "-bb", "--define", f"_topdir {folder}", spec], check=True, capture_output=True
        )
    return sorted((folder / "RPMS/noarch").iterdir())


def files(machine: Root) -> set[str]:
    """All files in the root that packages have installed or programs have made."""
    done = machine.run("find", "/", "-xdev", "!", "-path", "/var/lib/rpm*", "!", "-path", "/srv/*")
    return set(done.stdout.splitlines()) | {str(path) for path in machine.path("/run").glob("xpu*")}


def rpm(machine: Root, *words: str) -> str:
    done = machine.run(*RPM, *words, timeout=120)
    # Debian's rpm prints lines about itself, because it does not know Debian's packages.
    lines = [line for line in done.stdout.splitlines() if not line.startswith("rpm: ")]
    assert done.returncode == 0, done.stdout
    return "\n".join(lines)


def bundle(machine: Root) -> Path:
    return machine.path(f"{LIB}/python/start.bundle")


def compiled(machine: Root) -> bool:
    return b"xpu_runtime" in bundle(machine).read_bytes()


def run_container(machine: Root, command: str) -> str:
    """Runs a shell command in a container with 4 GiB of a device, as an engine runs it."""
    machine.run("runc", "spec", "--bundle", "/tmp")
    path = machine.path("/tmp/config.json")
    config = json.loads(path.read_text())
    path.unlink()
    config["process"] |= {"args": ["/bin/sh", "-c", command], "terminal": False}
    config["process"]["env"] += ["XPU_MEM=4G"]
    (machine.path("/srv/bundle") / "config.json").write_text(json.dumps(config))
    return machine.run(
        "/usr/bin/xpu-container-runtime", "run", "--bundle", "/srv/bundle", f"rpm-{os.getpid()}"
    ).stdout


def test_install_main_job_newer_python_upgrade_and_removal(machine: Root) -> None:
    rpm(machine, "--initdb")
    rpm(machine, "-i", "--nodeps", "--replacefiles", "/srv/python3-1-1.noarch.rpm")
    before = files(machine)
    # An earlier try, killed while it unpacked its files, has left one.
    unit = machine.path("/usr/lib/systemd/system/xpu-agent.service")
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text("")

    # The installation prints nothing, and Python's files are compiled on the machine.
    packages = sorted(f"/srv/{path.name}" for path in machine.path("/srv").glob("xpu-*.x86_64.rpm"))
    assert rpm(machine, "-i", "--nodeps", *packages) == ""
    assert compiled(machine)
    changed = machine.run(*RPM, "-V", "--nodeps", "xpu-container-runtime", "xpu-simulator").stdout
    assert [line for line in changed.splitlines() if not line.startswith("rpm: ")] == []

    # The main job.
    up = machine.run("xpu", "sim", "up", "--topology", "1xT4-R580")
    assert up.returncode == 0, up.stdout
    said = run_container(machine, "nvidia-smi")
    assert "4096MiB" in said, said

    # The distribution gets another Python.
    bundle(machine).write_bytes(b"of the old Python")
    rpm(machine, "-U", "--nodeps", "/srv/python3-2-1.noarch.rpm")
    assert compiled(machine)

    # An upgrade keeps the changed configuration, and removes files that the new version does not have.
    configuration = machine.path("/etc/xpu/config.yaml")
    text = configuration.read_text() + "# set by the operator\n"
    configuration.write_text(text)
    # The operator wants no CDI file.
    cdi = machine.path("/etc/cdi/yoyoworks.com-xpu.yaml")
    cdi.unlink()
    cdi.parent.rmdir()
    gone = machine.path(f"{LIB}/python/xpu_runtime") / "gone" / "__pycache__"
    gone.mkdir(parents=True)
    (gone / "module.cpython-39.pyc").write_bytes(b"compiled")
    bundle(machine).write_bytes(b"of the old version")
    rpm(machine, "--reinstall", "--nodeps", *packages)
    assert configuration.read_text() == text
    assert not gone.parent.exists() and compiled(machine) and not cdi.exists()
    assert "4096MiB" in run_container(machine, "nvidia-smi")

    # The removal ends the simulation, and leaves the changed configuration, as rpm does.
    said = rpm(machine, "-e", "--nodeps", "xpu-simulator", "xpu-container-runtime")
    assert said == "warning: /etc/xpu/config.yaml saved as /etc/xpu/config.yaml.rpmsave"
    left = files(machine) - before - OF_OTHERS - OF_GROUPS
    assert left == {"/etc/xpu", "/etc/xpu/config.yaml.rpmsave"}
    assert machine.run("getent", "group", "xpu").stdout.startswith("xpu:x:")
    assert machine.programs() == []
