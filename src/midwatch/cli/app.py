"""The tree of commands: the name, the place and the summary of every command and group of the program."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import click

from midwatch.base.version import __version__
from midwatch.cli.command import Group, Reply, command
from midwatch.cli.output import say
from midwatch.cli.parameters import Option

COMMANDS = {
    "up": ("server.up", "Start the server."),
    "down": ("server.down", "Stop the server."),
    "worker": ("worker.worker", "Run tasks of a shared PostgreSQL database until the worker is stopped."),
    "run": ("tasks.run", "Submit a task and show it until it ends."),
    "submit": ("tasks.submit", "Submit a task and return at once."),
    "tasks": ("tasks.tasks", "List tasks, newest first."),
    "show": ("tasks.show", "Show all details of a task."),
    "status": ("status.status", "Show the number of tasks by status, and what needs a person's attention."),
    "result": ("tasks.result", "Print the full result of a task that is done."),
    "cancel": ("tasks.cancel", "Cancel a task."),
    "retry": ("tasks.retry", "Retry a failed or cancelled task as a new task that continues its work."),
    "chat": ("chat.chat", "Talk to an agent."),
    "sessions": ("sessions.sessions", "List sessions, most recently used first."),
    "attach": ("attach.attach", "Show the terminal of a session and type into it."),
    "worktrees": ("worktrees.worktrees", "List worktrees, newest first."),
    "events": ("events.events", "Print stored events, oldest first."),
    "approvals": ("approvals.approvals", "List questions of agents."),
    "approval": ("approvals.approval", "Show all details of a question."),
    "approve": ("approvals.approve", "Answer a question with yes."),
    "deny": ("approvals.deny", "Answer a question with no."),
    "deliveries": ("deliveries.deliveries", "List notices and their status, newest first."),
    "redeliver": ("deliveries.redeliver", "Send a failed notice again."),
    "budgets": ("budgets.budgets", "List the budgets of work and of days: those with a question first."),
    "budget": ("budgets.budget", "Show what work may spend together, what it has spent, and its tasks."),
    "usage": ("usage.usage", "Show the cost of tasks that have ended."),
    "open": ("open.open", "Open the web console in a browser and sign in."),
    "cluster": ("cluster.cluster", "List the processes that run tasks: host, agents, load and leader."),
    "watchdog": ("watchdog.app", "Look for work that does not continue, list alerts, acknowledge one."),
    "doctor": ("doctor.doctor", "Check the installation."),
    "backup": ("backup.backup", "Back up the database to a file while tasks run."),
    "restore": ("backup.restore", "Restore a backup into an empty database; --force replaces existing data."),
    "migrate": ("backup.migrate", "Copy this home's SQLite data to an empty PostgreSQL database."),
    "completion": ("completion.completion", "Print the script for shell completion."),
    "version": ("app.version", "Print the version."),
    "agents": ("agents.app", "List agents and their problems."),
    "session": ("sessions.app", "Talk to an agent from a script: new, show, send, interrupt, restart, close."),
    "agentapi": ("agentapi.app", "One agent behind the HTTP interface of coder/agentapi."),
    "worktree": ("worktrees.app", "Show, merge or remove a worktree and its changes."),
    "token": ("token.app", "Create, list and revoke access tokens."),
    "automation": ("automation.app", "Run prompts on a schedule."),
    "goal": ("goal.app", "Let an agent work on an objective, step by step."),
    "handoff": ("handoff.app", "Hand work to another agent."),
    "hook": ("hook.app", "Programs that other agents' hooks call, so that rules hold there, too."),
    "hooks": ("hooks.app", "List and test hooks that decide what agents may do."),
    "rules": ("rules.app", "List, test and revoke rules on the use of tools."),
}
"""For each command: the module and the name where it is, and the first sentence of its help."""


class Program(Group):
    """The program. It knows the names and summaries of its commands, and imports only the command that is used."""

    def __init__(self, summary: str) -> None:
        named = [click.Command(name, help=summary) for name, (_, summary) in COMMANDS.items()]
        super().__init__(summary, commands=named, context_settings={"help_option_names": ["-h", "--help"]})

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the command that the arguments name."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and load(str(name)), rest

    def invoke(self, ctx: click.Context) -> None:
        """Run the command. Ctrl-C ends it without the empty line that click would print."""
        try:
            super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None


def load(name: str) -> click.Command:
    """Import a command or group of the program."""
    module, _, attribute = COMMANDS[name][0].partition(".")
    loaded: click.Command = getattr(import_module(f"midwatch.cli.{module}"), attribute)
    return loaded


app = Program("Mission control for AI agents: background work that survives anything.")


@command(app, default=True)
def start(version: Annotated[bool, Option("--version", help="Print the version.")] = False) -> None:
    """Print the help of the program, or its version."""
    say(find_version() if version else click.get_current_context().get_help())


@command()
async def version() -> Reply:
    """Print the version."""
    return Reply({"version": find_version()}, find_version())


def find_version() -> str:
    """Return the version of midwatch."""
    return __version__
