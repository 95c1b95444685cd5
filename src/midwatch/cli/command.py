"""Turn an async function that returns a `Reply` into a command with a connection, `--json` and an exit status."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import cached_property, update_wrapper
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, overload

import typer

from midwatch.cli.connection import Desk, connect
from midwatch.cli.options import AsJson, FieldOptions
from midwatch.cli.output import emit, note, say

P = ParamSpec("P")
JSON = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
CONTEXT = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)


class Reply(NamedTuple):
    """The result of a command.

    `data` is printed with --json, otherwise `text`: a string, or a function that returns a string or prints by itself.
    `notice` is always printed on standard error. `status` is the exit status.
    """

    data: object
    text: str | Callable[[], str | None]
    notice: str | None = None
    status: int = 0

    def print(self, as_json: bool) -> None:
        """Print `data` as JSON or `text`, then `notice`."""
        if as_json:
            emit(self.data)
        else:
            text = self.text() if callable(self.text) else self.text
            if text is not None:
                say(text)
        if self.notice:
            note(self.notice)


Work = Coroutine[Any, Any, Reply | int]
"""The coroutine of a command. It returns a reply, or an exit status if it has printed everything itself."""


class Command(Generic[P]):
    """A command that typer can call.

    - The parameter `desk` of the function is not an option: the function gets a connection.
    - If `work` is true, or if `work` names an option that is set, this process runs tasks if there is no server.
    - The keyword arguments `**request` of the function get the values of all `options` that were set.
    - Every command has the option `--json`. The function gets its value only if it has the parameter `as_json`.
    - A `default` command runs when its group is called without a command.
    """

    def __init__(
        self, function: Callable[..., Work], work: bool | str, options: FieldOptions | None, default: bool
    ) -> None:
        update_wrapper(self, function)
        self._function = function
        self._work = work
        self._options = options
        self._default = default

    @cached_property
    def __signature__(self) -> inspect.Signature:
        """Return the parameters from which typer creates arguments and options."""
        parameters = [CONTEXT] if self._default else []
        own = inspect.signature(self._function, eval_str=True).parameters
        for parameter in own.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD and self._options:
                parameters += self._options.parameters(own)
            elif parameter.name not in ("desk", "as_json"):
                parameters.append(parameter)
        return inspect.Signature([*parameters, JSON])

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run the command and print its reply."""
        ctx: Any = kwargs.pop("ctx", None)
        if ctx is not None and ctx.invoked_subcommand is not None:
            return
        own = inspect.signature(self._function).parameters
        as_json = bool(kwargs.get("as_json") if "as_json" in own else kwargs.pop("as_json", False))
        request = self._options.take(kwargs, own) if self._options else {}
        run = self._connect if "desk" in own else self._function
        reply = asyncio.run(run(*args, **kwargs, **request))
        if isinstance(reply, Reply):
            reply.print(as_json)
            reply = reply.status
        if reply:
            raise typer.Exit(reply)

    async def _connect(self, *args: Any, **kwargs: Any) -> Reply | int:
        work = bool(kwargs[self._work]) if isinstance(self._work, str) else self._work
        async with connect(work=work) as desk:
            return await self._function(desk, *args, **kwargs)


class Decorator(Protocol):
    """A decorator that turns an async function into a command."""

    @overload
    def __call__(self, function: Callable[Concatenate[Desk, P], Work], /) -> Command[P]: ...
    @overload
    def __call__(self, function: Callable[P, Work], /) -> Command[P]: ...


def command(
    app: typer.Typer | None = None, name: str | None = None, *, work: bool | str = False,
    options: FieldOptions | None = None, default: bool = False,
) -> Decorator:  # fmt: skip
    """Turn a function into a command and add it to `app`; see `Command`."""

    def add(function: Callable[..., Work], /) -> Command[Any]:
        wrapped = Command[Any](function, work, options, default)
        if app is not None:
            (app.callback() if default else app.command(name))(wrapped)
        return wrapped

    return add


def group(summary: str) -> typer.Typer:
    """Return a group for the commands of one noun. The group prints its help if it is called without a command."""
    app = typer.Typer(help=summary, invoke_without_command=True)

    @app.callback()
    def print_help(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            say(ctx.get_help())

    return app
