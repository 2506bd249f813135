"""A minimal root of a Debian release, for work in it as on a machine of its own.

`prepare` makes the root once from Debian's packages with mmdebstrap, below build/distributions. `Root` enters
a copy (an overlay in memory) with mount, PID and cgroup namespaces of its own, with /proc, /sys, a /dev of
its own, and an empty /run and /tmp. It has no init system; its first process is init.py. Changes in it are
lost when it is closed. If the test is killed, processes and mounts go too; the cgroups (xpu-root-*) and a
folder below build/distributions stay.
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
    # Other packages' documentation is not needed, and the files need not outlive a power cut.
    "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/xpu-*",
    "--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=force-unsafe-io",
    # A mirror's copy of a release in development may be some weeks old.
    '--aptopt=Acquire::Check-Valid-Until "false"', '--aptopt=Acquire::Languages "none"',
    # A downloaded package stays in the cache for the next root of this release.
    '--aptopt=Binary::apt::APT::Keep-Downloaded-Packages "true"',
)  # fmt: skip
#: How this machine reaches packages: files that replace the root's, and variables.
_NETWORK_FILES = (
    "/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf",
    "/root/.config/pip/pip.conf",
)  # fmt: skip
_NETWORK_VARIABLES = ("PIP_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE = 60


class RootError(Exception):
    """There is no such root, or it cannot be entered; the message says why."""


def prepare(suite: str, packages: Sequence[str] = ()) -> Path:
    """The folder with a release's minimal root and these packages; made if it is missing.

    Nobody may change it: `Root` enters a copy. Its name is a digest of what it was made from. RootError if
    the packages cannot be had.
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
            # In a mount namespace: after a kill, /proc and /sys would otherwise stay mounted in the folder.
            command = ["unshare", "--mount", "--propagation=private", "mmdebstrap", "--variant=minbase"]
            command += [f"--include={','.join(wanted)}", *_OPTIONS, suite, str(unfinished), mirror()]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                raise RootError(f"cannot make a root of Debian {suite}: {done.stderr[-3000:]}")
            unfinished.rename(folder)
    return folder


def own_suite() -> str:
    """The release of this machine, such as `bookworm`; "" if it has none."""
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
    """An entered root of one Debian release, with these packages besides; `close` it.

    `run` runs a command in it; `path` is where this process finds its files. Without `network` even the
    loopback device is down; apt still has what roots of this release have downloaded before. Its cgroups are
    mounted as on this machine ("own"), as on a machine with only v2 ("v2"), or not at all ("none"). `binds`:
    files and folders of this machine, and their places in the root.
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
        """Where this process finds the root's absolute path `inside`. Absolute links in it lead outside."""
        return Path(f"/proc/{self._first}/root{inside}")

    def run(
        self,
        *command: str,
        timeout: float = _PATIENCE,
        cwd: str = "/root",
        environ: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as root with a fresh environment, the variables for packages' networks, and
        `environ`.

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
        """The names of the programs that run in it, without its first process."""
        found = [(self.path("/proc") / pid / "comm").read_text().strip() for pid in self._pids()]
        return sorted(found)

    def _pids(self) -> list[str]:
        return [name for name in os.listdir(self.path("/proc")) if name.isdigit() and name != "1"]

    def close(self) -> None:
        """Ends all its processes, and removes what is left of it."""
        if self._init.stdin is not None and not self._init.stdin.closed:
            self._init.communicate()
        self._cgroups.remove()
        self._keep_archives()
        shutil.rmtree(self._scratch)

    def _fetch_archives(self) -> None:
        """Hard links to other roots' downloaded packages: apt locks its folder of archives, so each root has
        its own.
        """
        self._archives.mkdir(exist_ok=True)
        for file in self._archives.glob("*.deb"):
            os.link(file, self._scratch / "archives" / file.name)

    def _keep_archives(self) -> None:
        for file in (self._scratch / "archives").glob("*.deb"):
            if not (self._archives / file.name).exists():
                file.rename(self._archives / file.name)


class _Cgroups:
    """A cgroup in each of this machine's hierarchies. v2 requires the processes to be in a child, `init`."""

    def __init__(self, name: str) -> None:
        #: Mount point, type of file system, options.
        self.hierarchies = list(_hierarchies())
        self._tops = [Path(target) / name for target, _, _ in self.hierarchies]
        for top in self._tops:
            top.mkdir()
            for folder in (top, top / "init"):
                folder.mkdir(exist_ok=True)
                # A v1 cgroup accepts no process without these.
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
        """Removes them with everything below; waits for killed processes to end."""
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
