"""Write the tables of the events, settings, errors, rights and terminal pages from the code: `python docs/generate.py`.

The text between the markers `<!-- generated -->` and `<!-- end -->` of a page is replaced. All other text is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from midwatch.agents.acp.options import AcpOptions
from midwatch.agents.base import KindOptions
from midwatch.agents.command import CommandOptions
from midwatch.agents.demo import DemoOptions
from midwatch.agents.function import FunctionOptions
from midwatch.agents.headless import HeadlessOptions
from midwatch.agents.llm.options import LlmOptions
from midwatch.agents.local import LocalOptions
from midwatch.agents.registry import KINDS as AGENT_KINDS
from midwatch.agents.terminal.kind import TerminalOptions
from midwatch.agents.terminal.profiles import PROFILES as TERMINALS
from midwatch.agents.terminal.profiles import find_version
from midwatch.api.agentapi.app import pages, router
from midwatch.api.agentapi.place import BELOW
from midwatch.api.permissions import Permission, list_permissions
from midwatch.api.reply import STATUS
from midwatch.api.routes import list_routes
from midwatch.base.errors import MidwatchError
from midwatch.desk.config import Settings
from midwatch.desk.hook_settings import HookSettings
from midwatch.desk.tables import (
    AgentSettings,
    ApprovalSettings,
    CalendarSettings,
    CapabilitySettings,
    ChannelSettings,
    DayBudgetSettings,
    EventLogSettings,
    GoalSettings,
    HandoffSettings,
    PriceSettings,
    RetentionSettings,
)
from midwatch.domain.event import KINDS, Payload
from midwatch.services.authorization import RIGHTS, Action

DOCS = Path(__file__).parent
MARKED = re.compile(r"(<!-- generated[^>]*-->\n).*?(\n<!-- end -->)", re.DOTALL)
WORDS = {
    "str": "text", "int": "whole number", "float": "number", "bool": "true or false", "Any": "JSON",
    "tuple[str, ...]": "list of texts", "Mapping[str, Any]": "object",
    "tuple[Mapping[str, Any], ...]": "list of objects",
}  # fmt: skip
"""Names of types in the tables."""


def describe(documented: type) -> str:
    """Return the docstring of a class on one line."""
    return " ".join((documented.__doc__ or "").split())


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


# -- events ------------------------------------------------------------------------------------------------------------


def events() -> str:
    """Return a section for each kind of event."""
    return "\n\n".join(describe_kind(name, payload) for name, payload in KINDS.items())


def describe_kind(name: str, payload: type[Payload]) -> str:
    live = (" Live: never stored." if payload.live else "") + (" Agents may emit it." if payload.agents else "")
    rows = []
    for part in fields(payload):  # type: ignore[arg-type]  # every kind is a dataclass
        plain, _, null = str(part.type).partition(" | ")
        default = "" if part.default is MISSING else "null" if part.default is None else f"`{part.default}`".lower()
        rows.append((f"`{part.name.rstrip('_')}`", WORDS[plain] + (", or null" if null else ""), default))
    return f"### {name}\n\n{describe(payload)}{live}\n\n{table(('field', 'value', 'default'), rows)}"


# -- settings ----------------------------------------------------------------------------------------------------------

SECTIONS: dict[str, type[BaseModel]] = {
    "retention": RetentionSettings,
    "goals": GoalSettings,
    "day_budget": DayBudgetSettings,
    "prices.MODEL": PriceSettings,
    "handoffs": HandoffSettings,
    "hooks": HookSettings,
    "event_logs.NAME": EventLogSettings,
    "calendars.NAME": CalendarSettings,
    "agents.NAME": AgentSettings,
    "agents.NAME.approvals": ApprovalSettings,
    "agents.NAME.capabilities": CapabilitySettings,
    "channels.NAME": ChannelSettings,
}
OPTIONS: dict[str, type[KindOptions]] = {
    "acp": AcpOptions, "command": CommandOptions, "demo": DemoOptions, "function": FunctionOptions,
    "headless": HeadlessOptions, "llm": LlmOptions, "local": LocalOptions, "terminal": TerminalOptions,
}  # fmt: skip
PAGE_OF_KIND = {"llm": "llm.md", "local": "local.md", "terminal": "terminal.md"}
"""Kinds that have their own page; the other kinds are on the agents page."""
REPEATED = frozenset({"hooks", "agents.NAME.capabilities"})
"""Sections that are lists of tables."""


def settings() -> str:
    """Return a table of the settings at the top of the file, then one for each section."""
    nested = {name.partition(".")[0] for name in SECTIONS} - REPEATED
    parts = [section_table("", Settings, leave=nested)]
    for name, model in SECTIONS.items():
        parts.append(f"## [{name}]\n\n{describe(model)}\n\n{section_table(name, model)}")
        if name == "agents.NAME":
            parts.append(f"### Kinds of agents\n\n{kinds_of_agents()}")
    return "\n\n".join(parts)


def kinds_of_agents() -> str:
    """Return a table of the kinds with the names of their options and the page that explains them."""
    rows = []
    for kind in AGENT_KINDS:
        page = PAGE_OF_KIND.get(kind, "agents.md")
        names = ", ".join(f"`{name}`" for name in OPTIONS[kind].model_fields) or "none"
        rows.append((f"`{kind}`", names, f"[{page.removesuffix('.md')}]({page})"))
    return table(("kind", "options of this kind", "explained on"), rows)


def section_table(section: str, model: type[BaseModel], leave: set[str] | None = None) -> str:
    rows = []
    for name, field in model.model_fields.items():
        if name not in (leave or ()):
            variable = "MIDWATCH_" + "__".join(filter(None, (*section.upper().split("."), name.upper())))
            environment = "in the JSON of its list" if section in REPEATED else f"`{variable}`"
            row = (f"`{name}`", values(field), default_of(field), environment, field.description or "")
            rows.append(row)
    return table(("setting", "value", "default", "environment", "meaning"), rows)


def values(field: FieldInfo) -> str:
    """Return the allowed values of a setting."""
    annotation = field.annotation
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kept = next(option for option in options if option is not NoneType)
    if get_origin(kept) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kept))
    base = get_args(kept)[0] if hasattr(kept, "__metadata__") else kept
    if isinstance(base, type) and issubclass(base, BaseModel):
        return "table"
    words = {
        float: "duration" if timed(field, kept) else "number",
        dict[str, Any]: "table",
        dict[str, str]: "table",
        int: "whole number",
        bool: "`true` or `false`",
        Path: "directory",
        str: "text",
    }
    return " ".join(filter(None, (words.get(base, "list"), *bounds(field))))


def timed(field: FieldInfo, kept: Any = None) -> bool:
    """Return whether a number is a duration; a duration may also be written as text."""
    return hasattr(kept, "__metadata__") or any(isinstance(m, BeforeValidator) for m in field.metadata)


def bounds(field: FieldInfo) -> Iterator[str]:
    low = next((m.ge for m in field.metadata if isinstance(m, Ge)), None)
    high = next((m.le for m in field.metadata if isinstance(m, Le)), None)
    if low is not None and high is not None:
        yield f"from {low} to {high}"
    elif low:
        yield f"from {low}"
    if any(isinstance(m, Gt) for m in field.metadata):
        yield "above 0"


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "none; required"
    value: Any = field.get_default(call_default_factory=True)
    if value in (None, "", [], {}):
        return "none"
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if isinstance(value, float):
        return f"`{duration(value)}`" if timed(field) else f"`{value:g}`"
    return f"`{value}`"


def duration(seconds: float) -> str:
    """Return a duration in the form of the configuration file."""
    units = {"d": 86400, "h": 3600, "m": 60}
    unit = next((unit for unit, size in units.items() if seconds >= size), "s")
    return f"{seconds / units.get(unit, 1):g}{unit}"


# -- errors ------------------------------------------------------------------------------------------------------------


def errors() -> str:
    """Return a table of all errors, each below its base class."""
    rows = [
        (f"`{error.__name__}`", f"`{error.code}`", str(error.exit_status), http(error), parent(error), describe(error))
        for error in family(MidwatchError)
    ]
    return table(("class", "code", "exit status", "HTTP status", "is a", "meaning"), rows)


def family(error: type[MidwatchError]) -> Iterator[type[MidwatchError]]:
    """Yield the class and all its subclasses, in the order of their definition."""
    yield error
    for child in error.__subclasses__():
        if child.__module__ == "midwatch.base.errors":
            yield from family(child)


def http(error: type[MidwatchError]) -> str:
    status = next((str(STATUS[kind]) for kind in error.__mro__ if kind in STATUS), "none")
    return "500" if error is MidwatchError else status


def parent(error: type[MidwatchError]) -> str:
    return "" if error is MidwatchError else f"`{error.__base__.__name__}`" if error.__base__ else ""


# -- rights ------------------------------------------------------------------------------------------------------------

ROLES = ("viewer", "operator", "owner", "attempt")
OTHER_ROUTES = (
    Permission("GET", "/api/v1/openapi.json", "know"),
    Permission("GET", "the pages and files of the console", "open"),
)
"""Routes that are not in the routers of the nouns."""


def rights() -> str:
    """Return a table of the actions and the roles that may do them, then one of all routes."""
    actions = [(f"`{action}`", right.meaning, *reaches(action)) for action, right in RIGHTS.items()]
    methods: dict[tuple[str, Action], list[str]] = {}
    agentapi = list_permissions((*router.routes, *pages.routes), BELOW)
    for route in (*list_permissions(list_routes()), *OTHER_ROUTES, *agentapi):
        methods.setdefault((route.path, route.action), []).append(route.method)
    routes = [
        (show_route(names, path), f"`{action}`", "yes" if action == "open" else "no", *reaches(action))
        for (path, action), names in methods.items()
    ]
    head = ("route", "action", "no token", *ROLES)
    return f"{table(('action', 'meaning', *ROLES), actions)}\n\n## Routes\n\n{table(head, routes)}"


def show_route(methods: list[str], path: str) -> str:
    """Return a route as the table shows it, without the types of its parameters."""
    return f"{', '.join(methods)} " + (f"`{path.replace(':path', '')}`" if path.startswith("/") else path)


def reaches(action: Action) -> Iterator[str]:
    """Yield for each role whether it may do the action: yes, own (only with own objects), or no."""
    for role in ROLES:
        yield {None: "no", "own": "own", "all": "yes"}[getattr(RIGHTS[action], role)]


# -- meanings of texts in terminals ------------------------------------------------------------------------------------

RESULTS = {
    "limit": "usage limit",
    "auth": "not signed in",
    "passing": "temporary failure",
    "failed": "failure",
    "error": "its words decide",
    "stopped": "it was stopped",
    "denied": "it stopped after a denied action",
}
PLACES = {
    "reply": "end of the reply",
    "screen": "below the input box, or without one",
    "busy": "anywhere while it works",
    "exit": "last screen after its end",
}


def meanings() -> str:
    """Return a table of the texts on screens that mean a failure."""
    rows = [
        (f"`{name}`", find_version(name), PLACES[row.where], f"`{row.text}`" if row.text else "any", RESULTS[row.what])
        for name, profile in TERMINALS.items()
        for row in profile.meanings
    ]
    return table(("profile", "version", "place", "text", "meaning"), rows)


# -- pages -------------------------------------------------------------------------------------------------------------

PAGES = {
    "events.md": events,
    "settings.md": settings,
    "errors.md": errors,
    "rights.md": rights,
    "terminal.md": meanings,
}


def fresh(page: str) -> str:
    """Return the page with tables made from the code."""
    tables = PAGES[page]()
    text, count = MARKED.subn(lambda match: f"{match[1]}\n{tables}\n{match[2]}", (DOCS / page).read_text())
    if count != 1:
        raise SystemExit(f"docs/{page} needs one pair of markers, <!-- generated --> and <!-- end -->.")
    return text


if __name__ == "__main__":
    for page in PAGES:
        (DOCS / page).write_text(fresh(page))
