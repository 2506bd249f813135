"""`xpu runtime`: adds the runtime to an engine's configuration, and removes it again.

Only engines/ knows the files' formats.
"""

from __future__ import annotations

import os
import sys

import click

from xpu_runtime import engines, textfile
from xpu_runtime.doctor import docker_flags, podman_containers
from xpu_runtime.engines import ENGINES, Engine, docker, engine
from xpu_runtime.errors import ConfigError
from xpu_runtime.observe import engine as engine_processes
from xpu_runtime.textfile import Edit, TextFile

_PROGRAM = "xpu-container-runtime"


@click.group()
def runtime() -> None:
    """Add the runtime `xpu` to an engine, or remove it.

    \b
    Example:
      xpu runtime configure docker --dry-run
      xpu runtime configure docker
    """


_engine_argument = click.argument("name", metavar="ENGINE", type=click.Choice(ENGINES))
_config_option = click.option(
    "--config", "path", type=click.Path(), help="The engine's configuration file, if not at the usual path."
)
_dry_run_option = click.option("--dry-run", is_flag=True, help="Show the change, and write nothing.")


@runtime.command(short_help="Add `xpu` to an engine's configuration.")
@_engine_argument
@_config_option
@_dry_run_option
@click.option("--set-as-default", is_flag=True, help="Also use it for containers that name no runtime.")
@click.option(
    "--runtime-path", type=click.Path(), help="Path of xpu-container-runtime (default: beside xpu)."
)
def configure(
    name: str, path: str | None, dry_run: bool, set_as_default: bool, runtime_path: str | None
) -> None:
    """Add the runtime `xpu` to the configuration of ENGINE: docker, containerd, podman or crio.

    The rest of the file stays as it is. Running this twice changes nothing.

    \b
    Example:
      xpu runtime configure docker
      xpu runtime configure containerd --dry-run --set-as-default
    """
    program = _program(runtime_path)
    known = engine(name)
    _check_folder(name, path, known)
    file = textfile.read(path or known.DEFAULT_PATH)
    edits = known.configure(file, program, set_as_default)
    then = _dockerds_next(file, edits) or known.after_change(file, False)
    _carry_out(file, edits, dry_run, f"For the change to take effect: {then}")


@runtime.command(short_help="Remove `xpu` from an engine's configuration.")
@_engine_argument
@_config_option
@_dry_run_option
def unconfigure(name: str, path: str | None, dry_run: bool) -> None:
    """Remove the runtime `xpu` from the configuration of ENGINE: docker, containerd, podman or crio.

    \b
    Example:
      xpu runtime unconfigure docker
    """
    known = engine(name)
    file = textfile.read(path or known.DEFAULT_PATH)
    edits = engines.unconfigure(known, file, engine_processes.is_named(known, file.path))
    for process in docker_flags.readers(file.path):
        _refuse(docker_flags.needs_us(process))
    if known.runtime_path(file) is not None:
        _refuse(podman_containers.in_the_way(known))
    then = known.after_change(file, True)
    _carry_out(file, edits, dry_run, f"For the change to take effect: {then}")


@runtime.command(hidden=True)
def retire() -> None:
    """Prepares the removal of the package; packaging/scripts/before-removal.sh calls it."""
    from xpu_runtime.cli import removal  # imports that other commands do not need

    removal.prepare()


def _dockerds_next(file: TextFile, edits: tuple[Edit, ...]) -> str:
    """The command that makes the running dockerds read the new file; "" if none runs. ConfigError if one
    would not start with it."""
    processes = docker_flags.readers(file.path)
    if not processes:
        return ""
    data = docker.data(file.replace(text=edits[0].text))
    for process in processes:
        _refuse(docker_flags.conflict(process, file.path, data))
    told = dict.fromkeys(docker_flags.after_configure(process, data) for process in processes)
    return next((each for each in told if each != docker.AFTER_CONFIGURE), "")


def _refuse(error: ConfigError | None) -> None:
    if error is not None:
        raise ConfigError(error.what, f"{error.todo}; nothing was changed")


def _check_folder(name: str, path: str | None, known: Engine) -> None:
    """ConfigError where no engine would read the file: a mistyped path, or no such engine here.

    An engine that is installed may not have made the folder of its file yet.
    """
    folder = os.path.dirname(os.path.realpath(path or known.DEFAULT_PATH))
    if os.path.isdir(folder):
        return
    if path is not None:
        raise ConfigError(f"{path}: there is no folder {folder}", "is the path spelt right?")
    if engine_processes.program(known.PROGRAM) is None:
        raise ConfigError(
            f"there is neither the folder {folder} nor the program {known.PROGRAM}",
            f"install {name} first, or name its configuration file by --config",
        )


def _carry_out(file: TextFile, edits: tuple[Edit, ...], dry_run: bool, then: str) -> None:
    for note in (note for edit in edits for note in edit.notes):
        click.echo(f"xpu: note: {note}", err=True)
    changes = [edit for edit in edits if edit.text != edit.file.text]
    if not changes:
        # A dry run's stdout is a patch, or empty.
        click.echo(f"{file.path}: nothing to change", err=dry_run)
    for edit in changes:
        if dry_run:
            click.echo(textfile.difference(edit.file, edit.text), nl=False)
        else:
            textfile.write(edit.file, edit.text)
            click.echo(f"{edit.file.path}: {'removed' if edit.text is None else 'changed'}")
    if changes and not dry_run:
        click.echo(then)


def _program(given: str | None) -> str:
    """The absolute path of our runtime: as given, or beside this `xpu`."""
    if given is not None:
        if not os.path.isabs(given) or not given.isprintable():
            raise click.BadParameter("must be an absolute path", param_hint="--runtime-path")
        if not os.path.isfile(given) or not os.access(given, os.X_OK):
            # The engine would accept it, and then no container would start with this runtime.
            raise ConfigError(
                f"--runtime-path {given} is not an executable file", f"give the path of {_PROGRAM}"
            )
        return given
    # A symlink to xpu counts for where it stands first: that is where the runtime's own link would be.
    for me in (os.path.abspath(sys.argv[0]), os.path.realpath(sys.argv[0])):
        beside = os.path.join(os.path.dirname(me), _PROGRAM)
        if os.access(beside, os.X_OK):
            return beside
    raise ConfigError(
        f"{_PROGRAM} is not beside {os.path.realpath(sys.argv[0])}",
        "install it there, or give its path with --runtime-path",
    )
