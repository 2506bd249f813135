"""packaging/install-packages, with real apt and dpkg, a repository and a root of the test's own."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from support import REPOSITORY

_CONFIGURATION = """\
Dir "{root}";
APT::Sandbox::User "root";
DPkg::Options {{ "--root={root}"; "--log=/dev/null"; }};
"""


class Machine:
    """A root folder in which apt can install the packages that it is given, and nothing is installed yet."""

    def __init__(self, folder: Path) -> None:
        self.root, self.repository = folder / "root", folder / "repository"
        for name in (
            "etc/apt/preferences.d", "var/lib/dpkg/updates", "var/lib/dpkg/info", "var/log/apt",
            "var/lib/apt/lists/partial", "var/cache/apt/archives/partial",
        ):  # fmt: skip
            (self.root / name).mkdir(parents=True)
        (self.root / "var/lib/dpkg/status").touch()
        (self.root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{self.repository} ./\n")
        self.configuration = folder / "apt.conf"
        self.configuration.write_text(_CONFIGURATION.format(root=self.root))
        self.repository.mkdir()
        (self.repository / "Packages").touch()

    def offer(self, name: str, *fields: str) -> None:
        """Puts a package into the repository: one file, and these further fields of its control file."""
        stage = self.repository.parent / f"stage-{name}"
        (stage / "DEBIAN").mkdir(parents=True)
        (stage / "opt").mkdir()
        (stage / "opt" / name).touch()
        control = [f"Package: {name}", "Version: 1", "Architecture: all", "Maintainer: Test <t@example.org>"]
        control += [*fields, "Description: nothing"]
        (stage / "DEBIAN/control").write_text("\n".join(control) + "\n")
        file = self.repository / f"{name}.deb"
        subprocess.run(["dpkg-deb", "--build", str(stage), str(file)], check=True, stdout=subprocess.DEVNULL)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        entry = [*control, f"Filename: ./{file.name}", f"Size: {file.stat().st_size}", f"SHA256: {digest}"]
        with open(self.repository / "Packages", "a") as packages:
            packages.write("\n".join(entry) + "\n\n")

    def install(self, *wanted: str) -> subprocess.CompletedProcess[str]:
        admin = self.root / "var/lib/dpkg"
        environ = {**os.environ, "APT_CONFIG": str(self.configuration), "DPKG_ADMINDIR": str(admin)}
        command = [str(REPOSITORY / "packaging/install-packages"), *wanted]
        return subprocess.run(command, capture_output=True, text=True, env=environ)

    def installed(self) -> set[str]:
        return {path.name for path in (self.root / "opt").glob("*")}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_missing_packages_are_installed_and_named_and_only_once(machine: Machine) -> None:
    machine.offer("one")
    machine.offer("two")
    machine.install("one")
    done = machine.install("one", "two")
    assert (done.returncode, done.stdout, machine.installed()) == (0, "installing two\n", {"one", "two"}), (
        done
    )
    again = machine.install("one", "two")
    assert (again.returncode, again.stdout) == (0, ""), again


def test_of_two_names_the_first_that_apt_can_install_is_taken(machine: Machine) -> None:
    machine.offer("new-name")
    machine.offer("other")
    done = machine.install("old-name|new-name|other")
    assert (done.returncode, machine.installed()) == (0, {"new-name"}), done
    assert machine.install("other|new-name").stdout == "", "either will do"


def test_a_name_that_another_package_provides_is_passed_over(machine: Machine) -> None:
    """As qemu-user-static is in Debian 14: apt installs no package by such a name."""
    machine.offer("provider", "Provides: old-name")
    machine.offer("new-name")
    done = machine.install("old-name|new-name")
    assert (done.returncode, machine.installed()) == (0, {"new-name"}), done


def test_a_command_that_is_there_needs_no_package(machine: Machine) -> None:
    machine.offer("engine")
    assert machine.install("sh=engine").stdout == ""
    done = machine.install("no-such-command=client|engine")
    assert (done.returncode, machine.installed()) == (0, {"engine"}), done


def test_a_package_that_apt_does_not_know_fails_with_its_name(machine: Machine) -> None:
    done = machine.install("no-such-package|nor-this")
    assert done.returncode == 1 and "nor-this" in done.stderr, done
