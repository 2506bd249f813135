"""The place of a measuring program: the host with the real driver, a sandbox, or a container.

    with places.opened("container", machine=places.machine(options), memory="4G", cores=30) as place:
        done = place.run([place.machine.python, "program.py"], timeout=90)

`native` is the host as it is. `sandbox` is packaging/sandbox.py: the interposers and a slice's pages, without
an engine. `container` is the installed runtime with runc. Its root file system is an overlay of the machine's
own root without the driver, which the runtime brings. Programs run in the repository's folder. A place
removes all that it made at its end. The next run removes the leftovers of a killed one. Needs root.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
for _folder in (HERE, *(REPOSITORY / name for name in ("bench", "src", "packaging"))):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

import bundle  # noqa: E402
from host import Machine, PlaceError, add_options, bytes_of, find_driver, machine  # noqa: E402

import sandbox  # noqa: E402
from share import runfolder  # noqa: E402
from xpu_runtime.limits import pages, usage_page  # noqa: E402
from xpu_runtime.linux import proc  # noqa: E402

__all__ = ["Machine", "PlaceError", "add_options", "bytes_of", "find_driver", "machine", "opened"]
KINDS = ("native", "sandbox", "container")
PREFIX = "xpu-gpu-"
#: The exit status of a program that was killed at its timeout, as timeout(1) has it.
TIMED_OUT = 124
#: A variable of each program that a place starts: the place's folder, and the program's number.
MARK = "XPU_GPU_RUN"
#: Seconds until a container runs, or a command of the product has ended.
START_S = 120
#: Seconds until killed processes must be gone: a driver takes time to free their memory.
GONE_S = 20.0


# ---- programs ----


class Child:
    """A program in a place. `pid` is its pid on the host. Statuses are a shell's: 128 and the signal."""

    def __init__(self, popen: subprocess.Popen[bytes], mark: str, log: Path, pid_file: Path | None) -> None:
        self._popen, self._mark, self._log = popen, mark, log
        self.pid = popen.pid if pid_file is None else self._pid_inside(pid_file)

    def _pid_inside(self, pid_file: Path) -> int:
        """The pid of the program in the container, which runc writes as soon as it runs."""
        while self._popen.poll() is None and not pid_file.exists():
            time.sleep(0.005)
        return int(pid_file.read_text()) if pid_file.exists() else self._popen.pid

    def poll(self) -> int | None:
        status = self._popen.poll()
        return 128 - status if status is not None and status < 0 else status

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired after `timeout` seconds."""
        self._popen.wait(timeout)
        return self.poll() or 0

    def output(self) -> str:
        """Its output so far, on both streams."""
        return self._log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Sends a signal to the program alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def processes(self) -> list[int]:
        """The host's pids of the program and its living children, found by their environment."""
        wanted = f"{MARK}={self._mark}\0".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in (process / "environ").read_bytes():
                    found.append(int(process.name))
        return found

    def kill(self) -> list[int]:
        """Kills it with its children. Returns those that do not end, which is a fault."""
        until = time.monotonic() + GONE_S
        seen: dict[int, int] = {}
        while True:
            # It may start more of them meanwhile. A dying process has no environment, and the driver may
            # still be freeing its memory, so the wait goes by its pid.
            for pid in self.processes():
                seen[pid] = proc.start_time(pid) or 0
                proc.kill(pid, seen[pid])
            left = [pid for pid, started in seen.items() if proc.is_alive(pid, started)]
            if not left or time.monotonic() > until:
                break
            time.sleep(0.01)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(GONE_S)
        return left


class Place:
    """The host as it is, and the base of the other two places. `shared` is a folder for programs' files, with
    the same path inside and outside."""

    kind = "native"

    def __init__(self, machine: Machine, memory: str | None, cores: int | None, beside: Place | None) -> None:
        self.machine, self.memory, self.cores = machine, memory, cores
        self._owns_folder = beside is None
        self.folder: Path = beside.folder if beside else runfolder.make(PREFIX)
        self.folder.chmod(0o755)
        self.name = f"{self.folder.name}-{time.monotonic_ns()}"
        self.shared = self.folder / f"shared-{self.name}"
        self._children: list[Child] = []
        # Several threads start programs.
        self._numbers = itertools.count()

    def open(self) -> None:
        self.shared.mkdir()

    def close(self) -> None:
        for child in self._children:
            child.kill()
        if self._owns_folder:
            runfolder.remove(self.folder, Path(self.machine.prefix))

    def environ(self) -> dict[str, str]:
        return self.machine.environ()

    def start(
        self, words: Sequence[str], environ: Mapping[str, str] | None = None, log: Path | None = None
    ) -> Child:
        """Starts a program in a session of its own. `environ` is added to the place's own. Its output goes to
        `log` at once, or to a file that is removed with the place."""
        number = next(self._numbers)
        mark = f"{self.folder}/{self.name}-{number}"
        log = log or self.folder / f"{self.name}-{number}.log"
        more = {"PYTHONUNBUFFERED": "1", **(environ or {}), MARK: mark}
        command, whole, pid_file = self._command(list(words), more, number)
        with log.open("wb") as output:
            popen = subprocess.Popen(
                command,
                env=whole,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        child = Child(popen, mark, log, pid_file)
        self._children.append(child)
        return child

    def run(
        self,
        words: Sequence[str],
        timeout: float,
        environ: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end. After `timeout` seconds it is killed with its children, and its status
        is TIMED_OUT. Children that it leaves are killed as well, and a line says so."""
        child, late = self.start(words, environ, log), False
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            late = True
        except BaseException:
            child.kill()
            raise
        status = child.poll()
        orphans = [] if late else child.processes()
        alive, text = child.kill(), child.output()
        if late:
            text += f"\nFAILED: no end within {timeout:g} s\n"
        if orphans:
            text += f"\nleft behind and killed: {_many(orphans)}\n"
        if alive:
            text += f"\nFAILED: still there {GONE_S:g} s after SIGKILL: {_many(alive)}\n"
        code = TIMED_OUT if late or status is None else status
        return subprocess.CompletedProcess(list(words), code or (1 if alive else 0), text)

    def set_cores(self, cores: int) -> None:
        raise PlaceError(f"{self.kind} has no cap to set")

    def used_memory(self) -> int:
        """The bytes of the first device in the slice's account."""
        raise PlaceError(f"{self.kind} has no account")

    def _command(
        self, words: list[str], more: dict[str, str], number: int
    ) -> tuple[list[str], dict[str, str], Path | None]:
        return words, {**self.environ(), **more}, None


class Sandbox(Place):
    kind = "sandbox"

    def open(self) -> None:
        super().open()
        self._interposers = sandbox.build()
        self._pages = self.folder / f"pages-{self.name}"
        self._pages.mkdir()
        self._uuids = self.machine.query("uuid")
        limit = bytes_of(self.memory) if self.memory else None
        each = (pages.Entry(uuid, limit, uuid.startswith("MIG-"), cores=self.cores) for uuid in self._uuids)
        pages.create(str(self._pages), self.name, tuple(each))
        self._real = self.folder / "real"
        self._real.mkdir(exist_ok=True)
        for name, path in self.machine.driver.paths.items():
            with contextlib.suppress(FileExistsError):
                (self._real / name).symlink_to(os.path.realpath(path))

    def environ(self) -> dict[str, str]:
        outside = self.machine.environ()
        # The driver's other libraries (the compiler of PTX) come after the interposers.
        libraries = [sandbox.INTERPOSERS, *self.machine.other_libraries(), self.machine.driver.folder]
        return {
            **outside,
            "LD_LIBRARY_PATH": ":".join(libraries),
            "CUDA_VISIBLE_DEVICES": ",".join(self._uuids),
        }

    def set_cores(self, cores: int) -> None:
        with pages.OpenQuota(str(self._pages)) as quota:
            for device in range(len(self._uuids)):
                quota.set_cores(device, cores)

    def used_memory(self) -> int:
        found = usage_page.slots(str(self._pages), len(self._uuids))
        return usage_page.in_use(found, 0, pages.NO_LIMIT)

    def _command(
        self, words: list[str], more: dict[str, str], number: int
    ) -> tuple[list[str], dict[str, str], Path | None]:
        command = sandbox.command(
            words,
            pages=str(self._pages),
            real=str(self._real),
            interposers=self._interposers,
            simulation=self.machine.root,
        )
        return command, {**self.environ(), **more}, None


class Container(Place):
    """`request`: further variables of the container's request (XPU_SCHED); `host_pids`: it has no PID
    namespace of its own; `binds`: further folders of the host at their own path, read-only."""

    kind = "container"

    def __init__(
        self,
        *words: Machine | str | int | Place | None,
        request: Mapping[str, str] | None = None,
        host_pids: bool = False,
        binds: Sequence[str] = (),
    ) -> None:
        super().__init__(*words)  # type: ignore[arg-type]
        self._request, self._host_pids, self._binds = dict(request or {}), host_pids, binds
        self._runtime = [
            f"{self.machine.prefix}/bin/xpu-container-runtime",
            "--root",
            str(self.folder / "state"),
        ]

    def product_environ(self) -> dict[str, str]:
        """The environment of the product's programs: a run folder and a configuration of this run."""
        return {**self.machine.environ(), **runfolder.environment(self.folder)}

    def xpu(self, *words: str) -> str:
        """The output of one of the product's commands. PlaceError."""
        return self._call([f"{self.machine.prefix}/bin/xpu", *words])

    def open(self) -> None:
        super().open()
        if self._owns_folder:
            runfolder.prepare(self.folder, self.machine.root)
        folder = self.folder / f"bundle-{self.name}"
        rootfs = bundle.overlay(folder, self.machine.driver.folder)
        environ = {**bundle.environ(self.machine.other_libraries()), **self._asked()}
        binds = [str(REPOSITORY), *self._binds, *bundle.interpreter_folder(self.machine.python)]
        driver = self.machine.driver.folder
        spec = bundle.spec(self.name, rootfs, environ, binds, driver, str(self.shared))
        if self._host_pids:
            spec["linux"]["namespaces"].remove({"type": "pid"})
        (folder / "config.json").write_text(json.dumps(spec))
        # The output goes to a file: started programs would hold a pipe open for ever.
        log = folder / "log"
        with log.open("wb") as output:
            words = [*self._runtime, "run", "--detach", "--bundle", str(folder), self.name]
            try:
                done = subprocess.run(
                    words,
                    env=self.product_environ(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=START_S,
                )
            except subprocess.TimeoutExpired as late:
                said = log.read_text(errors="replace").strip()
                raise PlaceError(f"no container within {START_S} s: {said}") from late
        if done.returncode:
            raise PlaceError(f"no container: {log.read_text(errors='replace').strip()}")

    def close(self) -> None:
        for child in self._children:
            child.kill()
        runfolder.run_to_its_end([*self._runtime, "delete", "--force", self.name], self.product_environ())
        bundle.unmount(self.folder / f"bundle-{self.name}")
        super().close()

    def set_cores(self, cores: int) -> None:
        self.xpu("set", self.name, "--cores", str(cores))

    def used_memory(self) -> int:
        mine = [each for each in json.loads(self.xpu("ps", "--json")) if each["container_id"] == self.name]
        if not mine:
            raise PlaceError(f"xpu ps has no container {self.name}")
        return int(mine[0]["memory_used_bytes"])

    def _asked(self) -> dict[str, str]:
        asked = {"XPU_VISIBLE_DEVICES": self.machine.devices, "XPU_ENFORCE": "library"}
        asked.update({"XPU_MEM": self.memory} if self.memory else {})
        asked.update({"XPU_CORES": str(self.cores)} if self.cores else {})
        return {**asked, **self._request}

    def _call(self, words: list[str]) -> str:
        try:
            done = subprocess.run(
                words, env=self.product_environ(), capture_output=True, text=True, timeout=START_S
            )
        except subprocess.TimeoutExpired as late:
            raise PlaceError(f"{' '.join(words)}: no end within {START_S} s") from late
        if done.returncode:
            raise PlaceError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def _command(
        self, words: list[str], more: dict[str, str], number: int
    ) -> tuple[list[str], dict[str, str], Path | None]:
        pid_file = self.folder / f"{self.name}-{number}.pid"
        variables = [word for name, value in more.items() for word in ("--env", f"{name}={value}")]
        command = [*self._runtime, "exec", "--pid-file", str(pid_file), "--cwd", str(REPOSITORY), *variables]
        return [*command, self.name, *words], {**self.product_environ(), MARK: more[MARK]}, pid_file


def this_machine() -> Machine:
    """The machine by the environment."""
    return machine()


@contextlib.contextmanager
def opened(
    kind: str,
    *,
    memory: str | None = None,
    cores: int | None = None,
    machine: Machine | None = None,
    beside: Place | None = None,
    **more: object,
) -> Iterator[Place]:
    """A place of that kind; `beside`: another one of the same kind, whose node it shares. PlaceError."""
    made = {"native": Place, "sandbox": Sandbox, "container": Container}[kind]
    on = machine or this_machine()
    for folder in [] if beside else runfolder.dead(PREFIX):
        runfolder.remove(folder, Path(on.prefix))
        print(f"removed the leftovers of a killed run: {folder}", file=sys.stderr, flush=True)
    place = made(on, memory, cores, beside, **more)
    try:
        place.open()
        yield place
    finally:
        place.close()


def _many(pids: list[int]) -> str:
    names = []
    for pid in pids[:8]:
        with contextlib.suppress(OSError):
            names.append(f"{pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})")
    return ", ".join(names) or f"{len(pids)} processes"
