"""The bodies and queries of requests. An unknown field is an error, so that a misspelt name is reported."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    field_validator,
)

from midwatch.api.body_checks import MAX_TEXTS, Duration, Strict, check_absolute, check_json
from midwatch.base.timetable import MAX_ITEMS
from midwatch.domain import approval, channel
from midwatch.domain.agent import NAME
from midwatch.domain.automation import Automation, ScopeKind, Times
from midwatch.domain.event import KINDS, kinds_of
from midwatch.domain.goal import Goal
from midwatch.domain.handoff import MAX_RETRIES
from midwatch.domain.handoff import Status as HandoffStatus
from midwatch.domain.identity import TokenRole
from midwatch.domain.requests import PRIORITY, Submission
from midwatch.domain.rule import RuleTest
from midwatch.domain.steering import SendMode
from midwatch.domain.task import Status
from midwatch.domain.usage import By
from midwatch.domain.worktree import MAX_DIFF
from midwatch.domain.worktree import Status as WorktreeStatus
from midwatch.services.automation_transfer import NEW_SETTINGS
from midwatch.services.sessions import InterruptMode
from midwatch.wire.bodies import body_of, copy_of
from midwatch.wire.fields import Seconds
from midwatch.wire.flaws import AUTOMATION_ID

Priority = Annotated[int, Field(strict=True, ge=-PRIORITY, le=PRIORITY)]


MAX_WAIT_SECONDS = 15.0  # the timeout of clients is 30


@body_of(Submission, seconds=Duration)
class SubmitBody(Strict):
    """A task to submit."""

    prompt: str = Field(examples=["Say hello"])

    @field_validator("workdir", check_fields=False)
    @classmethod
    def _check_workdir(cls, value: str | None) -> str | None:
        return check_absolute(value)


class WatchdogBody(Strict):
    """Other graces than those of the settings, in seconds or as text such as 5m. With one, nothing is sent."""

    overdue_grace: Seconds | None = Field(None, ge=0, description="Alert if work begins later than this.")
    running_grace: Seconds | None = Field(None, ge=0, description="Alert if a task works this much too long.")
    waiting_grace: Seconds | None = Field(None, ge=0, description="Alert if a task waits longer than this.")


class RetryBody(Strict):
    """Options of a retry."""

    budget: dict[str, Any] | None = Field(
        None, description="New or higher limits. The usage of earlier tries counts, too.", examples=[{"tokens": 400000}]
    )


class AnswerBody(Strict):
    """An answer to a question."""

    choice: str | None = Field(None, description="The name of a choice. Default: yes or no, as the route says.")
    always: bool = Field(False, description="Create a rule that gives this answer from now on.")
    why: str | None = Field(None, max_length=2000, examples=["looks right"])


ROOT = "Outside of a task: the directory of the work, which the paths of rules begin at; by default `workdir`."


class ToolCallBody(Strict):
    """A tool that an agent's program wants to use."""

    tool: str = Field(min_length=1, max_length=500, examples=["Bash"])
    arguments: dict[str, Any] = Field(default_factory=dict, examples=[{"command": "git push"}])
    id: str | None = Field(None, max_length=500, description="The id of the call; a repeated request has the same id.")
    workdir: str | None = Field(None, max_length=4096, description="The directory that the tool starts in.")
    agent: str | None = Field(None, max_length=100, description="Outside of a task: the agent whose rules apply.")
    root: str | None = Field(None, max_length=4096, description=ROOT)
    wait: float = Field(0.0, ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for a decision.")


class SignInBody(Strict):
    """A code or a token to sign in with."""

    code: str | None = Field(None, max_length=200, examples=["mwl_3f9c0a6d51e2"])
    token: str | None = Field(None, max_length=200)


class TokenBody(Strict):
    """A token to create. The default for `actor` is the name of the token."""

    name: str = Field(max_length=63, examples=["ci"])
    role: TokenRole = Field(examples=["operator"])
    actor: str | None = Field(None, max_length=100)


class TaskQuery(Strict):
    """A filter of tasks."""

    status: list[Status] = Field(default_factory=list)
    agent: str | None = None
    session_key: str | None = None
    creator: str | None = None
    tag: list[str] = Field(default_factory=list, max_length=20, description="Only with this tag. Repeatable.")
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
    approvals: dict[str, Any] | None = Field(None, description="Rules for all turns of the session.")


class WorktreeQuery(Strict):
    """A filter of worktrees. Without `status`, only worktrees that still exist."""

    status: list[WorktreeStatus] = Field(default_factory=list)
    before: str | None = None
    limit: int = Field(50, ge=1, le=500)


class DiffQuery(Strict):
    """The maximum number of bytes of a diff."""

    limit: int = Field(1_000_000, ge=1, le=MAX_DIFF)


class MergeBody(Strict):
    """Options of a merge. With `hooks` the hooks of the repository run at the merge, outside of every sandbox."""

    hooks: bool = Field(False, strict=True)


class RemoveBody(Strict):
    """Options of a removal. With `force` the worktree is removed even if work is lost."""

    force: bool = Field(False, strict=True)


class MessageBody(Strict):
    """A message for a conversation."""

    text: str = Field(examples=["And now in French, please."])
    mode: SendMode = Field("after_turn", description="When an agent that is working gets the message.")
    priority: Priority = 0


class InterruptBody(Strict):
    """The way to end the running turn."""

    mode: InterruptMode = Field("abort", description="`abort`: now; `stop`: after a final answer.", examples=["stop"])
    hint: str | None = Field(
        None, description="With `stop`: what the final answer should be about.", examples=["Report your progress."]
    )


class ScreenQuery(Strict):
    """The format of a screen."""

    styled: bool = Field(False, description="Include the rows with escape sequences for colours.")


class KeysBody(Strict):
    """Keys for a terminal."""

    keys: str = Field(min_length=1, max_length=100_000, examples=["y\r"])

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        return value  # any character is allowed: Ctrl-Space is a NUL


class SizeBody(Strict):
    """The size of a terminal."""

    columns: int = Field(ge=20, le=1000, strict=True, examples=[120])
    rows: int = Field(ge=10, le=1000, strict=True, examples=[40])


class EventQuery(Strict):
    """A filter of events. `limit` and `before` are only for pages of JSON, `live` and `state` only for streams."""

    after: int | None = Field(None, ge=0, le=2**62)
    before: int | None = Field(None, ge=0, le=2**62, description="Return the last events before this seq.")
    kind: list[str] = Field(default_factory=list, description="`tool_*` means all kinds that begin with tool_.")
    task_id: str | None = Field(None, min_length=1)
    tree: str | None = Field(None, min_length=1, description="A task or goal, and all work that grew out of it.")
    turn_id: str | None = Field(None, min_length=1)
    session_key: str | None = Field(None, min_length=1)
    agent: str | None = None
    actor: str | None = None
    live: bool = Field(False, description="Include live events, which are never stored.")
    state: bool = Field(False, description="Begin the stream with the state, include live events, cut long texts.")
    limit: int = Field(500, ge=0, le=1000)

    @field_validator("kind")
    @classmethod
    def _check_kinds(cls, value: list[str]) -> list[str]:
        for name in value:
            if not kinds_of(name):
                raise ValueError(f"there is no event kind {name!r}; choose one of {', '.join(sorted(KINDS))}")
        return value


class ApprovalQuery(Strict):
    """A filter of questions."""

    status: approval.Status | Literal["all"] = "pending"
    limit: int = Field(50, ge=1, le=500)


class RuleQuery(Strict):
    """A filter of rules."""

    all: bool = Field(False, description="Include revoked rules.")
    limit: int = Field(500, ge=1, le=1000)


@body_of(RuleTest)
class RuleTestBody(Strict):
    """The use of a tool that is tested."""


class HookTestBody(Strict):
    """An example for a hook: a call of `tool` with these arguments, or a model call.

    `text` is the message to the model, the answer of the model, or the result of the tool.
    """

    seam: Literal["before_model", "after_model", "before_tool", "approve_tool", "after_tool"] = "before_tool"
    tool: str = Field("run_command", min_length=1, max_length=200)
    arguments: dict[str, Any] = Field(default_factory=dict)
    text: str = Field("", max_length=MAX_TEXTS)


class DeliveryQuery(Strict):
    """A filter of deliveries."""

    status: channel.Status | None = None
    task_id: str | None = None
    limit: int = Field(50, ge=1, le=500)


class SessionQuery(Strict):
    """The range of a page of sessions."""

    limit: int = Field(50, ge=1, le=500)
    before: str | None = None


class MessageQuery(Strict):
    """The range of a page of a session's messages."""

    after: int = Field(0, ge=0, le=2**62)
    limit: int = Field(500, ge=1, le=1000)
    html: bool = Field(False, description="Include each text as sanitised HTML.")


class SinceQuery(Strict):
    """The start of a period."""

    since: AwareDatetime | None = Field(None, description="ISO 8601 with a zone. Default: 24 hours ago.")

    @field_validator("since", "until", mode="before", check_fields=False)
    @classmethod
    def _check_format(cls, value: Any) -> Any:
        if isinstance(value, str) and not re.match(r"\d{4}-\d\d-\d\d[Tt ]", value):
            raise ValueError("this is not a time; write it like 2026-01-02T03:04:05Z")
        return value

    @field_validator("since", "until", check_fields=False)
    @classmethod
    def _check_year(cls, value: datetime | None) -> datetime | None:
        if value is not None and not 1970 <= value.year <= 9000:
            raise ValueError("the year must be between 1970 and 9000")
        return value


class UsageQuery(SinceQuery):
    """The period of a usage report, and how its rows are grouped."""

    until: AwareDatetime | None = Field(None, description="ISO 8601 with a zone. Default: now.")
    by: list[By] = Field(["actor", "agent"], max_length=5, description="Group the rows by this field. Repeatable.")
    zone: str | None = Field(None, max_length=100, description="Time zone of the days. Default: the server's.")
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
    keep_anchor: bool = Field(False, description="Count a changed interval from its old anchor instead of from now.")


@copy_of(Automation, NEW_SETTINGS)
class ExportedAutomation(Strict):
    """An exported automation. An import ignores fields that are not settings."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(pattern=AUTOMATION_ID, examples=["am_1"])
    creator: str | None = Field(None, max_length=200)
    status: Literal["active", "paused", "deleted"] = "active"
    paused_why: str | None = Field(None, max_length=2000)
    run_count: int = Field(0, ge=0, le=2**31)


class ImportBody(Strict):
    """Exported automations to import."""

    automations: Annotated[list[ExportedAutomation], FailFast()] = Field(max_length=10_000)


class ExportQuery(Strict):
    """The ids of the automations to export; without ids, all automations that are not deleted."""

    id: list[str] = Field(default_factory=list, max_length=1000)


class AutomationQuery(Strict):
    """A filter of automations."""

    status: Literal["", "all", "active", "paused", "deleted"] = ""
    scope_kind: ScopeKind = "user"
    scope_id: str | None = None
    tag: list[str] = Field(default_factory=list, max_length=20, description="Only with this tag. Repeatable.")
    limit: int = Field(20, ge=1, le=200)


class HistoryQuery(Strict):
    """The maximum number of runs to list."""

    limit: int = Field(20, ge=1, le=200)


class TriggerTestBody(Strict):
    """A trigger to fire by hand, with a payload."""

    trigger_id: str | None = Field(None, max_length=100, description="Default: the first trigger.")
    payload: Annotated[Any, AfterValidator(check_json)] = Field(None, examples=[{"action": "opened"}])


class PreviewQuery(Strict):
    """A schedule to preview: exactly one of `at`, `every` and `cron`."""

    at: str | None = Field(None, max_length=100)
    every: Seconds | None = None
    cron: str | None = Field(None, max_length=200)
    zone: str | None = Field(None, max_length=100)
    days_off: list[str] = Field(default_factory=list, max_length=MAX_ITEMS)
    quiet_hours: list[str] = Field(default_factory=list, max_length=MAX_ITEMS)
    count: int = Field(5, ge=1, le=100)


class DayQuery(Strict):
    """The automations of a day plan. Without `id`, `status` and `limit` select the automations."""

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


class DeclaredRule(Strict):
    """A rule for one agent."""

    name: str = Field(pattern=NAME, examples=["no-push"])
    agent: str = Field(max_length=200, examples=["demo"])
    kind: str | None = None
    command: str | None = Field(None, examples=["git push **"])
    path: str | None = None
    root: str | None = Field(None, max_length=4096, description="Directory that the rule is for. Default: all.")
    tool: str | None = None


class DeclaredRules(Strict):
    """The rules of a file."""

    allow: Annotated[list[DeclaredRule], FailFast()] = Field(default_factory=list, max_length=200)
    deny: Annotated[list[DeclaredRule], FailFast()] = Field(default_factory=list, max_length=200)


class ApplyBody(Strict):
    """The content of a file that declares automations, goals and rules; the keys are the names of the records."""

    set: str = Field(pattern=NAME, examples=["team-a"], description="The name of the set that the file declares.")
    automations: dict[Annotated[str, Field(max_length=200)], AutomationBody] = Field(default_factory=dict)
    goals: dict[Annotated[str, Field(max_length=200)], GoalBody] = Field(default_factory=dict)
    rules: DeclaredRules = DeclaredRules()
    dry_run: bool = Field(False, strict=True, description="Only return the plan.")
    prune: bool = Field(False, strict=True, description="Remove records that the set does not declare any more.")
    adopt: bool = Field(False, strict=True, description="Take over records that exist and belong to nobody's set.")


class DeclarationQuery(Strict):
    """The records to export. Without names and tags, all automations, open goals and declared rules."""

    name: list[str] = Field(default_factory=list, max_length=1000)
    tag: list[str] = Field(default_factory=list, max_length=20)


class GoalQuery(Strict):
    """A filter of goals. `scope` is a user, such as user:ann, or a chat, such as chat:main."""

    status: Literal["", "all", "waiting_for_session", "active", "paused", "complete", "timeout"] = ""
    scope: str = Field("", max_length=1000)
    tag: list[str] = Field(default_factory=list, max_length=20, description="Only with this tag. Repeatable.")
    limit: int = Field(20, ge=1, le=200)


class HandoffMessage(BaseModel):
    """A message of the conversation before the handoff."""

    model_config = ConfigDict(extra="allow")

    role: str = Field(max_length=50)
    content: Any = None


class HandoffSurroundingsBody(Strict):
    """The context that is handed over with the work."""

    conversation_id: str | None = Field(None, max_length=1000)
    messages: Annotated[list[HandoffMessage], FailFast(), AfterValidator(check_json)] = Field(default_factory=list)
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
    """A handoff to create. Without `to`, the type of `task` selects the agent.

    `source_task` is the task whose work is handed over.
    """

    to: str | None = Field(None, min_length=1, max_length=200, examples=["demo"])
    task: HandoffWorkBody | None = Field(None, examples=[{"type": "code", "description": "Fix the failing test"}])
    context: HandoffSurroundingsBody | None = None
    from_agent: str = Field("", max_length=200)
    source_task: str | None = Field(None, max_length=200)
    timeout: Duration | None = None
    max_retries: int = Field(0, strict=True, ge=0, le=MAX_RETRIES)
    nest_history: bool | None = Field(None, strict=True)
    workdir: Annotated[str | None, AfterValidator(check_absolute)] = Field(None, max_length=4096)
    wait: float = Field(0.0, ge=0, le=MAX_WAIT_SECONDS, description="Maximum seconds to wait for the handoff's end.")
    wake: bool = Field(False, strict=True, description="For agents: begin a turn of the source with the result.")


class HandoffQuery(Strict):
    """A filter of handoffs. `agent` is the source or the target; `root` is the first task of a chain of handoffs."""

    status: list[HandoffStatus] = Field(default_factory=list)
    agent: str | None = None
    root: str | None = None
    before: str | None = None
    limit: int = Field(50, ge=1, le=500)


class WaitQuery(Strict):
    """The maximum number of seconds to wait until the handoff has ended."""

    wait: float = Field(0.0, ge=0, le=MAX_WAIT_SECONDS)


class PauseBody(Strict):
    """Whether the open run of an automation, or the running step of a goal, is stopped. Otherwise it goes on."""

    stop: bool = Field(False, strict=True)


class CompleteBody(Strict):
    """The proof that a goal is reached."""

    evidence: str = Field("", max_length=20_000, examples=["the last run of the tests is green"])


class DelayBody(Strict):
    """A delay of the next step, and the reason."""

    duration: Seconds = Field(examples=[1800.0])
    reason: str = Field(max_length=2000, examples=["waiting for the nightly build"])
