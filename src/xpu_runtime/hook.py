"""The hook: the low-level runtime calls it while it creates a container, and after the container is gone.

`createRuntime` (or `prestart`) gives the container its slice; in spec mode (`--grant N`) it binds the grant
to the container that now exists. `poststop` gives everything back. Called by the shim's hooks in the spec, or
by an engine's own hooks.d, through native/launcher/hook.c: that has a start worker do it (worker.py), or runs
`python3 -I -S`, and a stage imports only what it needs. The end of a container is handled in this file.
start/ knows how a container gets its slice.
"""

from __future__ import annotations

import os
import sys

from xpu_runtime import paths
from xpu_runtime.errors import SpecError
from xpu_runtime.linux import proc
from xpu_runtime.messages import Log, complain, line_of, to_system_log, warn
from xpu_runtime.oci import state as oci_state
from xpu_runtime.oci.state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from xpu_runtime.ledger.grants import Grant
    from xpu_runtime.linux.proc import Caller
    from xpu_runtime.oci.spec import Spec

STARTING = ("createRuntime", "prestart")
STOPPED = "poststop"
#: In the paths of bundles of our own (oci/own_bundle.py).
_MAYBE_OURS = "/bundles/"
_OPTIONS = ("--log", "--log-format", "--grant")


def start(state: State, number: int | None, log: Log, caller: Caller) -> Grant | None:
    """Gives the container of `state` its slice, which spec mode has booked as grant `number`."""
    try:
        return _start(state, number, log, caller)
    except ProcessLookupError:
        # Its process is there when it is looked for first, and may end at any time after that.
        from xpu_runtime.start import in_container

        raise in_container.has_ended(state) from None


def _start(state: State, number: int | None, log: Log, caller: Caller) -> Grant | None:
    from xpu_runtime.config.load import load

    bundle = state.bundle
    if _MAYBE_OURS in bundle:
        from xpu_runtime.oci import own_bundle

        own_bundle.hold(bundle, state.pid)
        state = state.replace(bundle=own_bundle.engines(bundle))
    spec = _spec_with_request(bundle, number is not None)
    if spec is None:
        return None
    from xpu_runtime.start import in_container

    return in_container.start(state, number, spec, load(), log, caller)


def _spec_with_request(bundle: str, is_booked: bool) -> Spec | None:
    """The bundle's spec; None where its container asks for nothing, and nothing is booked for it."""
    from xpu_runtime.oci import spec as oci_spec
    from xpu_runtime.request import source

    path = oci_spec.path_in(bundle)
    try:
        spec = oci_spec.read(path)
    except SpecError:
        if not is_booked and source.asks_for_nothing(path):
            return None
        raise
    return spec if is_booked or source.asks(spec) else None


def stop(state: State, number: int | None, log: Log) -> None:
    """Gives back the slices of the container of `state`; no error if it held none.

    If the ledger stays locked too long, or cannot be read or written, the container ends all the same, and
    the next start reaps its slices.
    """
    if os.path.isdir(paths.in_run_dir(paths.BUILDS)):  # otherwise no build step got anything
        from xpu_runtime.delivery import build_step_files

        build_step_files.take_away(state.id)
    if _MAYBE_OURS not in state.bundle:
        _stop(state, number, log)
        return
    from xpu_runtime.oci import own_bundle

    bundle = state.bundle
    _stop(state.replace(bundle=own_bundle.engines(bundle)), number, log)
    own_bundle.remove(bundle)


def _stop(state: State, number: int | None, log: Log) -> None:
    if not os.path.exists(paths.in_run_dir("ledger.db")):
        return
    from xpu_runtime.ledger import waiting

    waiting.allow(waiting.STOP_S)
    try:
        _give_back(state, number)
    except waiting.LedgerError as error:
        warn(log, f"{error}; until then container {state.id} keeps its slices")


def _give_back(state: State, number: int | None) -> None:
    from xpu_runtime.ledger.store import Ledger

    with Ledger() as ledger:
        grants = [each for each in ledger.of_container(state.id) if _is_of(each, state, number)]
        # The low-level runtime removes the cgroup before it calls us, and the limits on it went with it.
        released = not any(grant.cgroup and os.path.isdir(grant.cgroup) for grant in grants)
        if released:
            _remove_folders(grants)
            ledger.release(grants)
    if not released:
        _release_with_limits(grants)
    elif os.path.isdir(paths.in_run_dir(paths.DEVICE_FOLDERS)):  # otherwise nothing is kept for devices
        from xpu_runtime.limits import per_device

        per_device.end_unused(grants)


def _is_of(grant: Grant, state: State, number: int | None) -> bool:
    """Whether the stopped container of `state` held the grant.

    A runtime with another --root may run a container of the same id and bundle. The first process of an ended
    container may still exist, in no cgroup: the kernel makes it wait for the others of its pid namespace
    (pid_namespaces(7)), and an exec's process waits for its parent outside.
    """
    if number is not None:
        return grant.id == number
    if grant.bundle != state.bundle:
        return False
    if not proc.is_alive(grant.pid, grant.start_time):
        return True
    # Where the runtime has made no folder in cgroup v2, the process alone can tell.
    return not os.path.isdir(grant.cgroup) if grant.cgroup else proc.is_ending(grant.pid)


def _remove_folders(grants: list[Grant]) -> None:
    if os.path.isdir(paths.in_run_dir(paths.GRANT_FOLDERS)):  # otherwise no grant of this boot had one
        from xpu_runtime.limits import folders

        for grant in grants:
            folders.remove(folders.of(grant))


def _release_with_limits(grants: list[Grant]) -> None:
    from xpu_runtime import granting
    from xpu_runtime.config.defaults import DEFAULTS
    from xpu_runtime.config.load import load
    from xpu_runtime.errors import ConfigError

    try:
        config = load()
    except ConfigError:
        config = DEFAULTS  # slices are given back even if the configuration is broken by now
    granting.release(config, grants)


def call(arguments: list[str], given: Callable[[], bytes], caller: Caller | None = None) -> int:
    """One call of the hook: a stage and options, and a function that reads the container's state. It runs in
    a process that `caller` waits for, or in the caller's own. Returns the exit status."""
    log = Log()
    state = None
    try:
        stage, options = _parse(arguments)
        log = Log(options.get("--log", ""), options.get("--log-format", "text"))
        state = oci_state.parse(given())
        number = int(options["--grant"]) if "--grant" in options else None
        if stage == STOPPED:
            stop(state, number, log)
        else:
            start(state, number, log, caller or proc.this_process())
    except BaseException as error:  # the low-level runtime shows stderr, and stops the container
        complain(log, line_of(error))
        if state is not None and stage != STOPPED:
            try:
                from xpu_runtime.start import hidden_stderr, not_started

                hidden_stderr.tell(caller.pid if caller else os.getpid(), log, line_of(error))
                not_started.note(state.id, state.bundle, error)
            except Exception as unwritten:  # a part may be missing; see the line above
                to_system_log("warning", f"no event was written: {line_of(unwritten)}")
        return 1
    return 0


def main(arguments: list[str]) -> int:
    """The entry point: a stage and options; the container's state on stdin. Returns the exit status."""
    return call(arguments, lambda: sys.stdin.buffer.read(oci_state.MAX_BYTES))


def command() -> int:
    """The entry point where pip has installed us."""
    return main(sys.argv[1:])


def _parse(arguments: list[str]) -> tuple[str, dict[str, str]]:
    if not arguments or arguments[0] not in (*STARTING, STOPPED):
        stages = ", ".join((*STARTING, STOPPED))
        raise SpecError(
            "usage: xpu-container-runtime-hook STAGE, with a container's state on standard input; "
            f"STAGE is one of {stages}"
        )
    rest = arguments[1:]
    known = len(rest) % 2 == 0 and all(name in _OPTIONS for name in rest[::2])
    # A newer version may have started the container that ends, before a downgrade.
    if not known and arguments[0] != STOPPED:
        raise SpecError(f"unknown options: {' '.join(rest)}")
    options = dict(zip(rest[::2], rest[1::2]))
    if not options.get("--grant", "0").isdecimal():
        raise SpecError(f"--grant takes a grant's number, not {options['--grant']!r}")
    return arguments[0], options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
