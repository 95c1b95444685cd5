"""The tables of `midwatch.toml`: agents, channels, goals, budgets and others. An unknown key in a table is an error."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

from midwatch.base.errors import InvalidInput
from midwatch.base.timetable import DaysOff, is_calendar_name
from midwatch.domain.agent import NAME, AgentCapability
from midwatch.domain.budget import Budget
from midwatch.domain.event import KINDS
from midwatch.domain.event.severity import Severity
from midwatch.domain.goal import (
    CONTINUE,
    DEADLINE_SECONDS,
    JUDGE,
    MAX_STEPS,
    PROGRESS_SECONDS,
    VERIFY,
    WRAP_UP,
    Templates,
)
from midwatch.domain.goal_pace import STEPS_PER_MINUTE
from midwatch.domain.handoff import TIMEOUT_SECONDS, Limits
from midwatch.domain.notice import check_notices
from midwatch.domain.requests import OnBudget
from midwatch.domain.rule import Effect, Policy
from midwatch.live.event_logs import EventLogOptions, match_kind
from midwatch.wire.fields import Seconds, Size

Name = Annotated[str, Field(pattern=NAME)]


def _check_goal_prompt(value: str) -> str:
    if "{objective}" not in value:
        raise ValueError("the prompt must contain {objective}, which midwatch replaces by the goal's objective")
    return value


GoalPrompt = Annotated[str, AfterValidator(_check_goal_prompt)]


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


def _check_notices(value: str | None) -> str | None:
    try:
        return check_notices(value)
    except InvalidInput as problem:
        raise ValueError(str(problem)) from None


class ChannelSettings(BaseModel):
    """One channel, `[channels.NAME]`. Other keys are options of its kind; see the channels page."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(description="Kind of the channel: console, webhook, apprise.")
    notices: Annotated[str | None, AfterValidator(_check_notices)] = Field(
        None, description="Which notices it sends, if the work does not say it. Default: result."
    )

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


def check_event_logs(value: dict[str, EventLogSettings], info: ValidationInfo) -> dict[str, EventLogSettings]:
    """Return the event logs. Raise ValueError if two of them write the same file."""
    names: dict[Path, str] = {}
    for name, settings in value.items():
        path = Path(os.path.realpath(settings.options(name, info.data.get("home", Path("/"))).path))
        if path in names:
            raise ValueError(f"{name} and {names[path]} write the same file; give one of them another `path`")
        names[path] = name
    return value


def _check_calendar_name(name: str) -> str:
    if not is_calendar_name(name):
        raise ValueError("must be lower-case letters, digits, `-` or `_`, begin with a letter, and be no weekday")
    return name


def _check_days(days: list[str]) -> list[str]:
    try:
        DaysOff.parse(days)
    except InvalidInput as problem:
        raise ValueError(str(problem)) from None
    return days


CalendarName = Annotated[str, AfterValidator(_check_calendar_name)]


class CalendarSettings(_Section):
    """A calendar, `[calendars.NAME]`: days off, which automations name in their `days_off`."""

    days: Annotated[list[str], AfterValidator(_check_days)] = Field(
        default_factory=list, description="Days: `2026-12-24`, `2026-12-24..2027-01-02`, `12-25` (each year) or `sat`."
    )


class GoalSettings(_Section):
    """Defaults and prompts of goals, `[goals]`.

    In a prompt `{objective}`, `{now}`, `{deadline}`, `{elapsed}`, `{remaining}`, `{evidence}`, `{result}` are
    replaced; all other text is literal.
    """

    deadline: Seconds = Field(DEADLINE_SECONDS, gt=0, description="Time until the deadline of a goal that sets none.")
    max_steps: int = Field(MAX_STEPS, ge=0, description="Step limit of a goal that sets none; 0 for no limit.")
    steps_per_minute: int = Field(
        STEPS_PER_MINUTE, ge=1, le=60, description="How many steps of a goal may start in any minute."
    )
    progress_every: Seconds = Field(
        PROGRESS_SECONDS, ge=0, description="How often a goal sends its progress at most; 0 for never."
    )
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
    judge_prompt: GoalPrompt | None = Field(
        None, description="Prompt of the agent that judges after each step. Default: built in."
    )

    def templates(self) -> Templates:
        """Return the prompts."""
        return Templates(
            self.continue_prompt or CONTINUE, self.wrap_up_prompt or WRAP_UP, self.verify_prompt or VERIFY,
            self.judge_prompt or JUDGE,
        )  # fmt: skip

    def defaults(self) -> dict[str, Any]:
        """Return the defaults of a new goal."""
        return self.model_dump(
            include={"deadline", "max_steps", "max_tokens", "max_seconds", "max_usd", "progress_every"}
        )


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
