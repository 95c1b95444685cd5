"""The program `midwatch`. The exit status is 0 for success, 1 for failure, or that of the error (see docs/cli.md)."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from copy import copy
from typing import Annotated

import typer
from typer import Option
from typer.models import CommandInfo

from midwatch.base.errors import MidwatchError
from midwatch.base.version import __version__
from midwatch.cli.app import app
from midwatch.cli.command import Reply, command
from midwatch.cli.connection import home_path
from midwatch.cli.output import clean, note, say

UNEXPECTED = 70
COMPLETION = "_MIDWATCH_COMPLETE"
"""The environment variable that a shell sets to request completions."""


@app.callback()
def start(ctx: typer.Context, version: Annotated[bool, Option("--version", help="Print the version.")] = False) -> None:
    if version:
        say(find_version())
    elif ctx.invoked_subcommand is None:
        say(ctx.get_help())


@app.command()
@command()
async def version() -> Reply:
    """Print the version."""
    return Reply({"version": find_version()}, find_version())


def find_version() -> str:
    """Return the version of midwatch."""
    return __version__


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command in the arguments and exit the process."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a text file, unless it was replaced
    sys.exit(execute(list(sys.argv[1:] if arguments is None else arguments)))


def execute(arguments: list[str]) -> int:
    """Run one command and return its exit status. An error is printed as one line, without a traceback."""
    as_json = "--json" in arguments
    try:
        line = typer.main.get_command(select_command(app, arguments))
        status = line.main(arguments, prog_name="midwatch", standalone_mode=False)
        sys.stdout.flush()
    except MidwatchError as error:
        report_error(error.code, str(error), as_json)
        return error.exit_status
    except typer.TyperException as error:
        message = error.format_message().replace("Value error, ", "").rstrip(".")
        path = getattr(getattr(error, "ctx", None), "command_path", "midwatch")
        report_error("usage", f"{message}; see `{path} --help`.", as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush prints no error either
        return 1
    except Exception as error:
        return report_unexpected(error, as_json)
    return status if isinstance(status, int) else 0


def select_command(full: typer.Typer, arguments: list[str]) -> typer.Typer:
    """Return an app with only the command that the arguments name, because creating all commands is slow."""
    if COMPLETION in os.environ:
        return full
    alone, name = copy(full), arguments[0] if arguments else ""
    alone.registered_commands = [info for info in full.registered_commands if find_name(info) == name]
    alone.registered_groups = [copy(info) for info in full.registered_groups if info.name == name]
    if not alone.registered_commands and not alone.registered_groups:  # the help shows only the names of groups
        alone.registered_commands = full.registered_commands
        alone.registered_groups = [copy(info) for info in full.registered_groups]
    for info in alone.registered_groups:
        assert info.typer_instance is not None
        if info.name == name:
            info.typer_instance = select_command(info.typer_instance, arguments[1:])
        elif info.name not in arguments:
            info.typer_instance = copy(info.typer_instance)
            info.typer_instance.registered_commands = []
    return alone


def find_name(info: CommandInfo) -> str:
    """Return the name that a command has on the command line."""
    return info.name or typer.main.get_command_name(getattr(info.callback, "__name__", ""))


def report_error(code: str, message: str, as_json: bool) -> None:
    """Print an error on standard error; with `as_json`, as JSON."""
    if as_json:
        import json

        note(json.dumps({"error": {"code": code, "message": message}}))
    else:
        note(f"midwatch: {' '.join(clean(message).split())}")


def report_unexpected(error: Exception, as_json: bool) -> int:
    """Print an unexpected error as one line, and write its traceback to the log file. Return the exit status."""
    if os.environ.get("MIDWATCH_DEBUG"):
        traceback.print_exc()
        return UNEXPECTED
    log = home_path() / "log" / "midwatch.log"
    try:
        with log.open("a") as file:
            traceback.print_exc(file=file)
        where = f"details are in {log}"
    except OSError:
        where = "set MIDWATCH_DEBUG=1 to see details"
    report_error("unexpected", f"unexpected error, {type(error).__name__}: {error}; {where}.", as_json)
    return UNEXPECTED


if __name__ == "__main__":
    main()
