"""Options that several commands share, and options that follow from the definition of a record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from functools import wraps
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import typer

from midwatch.domain.fields import REQUIRED, Field, Input, inputs

Command = TypeVar("Command", bound=Callable[..., Any])
KEYWORD = inspect.Parameter.KEYWORD_ONLY

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
    option = typer.Option(*(flag.names or names).split(), help=flag.help or given.help, metavar=metavar, min=least)
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
