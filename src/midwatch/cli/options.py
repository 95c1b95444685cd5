"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

ApprovalStatus = Literal["pending", "granted", "denied", "expired", "all"]

Db = Annotated[str | None, typer.Option("--db", metavar="URL", help="Shared PostgreSQL. Default: the setting db.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TaskId = Annotated[str, typer.Argument(metavar="ID", help="Id of the task.")]
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="Id of the question.")]
Prompt = Annotated[str, typer.Argument(metavar="PROMPT", help="What the agent should do; - reads standard input.")]
AgentName = Annotated[str | None, typer.Option("--agent", "-a", help="Who does it. Default: the configured one.")]
Workdir = Annotated[str, typer.Option("--workdir", help="Where the agent works. Default: the current directory.")]
Worktree = Annotated[
    bool,
    typer.Option("--worktree", help="Work in a git worktree and branch of its own, made from the directory's HEAD."),
]
ShareWorkdir = Annotated[
    bool, typer.Option("--share-workdir", help="Work beside other tasks in the directory, even where both may write.")
]
Timeout = Annotated[str | None, typer.Option("--timeout", help="Longest it may work: 90s, 10m, 1h30m.")]
BudgetText = Annotated[
    str | None,
    typer.Option("--budget", metavar="LIMITS", help="What it may spend: tokens=200000,usd=1.5,steps=30,seconds=10m."),
]
Priority = Annotated[int, typer.Option("--priority", help="-100 to 100, higher first.")]
Delay = Annotated[str | None, typer.Option("--delay", help="Wait this long before it starts.")]
Key = Annotated[str | None, typer.Option("--key", help="Idempotency key: the same key and wishes make one task.")]
Route = Annotated[str | None, typer.Option("--route", help="Where notices go: channel or channel:target.")]
SessionKey = Annotated[str | None, typer.Option("--session", help="Conversation to run in. Default: its own.")]
OriginChannel = Annotated[str | None, typer.Option("--origin-channel", help="Channel it was asked on.")]
OriginSession = Annotated[str | None, typer.Option("--origin-session", help="Conversation it was asked from.")]
OnCrash = Annotated[
    str | None, typer.Option("--on-crash", help="When its process dies: resume, rerun or fail. Default: the agent's.")
]
