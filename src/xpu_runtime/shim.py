"""The shim: the part of `xpu-container-runtime` for a container that may ask for an XPU.

A start worker, or the launcher by exec, runs it for create, run and restore of a bundle that names an
accelerator. The launcher also runs it if it cannot find the low-level runtime by itself. It reads the
request, prepares the bundle's spec, and execs the low-level runtime with the same arguments. Runs `python3 -I
-S`: see tests/unit/test_imports.py for the modules that it may import. request/ knows the meaning of a
request, start/ how it is met.
"""

from __future__ import annotations

import os
import stat
import sys

from xpu_runtime import paths
from xpu_runtime.config import low_level_runtime as runtimes
from xpu_runtime.config.defaults import DEFAULTS, Config
from xpu_runtime.config.load import load
from xpu_runtime.errors import ConfigError, RootlessError, SpecError
from xpu_runtime.linux.proc import is_hosts_root, this_process
from xpu_runtime.messages import Log, complain, line_of, to_system_log
from xpu_runtime.oci import argv as oci_argv
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.request import source
from xpu_runtime.start import config_json, hooks_in_spec
from xpu_runtime.start import mode as start_mode
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.low_level_runtime import Runtime
    from xpu_runtime.linux.proc import Caller
    from xpu_runtime.oci.argv import Invocation
    from xpu_runtime.oci.spec import Spec


#: As in native/launcher/launcher.c.
_PREPARED = "xpu-prepared-1"


def prepare(invocation: Invocation, config: Config, runtime: Runtime, caller: Caller) -> str | None:
    """Prepares the invocation's bundle for the low-level runtime; XpuError if its container must not start.

    Returns the bundle to give to the runtime instead, if the invocation's cannot be written; otherwise None.
    The bundle of a container that asks for nothing is untouched.
    """
    path = invocation.spec_path
    spec = _read_original(path)
    request = source.from_spec(spec, config, invocation.bundle)
    if request is None:
        return None
    if path != oci_spec.path_in(invocation.bundle):
        # The hook gets this bundle's path; in another bundle it would read another spec.
        raise SpecError(f"a container with an XPU needs its spec in the bundle, not in {path}")
    if not is_hosts_root():
        raise RootlessError
    refused = runtimes.refusal(runtime.path, runtime.name)
    if refused is not None:
        raise refused
    mode, _ = start_mode.choose(config, spec, invocation.systemd_cgroup, runtime.name)
    options = ["--log", invocation.log, "--log-format", invocation.log_format] if invocation.log else []
    if mode == start_mode.SPEC:
        from xpu_runtime.start import spec_mode  # brings the ledger, the devices and the plan along

        return spec_mode.prepare(spec, request, invocation, config, runtime, options, caller)
    hooks_in_spec.add_hooks(spec, runtime, options, caller)
    return config_json.write(path, spec, caller, keep=False)


def _read_original(path: str) -> Spec:
    """The bundle's spec, as it was before an earlier spec mode edited it."""
    if config_json.is_kept(path):
        config_json.restore(path)
    spec = oci_spec.read(path)
    config_json.check(path, spec)
    return spec


class Call(Value):
    """The program that the caller becomes: the low-level runtime."""

    program: str
    arguments: list[str]
    """After its name."""
    invocation: Invocation
    log: Log
    problem: str
    """The fault of our own files; "": none."""
    handed_over: bool
    """Preparing failed, and the spec asks for nothing or cannot be used: the runtime reports it
    (_is_handed_over)."""


def call(words: list[str], caller: Caller) -> Call | None:
    """Prepares the container of the launcher's and the runtime's words; None if it is refused, with the
    reason printed."""
    try:
        invocation = oci_argv.read(words, caller.working_folder)
    except SpecError as error:
        complain(Log("", "text"), line_of(error))
        return None
    arguments = invocation.arguments
    log = Log(invocation.log or "", invocation.log_format or "text")
    problem: Exception | None = None
    handed_over = False
    config, runtime = DEFAULTS, None
    try:
        config = load()
        runtime = runtimes.low_level_runtime(config)
    except Exception as error:  # our own files are broken: only containers that need them are stopped
        problem = error
    if invocation.creates:
        try:
            if problem is not None or runtime is None:
                _refuse_who_asks(invocation, problem)
            else:
                own_bundle = prepare(invocation, config, runtime, caller)
                if own_bundle is not None:
                    arguments = oci_argv.with_bundle(invocation, own_bundle)
        except BaseException as error:  # no container starts without the slice that it asked for
            handed_over = _is_handed_over(invocation.spec_path)
            if not handed_over:
                complain(log, line_of(error))
                try:
                    from xpu_runtime.start import not_started

                    not_started.note(invocation.container_id, invocation.bundle, error)
                except Exception as unwritten:  # a part may be missing; see the line above
                    to_system_log("warning", f"no event was written: {line_of(unwritten)}")
                return None
    try:
        program = runtime.path if runtime is not None else _last_good_runtime()
    except ConfigError as error:
        complain(log, line_of(problem or error))
        return None
    return Call(
        program, arguments, invocation, log, line_of(problem) if problem is not None else "", handed_over
    )


def main(words: list[str]) -> int:
    """The launcher's program, with its word and the low-level runtime's; returns only if that cannot be
    started."""
    caller = this_process()
    done = call(words, caller)
    if done is not None:
        try:
            if done.invocation.creates:  # the launcher writes down what creates the container
                _exec(paths.LAUNCHER, [_PREPARED, done.program, *done.arguments])
            else:
                _exec(done.program, done.arguments)
        except OSError as error:
            complain(done.log, done.problem or line_of(error))
    return 1


def _refuse_who_asks(invocation: Invocation, problem: Exception | None) -> None:
    if problem is not None and source.asks(_read_original(invocation.spec_path)):
        raise problem


def _is_handed_over(path: str) -> bool:
    """Whether a container that could not be prepared is the runtime's: it asks for nothing, or cannot start.

    The low-level runtime reports a missing or unreadable spec in its own words. A spec that is no regular
    file, such as a FIFO, is left to it too: opening it would take the content from the runtime, or end its
    writer. Such a container gets no device.
    """
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True
    if not is_file or not os.access(path, os.R_OK):
        return True
    # With an edit of ours in it that could not be taken back it would get another grant's devices.
    return not config_json.is_kept(path) and source.asks_for_nothing(path)


def _last_good_runtime() -> str:
    """The low-level runtime while the configuration is broken: the last one that worked, or the default."""
    last = runtimes.last_runtime()
    if last is not None and os.access(last, os.X_OK):
        return last
    return runtimes.find_runtime(DEFAULTS.low_level_runtimes)[0]


def _exec(path: str, arguments: list[str]) -> None:
    """Becomes the low-level runtime, leaving it what the engine gave us."""
    try:
        import _signal
    except ImportError:
        import signal as _signal

    # The interpreter ignores these, and the container's processes would inherit that.
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
    os.execve(path, [path, *arguments], _first_environment())


def _first_environment() -> dict[bytes, bytes]:
    """The environment as it was when we were started: the interpreter may have set LC_CTYPE (PEP 538)."""
    try:
        with open("/proc/self/environ", "rb") as file:
            items = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return dict(item.split(b"=", 1) for item in items if b"=" in item[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
