"""The kinds of agents by name, and how to build an agent from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midwatch.agents.base import absolute_path
from midwatch.base.errors import BadConfig, MidwatchError
from midwatch.base.foreign import ContainExit
from midwatch.base.kinds import load_kind
from midwatch.domain.agent import Agent, AgentCapability
from midwatch.programs.cgroup import Limits
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
"""The class of each kind. Each class has the class methods `terms_for` and `from_options`, as in ProgramAgent."""
EXCLUSIVE = frozenset({"headless", "acp"})
"""Kinds whose agents write code. Their tasks do not share a directory, unless the settings allow it."""


def build(
    name: str,
    kind: str,
    options: Mapping[str, Any],
    *,
    share_workdir: bool | None = None,
    sandbox: Sandbox | None = None,
    limits: Limits | None = None,
    description: str = "",
    capabilities: tuple[AgentCapability, ...] = (),
    why: str | None = None,
    **terms: Any,
) -> Agent:
    """Build the agent that `[agents.NAME]` describes, or raise BadConfig.

    `terms` are fields of AgentTerms. `share_workdir` and `terms` replace the defaults of the kind unless they are None.
    """
    if kind == "command" and "argv" not in options:
        raise BadConfig(f"agents.{name}.argv: it is missing; add it, or set another `kind` than command.")
    cls = load_kind(f"agents.{name}", kind, KINDS)
    for setting, wanted in {"sandbox": sandbox, **(limits._asdict() if limits else {})}.items():
        if wanted is not None and not getattr(cls, "starts_programs", False):
            raise BadConfig(f"agents.{name}.{setting}: kind {kind} starts no programs; remove the setting.")
    settings = {"sandbox": sandbox, "limits": limits, "capabilities": capabilities, "why": why}
    more = {key: value for key, value in settings.items() if value}
    changes = {key: value for key, value in terms.items() if value is not None}
    if share_workdir is not None or kind in EXCLUSIVE:
        changes["exclusive"] = not share_workdir
    try:
        changes["workdir"] = absolute_path(options.get("workdir"))
        with ContainExit(f"agents.{name}: {kind}"):
            agent_terms = cls.terms_for(options)._replace(**changes)
            agent: Agent = cls.from_options(name, options, terms=agent_terms, description=description, **more)
    except MidwatchError:
        raise
    except Exception as problem:  # the class may be a user's: the text of its error may contain the value of an option
        raise BadConfig(f"agents.{name}: {kind} failed with {type(problem).__name__}; check its options.") from problem
    return agent
