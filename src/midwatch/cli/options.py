"""Arguments and options that several commands share, and all those that describe a task, an automation or a goal."""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Argument, Option

from midwatch.cli.inputs import read_prompt

ApprovalStatus = Literal["pending", "granted", "denied", "expired", "all"]
AutomationStatus = Literal["active", "paused", "deleted", "all"]
GoalStatus = Literal["waiting_for_session", "active", "paused", "complete", "timeout", "all"]
MissedRule = Literal["skip", "once", "once_within"]
ManageMode = Literal["creator_only", "scope_all"]

OWN_GOAL = "MIDWATCH_GOAL"
"""The variable in an agent's environment that names the goal it works on."""

# -- every command -----------------------------------------------------------------------------------------------------

AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
Db = Annotated[str | None, Option("--db", metavar="URL", help="Shared PostgreSQL. Default: the setting db.")]

# -- ids ---------------------------------------------------------------------------------------------------------------

TaskId = Annotated[str, Argument(metavar="ID", help="Id of the task.")]
ApprovalId = Annotated[str, Argument(metavar="ID", help="Id of the question.")]
AutomationId = Annotated[str, Argument(metavar="ID", help="Id of the automation.")]
GoalId = Annotated[str, Argument(metavar="ID", help="Id of the goal.")]
OptionalGoalId = Annotated[
    str | None, Argument(metavar="[ID]", help=f"Id of the goal. Default: ${OWN_GOAL}, which an agent has.")
]

# -- lists -------------------------------------------------------------------------------------------------------------

Limit = Annotated[int, Option("--limit", "-n", min=1, max=500, help="At most this many.")]
ShortLimit = Annotated[int, Option("--limit", "-n", min=1, max=200, help="At most this many.")]
Statuses = Annotated[list[str] | None, Option("--status", "-s", help="Only these; may be repeated.")]
OfTask = Annotated[str | None, Option("--task", "-t", metavar="ID", help="Only of this task.")]

# -- tasks -------------------------------------------------------------------------------------------------------------

Prompt = Annotated[
    str,
    Argument(metavar="PROMPT", help="What the agent should do; - reads standard input.", callback=read_prompt),
]
AgentName = Annotated[str | None, Option("--agent", "-a", help="Who does it. Default: the configured one.")]
Workdir = Annotated[str, Option("--workdir", help="Where the agent works. Default: the current directory.")]
Worktree = Annotated[
    bool,
    Option("--worktree", help="Work in a git worktree and branch of its own, made from the directory's HEAD."),
]
ShareWorkdir = Annotated[
    bool, Option("--share-workdir", help="Work beside other tasks in the directory, even where both may write.")
]
Timeout = Annotated[str | None, Option("--timeout", help="Longest it may work: 90s, 10m, 1h30m.")]
BudgetText = Annotated[
    str | None,
    Option("--budget", metavar="LIMITS", help="What it may spend: tokens=200000,usd=1.5,steps=30,seconds=10m."),
]
Priority = Annotated[int, Option("--priority", help="-100 to 100, higher first.")]
Delay = Annotated[str | None, Option("--delay", help="Wait this long before it starts.")]
Key = Annotated[str | None, Option("--key", help="Idempotency key: the same key and wishes make one task.")]
Route = Annotated[str | None, Option("--route", help="Where notices go: channel or channel:target.")]
SessionKey = Annotated[str | None, Option("--session", help="Conversation to run in. Default: its own.")]
OriginChannel = Annotated[str | None, Option("--origin-channel", help="Channel it was asked on.")]
OriginSession = Annotated[str | None, Option("--origin-session", help="Conversation it was asked from.")]
OnCrash = Annotated[
    str | None, Option("--on-crash", help="When its process dies: resume, rerun or fail. Default: the agent's.")
]

# -- automations -------------------------------------------------------------------------------------------------------

Cron = Annotated[str | None, Option("--cron", metavar="EXPR", help="Five fields, such as '0 9 * * 1-5', or @daily.")]
Every = Annotated[str | None, Option("--every", metavar="DURATION", help="An interval: 90m, 24h, 7d.")]
At = Annotated[str | None, Option("--at", metavar="TIME", help="Once: 2026-03-29T09:00, in 20m, 09:00, fri 09:00.")]
Zone = Annotated[str | None, Option("--tz", metavar="ZONE", help="IANA time zone. Default: this machine's.")]
NewZone = Annotated[str | None, Option("--tz", metavar="ZONE", help="IANA time zone. Default: its own.")]
NewPrompt = Annotated[
    str | None, Option("--prompt", help="What the agent should do; - reads it.", callback=read_prompt)
]
NewAgent = Annotated[str | None, Option("--agent", "-a", help="Who does it.")]
Title = Annotated[str | None, Option("--title", help="What it is called by. Default: its prompt.")]
MaxRuns = Annotated[int | None, Option("--max-runs", min=0, help="Pause it after this many; 0 for no limit.")]
Fresh = Annotated[bool, Option("--fresh", help="Each run in a conversation of its own.")]
NewFresh = Annotated[bool | None, Option("--fresh/--no-fresh", help="Each run in a conversation of its own, or not.")]
WorktreePerRun = Annotated[bool, Option("--worktree", help="Each run in a git worktree of its own; it is fresh, too.")]
NewWorktreePerRun = Annotated[
    bool | None, Option("--worktree/--no-worktree", help="Each run in a git worktree of its own, or not.")
]
Jitter = Annotated[
    str | None, Option("--jitter", metavar="DURATION", help="Begin up to this much later, spread evenly.")
]
Missed = Annotated[
    MissedRule | None, Option("--missed", help="Runs that were missed: leave them out, or make up for them once.")
]
MissedWindow = Annotated[
    str | None, Option("--missed-window", metavar="DURATION", help="How late once_within still counts.")
]
Quiet = Annotated[str | None, Option("--quiet", metavar="TOKEN", help="An answer that is just this is not delivered.")]
Policy = Annotated[
    str | None, Option("--approvals", metavar="JSON", help="What its runs may do without asking; see the docs.")
]
SessionWorkdir = Annotated[
    str | None,
    Option("--workdir", help="Where the agent works. Default: as its session, else the current directory."),
]
NewWorkdir = Annotated[str | None, Option("--workdir", help="Where the agent works.")]
Tags = Annotated[list[str] | None, Option("--tag", help="A word to find it by; may be repeated.")]
Manage = Annotated[
    ManageMode | None, Option("--manage-mode", help="Who may change it: its creator and owners, or everybody.")
]
Paused = Annotated[bool, Option("--paused", help="Make it, and let it wait until it is resumed.")]
Revision = Annotated[int | None, Option("--revision", help="Only while it is at this revision.")]

# -- goals -------------------------------------------------------------------------------------------------------------

Objective = Annotated[
    str, Argument(metavar="OBJECTIVE", help="What is to be reached; - reads it.", callback=read_prompt)
]
NewObjective = Annotated[
    str | None, Option("--objective", help="What is to be reached; - reads it.", callback=read_prompt)
]
Deadline = Annotated[str | None, Option("--deadline", metavar="TIME", help="in 48h, tomorrow 09:00, 2026-03-29T09:00.")]
DeadlineZone = Annotated[
    str | None, Option("--tz", metavar="ZONE", help="Zone of --deadline. Default: this machine's.")
]
Verifier = Annotated[str | None, Option("--verifier", help="Agent that must agree before the goal is complete.")]
MaxSteps = Annotated[int | None, Option("--max-steps", min=0, help="Pause after this many; 0 for no limit.")]
MaxTokens = Annotated[int | None, Option("--max-tokens", min=0, help="Pause after this many; 0 for no limit.")]
MaxUsd = Annotated[float | None, Option("--max-usd", min=0, help="Pause after this much money; 0 for no limit.")]
MaxTime = Annotated[str | None, Option("--max-time", metavar="DURATION", help="Pause after this much work: 90m, 24h.")]
