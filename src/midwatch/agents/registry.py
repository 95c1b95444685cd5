"""The kinds of agents by name, and how one is built from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from midwatch.base.errors import BadConfig, MidwatchError
from midwatch.domain.agent import Agent, AgentCapability, AgentTerms
from midwatch.domain.requests import OnCrash
from midwatch.programs.sandbox import Sandbox

KINDS: dict[str, str] = {
    "acp": "midwatch.agents.acp.kind:AcpAgent",
    "command": "midwatch.agents.command:CommandAgent",
    "demo": "midwatch.agents.demo:DemoAgent",
    "function": "midwatch.agents.function:FunctionAgent",
    "headless": "midwatch.agents.headless:HeadlessAgent",
    "llm": "midwatch.agents.llm.kind:LlmAgent",
    "local": "midwatch.agents.local:LocalAgent",
    "terminal": "midwatch.agents.terminal.kind:TerminalAgent",
}
"""Where each kind lives."""


EXCLUSIVE = frozenset({"headless", "acp"})
"""Kinds that write code: a task of theirs has its directory for itself, unless it is said to share it."""


class Kind(Protocol):
    """What a class in KINDS offers."""

    kind: str

    def terms_for(self, options: Mapping[str, Any]) -> AgentTerms:
        """The terms of an agent with these options, where the configuration does not say. A class method."""
        ...

    def from_options(self, name: str, options: Mapping[str, Any], terms: AgentTerms, description: str) -> Agent:
        """The agent `[agents.NAME]` describes, or BadConfig. A class method."""
        ...


def build(
    name: str,
    kind: str,
    options: Mapping[str, Any],
    *,
    timeout: float | None = None,
    on_crash: OnCrash | None = None,
    max_attempts: int | None = None,
    slots: int | None = None,
    share_workdir: bool | None = None,
    budget: Mapping[str, Any] | None = None,
    submits: bool | None = None,
    sandbox: Sandbox | None = None,
    description: str = "",
    capabilities: tuple[AgentCapability, ...] = (),
) -> Agent:
    """The agent `[agents.NAME]` asks for, or BadConfig."""
    cls = _find(name, kind)
    wishes: dict[str, Any] = {
        "timeout_seconds": timeout,
        "on_crash": on_crash,
        "max_attempts": max_attempts,
        "slots": slots,
        "budget": budget,
        "submits": submits,
        "exclusive": (True if kind in EXCLUSIVE else None) if share_workdir is None else not share_workdir,
    }
    try:
        wishes["workdir"] = str(Path(options.get("workdir") or ".").expanduser().absolute())
        terms = cls.terms_for(options)._replace(**{key: value for key, value in wishes.items() if value is not None})
        made = cls.from_options(name, options, terms, description)
    except MidwatchError:
        raise
    except Exception as problem:  # of a class we do not know: its text may hold the value of an option
        raise BadConfig(f"agents.{name}: {kind} failed with {type(problem).__name__}; check its options.") from problem
    if sandbox is not None:
        if not getattr(made, "starts_programs", False):
            raise BadConfig(f"agents.{name}.sandbox: kind {kind} starts no programs that one could keep in.")
        made.sandbox = sandbox  # type: ignore[attr-defined]  # agents that start programs have one
    if capabilities:
        made.capabilities = capabilities  # type: ignore[misc]  # what the configuration says goes before the kind's own
    return made


def _find(name: str, kind: str) -> Kind:
    path = KINDS.get(kind, kind)
    if ":" not in path:
        known = ", ".join(sorted(KINDS))
        raise BadConfig(f"agents.{name}.kind: there is no kind {kind!r}; use {known}, or package.module:Class.")
    module, _, attribute = path.partition(":")
    try:
        return cast(Kind, getattr(import_module(module), attribute))
    except (ImportError, AttributeError, ValueError) as problem:
        raise BadConfig(f"agents.{name}.kind: {kind!r} cannot be loaded ({problem}); correct it.") from problem
