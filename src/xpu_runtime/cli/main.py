"""`xpu`, the entry point for people: finds the command, and prints errors in one line.

A command's module is imported only when the command is used or listed. If one is broken or missing, the
others still work, and the node can be repaired with them.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import IO, Any, NoReturn

import click

from xpu_runtime import paths, version
from xpu_runtime.cli.terminal import streams
from xpu_runtime.errors import XpuError, did_you_mean

#: `xpu NAME` is the click command `NAME` in the module xpu_runtime.cli.NAME.
COMMANDS = (
    "agent",
    "cdi",
    "config",
    "devices",
    "doctor",
    "drain",
    "events",
    "explain",
    "gc",
    "inspect",
    "kubernetes",
    "metrics",
    "ps",
    "release",
    "reserve",
    "runtime",
    "set",
    "sim",
    "top",
    "undrain",
    "unreserve",
)


class _OneLine(click.ClickException):
    """An error as one line on stderr, after the program's name; exit status 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"xpu: {self.message}", file=file, err=True)


class _Unusable(click.Command):
    """Stands in the list for a command whose module cannot be imported, and says so when it is used."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(
            name,
            short_help=f"(cannot be loaded: {_brief(error)})",
            context_settings={"ignore_unknown_options": True, "help_option_names": []},
            params=[click.Argument(["args"], nargs=-1, type=click.UNPROCESSED)],
        )
        self._error = error

    def invoke(self, ctx: click.Context) -> NoReturn:
        raise _OneLine(f"the command {self.name} cannot be loaded ({_brief(self._error)}): install again")


class _Commands(click.Group):
    """The commands of COMMANDS, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            command = getattr(importlib.import_module(f"xpu_runtime.cli.{cmd_name}"), cmd_name)
            if not isinstance(command, click.Command):
                raise TypeError(f"{cmd_name} in xpu_runtime.cli.{cmd_name} is not a command")
        except Exception as error:  # a broken command must not break the others
            return _Unusable(cmd_name, error)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = click.utils.make_str(args[0])
        if name not in COMMANDS and not name.startswith("-"):
            # click would import all the commands to suggest one.
            meant = did_you_mean(name, COMMANDS)
            question = f"{meant} There are" if meant else "there are"
            ctx.fail(f"No such command {name!r}; {question} {', '.join(COMMANDS)}.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            if os.geteuid():
                from xpu_runtime.cli import unprivileged

                unprivileged.show(sys.argv[1:])
            return super().invoke(ctx)
        except XpuError as error:
            if isinstance(error.__cause__, PermissionError) and os.geteuid():
                from xpu_runtime.cli import unprivileged

                error = XpuError(error.what, unprivileged.what_to_do(sys.argv[1:]))
            raise _OneLine(str(error)) from None
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _OneLine(_line_of(error)) from None


def _line_of(error: OSError) -> str:
    """The failure, its place, and the remedy if known."""
    if lost := streams.unwritten():
        return lost
    where = f"{error.filename}: " if error.filename else ""
    todo = ""
    if isinstance(error, PermissionError) and os.geteuid():
        from xpu_runtime.cli import unprivileged

        is_ours = str(error.filename).startswith(paths.run_dir() + "/")
        todo = f": {unprivileged.what_to_do(sys.argv[1:]) if is_ours else 'run it as root'}"
    return f"{where}{error.strerror or error}{todo}"


def _brief(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from xpu_runtime.limits import pages

        commit = f"commit {version.COMMIT}" if version.COMMIT else "commit unknown"
        click.echo(f"xpu {version.VERSION} ({commit}, ABI {pages.ABI} of the pages)")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="What is installed.",
)
def xpu() -> None:
    """Show and manage the GPU slices of containers.

    \b
    Example:
      xpu devices
      docker run --runtime=xpu -e XPU_MEM=4G -e XPU_CORES=30 IMAGE
      xpu ps
    """


def main() -> NoReturn:
    """Runs `xpu` with this process's arguments and ends it: 0 done, 1 failed, 2 wrong usage."""
    streams.open_closed()
    paths.take_caller_library_path()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Some callers leave it ignored: then a child's status is lost, and its id can be another's.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        if os.environ.get("_XPU_COMPLETE") == "bash_complete":
            from click.shell_completion import add_completion_class

            from xpu_runtime.cli import completion

            add_completion_class(completion.Bash)
        xpu.main(prog_name="xpu")
    except OSError as error:  # of output before or after a command: the help, an error
        try:
            _OneLine(_line_of(error)).show()
        except OSError:
            pass  # stderr takes nothing either
        raise SystemExit(1) from None
    finally:
        streams.give_up()
    raise SystemExit(0)


if __name__ == "__main__":
    main()
