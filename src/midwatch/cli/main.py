"""The command `midwatch`. Exit status: 0 done, 1 failed, else the `exit_status` of the error (see docs/cli.md)."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from copy import copy
from typing import Annotated

import typer

from midwatch.base.errors import MidwatchError
from midwatch.base.version import __version__
from midwatch.cli import (
    agentapi,
    agents,
    approvals,
    attach,
    automation,
    backup,
    chat,
    cluster,
    deliveries,
    doctor,
    events,
    goal,
    handoff,
    open,
    rules,
    run,
    server,
    sessions,
    status,
    tasks,
    token,
    usage,
    watchdog,
    worker,
    worktrees,
)
from midwatch.cli.connection import home_path
from midwatch.cli.options import AsJson
from midwatch.cli.output import clean, emit, note, say

UNEXPECTED = 70

app = typer.Typer(
    name="midwatch",
    help="Mission control for AI agents: background work that survives anything.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def start(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        say(installed())
    elif ctx.invoked_subcommand is None:
        say(ctx.get_help())


for command in (
    server.up, server.down, worker.worker, run.run, tasks.submit, tasks.tasks, tasks.show, status.status, tasks.result,
    tasks.cancel, tasks.retry, chat.chat, sessions.sessions, attach.attach, worktrees.worktrees, events.events,
    approvals.approvals, approvals.approval, approvals.approve, approvals.deny, deliveries.deliveries,
    deliveries.redeliver, usage.usage, open.open, cluster.cluster, watchdog.watchdog, doctor.doctor, backup.backup,
    backup.restore, backup.migrate,
):  # fmt: skip
    app.command()(command)


app.add_typer(agents.app, name="agents")
app.add_typer(sessions.app, name="session")
app.add_typer(agentapi.app, name="agentapi")
app.add_typer(worktrees.app, name="worktree")
app.add_typer(token.app, name="token")
app.add_typer(automation.app, name="automation")
app.add_typer(goal.app, name="goal")
app.add_typer(handoff.app, name="handoff")
app.add_typer(rules.app, name="rules")


@app.command("version")
def show_version(as_json: AsJson = False) -> None:
    """Print the version."""
    if as_json:
        emit({"version": installed()})
    else:
        say(installed())


def installed() -> str:
    """The version of the installed package."""
    return __version__


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    said = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a text file, unless somebody replaced it
    sys.exit(outcome(said))


def outcome(arguments: list[str]) -> int:
    """Run one command; an error becomes one line and an exit status, never a traceback."""
    as_json = "--json" in arguments
    try:
        asked = typer.main.get_command(asked_for(arguments))
        ended = asked.main(arguments, prog_name="midwatch", standalone_mode=False)
        sys.stdout.flush()
    except MidwatchError as error:
        failed(error.code, str(error), as_json)
        return error.exit_status
    except typer.TyperException as error:
        told = error.format_message().replace("Value error, ", "").rstrip(".")
        asked_by = getattr(getattr(error, "ctx", None), "command_path", "midwatch")
        failed("usage", f"{told}; see `{asked_by} --help`.", as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush is silent, too
        return 1
    except Exception as error:
        return unexpected(error, as_json)
    return ended if isinstance(ended, int) else 0


def asked_for(arguments: list[str]) -> typer.Typer:
    """The command line with the named command alone: to read the options of all takes longer than many of them run."""
    name = typer.main.get_command_name
    known = {info.name or name(getattr(info.callback, "__name__", "")): info for info in app.registered_commands}
    groups = {info.name: info for info in app.registered_groups}
    word = arguments[0] if arguments else ""
    if word not in known and word not in groups:
        return app
    alone = copy(app)
    alone.registered_commands = [known[word]] if word in known else []
    alone.registered_groups = [groups[word]] if word in groups else []
    return alone


def failed(code: str, message: str, as_json: bool) -> None:
    """Tell an error, on standard error in both forms."""
    if as_json:
        import json

        note(json.dumps({"error": {"code": code, "message": message}}))
    else:
        note(f"midwatch: {' '.join(clean(message).split())}")


def unexpected(error: Exception, as_json: bool) -> int:
    """A mistake of ours: one line, the details in the log."""
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
    failed("unexpected", f"unexpected error, {type(error).__name__}: {error}; {where}.", as_json)
    return UNEXPECTED


if __name__ == "__main__":
    main()
