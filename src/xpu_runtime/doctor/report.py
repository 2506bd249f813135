"""The parts of a bug report: named texts, without secrets.

Each part is collected in a process of its own with an end, as the areas' findings are: a node that has a
fault must still give its report. A part that fails leaves its reason in the report.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from xpu_runtime import engines, paths, textfile
from xpu_runtime.config import cache
from xpu_runtime.doctor import examination, interpreter, redact, redacted_spec
from xpu_runtime.errors import ConfigError
from xpu_runtime.finding import Finding
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import deadline, files
from xpu_runtime.observe import engine

_COLLECT_S = 45.0
_COMMAND_S = 15.0
_LEDGER_S = 5.0
_MOST_BYTES = 4 << 20
#: Containers whose specs are taken; a thousand of one kind tell no more.
_MOST_SPECS = 50
_LOG_LINES = 400
_TAG = "xpu-container-runtime"
_LOGS = ("/var/log/syslog", "/var/log/messages")
#: A line of ours in syslog's file: the time in the form of RFC 3164 or 3339, the host, the program.
_OF_SYSLOG = re.compile(
    rf"(?:[A-Z][a-z]{{2}} [ \d]\d [\d:]{{8}}|\d{{4}}-\d\d-\d\dT\S+) \S+ {_TAG}\[\d+\]: xpu: "
)
#: A line of the drivers' own, after its time. The kernel's command line and audit's lines, which can have
#: secrets, name the drivers too.
_OF_KERNEL = re.compile(
    r"(?:\[[^]]*\] *)*"
    r"(?:NVRM: |(?:nvidia(?:-(?:drm|modeset|uvm|nvlink|fs|gpu))?|amdgpu|kfd)(?:: | [\w:.]+: ))"
)
#: The name of an option that an engine is given.
_OPTION = re.compile(r"--[a-z][a-z-]{0,39}")
_OURS = re.compile(r"xpu|nvidia|libcuda")

#: A name in the report and the text under it.
Part = tuple[str, str]

_FILES = (
    "/proc/driver/nvidia/version",
    "/proc/devices",
    "/proc/sys/kernel/seccomp/actions_avail",
    "/etc/os-release",
)
_PROGRAMS = ("docker", "dockerd", "containerd", "runc", "crun", "podman", "crio", "nvidia-smi")

ABOUT = """A bug report of `xpu doctor --bundle`. Look through it before you send it.

doctor.json    what is missing or wrong on the node
xpu/           what `xpu devices`, `ps` and `config show` print
engines/       the engines' configuration: their keys, and the values that are known as harmless
containers/    the specs of containers with slices, without arguments and without values of variables and
               annotations; where they have files of ours mounted
ledger.json    who holds which slice
caches/        what is kept in the run folder
versions.txt, files/, mounts.txt, log.txt, kernel.txt

"[left out]" stands where something was taken out that is a secret or could be one.
"""


def parts(findings: list[Finding]) -> Iterator[Part]:
    """All parts, those first that say most."""
    yield "about.txt", ABOUT
    # A message about a file quotes it.
    yield "doctor.json", _json(redact.strings(redact.quotations(examination.document(findings))))
    collectors: list[Callable[[], Iterable[Any]]] = [
        _commands,
        _ledger,
        _containers,
        _engines,
        _caches,
        _versions,
        _files,
        _mounts,
        _log,
        _kernel,
    ]
    for collect, answer in zip(collectors, deadline.together(collectors, _COLLECT_S)):
        yield from answer.values
        if answer.error:
            name = collect.__name__.lstrip("_")
            yield f"not-collected/{name}.txt", redact.text(answer.error)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _read(path: str) -> str:
    return files.read(path, _MOST_BYTES).decode("utf-8", "replace")


def _commands() -> Iterator[Part]:
    program = os.path.join(os.path.dirname(paths.HOOK), "xpu")
    for words in ("devices", "ps", "config show"):
        done = subprocess.run(
            [program, *words.split(), "--json"], capture_output=True, text=True, timeout=_COMMAND_S
        )
        try:
            told = _json(redact.strings(json.loads(done.stdout)))
        except ValueError:
            told = ""
        yield f"xpu/{words.replace(' ', '-')}.json", told or redact.text(done.stderr)


def _grants() -> list[Grant]:
    if not os.path.exists(paths.in_run_dir("ledger.db")):
        return []
    waiting.allow(_LEDGER_S)
    with Ledger(as_is=True) as ledger:
        return ledger.grants()


def _ledger() -> Iterator[Part]:
    rows = [{**grant.as_dict(), "slices": [_plain(each) for each in grant.slices]} for grant in _grants()]
    yield "ledger.json", _json(redact.strings(rows))


def _plain(value: Any) -> Any:
    return {**value.as_dict(), "holding": value.holding.as_dict()}


def _containers() -> Iterator[Part]:
    for grant in _grants()[:_MOST_SPECS]:
        name = "".join(letter if letter.isalnum() else "-" for letter in grant.container_id[:64])
        try:
            spec = json.loads(_read(os.path.join(grant.bundle, "config.json")))
        except (OSError, ValueError, RecursionError) as error:
            yield f"containers/{name}.txt", redact.text(f"its spec cannot be read: {error}\n")
        else:
            yield f"containers/{name}.json", _json(redacted_spec.of(spec))
        yield f"containers/{name}-mounts.txt", _mounts_of(str(grant.pid), _OURS)


def _mounts_of(pid: str, wanted: re.Pattern[str]) -> str:
    """The mounts of a process that concern us, without the options of their file systems (proc(5))."""
    try:
        lines = _read(f"/proc/{pid}/mountinfo").splitlines()
    except OSError as error:
        return f"{error}\n"
    found = []
    for line in lines:
        front, _, back = line.partition(" - ")
        if wanted.search(" ".join(front.split()[3:5])) or back.split()[1:2] == ["xpu"]:
            found.append(f"{front} - {back.split()[0] if back else ''}\n")
    return redact.text("".join(found))


def _engines() -> Iterator[Part]:
    for name in engines.ENGINES:
        for path in engine.files_of(name):
            place = f"engines/{name}/{path.strip('/').replace('/', '-')}"
            try:
                told = engines.engine(name).data(textfile.read(path))
            except ConfigError:
                # The error is left out, because it can quote the file. The findings have the reason.
                yield f"{place}.txt", "it cannot be read: see doctor.json\n"
            else:
                yield f"{place}.json", _json(redact.document(told))
        words = [
            " ".join(["process", str(each.pid), *_options(each.words)]) for each in engine.running_of(name)
        ]
        yield f"engines/{name}/processes.txt", "".join(f"{line}\n" for line in words)


def _options(words: tuple[str, ...]) -> list[str]:
    """The names of a command line's options, without their values."""
    names = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
    return [name if _OPTION.fullmatch(name) else redact.LEFT_OUT for name in names]


def _caches() -> Iterator[Part]:
    for name in ("inventory.json", cache.COMPILED, cache.LAUNCHER, cache.RUNTIMES):
        try:
            text = _read(paths.in_run_dir(name))
        except OSError as error:
            text = f"{error.strerror}\n"
        yield f"caches/{name}", redact.text(text)


def _versions() -> Iterator[Part]:
    python = interpreter.of_hook()
    programs = [path for name in _PROGRAMS if (path := engine.program(name)) is not None]
    told = [f"{path}: {', '.join(_output([path, '--version'])[:3])}" for path in (*programs, python) if path]
    yield "versions.txt", redact.text("\n".join([_json(examination.head()), *told, ""]))


def _output(words: list[str]) -> list[str]:
    """The lines that a program prints; a line with the reason if it cannot be started or does not end."""
    try:
        done = subprocess.run(words, capture_output=True, timeout=_COMMAND_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return [f"{words[0]} does not end within {_COMMAND_S:.0f} s"]
    except OSError as error:
        return [f"{words[0]}: {error.strerror}"]
    return (done.stdout or done.stderr).decode("utf-8", "replace").splitlines()


def _files() -> Iterator[Part]:
    for path in _FILES:
        try:
            yield f"files/{path.strip('/').replace('/', '-')}", _read(path)
        except OSError:
            continue  # a node without it


def _mounts() -> Iterator[Part]:
    ours = re.escape(os.path.realpath(paths.run_dir()))
    yield "mounts.txt", _mounts_of("self", re.compile(f"{ours}|/sys/fs/cgroup"))


def _log() -> Iterator[Part]:
    journal = engine.program("journalctl")
    found = []
    if journal is not None:
        # Only lines of root's processes: the journal records the sender of each line.
        words = [journal, "--identifier", _TAG, "_UID=0", "--lines", str(_LOG_LINES)]
        words += ["--no-pager", "--no-hostname"]
        found.append(_lines(_output(words)))
    for path in _LOGS:
        try:
            found.append(_end_of(path))
        except OSError:
            continue  # none here, or not for this user
    yield "log.txt", redact.text("".join(found))


def _end_of(path: str) -> str:
    """The last lines of a log that are ours."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES))
        lines = file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    return _lines([line for line in lines if _OF_SYSLOG.match(line)])


def _kernel() -> Iterator[Part]:
    dmesg = engine.program("dmesg")
    lines = _output([dmesg]) if dmesg else []
    yield "kernel.txt", redact.text(_lines([line for line in lines if _OF_KERNEL.match(line)]))


def _lines(lines: list[str]) -> str:
    """The last of them, as a text."""
    return "".join(f"{line}\n" for line in lines[-_LOG_LINES:])
