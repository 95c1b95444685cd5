"""The bodies and queries of requests. Unknown fields are refused, so that a misspelt name is reported."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, WithJsonSchema, field_validator

from midwatch.domain import approval, channel
from midwatch.domain.automation import Automation, ScopeKind, Times
from midwatch.domain.event import KINDS, kinds_of
from midwatch.domain.goal import Goal
from midwatch.domain.handoff import MAX_RETRIES
from midwatch.domain.handoff import Status as HandoffStatus
from midwatch.domain.identity import Role
from midwatch.domain.requests import PRIORITY, Submission
from midwatch.domain.steering import SendMode
from midwatch.domain.task import Status
from midwatch.domain.usage import By
from midwatch.domain.worktree import MAX_DIFF
from midwatch.domain.worktree import Status as WorktreeStatus
from midwatch.services.automation_transfer import NEW_SETTINGS
from midwatch.services.sessions import InterruptMode
from midwatch.wire.bodies import body_of, copy_of
from midwatch.wire.fields import Seconds

Duration = Annotated[
    Seconds,
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "examples": ["90s", "10m"]}]}),
]
Priority = Annotated[int, Field(strict=True, ge=-PRIORITY, le=PRIORITY)]


MAX_WAIT_SECONDS = 15.0  # clients give up after 30
MAX_DEPTH = 100


def check_absolute(value: str | None) -> str | None:
    """Return the path of a directory. Raise ValueError if it is relative."""
    if value is not None and not Path(value).is_absolute():
        raise ValueError("the working directory must be an absolute path")
    return value


def check_json(value: Any, depth: int = 0) -> Any:
    """Return a JSON value. Raise ValueError if it cannot be stored."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} times")
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a number in it is too large; write it as text")
    elif isinstance(value, dict):
        for name, part in value.items():
            check_text(name)
            check_json(part, depth + 1)
    elif isinstance(value, list):
        for part in value:
            check_json(part, depth + 1)
    elif isinstance(value, BaseModel):
        check_json(value.model_dump(), depth)
    return value


def check_text(value: str) -> str:
    """Return a text. Raise ValueError if it cannot be stored."""
    if "\0" in value:
        raise ValueError("this is not plain text: it has a NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("this is not Unicode text: it has half of a surrogate pair") from None
    return value


class Strict(BaseModel):
    """Base of all bodies and queries."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return check_text(value) if isinstance(value, str) else value


@body_of(Submission, seconds=Duration)
class SubmitBody(Strict):
    """A task to do."""

    prompt: str = Field(examples=["Say hello"])

    @field_validator("workdir", check_fields=False)
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        return check_absolute(value)


class RetryBody(Strict):
    """How to retry a task."""

    budget: dict[str, Any] | None = Field(
        None, description="Limits that are raised or set; earlier tries count.", examples=[{"tokens": 400000}]
    )


class AnswerBody(Strict):
    """An answer to a question."""

    choice: str | None = Field(None, description="The name of a choice; else the yes or no of this route.")
    always: bool = Field(False, description="Create a rule that gives this answer from now on.")
    why: str | None = Field(None, max_length=2000, examples=["looks right"])


class SignInBody(Strict):
    """A code or a token to sign in with."""

    code: str | None = Field(None, max_length=200, examples=["mwl_3f9c0a6d51e2"])
    token: str | None = Field(None, max_length=200)


class TokenBody(Strict):
    """A token to create. Without `actor` its actor has the token's name."""

    name: str = Field(max_length=63, examples=["ci"])
    role: Role = Field(examples=["operator"])
    actor: str | None = Field(None, max_length=100)


class TaskQuery(Strict):
    """Which tasks to list."""

    status: list[Status] = Field(default_factory=list)
    agent: str | None = None
    session_key: str | None = None
    creator: str | None = None
    before: str | None = None
    limit: int = Field(50, ge=1, le=500)


class SessionBody(Strict):
    """A conversation to open."""

    agent: str | None = Field(None, max_length=200, examples=["demo"])
    workdir: str | None = Field(None, max_length=4096)
    worktree: bool = Field(False, strict=True)
    title: str = Field("", examples=["Release notes"])
    key: str | None = Field(None, max_length=1000)
    prompt: str | None = None


class WorktreeQuery(Strict):
    """Which worktrees to list; without a status those that are there."""

    status: list[WorktreeStatus] = Field(default_factory=list)
    before: str | None = None
    limit: int = Field(50, ge=1, le=500)


class DiffQuery(Strict):
    """How many bytes of a diff to show at most."""

    limit: int = Field(1_000_000, ge=1, le=MAX_DIFF)


class RemoveBody(Strict):
    """How to remove a worktree: with `force` also what would be lost."""

    force: bool = Field(False, strict=True)


class MessageBody(Strict):
    """A message for a conversation."""

    text: str = Field(examples=["And now in French, please."])
    mode: SendMode = Field("after_turn", description="When a busy agent gets the message.")
    priority: Priority = 0


class InterruptBody(Strict):
    """How the running turn is to end."""

    mode: InterruptMode = Field("abort", description="At once, or with one closing answer.", examples=["stop"])
    hint: str | None = Field(
        None, description="With stop: the subject of the closing answer.", examples=["Say how far you came."]
    )


class ScreenQuery(Strict):
    """How a terminal is to be shown."""

    styled: bool = Field(False, description="Also as escape sequences that paint it.")


class KeysBody(Strict):
    """Keys for a terminal."""

    keys: str = Field(min_length=1, max_length=100_000, examples=["y\r"])

    @field_validator("*")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return value  # Ctrl-Space is a NUL


class SizeBody(Strict):
    """The size of a terminal."""

    columns: int = Field(ge=20, le=1000, strict=True, examples=[120])
    rows: int = Field(ge=10, le=1000, strict=True, examples=[40])


class EventQuery(Strict):
    """Which events to read. `limit` and `before` count for JSON pages only, `live` and `state` for streams."""

    after: int | None = Field(None, ge=0, le=2**62)
    before: int | None = Field(None, ge=0, le=2**62, description="The last ones before this seq.")
    kind: list[str] = Field(default_factory=list, description="`tool_*` means all that begin so.")
    task_id: str | None = None
    turn_id: str | None = None
    session_key: str | None = None
    agent: str | None = None
    actor: str | None = None
    live: bool = Field(False, description="Also live events, which are never stored.")
    state: bool = Field(False, description="Begin with the state, send live events, cut long texts.")
    limit: int = Field(500, ge=0, le=1000)

    @field_validator("kind")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        for name in value:
            if not kinds_of(name):
                raise ValueError(f"no kind of event is called {name!r}; known kinds: {', '.join(sorted(KINDS))}")
        return value


class ApprovalQuery(Strict):
    """Which questions to list."""

    status: approval.Status | Literal["all"] = "pending"
    limit: int = Field(50, ge=1, le=500)


class RuleQuery(Strict):
    """Which rules to list."""

    all: bool = Field(False, description="Also those that were revoked.")
    limit: int = Field(500, ge=1, le=1000)


class DeliveryQuery(Strict):
    """Which deliveries to list."""

    status: channel.Status | None = None
    task_id: str | None = None
    limit: int = Field(50, ge=1, le=500)


class SessionQuery(Strict):
    """Which sessions to list."""

    limit: int = Field(50, ge=1, le=500)
    before: str | None = None


class MessageQuery(Strict):
    """Which messages of a session to read."""

    after: int = Field(0, ge=0, le=2**62)
    limit: int = Field(500, ge=1, le=1000)
    html: bool = Field(False, description="Also each text as HTML that is safe to show.")


class SinceQuery(Strict):
    """Since when."""

    since: AwareDatetime | None = Field(None, description="ISO 8601 with a zone; the last 24 hours otherwise.")

    @field_validator("since", "until", mode="before", check_fields=False)
    @classmethod
    def _written(cls, value: Any) -> Any:
        if isinstance(value, str) and not re.match(r"\d{4}-\d\d-\d\d[Tt ]", value):
            raise ValueError("write a time such as 2026-01-02T03:04:05Z")
        return value

    @field_validator("since", "until", check_fields=False)
    @classmethod
    def _sensible(cls, value: datetime | None) -> datetime | None:
        if value is not None and not 1970 <= value.year <= 9000:
            raise ValueError("the time is too far away")
        return value


class UsageQuery(SinceQuery):
    """Which ended tasks to add up, and by what."""

    until: AwareDatetime | None = Field(None, description="ISO 8601 with a zone; now otherwise.")
    by: list[By] = Field(["actor", "agent"], max_length=5, description="What the rows are grouped by; may be repeated.")
    zone: str | None = Field(None, max_length=100, description="Where days begin; the server's zone otherwise.")
    session_key: str | None = None
    limit: int = Field(1000, ge=1, le=10_000)


class DirectoryQuery(Strict):
    """A directory on the server's machine."""

    path: str | None = Field(None, max_length=4096)
    hidden: bool = False


@body_of(Automation, Times)
class AutomationBody(Strict):
    """An automation to create."""

    prompt: str
    enabled: bool = True


@body_of(Automation, Times, changes=True)
class AutomationPatch(Strict):
    """Changes of an automation."""

    revision: int | None = Field(None, ge=0)


@copy_of(Automation, NEW_SETTINGS)
class AutomationShot(Strict):
    """An exported automation. Fields that are not settings are ignored."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(pattern=r"^am_[0-9a-z]{1,60}$", examples=["am_1"])
    creator: str | None = Field(None, max_length=200)
    status: Literal["active", "paused", "deleted"] = "active"
    paused_why: str | None = Field(None, max_length=2000)
    run_count: int = Field(0, ge=0, le=2**31)


class ImportBody(Strict):
    """Exported automations to import."""

    automations: list[AutomationShot] = Field(max_length=10_000)


class ExportQuery(Strict):
    """Which automations to export; none means all."""

    id: list[str] = Field(default_factory=list, max_length=1000)


class AutomationQuery(Strict):
    """Which automations to list."""

    status: Literal["", "all", "active", "paused", "deleted"] = ""
    scope_kind: ScopeKind = "user"
    scope_id: str | None = None
    limit: int = Field(20, ge=1, le=200)


class HistoryQuery(Strict):
    """How many to list."""

    limit: int = Field(20, ge=1, le=200)


class PreviewQuery(Strict):
    """A schedule to try: exactly one of at, every and cron."""

    at: str | None = Field(None, max_length=100)
    every: Seconds | None = None
    cron: str | None = Field(None, max_length=200)
    zone: str | None = Field(None, max_length=100)
    count: int = Field(5, ge=1, le=100)


class DayQuery(Strict):
    """The automations of a day plan: those with these ids, or those that a list would have."""

    id: list[str] = Field(default_factory=list, max_length=200)
    status: Literal["", "all", "active", "paused", "deleted"] = ""
    limit: int = Field(20, ge=1, le=200)


@body_of(Goal)
class GoalBody(Strict):
    """A goal to set."""

    objective: str


@body_of(Goal, changes=True)
class GoalPatch(Strict):
    """Changes of a goal."""

    revision: int | None = Field(None, ge=0)


class GoalQuery(Strict):
    """Which goals to list."""

    status: Literal["", "all", "waiting_for_session", "active", "paused", "complete", "timeout"] = ""
    limit: int = Field(20, ge=1, le=200)


class HandoffMessage(BaseModel):
    """A message of the conversation before the handoff."""

    model_config = ConfigDict(extra="allow")

    role: str = Field(max_length=50)
    content: Any = None


class HandoffSurroundingsBody(Strict):
    """The context that is handed over with the work."""

    conversation_id: str | None = Field(None, max_length=1000)
    messages: Annotated[list[HandoffMessage], AfterValidator(check_json)] = Field(default_factory=list)
    variables: Annotated[dict[str, Any], AfterValidator(check_json)] = Field(default_factory=dict)
    parent_handoff: str | None = Field(None, max_length=200)


class HandoffWorkBody(Strict):
    """Work to hand over."""

    type: str = Field("", max_length=200)
    description: str = ""
    input: Annotated[Any, AfterValidator(check_json)] = None
    priority: Priority = 0
    metadata: Annotated[dict[str, Any], AfterValidator(check_json)] = Field(default_factory=dict)


class HandoffBody(Strict):
    """A handoff. Without `to` the best agent for the type of `task` gets it; `source_task` hands that task over."""

    to: str | None = Field(None, min_length=1, max_length=200, examples=["demo"])
    task: HandoffWorkBody | None = Field(None, examples=[{"type": "code", "description": "Fix the failing test"}])
    context: HandoffSurroundingsBody | None = None
    from_agent: str = Field("", max_length=200)
    source_task: str | None = Field(None, max_length=200)
    timeout: Duration | None = None
    max_retries: int = Field(0, strict=True, ge=0, le=MAX_RETRIES)
    nest_history: bool | None = Field(None, strict=True)
    workdir: Annotated[str | None, AfterValidator(check_absolute)] = Field(None, max_length=4096)
    wait: float = Field(0.0, ge=0, le=MAX_WAIT_SECONDS, description="Seconds the reply may wait for its end.")


class HandoffQuery(Strict):
    """Which handoffs to list. `agent` is who handed over or got it, `root` the task they all come from."""

    status: list[HandoffStatus] = Field(default_factory=list)
    agent: str | None = None
    root: str | None = None
    before: str | None = None
    limit: int = Field(50, ge=1, le=500)


class WaitQuery(Strict):
    """How many seconds the reply may wait for an end."""

    wait: float = Field(0.0, ge=0, le=MAX_WAIT_SECONDS)


class CompleteBody(Strict):
    """The proof that a goal is reached."""

    evidence: str = Field("", max_length=20_000, examples=["the last run of the tests is green"])


class DelayBody(Strict):
    """How long a goal waits, and why."""

    duration: Seconds = Field(examples=[1800.0])
    reason: str = Field(max_length=2000, examples=["waiting for the nightly build"])
