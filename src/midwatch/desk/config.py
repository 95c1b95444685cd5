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
    ValidationInfo,
    model_validator,
)

from midwatch.base.directories import expand_user
from midwatch.base.errors import BadConfig, Conflict, InvalidInput
from midwatch.desk.hook_settings import HookEntry
from midwatch.domain.agent import NAME, AgentCapability, check_name
from midwatch.domain.automation import ManageMode
from midwatch.domain.budget import Budget
from midwatch.domain.event import KINDS
from midwatch.domain.event.severity import Severity
from midwatch.domain.goal import CONTINUE, DEADLINE_SECONDS, VERIFY, WRAP_UP, Templates
from midwatch.domain.handoff import TIMEOUT_SECONDS, Limits
from midwatch.domain.identity import TokenRole
from midwatch.domain.requests import OnBudget
from midwatch.domain.rule import Effect, Policy
from midwatch.live.event_logs import EventLogOptions, match_kind
from midwatch.wire.fields import Seconds, Size
from midwatch.wire.flaws import HEADER, STRUCTURED, explain_flaw

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


def _check_goal_prompt(value: str) -> str:
    if "{objective}" not in value:
        raise ValueError("the prompt must contain {objective}, which midwatch replaces by the goal's objective")
    return value


Header = Annotated[str, Field(pattern=HEADER)]
Database = Annotated[str, BeforeValidator(_check_database)]
GoalPrompt = Annotated[str, AfterValidator(_check_goal_prompt)]
Name = Annotated[str, Field(pattern=NAME)]


class _Section(BaseModel):
    """Base of a table in midwatch.toml. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")


class ApprovalSettings(_Section):
    """Rules on the use of tools, `[approvals]` and `[agents.NAME.approvals]`; see the approvals page."""

    default: Effect | None = Field(
        None, description="What happens if no rule of the table applies. Default: the tool decides whether it asks."
    )
    allow: list[dict[str, Any]] = Field(
        default_factory=list, description="Rules that allow: tables of tool, agent, kind, path, command and host."
    )
    ask: list[dict[str, Any]] = Field(default_factory=list, description="Rules that ask a person; stronger than allow.")
    deny: list[dict[str, Any]] = Field(default_factory=list, description="Rules that deny; they are the strongest.")
    expires: Seconds | None = Field(
        None, gt=0, description="Time until an unanswered question expires. Default: the setting approval_expiry."
    )

    @model_validator(mode="after")
    def _check_policy(self) -> ApprovalSettings:
        try:
            self.policy()
        except InvalidInput as problem:
            raise ValueError(str(problem)) from None
        return self

    def policy(self) -> Policy:
        """Return the rules."""
        return Policy.from_data(self.model_dump())


def _check_budget(value: Any) -> Any:
    try:
        return Budget.from_data(value).data()
    except InvalidInput as problem:
        raise ValueError(str(problem)) from None


class DayBudgetSettings(_Section):
    """The budget of one day in the host's time zone, `[day_budget]` and `day_budget` of an agent."""

    tokens: int | None = Field(None, gt=0, description="Input and output tokens. Default: no limit.")
    usd: float | None = Field(None, gt=0, description="US dollars, counted where prices are known. Default: no limit.")

    def budget(self) -> Budget:
        """Return the budget."""
        return Budget(tokens=self.tokens, usd=self.usd)


class PriceSettings(_Section):
    """The prices of a model, `[prices."MODEL"]`: US dollars per million tokens. MODEL is `provider:model` or a name."""

    input: float = Field(ge=0, description="Price of input tokens.")
    output: float = Field(ge=0, description="Price of output tokens.")
    cached: float | None = Field(None, ge=0, description="Price of cached input tokens. Default: as `input`.")


class CapabilitySettings(_Section):
    """Work that an agent accepts by handoff, `[[agents.NAME.capabilities]]`; see the handoffs page."""

    name: str = Field(min_length=1, max_length=200, description="Name of the capability.")
    description: str = Field("", description="Description for lists and for other agents.")
    task_types: list[str] = Field(default_factory=list, description="Types of work; none means all types.")
    priority: int = Field(0, ge=-1000, le=1000, description="The agent with the highest priority is chosen.")

    def capability(self) -> AgentCapability:
        """Return the capability of the agent."""
        types = tuple(self.task_types)
        return AgentCapability(name=self.name, description=self.description, task_types=types, priority=self.priority)


class AgentSettings(BaseModel):
    """One agent, `[agents.NAME]`. Other keys are options of its kind; see the agents page."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(
        "command",
        description="One of the kinds below, or package.module:Class of your own code. Without `kind` and `argv`, the "
        "section changes the demo agent, or the program of this name that midwatch has found.",
    )
    timeout: Seconds | None = Field(None, gt=0, description="Time limit of a task. Default: that of its kind.")
    on_crash: Literal["resume", "rerun", "fail"] | None = Field(
        None, description="What happens to a task when its process dies. Default: that of its kind."
    )
    max_attempts: int | None = Field(
        None, ge=1, le=100, description="How often a task is tried when it fails temporarily."
    )
    slots: int | None = Field(None, ge=1, le=10_000, description="Maximum number of its tasks at once, per process.")
    silent_after: Seconds | None = Field(
        None, gt=0, description="Alert after this time without any event. Default: the setting silent_after."
    )
    share_workdir: bool | None = Field(
        None, description="Whether its tasks may share a directory with other tasks. Default: coding agents do not."
    )
    sandbox: Literal["none", "bwrap"] | Annotated[list[str], Field(min_length=1)] = Field(
        "none",
        description="The sandbox of its programs: none, bwrap, or the command line of another sandbox.",
    )
    sandbox_paths: list[str] = Field(default_factory=list, description="More paths that it may write, with bwrap.")
    sandbox_read: list[str] = Field(default_factory=list, description="Hidden paths that it may read, with bwrap.")
    network: Literal["open", "none", "proxy"] = Field(
        "open", description="The network of its programs, with bwrap: open, none, or only the hosts of a list (proxy)."
    )
    network_hosts: list[str] = Field(
        default_factory=list, description="Hosts that the proxy connects to: a name, *.name, or either with a port."
    )
    memory: Size | None = Field(
        None, ge=1 << 20, description="Memory that the programs of a task may use, such as 4G. Default: no limit."
    )
    pids: int | None = Field(
        None, ge=1, description="Processes and threads that the programs of a task may have. Default: no limit."
    )
    submits: bool | None = Field(
        None, description="Whether it may submit tasks and automations. Default: only with the tool desk."
    )
    description: str = Field("", description="Description for lists.")
    approvals: ApprovalSettings | None = Field(None, description="Rules on its use of tools.")
    budget: Annotated[dict[str, Any] | None, BeforeValidator(_check_budget)] = Field(
        None, description="What each of its tasks may spend: tokens, usd, steps, seconds. Default: no limit."
    )
    on_budget: OnBudget | None = Field(
        None, description="When a budget is spent: stop, or ask. Default: the setting of the desk."
    )
    day_budget: DayBudgetSettings | None = Field(None, description="Limits of all its tasks together in one day.")
    capabilities: list[CapabilitySettings] = Field(
        default_factory=list, description="Work that it accepts by handoff; none means only work that names it."
    )
    handoffs: bool | list[Any] = Field(
        True, description="Whether it accepts handoffs. For kind llm also: the agents that it may hand over to."
    )

    def complete(self, found: Mapping[str, Any]) -> AgentSettings:
        """Return these settings with those of the agent that midwatch has `found`, unless they name a kind or argv."""
        if not self.model_fields_set.isdisjoint({"kind", "argv"}):
            return self
        return self.model_copy(update={name: found[name] for name in found.keys() - self.model_fields_set})

    def options(self) -> dict[str, Any]:
        """Return the options of its kind."""
        own = {} if isinstance(self.handoffs, bool) else {"handoffs": self.handoffs}
        return {**(self.model_extra or {}), **own}


class ChannelSettings(BaseModel):
    """One channel, `[channels.NAME]`. Other keys are options of its kind; see the channels page."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(description="Kind of the channel: console, webhook, apprise.")

    def options(self) -> dict[str, Any]:
        """Return the options of its kind."""
        return dict(self.model_extra or {})


class RetentionSettings(_Section):
    """How long ended tasks and events are kept, `[retention]`."""

    tasks: int = Field(10_000, ge=0, description="Maximum number of ended tasks, with full results.")
    task_age: Seconds = Field(30 * 86400.0, gt=0, description="Ended tasks older than this are removed.")
    events: int = Field(1_000_000, ge=1000, description="Maximum number of stored events.")
    event_age: Seconds = Field(30 * 86400.0, gt=0, description="Events older than this are removed.")


def _check_kinds(value: list[str]) -> list[str]:
    for name in value:
        if not any(match_kind(known, (name,)) for known in KINDS):
            raise ValueError(f"no kind of event matches {name!r}; the page about events lists all kinds")
    return value


def _check_log_path(value: str | None) -> str | None:
    if value is not None and ("\0" in value or not re.search(r"[^/]\.jsonl$", value)):
        raise ValueError("the name of the file must end with .jsonl, such as logs/audit.jsonl")
    if value is not None and os.path.normpath(value).startswith("../"):
        raise ValueError("a relative path begins in the home and cannot leave it; write an absolute path instead")
    if value is not None and os.path.expanduser(value).startswith("~"):  # noqa: PTH111 - it accepts unknown users
        raise ValueError("the user after `~` is not known on this machine; write an absolute path")
    return value


EventKinds = Annotated[list[str], AfterValidator(_check_kinds)]


class EventLogSettings(_Section):
    """A file to which events are written as JSON lines, `[event_logs.NAME]`; see the events page."""

    path: Annotated[str | None, AfterValidator(_check_log_path)] = Field(
        None, description="Its file, relative to the home; the name ends with .jsonl. Default: NAME.jsonl."
    )
    include: EventKinds = Field(
        default_factory=list, description="Kinds of events to write, such as task_*. Default: all."
    )
    exclude: EventKinds = Field(default_factory=list, description="Kinds of events that are not written.")
    severity: Severity = Field("debug", description="Lowest severity of the events to write.")
    max_bytes: Size = Field(10 << 20, ge=1024, description="Size at which a new file begins, such as 10M.")
    keep: int = Field(5, ge=0, le=1000, description="Number of full files that are kept: NAME.jsonl.1 is the newest.")

    def options(self, name: str, home: Path) -> EventLogOptions:
        """Return the options of the writer."""
        return EventLogOptions(
            path=home / Path(self.path or f"{name}.jsonl").expanduser(), include=tuple(self.include),
            exclude=tuple(self.exclude), severity=self.severity, max_bytes=self.max_bytes, keep=self.keep,
        )  # fmt: skip


def _check_event_logs(value: dict[str, EventLogSettings], info: ValidationInfo) -> dict[str, EventLogSettings]:
    names: dict[Path, str] = {}
    for name, settings in value.items():
        path = Path(os.path.realpath(settings.options(name, info.data.get("home", Path("/"))).path))
        if path in names:
            raise ValueError(f"{name} and {names[path]} write the same file; give one of them another `path`")
        names[path] = name
    return value


class GoalSettings(_Section):
    """Defaults and prompts of goals, `[goals]`.

    In a prompt `{objective}`, `{now}`, `{deadline}`, `{elapsed}`, `{remaining}`, `{evidence}` are replaced; all other
    text is literal.
    """

    deadline: Seconds = Field(DEADLINE_SECONDS, gt=0, description="Time until the deadline of a goal that sets none.")
    max_steps: int = Field(0, ge=0, description="Step limit of a goal that sets none; 0 for no limit.")
    max_tokens: int = Field(0, ge=0, description="Token limit of a goal that sets none; 0 for no limit.")
    max_seconds: Seconds = Field(
        0.0, ge=0, description="Limit on working time of a goal that sets none; 0 for no limit."
    )
    max_usd: float = Field(0.0, ge=0, description="Limit in dollars of a goal that sets none; 0 for no limit.")
    continue_prompt: GoalPrompt | None = Field(None, description="Prompt of each step. Default: built in.")
    wrap_up_prompt: GoalPrompt | None = Field(
        None, description="Prompt of the last step, after the deadline. Default: built in."
    )
    verify_prompt: GoalPrompt | None = Field(
        None, description="Prompt of the agent that verifies a claim. Default: built in."
    )

    def templates(self) -> Templates:
        """Return the prompts."""
        return Templates(self.continue_prompt or CONTINUE, self.wrap_up_prompt or WRAP_UP, self.verify_prompt or VERIFY)

    def defaults(self) -> dict[str, Any]:
        """Return the defaults of a new goal."""
        return self.model_dump(include={"deadline", "max_steps", "max_tokens", "max_seconds", "max_usd"})


class HandoffSettings(_Section):
    """Limits of handoffs, `[handoffs]`."""

    depth: int = Field(Limits().depth, ge=1, le=100, description="Maximum length of a chain of handoffs.")
    revisits: int = Field(
        Limits().revisits, ge=0, le=100, description="How often work may return to an agent that already had it."
    )
    total: int = Field(Limits().total, ge=1, le=100_000, description="Maximum number of handoffs from one task.")
    timeout: Seconds = Field(TIMEOUT_SECONDS, gt=0, description="Time limit of a handoff that sets none.")
    nest_history: bool = Field(False, description="Whether the earlier conversation is passed on as one message.")

    def limits(self) -> Limits:
        """Return the limits of the handoff service."""
        return Limits(self.depth, self.revisits, self.total)


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
    notify: str | None = Field(None, description="Route of a task that names none: `channel` or `channel:target`.")
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
    shutdown_grace: Seconds = Field(5.0, ge=0, description="Time for running tasks to end by themselves on shutdown.")
    detect_agents: bool = Field(True, description="Offer known agent programs on the PATH without configuration.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level in the log.")
    retention: RetentionSettings = Field(
        default_factory=RetentionSettings, description="Age and number of stored records."
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
    event_logs: Annotated[dict[Name, EventLogSettings], AfterValidator(_check_event_logs)] = Field(
        default_factory=dict, description="Files to which events are written, by name."
    )
    agents: dict[Name, AgentSettings] = Field(default_factory=dict, description="Agents by name.")
    channels: dict[Name, ChannelSettings] = Field(default_factory=dict, description="Channels by name.")

    def policies(self) -> dict[str, Policy]:
        """Return the rules of each agent that has some."""
        return {name: agent.approvals.policy() for name, agent in self.agents.items() if agent.approvals}

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
