"""Builds the chain of hooks from the settings and from the objects of a program."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from midwatch.base.errors import BadConfig, MidwatchError
from midwatch.base.foreign import ContainExit
from midwatch.desk.config import Settings
from midwatch.desk.hook_settings import HookSettings
from midwatch.domain.hook import HookPart
from midwatch.programs.hook_program import HookProgram, HookProgramSettings
from midwatch.running.hook_chain import HookChain
from midwatch.running.python_hook import PythonHook


def build_hooks(settings: Settings, registered: Iterable[object]) -> HookChain:
    """Build the chain of the configured hooks and the `registered` Python objects. Raise BadConfig for a wrong hook."""
    parts: list[HookPart] = [
        PythonHook(_make_hook(entry)) if isinstance(entry, str) else _build_program(entry, settings.home)
        for entry in settings.hooks
    ]
    return HookChain([*parts, *(PythonHook(hook) for hook in registered)])


def _make_hook(path: str) -> object:
    """Import a class and make an object of it."""
    module, _, attribute = path.partition(":")
    try:
        with ContainExit(f"hooks: {path!r}"):
            return getattr(import_module(module), attribute)()
    except MidwatchError:
        raise
    except Exception as problem:  # the class is the user's
        why = f"{type(problem).__name__}: {problem}"
        raise BadConfig(f"hooks: {path!r} cannot be loaded ({why}); correct the name or the code.") from problem


def _build_program(entry: HookSettings, home: Path) -> HookProgram:
    return HookProgram(HookProgramSettings(
        name=entry.name or Path(entry.argv[0]).name, argv=tuple(entry.argv), seams=tuple(dict.fromkeys(entry.seams)),
        workdir=str(home), priority=entry.priority, seconds=entry.timeout, env=entry.env,
    ))  # fmt: skip
