"""Arguments and options that several commands share, and options that are generated from the fields of a record."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

from midwatch.cli.inputs import absolute_path, parse_budget, parse_env, parse_policy, read_prompt
from midwatch.cli.parameters import Argument, Option

if TYPE_CHECKING:
    from midwatch.domain.fields import Field, Input

TaskStatus = Literal["pending", "running", "done", "failed", "cancelled"]
HandoffStatus = Literal[
    "pending", "accepted", "in_progress", "completed", "failed", "rejected", "cancelled", "expired"
]  # fmt: skip
ApprovalStatus = Literal["pending", "granted", "denied", "expired", "all"]
AutomationStatus = Literal["active", "paused", "deleted", "all"]
GoalStatus = Literal["waiting_for_session", "active", "paused", "complete", "timeout", "all"]

OWN_GOAL = "MIDWATCH_GOAL"
"""The environment variable that tells an agent the id of the goal that it works on."""

# -- every command -----------------------------------------------------------------------------------------------------

AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
Db = Annotated[str | None, Option("--db", metavar="URL", help="URL of a PostgreSQL database. Default: setting db.")]

# -- ids ---------------------------------------------------------------------------------------------------------------

TaskId = Annotated[str, Argument(metavar="ID", help="Id of the task.")]
ApprovalId = Annotated[str, Argument(metavar="ID", help="Id of the question.")]
AutomationId = Annotated[str, Argument(metavar="ID", help="Id, name or unique title of the automation.")]
GoalId = Annotated[str, Argument(metavar="ID", help="Id or name of the goal.")]
OptionalGoalId = Annotated[
    str | None, Argument(metavar="[ID]", help=f"Id or name of the goal. Default: ${OWN_GOAL}, set for agents.")
]
GoalScope = Annotated[str | None, Option("--scope", metavar="SCOPE", help="Scope: user:NAME or chat:SESSION.")]

# -- lists -------------------------------------------------------------------------------------------------------------

Limit = Annotated[int, Option("--limit", "-n", min=1, max=500, help="Maximum number of results.")]
ShortLimit = Annotated[int, Option("--limit", "-n", min=1, max=200, help="Maximum number of results.")]
Statuses = Option("--status", "-s", help="Only with this status. Repeatable.")
TaskStatuses = Annotated[list[TaskStatus] | None, Statuses]
HandoffStatuses = Annotated[list[HandoffStatus] | None, Statuses]
OfAgent = Annotated[str | None, Option("--agent", "-a", help="Only for this agent.")]
OfTask = Annotated[str | None, Option("--task", "-t", metavar="ID", help="Only for this task.")]

# -- tasks -------------------------------------------------------------------------------------------------------------

Prompt = Annotated[
    str, Argument(metavar="PROMPT", help="Instructions for the agent; - reads standard input.", callback=read_prompt)
]
AgentName = Annotated[str | None, Option("--agent", "-a", help="Agent to use. Default: the setting default_agent.")]
Workdir = Annotated[str, Option("--workdir", help="Directory to work in. Default: the current directory.")]
Worktree = Annotated[bool, Option("--worktree", help="Work in a new git worktree and branch, made from HEAD.")]
BudgetText = Annotated[
    str | None, Option("--budget", metavar="LIMITS", help="Limits: tokens=200000,usd=1.5,steps=30,seconds=10m.")
]
Priority = Annotated[int, Option("--priority", help="From -100 to 100; higher runs first.")]
Key = Annotated[str | None, Option("--key", help="Idempotency key: the same key and options create one task.")]
Revision = Annotated[int | None, Option("--revision", help="Change the record only if it has this revision.")]

# -- options that are generated from the fields of a record ------------------------------------------------------------


class Flag(NamedTuple):
    """How an option differs from its field: its names, help and default, and the function that parses its value."""

    names: str = ""
    help: str = ""
    metavar: str | None = None
    read: Callable[[Any], Any] | None = None
    default: str | None = None
    repeated: bool = False
    """Whether the option can be given several times; then `read` gets a list."""


FLAGS = {
    "agent": Flag("--agent -a"),
    "approvals": Flag(metavar="JSON", read=parse_policy),
    "at": Flag(metavar="TIME"),
    "budget": Flag(help="Limits: tokens=200000,usd=1.5,steps=30,seconds=10m.", metavar="LIMITS", read=parse_budget),
    "check": Flag(metavar="COMMAND"),
    "cron": Flag(metavar="EXPR"),
    "days_off": Flag("--day-off", help="Day without runs: 2026-12-24, a range, 12-25, sat, a calendar. Repeatable."),
    "env": Flag(
        help="Variable for the programs of its runs. Repeatable; an empty value removes it.",
        metavar="NAME=VALUE",
        read=parse_env,
        repeated=True,
    ),
    "every_seconds": Flag("--every"),
    "idempotency_key": Flag("--key"),
    "max_seconds": Flag("--max-time"),
    "objective": Flag(help="New objective; - reads standard input.", read=read_prompt),
    "prompt": Flag(help="New instructions; - reads standard input.", read=read_prompt),
    "quiet": Flag(metavar="TEXT"),
    "quiet_hours": Flag("--quiet-hours", help="Hours whose runs move to their end: 22:00-07:00. Repeatable."),
    "notices": Flag(metavar="POLICY"),
    "route": Flag(metavar="ROUTE", read=lambda routes: routes[0] if len(routes) == 1 else routes or None),
    "session_key": Flag("--session"),
    "tags": Flag("--tag", help="Tag, to find the automation. Repeatable."),
    "when": Flag(metavar="COMMAND"),
    "workdir": Flag(read=absolute_path),
    "zone": Flag("--tz", metavar="ZONE"),
}
"""Options that differ from their field. The keys are the names of the fields in requests."""
SESSION_WORKDIR = Flag(help="Directory. Default: that of the session, else the current one.", read=absolute_path)
NEW_ZONE = Flag("--tz", help="New IANA time zone.", metavar="ZONE")
WITHOUT_OPTION = frozenset(
    {"max_attempts", "next_run_at", "resume_thread_id", "scope_id", "scope_kind", "source_message_id"}
)


class FieldOptions:
    """The options that set the fields of new records; with `changes`, the options that change existing records.

    The function `definitions` returns the classes of the records. It is called only when the options are needed,
    because importing the classes is slow. If a command defines an argument or option for a field itself, no option is
    generated for this field. `flags` replace entries of `FLAGS`.
    """

    def __init__(self, definitions: Callable[[], tuple[type, ...]], *, changes: bool = False, **flags: Flag) -> None:
        self._definitions = definitions
        self._changes = changes
        self._flags = {**FLAGS, **flags}

    @cached_property
    def _fields(self) -> dict[str, Field]:
        from midwatch.domain.fields import inputs

        return {
            field.request_name: field
            for field, given in inputs(*self._definitions())
            if field.request_name not in WITHOUT_OPTION and not (self._changes and given.once)
        }

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """Return the defaults of the fields. If an option is an empty text, the field is set to its default."""
        from dataclasses import is_dataclass

        from midwatch.domain.fields import REQUIRED, inputs

        records = filter(is_dataclass, self._definitions())
        return {field.request_name: field.default for field, _ in inputs(*records) if field.default is not REQUIRED}

    def parameters(self, own: Collection[str]) -> list[Parameter]:
        """Return the options as parameters of a function. `own` are the parameters that the command defines itself."""
        return [self._parameter(name, field) for name, field in self._fields.items() if name not in own]

    def read(self, name: str, value: Any) -> Any:
        """Convert the value of the option `name` for a request. An empty text becomes the default of the field."""
        read = self._flags.get(name, Flag()).read
        if isinstance(value, list):
            parts = [part for part in value if part.strip()]
            return read(parts) if read else parts
        if value == "" and name in self._defaults:
            return self._defaults[name]
        return read(value) if read else value

    def take(self, values: dict[str, Any], own: Collection[str]) -> dict[str, Any]:
        """Remove the values of these options from `values`, and return those that were set, as fields of a request."""
        typed = {name: values.pop(name) for name in self._fields if name in values and name not in own}
        given = {name: value for name, value in typed.items() if value is not None}
        return {name: self.read(name, value) for name, value in given.items() if self._changes or value is not False}

    def _parameter(self, name: str, field: Field) -> Parameter:
        given: Any = field.input
        flag, kind = self._flags.get(name, Flag()), _option_type(field, given)
        kind = list[str] | None if flag.repeated else kind
        names = flag.names or f"--{name.replace('_', '-')}"
        default = False if kind is bool and not self._changes else flag.default
        if kind is bool and self._changes:
            names, kind = f"{names}/--no-{names[2:]}", bool | None
        least = given.least if kind in (int | None, float | None) else None
        metavar = "DURATION" if given.seconds else flag.metavar
        option = Option(*names.split(), help=flag.help or given.help, metavar=metavar, min=least)
        return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _option_type(field: Field, given: Input) -> Any:
    """Return the type of an option: text, unless the field is a number, a choice, a flag or a list."""
    first = given.takes or field.type
    if any(get_origin(part) is list for part in get_args(first)):
        return list[str] | None
    first = next(iter(get_args(first))) if type(None) in get_args(first) else first
    if get_origin(first) is tuple:
        return list[str] | None
    choice = get_origin(first) is Literal and not field.optional  # an empty text removes an optional value
    plain = (first in (int, float) and not given.seconds) or choice
    return bool if first is bool else first | None if plain else str | None
