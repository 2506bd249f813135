"""The hook: what the low-level runtime calls while it creates a container, and after it is gone.

`createRuntime` (or `prestart`): in hook mode the whole way from the request to the quota; in spec mode
(`--grant N`) the grant is bound to the container that now exists. `poststop` gives everything back.
Called by the shim's injection, or by an engine's own hooks.d. Runs `python3 -I -S`.
"""

from __future__ import annotations

import os
import sys

from xpu_runtime.config import load as configuration
from xpu_runtime.config.defaults import DEFAULTS, Config
from xpu_runtime.errors import ApplyError, ConfigError, SpecError
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import proc
from xpu_runtime.messages import Log, complain, line_of
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.oci import state as oci_state
from xpu_runtime.oci.state import State
from xpu_runtime.plan import granting
from xpu_runtime.plan import mode as plan_mode
from xpu_runtime.request import source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.devices.inventory import Inventory
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.request.request import Request

STARTING = ("createRuntime", "prestart")
STOPPED = "poststop"
_UNENFORCED = "unenforced"


def start(state: State, config: Config, log: Log) -> Grant | None:
    """Gives the container of `state` what its spec asks for; None if that is no device.

    XpuError, and everything undone, if it cannot have it.
    """
    spec = oci_spec.read(oci_spec.path_in(state.bundle))
    request = source.from_spec(spec, config)
    if request is None:
        return None
    from xpu_runtime.devices import inventory

    return _give(state, spec, request, inventory.load(config), config, log)


def _give(
    state: State, spec: Spec, request: Request, found: Inventory, config: Config, log: Log
) -> Grant | None:
    from xpu_runtime.plan import live

    started = _start_time(state)
    rootfs = oci_spec.rootfs(spec, state.bundle)
    if request.choice == "none":
        live.carry_out(found, (), request.capabilities, state.pid, rootfs)
        return None
    wanted = Grant(0, state.id, state.bundle, state.pid, started, "", "pending", plan_mode.HOOK, 0.0, ())
    granted = granting.grant(found, request, config, wanted, privileged=oci_spec.is_privileged(spec))
    if granted.state == "running":
        return granted  # called twice, by the shim's injection and by hooks.d
    try:
        live.carry_out(found, granted.slices, request.capabilities, state.pid, rootfs)
        bound = granting.impose(found, granted, state.pid, started)
    except BaseException:
        granting.release(config, [granted])
        raise
    _warn(bound, log)
    return bound


def bind(state: State, number: int, config: Config, log: Log) -> Grant:
    """Spec mode: binds grant `number` to the container of `state` and sets its quotas."""
    from xpu_runtime.devices import inventory

    with Ledger() as ledger:
        grants = [grant for grant in ledger.of_container(state.id) if grant.id == number]
    if not grants:
        raise ApplyError(f"grant {number} of container {state.id} is gone", "start the container again")
    bound = granting.impose(inventory.load(config), grants[0], state.pid, _start_time(state))
    _warn(bound, log)
    return bound


def stop(state: State, number: int | None, config: Config) -> list[Grant]:
    """Gives back what the container of `state` held; nothing is no error."""
    with Ledger() as ledger:
        grants = [
            grant
            for grant in ledger.of_container(state.id)
            if grant.id == number or (number is None and grant.bundle == state.bundle)
        ]
    granting.release(config, grants)
    return grants


def _start_time(state: State) -> int:
    started = proc.start_time(state.pid) if state.pid else None
    if started is None:
        raise SpecError(f"container {state.id} has no process {state.pid} to give an XPU to")
    return started


def _warn(grant: Grant, log: Log) -> None:
    """Says in the runtime's log, once a container, which limits nothing holds."""
    for part in grant.slices:
        for kind, strength in (
            ("memory", part.holding.memory_strength),
            ("cores", part.holding.cores_strength),
        ):
            if strength == _UNENFORCED:
                log.write(
                    "warning",
                    f"container {grant.container_id}: its limit on {kind} of GPU {part.device_index} is "
                    "booked and not enforced: nothing on this node can hold it",
                )


def main(arguments: list[str]) -> int:
    """The hook's door: a stage and options; the container's state on stdin. Returns the exit status."""
    log = Log()
    try:
        stage, options = _options(arguments)
        log = Log(options.get("--log", ""), options.get("--log-format", "text"))
        state = oci_state.parse(sys.stdin.buffer.read(oci_state.MAX_BYTES))
        number = int(options["--grant"]) if "--grant" in options else None
        if stage == STOPPED:
            _stopped(state, number)
        elif number is not None:
            bind(state, number, configuration.load(), log)
        elif source.asks(oci_spec.read(oci_spec.path_in(state.bundle))):
            start(state, configuration.load(), log)
    except Exception as error:  # the low-level runtime shows stderr, and stops the container
        complain(log, line_of(error))
        return 1
    return 0


def _stopped(state: State, number: int | None) -> None:
    from xpu_runtime import paths

    if not os.path.exists(paths.in_run_dir("ledger.db")):
        return
    try:
        config = configuration.load()
    except ConfigError:
        config = DEFAULTS  # what was given is given back, whatever has become of the configuration
    stop(state, number, config)


def _options(arguments: list[str]) -> tuple[str, dict[str, str]]:
    if not arguments or arguments[0] not in (*STARTING, STOPPED):
        stages = ", ".join((*STARTING, STOPPED))
        raise SpecError(
            "usage: xpu-container-runtime-hook STAGE, with a container's state on standard input; "
            f"STAGE is one of {stages}"
        )
    rest = arguments[1:]
    if len(rest) % 2 or any(name not in ("--log", "--log-format", "--grant") for name in rest[::2]):
        raise SpecError(f"unknown options: {' '.join(rest)}")
    return arguments[0], dict(zip(rest[::2], rest[1::2], strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
