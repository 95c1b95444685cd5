"""Turn a function into a command. An async function that returns a `Reply` gets a connection and `--json`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from midwatch.cli.connection import connect
from midwatch.cli.options import AsJson, FieldOptions
from midwatch.cli.output import emit, note, say
from midwatch.cli.parameters import build_parameter

JSON = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)


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


class Command(click.Command):
    """A command that runs a function. Its arguments and options are created when they are needed, because this is slow.

    - The parameter `desk` of the function is not an option: the function gets a connection.
    - If `work` is true, or if `work` names an option that is set, this process runs tasks if there is no server.
    - The keyword arguments `**request` of the function get the values of all `options` that were set.
    - An async function returns a reply, or an exit status if it has printed everything itself. Its command has the
      option `--json`. The function gets the value of this option only if it has the parameter `as_json`.
    - A function that is not async prints everything itself.
    """

    def __init__(
        self, function: Callable[..., Any], name: str | None = None, work: bool | str = False,
        options: FieldOptions | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name or function.__name__, callback=self.run, help=inspect.getdoc(function))
        self._function = function
        self._work = work
        self._options = options

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the arguments and options."""
        if not self.params:
            self.params = [build_parameter(parameter) for parameter in self._parameters()]
        return super().get_params(ctx)

    def _parameters(self) -> list[inspect.Parameter]:
        parameters = []
        own = inspect.signature(self._function, eval_str=True).parameters
        for parameter in own.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD and self._options:
                parameters += self._options.parameters(own)
            elif parameter.name != "desk":
                parameters.append(parameter)
        if "as_json" not in own and inspect.iscoroutinefunction(self._function):
            parameters.append(JSON)
        return sorted(parameters, key=lambda parameter: parameter.name == "as_json")

    def run(self, **values: Any) -> None:
        """Run the function with the values of its arguments and options, and print its reply."""
        own = inspect.signature(self._function).parameters
        as_json = bool(values.get("as_json") if "as_json" in own else values.pop("as_json", False))
        request = self._options.take(values, own) if self._options else {}
        if not inspect.iscoroutinefunction(self._function):
            self._function(**values, **request)
            return
        import asyncio

        run = self._connect if "desk" in own else self._function
        reply = asyncio.run(run(**values, **request))
        if isinstance(reply, Reply):
            reply.print(as_json)
            reply = reply.status
        if reply:
            raise click.exceptions.Exit(reply)

    async def _connect(self, **values: Any) -> Any:
        work = bool(values[self._work]) if isinstance(self._work, str) else self._work
        async with connect(work=work) as desk:
            return await self._function(desk, **values)


class Group(click.Group):
    """A group of commands. Without a command it runs its command `default`, or prints its help if it has none."""

    def __init__(self, summary: str, **settings: Any) -> None:
        super().__init__(help=summary, invoke_without_command=True, callback=self.run_default, **settings)
        self.default: Command | None = None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of their definition."""
        return list(self.commands)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the arguments and options of the default command."""
        return self.default.get_params(ctx) if self.default else super().get_params(ctx)

    def run_default(self, **values: Any) -> None:
        """Run the default command if no command is named."""
        ctx = click.get_current_context()
        if ctx.invoked_subcommand is not None:
            return
        if self.default:
            self.default.run(**values)
        else:
            say(ctx.get_help())


def command(
    app: Group | None = None, name: str | None = None, *, work: bool | str = False,
    options: FieldOptions | None = None, default: bool = False, kind: type[Command] = Command,
) -> Callable[[Callable[..., Any]], Command]:  # fmt: skip
    """Turn a function into a command and add it to the group `app`, or make it the default of the group."""

    def add(function: Callable[..., Any]) -> Command:
        made = kind(function, name, work, options)
        if app is not None and default:
            app.default = made
        elif app is not None:
            app.add_command(made)
        return made

    return add
