"""The shim: what `xpu-container-runtime` does for a container that may ask for an XPU.

The launcher execs it for create, run and restore of a bundle that names an accelerator, and where it
cannot find the low-level runtime by itself. It reads the request, prepares the bundle's spec, and
execs the low-level runtime with the same arguments. Runs `python3 -I -S`: see tests/unit/test_imports.py
for the modules that it may import.
"""

from __future__ import annotations

import os
import stat
import sys

from xpu_runtime.config import load as configuration
from xpu_runtime.config.defaults import DEFAULTS, Config
from xpu_runtime.errors import ConfigError, SpecError
from xpu_runtime.messages import Log, complain, line_of
from xpu_runtime.oci import argv as oci_argv
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.plan import injection, kept
from xpu_runtime.plan import mode as plan_mode
from xpu_runtime.request import source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.load import Runtime
    from xpu_runtime.oci.argv import Invocation
    from xpu_runtime.oci.spec import Spec


def prepare(invocation: Invocation, config: Config, runtime: Runtime) -> str | None:
    """Prepares the invocation's bundle for the low-level runtime; XpuError if its container must not start.

    Returns the bundle that the runtime must be given in the place of the invocation's, where that cannot be
    written; else None. The bundle of a container that asks for nothing is untouched.
    """
    path = invocation.spec_path
    spec = _read_original(path)
    request = source.from_spec(spec, config)
    if request is None:
        return None
    if path != oci_spec.path_in(invocation.bundle):
        # The hook is told the bundle, and would read another spec.
        raise SpecError(f"a container with an XPU needs its spec in the bundle, not in {path}")
    mode, _ = plan_mode.choose(config, spec, invocation.systemd_cgroup)
    options = ["--log", invocation.log, "--log-format", invocation.log_format] if invocation.log else []
    if mode == plan_mode.SPEC:
        from xpu_runtime.plan import spec_mode  # brings the ledger, the devices and the plan along

        return spec_mode.prepare(path, spec, request, invocation, config, runtime, options)
    injection.add_hooks(spec, runtime, options)
    return kept.write(path, spec, keep=False)


def _read_original(path: str) -> Spec:
    """The bundle's spec, as it was before an earlier spec mode edited it."""
    if kept.is_kept(path):
        kept.restore(path)
    spec = oci_spec.read(path)
    kept.check(path, spec)
    return spec


def main(arguments: list[str]) -> int:
    """The shim's door: `arguments` are the low-level runtime's. Returns only if it cannot be started."""
    invocation = oci_argv.parse(arguments, _working_directory())
    log = Log(invocation.log or "", invocation.log_format or "text")
    problem: Exception | None = None
    config, runtime = DEFAULTS, None
    try:
        config = configuration.load()
        runtime = configuration.low_level_runtime(config)
    except Exception as error:  # our own files are broken: that stops whoever needs them, and nobody else
        problem = error
    if invocation.creates:
        try:
            if problem is not None or runtime is None:
                _refuse_who_asks(invocation, problem)
            else:
                own_bundle = prepare(invocation, config, runtime)
                if own_bundle is not None:
                    arguments = oci_argv.with_bundle(arguments, invocation.bundle, own_bundle)
        except Exception as error:
            if not _is_handed_over(invocation.spec_path):
                complain(log, line_of(error))
                return 1
    try:
        _exec(runtime.path if runtime is not None else _last_good_runtime(), arguments)
    except (ConfigError, OSError) as error:
        complain(log, line_of(problem or error))
    return 1


def _refuse_who_asks(invocation: Invocation, problem: Exception | None) -> None:
    if problem is not None and source.asks(_read_original(invocation.spec_path)):
        raise problem


def _is_handed_over(path: str) -> bool:
    """Whether a container that could not be prepared is the runtime's: it asks for nothing, or cannot start.

    The low-level runtime says in its own words that there is no spec, or none that it may read. What is no
    file, such as a FIFO, is its alone as well: who opens it takes from it what the runtime would read, or
    ends its writer. Nobody can know what such a spec asks for; its container gets no device.
    """
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True
    if not is_file or not os.access(path, os.R_OK):
        return True
    # With an edit of ours in it that could not be taken back it would get another grant's devices.
    return not kept.is_kept(path) and source.asks_for_nothing(path)


def _last_good_runtime() -> str:
    """The low-level runtime while the configuration is broken: the last one that worked, or the default."""
    last = configuration.last_runtime()
    if last is not None and os.access(last, os.X_OK):
        return last
    return configuration.find_runtime(DEFAULTS.low_level_runtimes)[0]


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _exec(path: str, arguments: list[str]) -> None:
    """Becomes the low-level runtime, leaving it what the engine gave us."""
    import _signal

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
