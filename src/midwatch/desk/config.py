"""Settings: the defaults, replaced by `midwatch.toml` in the home directory, replaced by variables `MIDWATCH_*`.

The name of an environment variable for a setting in a table has two underscores: `MIDWATCH_RETENTION__TASKS=500`. The
value of a variable for a list or a table is JSON.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from midwatch.base.directories import expand_user
from midwatch.base.errors import BadConfig, Conflict
from midwatch.channels.webhook import is_address
from midwatch.desk.hook_settings import HookEntry
from midwatch.desk.tables import (
    AgentSettings,
    ApprovalSettings,
    CalendarName,
    CalendarSettings,
    ChannelSettings,
    DayBudgetSettings,
    EventLogSettings,
    GoalSettings,
    HandoffSettings,
    Name,
    PriceSettings,
    RetentionSettings,
    check_event_logs,
)
from midwatch.domain.agent import check_name
from midwatch.domain.alert import Graces
from midwatch.domain.automation import ManageMode
from midwatch.domain.identity import TokenRole
from midwatch.domain.notice import DIGEST_AT
from midwatch.domain.requests import OnBudget
from midwatch.domain.rule import Policy
from midwatch.wire.fields import Seconds
from midwatch.wire.flaws import HEADER, STRUCTURED, TIME_OF_DAY, explain_flaw

FILE = "midwatch.toml"
PREFIX = "midwatch_"
"""What the name of a variable begins with, in small letters; capital letters do not matter."""


def _check_database(value: Any) -> Any:
    """Refuse an invalid address. The error does not show the address, because it may contain a password."""
    if isinstance(value, str) and value and not re.match(r"postgres(ql)?://|\w+ *=", value):
        raise ValueError("it is not a PostgreSQL address, such as postgresql://user:password@host:5432/name")
    return value


def _check_networks(value: list[str]) -> list[str]:
    for network in value:
        try:
            ip_network(network, strict=False)
        except ValueError:
            raise ValueError(f"{network!r} is not an IP address or network, such as 10.0.0.5 or 10.0.0.0/8") from None
    return value


def _resolve(value: Path) -> Path:
    return expand_user(value, "home").absolute()


def _check_host(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}", value):
        raise ValueError(f"{value!r} is not a host name; write only the name, such as desk.example.org, without port")
    return value.lower()


def _check_origin(value: str) -> str:
    if not re.fullmatch(r"https?://[A-Za-z0-9._-]{1,253}(:\d{1,5})?", value):
        raise ValueError(f"{value!r} is not an origin, such as https://desk.example.org")
    return value.lower()


def _check_ping_url(value: str) -> str:
    """Refuse an invalid address. The error does not show the address, because it contains a secret."""
    if not is_address(value):
        raise ValueError("write an address that begins with http:// or https://")
    return value


Header = Annotated[str, Field(pattern=HEADER)]
Database = Annotated[str, BeforeValidator(_check_database)]


class Settings(BaseModel):
    """All settings of midwatch. Only `load` reads the file and the environment."""

    model_config = ConfigDict(validate_default=True)

    home: Annotated[Path, AfterValidator(_resolve)] = Field(
        Path("~/.midwatch"), description="The directory with all data. Only from the environment."
    )
    db: Database | None = Field(
        None, description="Address of a shared PostgreSQL, postgresql://user@host/name. Default: SQLite in the home."
    )
    host: str = Field("127.0.0.1", description="Address that the server listens on. Default with `expose`: all.")
    port: int = Field(7171, ge=0, le=65535, description="Port that the server listens on; 0 takes a free one.")
    expose: bool = Field(False, description="Let other machines connect; without it `host` must be a loopback address.")
    public_url: Annotated[str, AfterValidator(_check_origin)] | None = Field(
        None, description="Address at which other machines reach the server, for the addresses of webhooks."
    )
    max_connections: int = Field(1000, ge=1, le=100_000, description="Maximum number of open connections.")
    loop_limit: Seconds = Field(
        60.0, ge=0, description="The server ends if its event loop stands still for this time; 0 means never."
    )
    hosts: list[Annotated[str, AfterValidator(_check_host)]] = Field(
        default_factory=list, description="Host names of the server, besides localhost and the machine's own name."
    )
    origins: list[Annotated[str, AfterValidator(_check_origin)]] = Field(
        default_factory=list, description="Origins of other web sites that may call the HTTP interface with a token."
    )
    proxy_header: Header | None = Field(None, description="Header in which a trusted proxy names the actor.")
    proxy_addresses: Annotated[list[str], AfterValidator(_check_networks)] = Field(
        ["127.0.0.0/8", "::1"], description="Addresses and networks of trusted proxies."
    )
    proxy_role: TokenRole = Field("operator", description="Role of the actors that a proxy names.")
    slots: int = Field(64, ge=1, le=10_000, description="Maximum number of tasks at once, per process.")
    default_agent: str = Field("demo", description="Agent of a task that names none.")
    notify: str | None = Field(
        None, description="Route of work that names none: `channel` or `channel:target`; several with blanks between."
    )
    digest_at: str = Field(
        DIGEST_AT, pattern=TIME_OF_DAY, description="Time at which daily digests of notices are sent, as HH:MM."
    )
    max_open: int = Field(1000, ge=1, description="Maximum number of open tasks; further submissions are refused.")
    max_open_per_actor: int | None = Field(
        None, ge=1, description="Maximum number of open tasks of one actor. Default: no limit."
    )
    max_running_per_actor: int | None = Field(
        None, ge=1, description="Maximum number of tasks of one actor at once in one process. Default: no limit."
    )
    max_waiting: int = Field(1000, ge=1, description="Maximum number of tasks that wait for answers, per process.")
    keep_open: Seconds = Field(
        1800.0, gt=0, description="How long an agent's process stays open for the next message of its session."
    )
    max_live: int = Field(50, ge=0, description="Maximum number of agents' processes that stay open for a message.")
    approval_expiry: Seconds = Field(12 * 3600.0, gt=0, description="Time until an unanswered question expires.")
    manage_tasks: ManageMode = Field(
        "creator_only",
        description="Who may manage tasks and sessions: only their creator, or with scope_all every operator.",
    )
    owner_access: Literal["file", "socket"] = Field(
        "file", description="How commands get the owner's token: from a file, or from a socket that refuses agents."
    )
    git_filters: list[str] = Field(
        default_factory=list,
        description="Git filters that run in worktrees, such as lfs. Others do not run: they could be an agent's.",
    )
    task_end_program: list[str] = Field(
        default_factory=list,
        description="Program that is started for every ended task, with the task as JSON on standard input.",
    )
    hooks: list[HookEntry] = Field(
        default_factory=list,
        description="Hooks that decide: Python classes as package.module:Class, and tables for programs.",
    )
    silent_after: Seconds = Field(
        1800.0, gt=0, description="Alert after this time without any event of a running task."
    )
    overdue_grace: Seconds = Field(120.0, ge=0, description="Alert if work begins later than this.")
    running_grace: Seconds = Field(
        120.0, ge=0, description="Alert if a task works longer than its timeout and this time."
    )
    waiting_grace: Seconds = Field(
        3600.0, gt=0, description="Alert if a task waits longer for its session, its directory, a slot or an answer."
    )
    escalate_after: Seconds = Field(
        3600.0, ge=0, description="Send a second notice about an alert that nobody acknowledges; 0 means never."
    )
    ping_url: Annotated[str, AfterValidator(_check_ping_url)] | None = Field(
        None, description="Address that the leader calls while all is well, such as https://hc-ping.com/ID."
    )
    ping_every: Seconds = Field(60.0, ge=0.1, description="How often the leader calls ping_url.")
    shutdown_grace: Seconds = Field(5.0, ge=0, description="Time for running tasks to end by themselves on shutdown.")
    detect_agents: bool = Field(True, description="Offer known agent programs on the PATH without configuration.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level in the log.")
    retention: RetentionSettings = Field(
        default_factory=RetentionSettings, description="Age and number of stored records."
    )
    calendars: dict[CalendarName, CalendarSettings] = Field(
        default_factory=dict, description="Days off of automations, by the name of the calendar."
    )
    goals: GoalSettings = Field(default_factory=GoalSettings, description="Defaults and prompts of goals.")
    day_budget: DayBudgetSettings = Field(
        default_factory=DayBudgetSettings, description="Budget of all tasks together for a day."
    )
    on_budget: OnBudget | None = Field(
        None, description="When a budget is spent: stop, or ask. Default: ask if somebody can be asked."
    )
    prices: dict[str, PriceSettings] = Field(default_factory=dict, description="Prices of models, by name.")
    approvals: ApprovalSettings = Field(
        default_factory=ApprovalSettings, description="Rules on the use of tools, for all agents."
    )
    handoffs: HandoffSettings = Field(default_factory=HandoffSettings, description="Limits and defaults of handoffs.")
    event_logs: Annotated[dict[Name, EventLogSettings], AfterValidator(check_event_logs)] = Field(
        default_factory=dict, description="Files to which events are written, by name."
    )
    agents: dict[Name, AgentSettings] = Field(default_factory=dict, description="Agents by name.")
    channels: dict[Name, ChannelSettings] = Field(default_factory=dict, description="Channels by name.")

    def list_calendars(self) -> dict[str, list[str]]:
        """Return the days off of each calendar."""
        return {name: calendar.days for name, calendar in self.calendars.items()}

    def policies(self) -> dict[str, Policy]:
        """Return the rules of each agent that has some."""
        return {name: agent.approvals.policy() for name, agent in self.agents.items() if agent.approvals}

    def graces(self) -> Graces:
        """Return how late work may be before there is an alert."""
        return Graces(overdue=self.overdue_grace, running=self.running_grace, waiting=self.waiting_grace)

    def notices(self) -> dict[str, str]:
        """Return the policy of each channel that has one."""
        return {name: channel.notices for name, channel in self.channels.items() if channel.notices}

    def silence_of(self, agent: str) -> float:
        """Return after how many seconds without an event a running task of this agent is reported as silent."""
        chosen = self.agents.get(agent)
        return (chosen.silent_after if chosen else None) or self.silent_after

    @classmethod
    def load(cls, home: str | os.PathLike[str] | None = None, **overrides: Any) -> Settings:
        """Load the settings of a home directory. `overrides` replace settings of the file and of the environment.

        Raise BadConfig if a setting is wrong.
        """
        directory = _resolve(Path(home or os.environ.get("MIDWATCH_HOME") or "~/.midwatch"))
        file = directory / FILE
        found: dict[str, Any] = {}
        try:
            if unknown := set(overrides) - set(cls.model_fields):
                raise BadConfig(f"unknown settings: {', '.join(sorted(unknown))}; correct their names.")
            found = _merge(_merge(_read_file(file), _read_environment(os.environ)), overrides)
            found["home"] = directory
            return cls.model_validate(found)
        except ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            where = _locate(first, found)
            form = " as JSON" if first["type"] in STRUCTURED else ""
            advice = f"Correct it in {file}, or{form} in a MIDWATCH_* variable."
            raise BadConfig(f"setting {where}: {explain_flaw(first)}. {advice}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise BadConfig(f"{file} is not valid TOML: {problem}. Correct the file.") from None
        except OSError as problem:
            raise BadConfig(f"{file} cannot be read: {problem.strerror}. Correct the rights of the file.") from None


def _locate(flaw: Mapping[str, Any], found: Any) -> str:
    """Return the name of the setting in which pydantic found a flaw, in the settings that were found.

    Its location also has parts that are no names, such as the chosen alternative of a type: they are not in `found`.
    """
    names = []
    for part in flaw["loc"]:
        is_entry = isinstance(found, list | tuple) and isinstance(part, int)
        if is_entry or (isinstance(found, Mapping) and part in found):
            names.append(part)
            found = found[part]
    if flaw["type"] == "missing":
        names.append(flaw["loc"][-1])
    return ".".join(map(str, names))


def _read_file(file: Path) -> dict[str, Any]:
    """Return the settings of the file. Raise BadConfig if a setting does not exist, so that a misspelt one is found."""
    if not file.exists():
        return {}
    with file.open("rb") as opened:
        found = tomllib.load(opened)
    for name in found:
        if name not in Settings.model_fields or name == "home":
            names = ", ".join(sorted(Settings.model_fields.keys() - {"home"}))
            raise BadConfig(f"{file} has an unknown setting {name!r}; correct its name. Known settings: {names}.")
    return found


def _read_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the variables. A variable that names no setting is ignored: it may be for other programs.

    The order of the names puts a table before its settings, so that a setting of its own replaces that of the table.
    """
    found: dict[str, Any] = {}
    for variable, text in sorted((variable.lower(), text) for variable, text in variables.items()):
        name, *inner = variable.removeprefix(PREFIX).split("__")
        if variable.startswith(PREFIX) and name in Settings.model_fields:
            if inner and not isinstance(found.get(name, {}), dict):
                table = f"{PREFIX}{name}".upper()
                raise BadConfig(
                    f"{table} is not a table in JSON, but {variable.upper()} is set, too; correct or unset one."
                )
            value = _read_value(text)
            for part in reversed(inner):
                value = {part: value}
            found = _merge(found, {name: value})
    return found


def _read_value(text: str) -> Any:
    """Return the list or table that the text of a variable describes as JSON. Any other text is returned as it is."""
    if text.lstrip().startswith(("[", "{")):
        with suppress(ValueError, RecursionError):  # not JSON, such as a prompt that begins with {objective}
            return json.loads(text)
    return text


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of two sources. Tables are merged; another value of `above` replaces that of `below`."""
    merged = dict(below)
    for name, value in above.items():
        under = below.get(name)
        merged[name] = _merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def add_agent(home: Path, name: str, section: Mapping[str, Any]) -> Path:
    """Append `[agents.NAME]` to midwatch.toml, leave the rest of the file as it is, and return the path of the file."""
    file = home / FILE
    check_name(name)
    if name in Settings.load(home).agents:
        raise Conflict(f"{file} has an agent {name!r} already; change it there, or choose another name.")
    try:
        before = file.read_text() if file.exists() else ""
        key = json.dumps(name) if "." in name else name
        lines = "".join(
            f"{option} = {json.dumps(value)}\n" for option, value in section.items()
        )  # the JSON of plain values is valid TOML
        text = f"{before.rstrip()}\n\n[agents.{key}]\n{lines}".lstrip()
        AgentSettings.model_validate(tomllib.loads(text)["agents"][name])
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = file.with_suffix(".toml.new")
        fresh.touch(mode=file.stat().st_mode & 0o777 if file.exists() else 0o600)
        fresh.write_text(text)
        fresh.replace(file)
    except tomllib.TOMLDecodeError:
        raise BadConfig(f"{file} cannot be extended by midwatch; add the table [agents.{name}] by hand.") from None
    except OSError as problem:
        raise BadConfig(f"{file} cannot be written: {problem.strerror}. Correct the rights of the file.") from None
    return file
