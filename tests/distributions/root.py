"""A minimal root of a Debian release, and what it takes to work in it as on a machine of its own.

`prepare` makes the root from Debian's packages with mmdebstrap, once, below build/distributions. `Root`
enters a copy of it (an overlay in memory) with mount, PID and cgroup namespaces of its own: with /proc, /sys,
a /dev of its own, and /run and /tmp empty. It has no init system; its first process is init.py. What is done
in it goes when it is closed. When the test is killed, processes and mounts go too; its cgroups (xpu-root-*)
and a folder below build/distributions stay.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from support import REPOSITORY

CACHE = REPOSITORY / "build" / "distributions"
_PACKAGES = ("ca-certificates",)
_OPTIONS = (
    # Others' documentation is of no use here, and nobody needs the files to outlive a power cut.
    "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/xpu-*",
    "--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=force-unsafe-io",
    # A mirror's copy of what is still being developed may be some weeks old.
    '--aptopt=Acquire::Check-Valid-Until "false"', '--aptopt=Acquire::Languages "none"',
    # A package that was fetched stays in the cache, for the next root of this release.
    '--aptopt=Binary::apt::APT::Keep-Downloaded-Packages "true"',
)  # fmt: skip
#: How this machine reaches packages: files that take the place of the root's, and variables.
_NETWORK_FILES = (
    "/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf",
    "/root/.config/pip/pip.conf",
)  # fmt: skip
_NETWORK_VARIABLES = ("PIP_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE = 60


class RootError(Exception):
    """There is no such root, or it cannot be entered; says why."""


def prepare(suite: str, packages: Sequence[str] = ()) -> Path:
    """The folder with a release's minimal root and these packages, made where it is missing.

    It is not to be changed: `Root` enters a copy. Its name says what it was made from. RootError if the
    packages cannot be had.
    """
    wanted = [*_PACKAGES, *packages]
    recipe = json.dumps([suite, wanted, _OPTIONS])
    folder = CACHE / f"{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{suite}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            unfinished = CACHE / f"{suite}-being-made"
            shutil.rmtree(unfinished, ignore_errors=True)
            # Were it killed, /proc and /sys would else stay mounted in the folder.
            command = ["unshare", "--mount", "--propagation=private", "mmdebstrap", "--variant=minbase"]
            command += [f"--include={','.join(wanted)}", *_OPTIONS, suite, str(unfinished), mirror()]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                raise RootError(f"cannot make a root of Debian {suite}: {done.stderr[-3000:]}")
            unfinished.rename(folder)
    return folder


def own_suite() -> str:
    """The release of this machine, as `bookworm`; "" where it has none."""
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


def mirror() -> str:
    """The Debian mirror that this machine's apt is configured for."""
    release = own_suite()
    command = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Component: main"]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        name, uri = line.split()
        if name in (release, "stable", "testing", "unstable"):
            return uri
    raise RootError(f"apt's configuration has no repository of Debian {release}, whose mirror could be used")


class Root:
    """A root of one Debian release, with these packages more, entered; `close` it.

    `run` runs a command in it; `path` is where its files are for this process. Without `network` not even the
    loopback device is up; apt still has what roots of this release have downloaded before. Its cgroups are
    mounted as this machine's are ("own"), as on a machine that has no others than v2's ("v2"), or not at all
    ("none"). `binds`: files and folders of this machine, and where they are in it.
    """

    def __init__(
        self,
        suite: str,
        *,
        packages: Sequence[str] = (),
        network: bool = True,
        cgroups: str = "own",
        binds: Sequence[tuple[str, str]] = (),
    ) -> None:
        lower = prepare(suite, packages)
        self._archives = CACHE / f"archives-{suite}"
        self._scratch = Path(tempfile.mkdtemp(prefix="entered-", dir=CACHE))
        (self._scratch / "root").mkdir()
        (self._scratch / "archives").mkdir()
        self._cgroups = _Cgroups(f"xpu-root-{self._scratch.name.removeprefix('entered-')}")
        self._fetch_archives()
        plan = {
            "lower": str(lower),
            "scratch": str(self._scratch / "root"),
            "binds": [
                [str(self._scratch / "archives"), "/var/cache/apt/archives"],
                *([name, name] for name in _NETWORK_FILES if os.path.exists(name)),
                *binds,
            ],
            "cgroups": {
                "own": self._cgroups.hierarchies,
                "v2": [["/sys/fs/cgroup", "cgroup2", ""]],
                "none": [],
            }[cgroups],
        }
        namespaces = [
            "--mount",
            "--propagation=private",
            "--pid",
            "--cgroup",
            *([] if network else ["--net"]),
        ]
        self._namespaces = ["--mount", "--pid", "--cgroup", *([] if network else ["--net"])]
        self._init = subprocess.Popen(
            self._cgroups.within(
                "", "unshare", *namespaces, "--fork", "--kill-child",
                sys.executable, "-IS", str(Path(__file__).with_name("init.py")), json.dumps(plan),
            ),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._init.stdout is not None
        if self._init.stdout.readline() != "entered\n":
            _, error = self._init.communicate()
            self.close()
            raise RootError(f"cannot enter a root of Debian {suite}: {error}")
        self._cgroups.move("init", self._init.pid)
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text()
        self._first = int(children)
        self._cgroups.move("init", self._first)

    def path(self, inside: str) -> Path:
        """Where the absolute path `inside` it is for this process. Absolute links in it lead outside."""
        return Path(f"/proc/{self._first}/root{inside}")

    def run(
        self,
        *command: str,
        timeout: float = _PATIENCE,
        cwd: str = "/root",
        environ: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as root, in a fresh environment but for what leads to packages, and `environ`.

        `timeout` is in seconds.
        """
        variables = {
            name: value for name, value in os.environ.items() if name.upper().startswith(_NETWORK_VARIABLES)
        }
        variables |= {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8", **(environ or {})}
        enter = ["nsenter", f"--target={self._first}", *self._namespaces, f"--wdns={cwd}", *command]
        return subprocess.run(
            self._cgroups.within("init", *enter), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout, env=variables,
        )  # fmt: skip

    def programs(self) -> list[str]:
        """What runs in it beside its first process: the names of the programs."""
        found = [(self.path("/proc") / pid / "comm").read_text().strip() for pid in self._pids()]
        return sorted(found)

    def _pids(self) -> list[str]:
        return [name for name in os.listdir(self.path("/proc")) if name.isdigit() and name != "1"]

    def close(self) -> None:
        """Ends all that runs in it, and removes what is left of it."""
        if self._init.stdin is not None and not self._init.stdin.closed:
            self._init.communicate()
        self._cgroups.remove()
        self._keep_archives()
        shutil.rmtree(self._scratch)

    def _fetch_archives(self) -> None:
        """Packages that other roots have downloaded; a link each, for apt locks a folder of archives."""
        self._archives.mkdir(exist_ok=True)
        for file in self._archives.glob("*.deb"):
            os.link(file, self._scratch / "archives" / file.name)

    def _keep_archives(self) -> None:
        for file in (self._scratch / "archives").glob("*.deb"):
            if not (self._archives / file.name).exists():
                file.rename(self._archives / file.name)


class _Cgroups:
    """A cgroup in each of this machine's hierarchies. Processes are in its child `init`, as v2 wants it."""

    def __init__(self, name: str) -> None:
        #: Mount point, type of file system, options.
        self.hierarchies = list(_hierarchies())
        self._tops = [Path(target) / name for target, _, _ in self.hierarchies]
        for top in self._tops:
            top.mkdir()
            for folder in (top, top / "init"):
                folder.mkdir(exist_ok=True)
                # Of v1: without these a cgroup takes no process.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    if (folder / file).exists() and not (top.parent / "cgroup.controllers").exists():
                        (folder / file).write_text((folder.parent / file).read_text())

    def within(self, child: str, *command: str) -> list[str]:
        """The command that runs `command` in these cgroups."""
        script = 'while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs"; shift; done; shift; exec "$@"'
        return ["sh", "-ec", script, "sh", *(str(top / child) for top in self._tops), "--", *command]

    def move(self, child: str, pid: int) -> None:
        for top in self._tops:
            (top / child / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Removes them with all below; processes that have been killed are given time to be gone."""
        for top in self._tops:
            for folder, _, _ in os.walk(top, topdown=False):
                deadline = time.monotonic() + _PATIENCE
                while True:
                    try:
                        os.rmdir(folder)
                        break
                    except OSError:
                        if time.monotonic() > deadline:
                            raise
                        time.sleep(0.02)


def _hierarchies() -> Iterator[list[str]]:
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()
            if kind in ("cgroup", "cgroup2"):
                kept = [option for option in options.split(",") if option not in ("rw", "ro")]
                yield [before.split()[4], kind, ",".join(kept) if kind == "cgroup" else ""]
