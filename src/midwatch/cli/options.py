"""Arguments and options that several commands share, and all those that describe a task, an automation or a goal."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from functools import wraps
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from typer import Argument, Option

from midwatch.cli.inputs import read_prompt
from midwatch.domain.fields import REQUIRED, Field, Input, inputs

Command = TypeVar("Command", bound=Callable[..., Any])
KEYWORD = inspect.Parameter.KEYWORD_ONLY

ApprovalStatus = Literal["pending", "granted", "denied", "expired", "all"]
AutomationStatus = Literal["active", "paused", "deleted", "all"]
GoalStatus = Literal["waiting_for_session", "active", "paused", "complete", "timeout", "all"]
MissedRule = Literal["skip", "once", "once_within"]
ManageMode = Literal["creator_only", "scope_all"]

OWN_GOAL = "MIDWATCH_GOAL"
"""The variable in an agent's environment that names the goal it works on."""

# -- every command -----------------------------------------------------------------------------------------------------

AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
Db = Annotated[str | None, Option("--db", metavar="URL", help="URL of a shared PostgreSQL. Default: the setting db.")]

# -- ids ---------------------------------------------------------------------------------------------------------------

TaskId = Annotated[str, Argument(metavar="ID", help="Id of the task.")]
ApprovalId = Annotated[str, Argument(metavar="ID", help="Id of the question.")]
AutomationId = Annotated[str, Argument(metavar="ID", help="Id of the automation.")]
GoalId = Annotated[str, Argument(metavar="ID", help="Id of the goal.")]
OptionalGoalId = Annotated[
    str | None, Argument(metavar="[ID]", help=f"Id of the goal. Default: ${OWN_GOAL}, set for agents.")
]

# -- lists -------------------------------------------------------------------------------------------------------------

Limit = Annotated[int, Option("--limit", "-n", min=1, max=500, help="Maximum number of results.")]
ShortLimit = Annotated[int, Option("--limit", "-n", min=1, max=200, help="Maximum number of results.")]
Statuses = Annotated[list[str] | None, Option("--status", "-s", help="Only with this status. Repeatable.")]
OfAgent = Annotated[str | None, Option("--agent", "-a", help="Only for this agent.")]
OfTask = Annotated[str | None, Option("--task", "-t", metavar="ID", help="Only for this task.")]

# -- tasks -------------------------------------------------------------------------------------------------------------

Prompt = Annotated[
    str, Argument(metavar="PROMPT", help="Instructions for the agent; - reads standard input.", callback=read_prompt)
]
AgentName = Annotated[str | None, Option("--agent", "-a", help="Agent to use. Default: the setting default_agent.")]
Workdir = Annotated[str, Option("--workdir", help="Directory to work in. Default: the current directory.")]
Worktree = Annotated[bool, Option("--worktree", help="Work in a new git worktree and branch, made from HEAD.")]
ShareWorkdir = Annotated[bool, Option("--share-workdir", help="Run beside other tasks in the same directory.")]
Timeout = Annotated[str | None, Option("--timeout", help="Time limit: 90s, 10m, 1h30m.")]
BudgetText = Annotated[
    str | None, Option("--budget", metavar="LIMITS", help="Limits: tokens=200000,usd=1.5,steps=30,seconds=10m.")
]
Priority = Annotated[int, Option("--priority", help="From -100 to 100; higher runs first.")]
Delay = Annotated[str | None, Option("--delay", help="Wait this long before starting: 90s, 10m.")]
Key = Annotated[str | None, Option("--key", help="Idempotency key: the same key and options create one task.")]
Route = Annotated[str | None, Option("--route", help="Where to send notices: channel or channel:target.")]
SessionKey = Annotated[str | None, Option("--session", help="Session to run in. Default: a new one.")]
OriginChannel = Annotated[str | None, Option("--origin-channel", help="Channel that the request came from.")]
OriginSession = Annotated[str | None, Option("--origin-session", help="Session that the request came from.")]
OnCrash = Annotated[str | None, Option("--on-crash", help="After a crash: resume, rerun or fail.")]

# -- automations -------------------------------------------------------------------------------------------------------

Cron = Annotated[str | None, Option("--cron", metavar="EXPR", help="Cron expression, such as '0 9 * * 1-5' or @daily.")]
Every = Annotated[str | None, Option("--every", metavar="DURATION", help="Interval: 90m, 24h, 7d.")]
At = Annotated[str | None, Option("--at", metavar="TIME", help="Run once: 2026-03-29T09:00, in 20m, 09:00, fri 09:00.")]
Zone = Annotated[str | None, Option("--tz", metavar="ZONE", help="IANA time zone. Default: this machine's.")]
NewZone = Annotated[str | None, Option("--tz", metavar="ZONE", help="IANA time zone. Default: unchanged.")]
NewPrompt = Annotated[
    str | None, Option("--prompt", help="New instructions; - reads standard input.", callback=read_prompt)
]
NewAgent = Annotated[str | None, Option("--agent", "-a", help="Agent to use.")]
Title = Annotated[str | None, Option("--title", help="Title. Default: the prompt.")]
MaxRuns = Annotated[int | None, Option("--max-runs", min=0, help="Pause after this many runs; 0 for no limit.")]
Fresh = Annotated[bool, Option("--fresh", help="Start each run in a new session.")]
NewFresh = Annotated[bool | None, Option("--fresh/--no-fresh", help="Start each run in a new session, or not.")]
WorktreePerRun = Annotated[bool, Option("--worktree", help="Start each run in a new git worktree and session.")]
NewWorktreePerRun = Annotated[
    bool | None, Option("--worktree/--no-worktree", help="Start each run in a new git worktree, or not.")
]
Jitter = Annotated[str | None, Option("--jitter", metavar="DURATION", help="Spread the starts over this much time.")]
Missed = Annotated[MissedRule | None, Option("--missed", help="Missed runs: skip them, or run once for all.")]
MissedWindow = Annotated[
    str | None, Option("--missed-window", metavar="DURATION", help="For once_within: how late it may start.")
]
Quiet = Annotated[str | None, Option("--quiet", metavar="TOKEN", help="Do not deliver an answer that is only this.")]
Policy = Annotated[str | None, Option("--approvals", metavar="JSON", help="What runs may do without asking.")]
SessionWorkdir = Annotated[
    str | None, Option("--workdir", help="Directory. Default: the session's, else the current one.")
]
NewWorkdir = Annotated[str | None, Option("--workdir", help="Directory to work in.")]
Tags = Annotated[list[str] | None, Option("--tag", help="Tag to find it by. Repeatable.")]
Manage = Annotated[ManageMode | None, Option("--manage-mode", help="Who may change it, besides owners.")]
Paused = Annotated[bool, Option("--paused", help="Create it paused.")]
Revision = Annotated[int | None, Option("--revision", help="Change it only if it is at this revision.")]

# -- goals -------------------------------------------------------------------------------------------------------------

Objective = Annotated[
    str, Argument(metavar="OBJECTIVE", help="What to achieve; - reads standard input.", callback=read_prompt)
]
NewObjective = Annotated[
    str | None, Option("--objective", help="New objective; - reads standard input.", callback=read_prompt)
]
Deadline = Annotated[
    str | None, Option("--deadline", metavar="TIME", help="Deadline: in 48h, tomorrow 09:00, 2026-03-29T09:00.")
]
DeadlineZone = Annotated[
    str | None, Option("--tz", metavar="ZONE", help="Zone of --deadline. Default: this machine's.")
]
Verifier = Annotated[str | None, Option("--verifier", help="Agent that must confirm that the goal is complete.")]
MaxSteps = Annotated[int | None, Option("--max-steps", min=0, help="Pause after this many steps; 0 for no limit.")]
MaxTokens = Annotated[int | None, Option("--max-tokens", min=0, help="Pause after this many tokens; 0 for no limit.")]
MaxUsd = Annotated[float | None, Option("--max-usd", min=0, help="Pause after this many dollars; 0 for no limit.")]
MaxTime = Annotated[str | None, Option("--max-time", metavar="DURATION", help="Pause after this much work: 90m, 24h.")]


class Flag(NamedTuple):
    """How an option differs from its field: its names, its help, and how its text is read."""

    names: str = ""
    help: str = ""
    metavar: str | None = None
    read: Callable[[Any], Any] | None = None


def options_of(
    *definitions: type, changes: bool = False, without: Collection[str] = (), **flags: Flag
) -> Callable[[Command], Command]:
    """Give a command the options that set fields of records, or with `changes` those that change them later.

    The command takes them as `**given`, under their names in requests, without those that were left out. An empty text
    takes a value away. `without` names fields that have no option, `flags` options that differ from their field.
    """

    def derive(command: Command) -> Command:
        fields = {field.request_name: field for field, given in inputs(*definitions) if not (changes and given.once)}
        known = {name: field for name, field in fields.items() if name not in without}
        own = inspect.signature(command, eval_str=True)
        named = [part.replace(kind=KEYWORD) for name, part in own.parameters.items() if name != "given"]

        @wraps(command)
        def call(**values: Any) -> Any:
            said = {name: values.pop(name) for name in known}
            return command(**values, **dict(_read(said, known, flags, changes)))

        derived = [_option(field, flags.get(name, Flag()), changes) for name, field in known.items()]
        derived += [part for part in named if part.default is not part.empty]
        parameters = [part for part in named if part.default is part.empty] + derived
        call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
        return call  # type: ignore[return-value]  # it takes the same, and more

    return derive


def _read(
    said: dict[str, Any], known: dict[str, Field], flags: dict[str, Flag], changes: bool
) -> Iterator[tuple[str, Any]]:
    for name, value in said.items():
        default, read = known[name].default, flags.get(name, Flag()).read
        if value == "" and default is not REQUIRED:
            yield name, default
        elif value is not None and (changes or value is not False):
            yield name, read(value) if read else value


def _option(field: Field, flag: Flag, changes: bool) -> inspect.Parameter:
    given: Any = field.input
    names, kind = f"--{field.request_name.replace('_', '-')}", _option_type(field, given)
    if kind is bool and changes:
        names, kind = f"{names}/--no-{names[2:]}", bool | None
    least = given.least if kind in (int | None, float | None) else None
    metavar = "DURATION" if given.seconds else flag.metavar
    option = Option(*(flag.names or names).split(), help=flag.help or given.help, metavar=metavar, min=least)
    default = False if kind is bool else None
    return inspect.Parameter(field.request_name, KEYWORD, default=default, annotation=Annotated[kind, option])


def _option_type(field: Field, given: Input) -> Any:
    """Return the type of an option: text, unless its field is a number, a choice, a flag or a list."""
    first = given.takes or field.type
    first = next(iter(get_args(first))) if type(None) in get_args(first) else first
    if get_origin(first) is tuple:
        return list[str] | None
    plain = (first in (int, float) and not given.seconds) or get_origin(first) is Literal
    return bool if first is bool else first | None if plain else str | None
