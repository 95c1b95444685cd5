"""Tools for models: the class of a tool, functions that become tools, and the tools of one turn.

`Toolbox.run` raises no errors. For an unknown tool, wrong arguments or another failure, the model gets a text.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, Unpack, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ArgsKwargs, PydanticSerializationError, to_json

from midwatch.agents.function import call_turn
from midwatch.agents.function_child import FACTS, TurnProxy, is_async
from midwatch.agents.streams.reading import find_paths
from midwatch.base.errors import BadConfig, MidwatchError
from midwatch.base.threads import in_thread
from midwatch.domain.agent import Answer, Question, QuestionKind, Turn
from midwatch.domain.rule import TARGETED
from midwatch.domain.tool_call import ToolCall, ToolFacts, collect_texts

if TYPE_CHECKING:
    from midwatch.agents.llm.history import Transcript

LONGEST_RESULT = 100_000  # characters of a result that a model gets
LONGEST_PROBLEM = 2000
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # names that every provider accepts
NO_RESULT = "done, without a result"


running_call: ContextVar[tuple[str, Transcript] | None] = ContextVar("running_call", default=None)
"""The key of the running tool call and the transcript. The call has the same key in a later attempt."""
store_start: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("store_start", default=None)
"""Stores that the running tool call may have run. A tool that asks for permission calls this after a yes."""


class ToolError(Exception):
    """An expected failure of a tool. The model gets the text of the error."""


def check_allowed(answer: Answer) -> None:
    """Raise ToolError unless the answer to the permission question allows the tool call."""
    if not answer.granted:
        why = f": {answer.why}" if answer.why else ""
        raise ToolError(f"this was not allowed ({answer.status}){why}. Do not try another way; report it instead.")


class ToolOutput(NamedTuple):
    """The result of a tool call."""

    text: str
    """The text for the model."""
    is_error: bool = False
    for_user: str | None = None
    """A message for people; None if there is none."""
    went_on: bool = False
    """Whether the work continues in the background."""
    diffs: tuple[Mapping[str, Any], ...] = ()
    """The changes of files, in the form of the event `tool_exec_end`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON schema of the arguments. It describes an object."""
    call: Callable[[dict[str, Any], Turn], Awaitable[Any]]
    """The function that runs the tool. It checks the arguments, and raises ToolError for expected failures."""
    safe: bool = False
    """Whether midwatch may run a call again after an interruption, if it does not know whether the call has run."""
    kind: QuestionKind = "other"
    server: str | None = None
    """The MCP server of the tool."""
    own_name: str | None = None
    """The name that the server uses for the tool."""
    asks: bool = False
    """Whether the tool asks for permission, unless a rule answers."""
    read: Reader | None = None
    """Says what the arguments mean for rules. Without it, every text in them may be a path, an address or a command."""

    def describe(self, arguments: Mapping[str, Any], turn: Turn, call_id: str | None = None) -> ToolCall:
        """Return a call of the tool as rules and hooks see it. Raise ToolError if the arguments are wrong."""
        facts = _read_unknown(self.kind, arguments) if self.read is None else self.read(arguments, turn)
        return ToolCall(
            tool=self.own_name or self.name, arguments=arguments, id=call_id, server=self.server,
            kind="other" if self.server else self.kind, asks=self.asks, **facts,
        )  # fmt: skip


Reader = Callable[[Mapping[str, Any], Turn], ToolFacts]


def read_nothing(arguments: Mapping[str, Any], turn: Turn) -> ToolFacts:
    """Return no facts, for a tool that uses no file, no command and no other machine."""
    return {}


def _read_unknown(kind: str, arguments: Mapping[str, Any]) -> ToolFacts:
    """Return the facts about a tool that midwatch does not know."""
    paths = find_paths(arguments) if kind in TARGETED else ()
    command = arguments.get("command") if kind == "execute" else None
    return {**collect_texts(arguments), "paths": paths, "command": command if isinstance(command, str) else None}


async def check_permission(tool: Tool, arguments: Mapping[str, Any], turn: Turn) -> None:
    """Ask whether a tool may run. Raise ToolError if the answer is no."""
    check_allowed(await turn.ask(Question.about(tool.describe(arguments, turn))))
    if (store := store_start.get()) is not None:
        await store()


class Source(Protocol):
    """A source that adds tools for the time of a turn, such as MCP servers."""

    def open(self, turn: Turn, taken: frozenset[str]) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Yield the tools of this source. Their names must not be in `taken`.

        Processes that the source starts end with the `async with` block.
        """
        ...


class Toolbox:
    """The tools of one turn."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}

    async def run(self, name: str, arguments: str | Mapping[str, Any] | None, turn: Turn) -> ToolOutput:
        """Run a tool and return its output. A failure becomes an output, too; only CancelledError is raised."""
        tool = self.tools.get(name)
        if tool is None:
            tool_names = ", ".join(sorted(self.tools)) or "none"
            return ToolOutput(f"there is no tool {_short(name, 100)!r}; the tools are: {tool_names}.", is_error=True)
        task = asyncio.current_task()
        cancels = task.cancelling() if task else 0
        try:
            return await _output(await tool.call(_read(arguments), turn))
        except asyncio.CancelledError:
            if task is None or task.cancelling() > cancels:
                raise
            return ToolOutput("the tool cancelled itself.", is_error=True)
        except GeneratorExit:
            raise
        except BaseException as problem:
            return ToolOutput(_short(_error_text(problem), LONGEST_PROBLEM), is_error=True)


class Toolkit:
    """The tools of an agent. `async with kit(turn) as box` opens the tools for one turn."""

    def __init__(self, agent: str, tools: Iterable[Tool] = (), sources: Iterable[Source] = ()) -> None:
        self.tools, self.sources = tuple(tools), tuple(sources)
        names = [tool.name for tool in self.tools]
        for name in names:
            if names.count(name) > 1:
                raise BadConfig(f"agents.{agent}.tools: two tools are named {name!r}; rename one of them.")

    @asynccontextmanager
    async def __call__(self, turn: Turn) -> AsyncIterator[Toolbox]:
        async with AsyncExitStack() as stack:
            tools = list(self.tools)
            for source in self.sources:
                taken = frozenset(tool.name for tool in tools)
                tools.extend(await stack.enter_async_context(source.open(turn, taken)))
            yield Toolbox(tools)


# -- functions as tools ------------------------------------------------------------------------------------------


class ToolSettings(TypedDict, total=False):
    """The settings with which a function becomes a tool."""

    name: str | None
    description: str | None
    safe: bool
    """Whether midwatch may run a call again after an interruption, if it does not know whether the call has run."""
    kind: QuestionKind
    ask: bool
    """Whether a rule or a person must allow each call."""
    read: Reader | None
    """Says what the arguments mean for rules."""


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(function: None = None, /, **settings: Unpack[ToolSettings]) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None, /, **settings: Unpack[ToolSettings]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool from a function. Use it as a decorator: `@tool`, or `@tool(safe=True)`.

    The model reads the docstring of the function. midwatch checks the model's arguments against the annotations. A
    parameter with the annotation `Turn` gets the turn. A plain function runs on its own Python thread, an async
    function on midwatch's event loop.
    """
    if function is None:
        return lambda decorated: make(decorated, **settings)
    return make(function)


def make(function: Callable[..., Any], **settings: Unpack[ToolSettings]) -> Tool:
    """Make a tool from a function. Raise BadConfig if the function cannot become a tool."""
    called = str(settings.get("name") or getattr(function, "__name__", type(function).__name__))
    if not NAME.fullmatch(called):
        raise BadConfig(f"a tool's name must have 1 to 64 letters, digits, - or _; rename {called[:100]!r}.")
    signature, turn_name = _signature(function, called)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_arguments(signature))  # type: ignore[arg-type]  # functions are types to it
        schema = adapter.json_schema()
    except PydanticUserError as problem:
        first = str(problem).partition("\n")[0]
        raise BadConfig(f"tool {called!r}: no JSON schema for its parameters ({first}); change their types.") from None
    kind = settings.get("kind", "other")

    async def call(arguments: dict[str, Any], turn: Turn) -> Any:
        try:
            checked = adapter.validate_python(ArgsKwargs((), arguments))
        except ValidationError as problem:
            raise ToolError(_describe_errors(problem)) from None
        if settings.get("ask"):
            await check_permission(new_tool, arguments, turn)
        if is_async(function):
            return await function(**checked, **({turn_name: turn} if turn_name else {}))
        extra = {turn_name: _from_thread(turn)} if turn_name else {}
        return await in_thread(lambda: function(**checked, **extra))

    text = str(settings.get("description") or inspect.getdoc(function) or called)
    safe = settings.get("safe", False)
    new_tool = Tool(
        name=called, description=text, schema=schema, call=call, safe=safe, kind=kind,
        asks=bool(settings.get("ask")), read=settings.get("read"),
    )  # fmt: skip
    return new_tool


def _signature(function: Callable[..., Any], called: str) -> tuple[inspect.Signature, str | None]:
    """Return the parameters that the model fills, with their types, and the name of the parameter for the turn."""
    wrapped = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    try:
        hints = typing.get_type_hints(wrapped, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except Exception as problem:  # reading annotations runs code of the user
        raise BadConfig(f"tool {called!r}: its parameters cannot be read ({problem}); correct the types.") from None
    if any(parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL) for parameter in parameters):
        raise BadConfig(f"tool {called!r}: models pass arguments by name; remove `*args` and `/`.")
    turns = [parameter.name for parameter in parameters if hints.get(parameter.name) in (Turn, Turn | None)]
    by_model = [parameter for parameter in parameters if parameter.name not in turns[:1]]
    filled = [parameter.replace(annotation=hints.get(parameter.name, Any)) for parameter in by_model]
    return inspect.Signature(filled), turns[0] if turns else None


def _arguments(signature: inspect.Signature) -> Callable[..., Any]:
    """Return a function with this signature that returns its arguments. pydantic makes the JSON schema from it."""

    def arguments(**values: Any) -> dict[str, Any]:
        return values

    arguments.__signature__ = signature  # type: ignore[attr-defined]
    arguments.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
    return arguments


def _from_thread(turn: Turn) -> TurnProxy:
    """Return the turn for a plain function on a Python thread. Its methods block."""
    loop = asyncio.get_running_loop()
    facts = {name: getattr(turn, name) for name in FACTS}
    return TurnProxy(
        facts,
        lambda name, *arguments: asyncio.run_coroutine_threadsafe(call_turn(turn, name, arguments), loop),
        lambda future: future.result(),
    )


# -- arguments and results ---------------------------------------------------------------------------------------


def _read(arguments: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a tool call as a dictionary. Raise ToolError if they are not a JSON object."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else None
        except (ValueError, RecursionError) as problem:
            raise ToolError(f"the arguments are not valid JSON ({problem}); they must be one JSON object.") from None
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise ToolError("the arguments are not a JSON object; write an object with a field for each argument.")
    return dict(arguments)


def _describe_errors(problem: ValidationError) -> str:
    errors = problem.errors(include_url=False, include_input=False, include_context=False)
    lines = (f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in errors[:20])
    return "the arguments are wrong; " + "; ".join(lines) + "."


async def _output(value: Any) -> ToolOutput:
    if isinstance(value, ToolOutput):
        return value._replace(text=clean(value.text))
    if value is None or value == "":
        return ToolOutput(NO_RESULT)
    if isinstance(value, str):
        return ToolOutput(clean(value))
    try:  # in a thread: a large value must not block the event loop
        return ToolOutput(clean((await in_thread(lambda: _json(value))).decode()))
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as problem:
        kind = type(value).__name__
        why = _short(str(problem), 200)
        return ToolOutput(f"the tool did its work, but its result, a {kind}, is not JSON: {why}", is_error=True)


def _json(value: Any) -> bytes:
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise TypeError("a generator has no JSON form")
    return to_json(value, inf_nan_mode="strings", bytes_mode="utf8")


def clean(text: str, limit: int = LONGEST_RESULT) -> str:
    """Return text that can be sent and stored. Cut the text after `limit` characters."""
    whole = len(text)
    if whole > limit:
        text = f"{text[:limit]}\n… cut: {whole - limit} of {whole} characters are left out …"
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _error_text(problem: BaseException) -> str:
    """Return the text that the model gets for an error."""
    if isinstance(problem, ToolError | MidwatchError):
        return str(problem)
    return f"the tool failed with {type(problem).__name__}: {problem}"


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "…"
