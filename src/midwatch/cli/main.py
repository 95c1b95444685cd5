"""The program `midwatch`. The exit status is 0 for success, 1 for failure, or that of the error (see docs/cli.md)."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

import click

from midwatch.base.errors import MidwatchError
from midwatch.cli.app import app
from midwatch.cli.connection import home_path
from midwatch.cli.output import clean, note

UNEXPECTED = 70
OBJECTS = 300_000
"""The number of new objects after which Python looks for garbage: more than a start makes. By default, servers need a
tenth longer to start. A process that runs tasks sets its own number (`midwatch.runtime.runtime`)."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command in the arguments and exit the process."""
    gc.set_threshold(OBJECTS)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a text file, unless it was replaced
    sys.exit(execute(list(sys.argv[1:] if arguments is None else arguments)))


def execute(arguments: list[str]) -> int:
    """Run one command and return its exit status. An error is printed as one line, without a traceback."""
    as_json = "--json" in arguments
    try:
        status = app.main(arguments, prog_name="midwatch", standalone_mode=False)
        sys.stdout.flush()
    except MidwatchError as error:
        report_error(error.code, str(error), as_json)
        return error.exit_status
    except click.ClickException as error:
        message = error.format_message().rstrip(".")
        path = getattr(getattr(error, "ctx", None), "command_path", "midwatch")
        report_error("usage", f"{message}; see `{path} --help`.", as_json)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush prints no error either
        return 1
    except Exception as error:
        return report_unexpected(error, as_json)
    return status if isinstance(status, int) else 0


def report_error(code: str, message: str, as_json: bool) -> None:
    """Print an error on standard error; with `as_json`, as JSON."""
    if as_json:
        import json

        note(json.dumps({"error": {"code": code, "message": message}}))
    else:
        note(f"midwatch: {' '.join(clean(message).split())}")


def report_unexpected(error: Exception, as_json: bool) -> int:
    """Print an unexpected error as one line, and write its traceback to the log file. Return the exit status."""
    import traceback

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
