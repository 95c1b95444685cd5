"""Turn the parameters of a function into the arguments and options of a command."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click


class Option:
    """An option of a command: `Annotated[int, Option("--limit", "-n", min=1)]`.

    `min` and `max` limit a number. `callback` converts the value. `settings` are settings of `click.Option`.
    """

    def __init__(
        self, *names: str, min: float | None = None, max: float | None = None,
        callback: Callable[[Any], Any] | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self._names = names
        self._range: dict[str, Any] = {"min": min, "max": max}
        self._callback = callback
        self._settings = {name: value for name, value in settings.items() if value is not None}

    def build(self, parameter: Parameter, kind: Any) -> click.Parameter:
        """Return the option of click. `kind` is the type of the parameter."""
        repeatable = get_origin(kind) is list
        shown = {"show_default": parameter.default not in (None, ""), "show_envvar": True}
        return click.Option(
            [parameter.name, *self._names], is_flag=kind is bool, multiple=repeatable,
            **shown | self._common(parameter, kind),
        )  # fmt: skip

    def _common(self, parameter: Parameter, kind: Any) -> dict[str, Any]:
        """Return the settings that options and arguments share."""
        required = parameter.default is Parameter.empty
        repeatable = get_origin(kind) is list
        default = {} if required or (repeatable and not parameter.default) else {"default": parameter.default}

        def convert(ctx: click.Context, own: click.Parameter, value: Any) -> Any:
            if ctx.resilient_parsing:  # a shell completes the line: nothing is read or checked
                return value
            if repeatable:
                value = list(value) if value else parameter.default
            return self._callback(value) if self._callback else value

        common = {"type": self._type(get_args(kind)[0] if repeatable else kind), "required": required}
        return common | default | {"callback": convert} | self._settings

    def _type(self, kind: Any) -> Any:
        """Return the type of click for a type of Python."""
        if get_origin(kind) is Literal:
            return click.Choice(get_args(kind))
        if kind is Path:
            return click.Path(path_type=Path)
        if kind in (int, float):
            number: Any = (click.IntRange if kind is int else click.FloatRange)(**self._range)
            number.name = "number"  # the word in the help and in errors
            return number
        return kind


class Argument(Option):
    """An argument of a command: `Annotated[str, Argument(metavar="ID")]`."""

    def build(self, parameter: Parameter, kind: Any) -> click.Parameter:
        """Return the argument of click. `kind` is the type of the parameter."""
        nargs = -1 if get_origin(kind) is list else 1
        return click.Argument([parameter.name], nargs=nargs, **self._common(parameter, kind))


def build_parameter(parameter: Parameter) -> click.Parameter:
    """Return the argument or option that a parameter with an `Annotated` type describes."""
    annotated, given = get_args(parameter.annotation)
    kinds = [kind for kind in get_args(annotated) if kind is not NoneType]
    optional = NoneType in get_args(annotated)
    built: click.Parameter = given.build(parameter, kinds[0] if optional else annotated)
    return built
