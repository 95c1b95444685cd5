"""The tree of commands: every command and group of the program."""

from __future__ import annotations

import typer

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

app = typer.Typer(
    name="midwatch",
    help="Mission control for AI agents: background work that survives anything.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


for function in (
    server.up, server.down, worker.worker, tasks.run, tasks.submit, tasks.tasks, tasks.show, status.status,
    tasks.result, tasks.cancel, tasks.retry, chat.chat, sessions.sessions, attach.attach, worktrees.worktrees,
    events.events, approvals.approvals, approvals.approval, approvals.approve, approvals.deny, deliveries.deliveries,
    deliveries.redeliver, usage.usage, open.open, cluster.cluster, watchdog.watchdog, doctor.doctor, backup.backup,
    backup.restore, backup.migrate,
):  # fmt: skip
    app.command()(function)

for name, group in (
    ("agents", agents.app), ("session", sessions.app), ("agentapi", agentapi.app), ("worktree", worktrees.app),
    ("token", token.app), ("automation", automation.app), ("goal", goal.app), ("handoff", handoff.app),
    ("rules", rules.app),
):  # fmt: skip
    app.add_typer(group, name=name)
