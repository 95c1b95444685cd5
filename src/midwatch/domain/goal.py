"""Goals: an objective that an agent works on, task after task, until it is reached or its deadline passes.

Between two steps a goal uses no slot and no gate. Its steps are in `midwatch.domain.goal_step`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from midwatch.base.errors import InvalidInput
from midwatch.base.schedule import LAST
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import ManagedBy, NoticeRoute, Notices, Scope, ScopeId, check_scope
from midwatch.domain.budget import MOST
from midwatch.domain.changes import Changes
from midwatch.domain.fields import Example, Hidden, Input, JsonRecord
from midwatch.domain.goal_pace import STEPS_PER_MINUTE
from midwatch.domain.notice import check_notices
from midwatch.domain.probe import CHECK_SECONDS, LONGEST_COMMAND, Probe, list_problems
from midwatch.domain.requests import OnBudget, check_name, clean_tags, refuse_first
from midwatch.domain.rule import check_policy
from midwatch.domain.task import Task

Status = Literal["waiting_for_session", "active", "paused", "complete", "timeout"]
Work = Literal["step", "verify", "wrap_up"]

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "waiting_for_session": frozenset({"active", "paused", "complete", "timeout"}),
    "active": frozenset({"paused", "complete", "timeout"}),
    "paused": frozenset({"active", "waiting_for_session", "complete", "timeout"}),
    "complete": frozenset(),
    "timeout": frozenset(),
}
OPEN: frozenset[Status] = frozenset({"waiting_for_session", "active", "paused"})
DEADLINE_SECONDS = 48 * 3600.0
MAX_STEPS = 50
PROGRESS_SECONDS = 900.0
LAST_SECONDS = 3600.0
"""How long a wrap-up, or the verification of a claim from before the deadline, may run after the deadline."""
MAX_OBJECTIVE = 20_000

CONTINUE = """\
You are pursuing a goal over many steps. Work on it now, then say how to go on.

Goal: {objective}
Now: {now}. Deadline: {deadline}. Elapsed: {elapsed}. Remaining: {remaining}.

Before you end this step, check what is really done, then do exactly one of these:
- the goal is reached and you can prove it: run `midwatch goal complete --evidence "what proves it"`
- something must happen first: run `midwatch goal delay DURATION "what you wait for"` (1m to 12h)
- otherwise just end; the next step begins soon."""
WRAP_UP = """\
The deadline of your goal has passed and this is its last step.

Goal: {objective}
Now: {now}. Deadline: {deadline}. Elapsed: {elapsed}.

Start nothing new. Leave things in a safe state and report briefly: what was reached, what is left, where to go on."""
VERIFY = """\
Somebody claims that a goal has been reached. Check it yourself; do not take their word for it.

Goal: {objective}
Evidence given: {evidence}

Answer with REACHED on the first line if it is, or with NOT REACHED and what is missing."""
JUDGE = """\
An agent works on a goal step by step. Judge after its last step whether the goal has been reached. Check it yourself.

Goal: {objective}
Result of the last step: {result}
Evidence given: {evidence}

Answer with REACHED on the first line if it is, or with NOT REACHED and what to do next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal(JsonRecord):
    """The record of a goal.

    `next_run_at` is the time of the next step, if this step does not start at once. `work` is the purpose of the newest
    task. `missing` is what the last verification found missing.
    """

    noun: ClassVar[str] = "goal"

    id: Annotated[str, Example("g_06f2m8yq3kq5r0v9x1w2")]
    objective: Annotated[str, Input("What is to be reached.", example="All tests pass on main")]
    agent: Annotated[
        str,
        Input(
            "Agent to use. Default: the setting default_agent.",
            takes=str | None,
            once=True,
            longest=200,
            example="demo",
        ),
    ]
    status: Status = "active"
    name: Annotated[str | None, Input("Name, to use instead of the id.", longest=200, example="green-tests")] = None
    deadline_at: Annotated[
        int,
        Input(
            "A moment, `in 3d`, or seconds from now.",
            name="deadline", takes=str | float | None, least=0, most=1e11, example="in 2d",
        ),
        Example("2026-01-04T09:00:00.000000Z"),
    ] = 0  # fmt: skip
    next_run_at: int | None = None
    delay_reason: str | None = None
    every_seconds: Annotated[
        float, Input("Start a step this often: 10m, 2h. Default: at the pace of the goal.", seconds=True, most=1e9)
    ] = 0.0
    pace: Annotated[float, Example(4.0)] = 0.0
    """For how many seconds the goal rests after a step. Changed after each step."""
    starts: Hidden[tuple[int, ...]] = ()
    """When the latest steps started: all of one minute, and at least the last one."""
    thread_id: str | None = None
    scope_kind: Scope = "user"
    scope_id: ScopeId = "owner"
    route: NoticeRoute = None
    notices: Notices = None
    creator: Annotated[str | None, Example("owner")] = None
    manage_mode: ManagedBy = "creator_only"
    session_key: Annotated[
        str,
        Input("Session to run in. Default: a new one.", takes=str | None, once=True, longest=1000),
        Example("goal:g_06f2m8yq3kq5r0v9x1w2"),
    ] = ""
    workdir: Annotated[str | None, Input("Directory to work in.", once=True, longest=4096)] = None
    verifier: Annotated[
        str | None, Input("Agent that must confirm that the goal is complete.", once=True, longest=200)
    ] = None
    check_command: Annotated[
        str | None,
        Input(
            "Command that runs after each step; the goal is reached if it exits with 0.",
            name="check", longest=LONGEST_COMMAND, example="make test",
        ),
    ] = None  # fmt: skip
    check_timeout: Annotated[float, Input("How long this command may run.", seconds=True)] = CHECK_SECONDS
    last_check: Mapping[str, Any] | None = None
    """What the last run of this command said, as `midwatch.domain.probe.note_check` makes it."""
    judge: Annotated[
        str | None, Input("Agent that is asked after each step whether the goal is reached.", once=True, longest=200)
    ] = None
    step: Annotated[int, Example(2)] = 0
    work: Work = "step"
    task_id: Hidden[str | None] = None
    """The task whose end decides how the goal continues; None if this task was stopped."""
    last_turn: Hidden[str | None] = None
    """The latest turn of the latest ended task."""
    proposal: Hidden[Literal["complete", "delay"] | None] = None
    """What the agent proposed in the running step; `complete` stays until the agent's claim is verified."""
    evidence: str | None = None
    missing: str | None = None
    errors: int = 0
    alike: Hidden[int] = 0
    """How many steps in a row ended with the same words and used no tool."""
    repeats: Hidden[int] = 0
    """How many steps in a row ended with the same words."""
    last_mark: Hidden[str | None] = None
    max_steps: Annotated[
        int, Input("Pause after this many steps; 0 for no limit.", least=0, most=2**31, example=20)
    ] = 0
    max_tokens: Annotated[int, Input("Pause after this many tokens; 0 for no limit.", least=0, most=2**53)] = 0
    max_seconds: Annotated[float, Input("Pause after this much work: 90m, 24h.", seconds=True)] = 0.0
    max_usd: Annotated[float, Input("Pause after this many dollars; 0 for no limit.", least=0, most=1e9)] = 0.0
    on_budget: Annotated[
        OnBudget | None, Input("When a budget is spent: stop, or ask. Default: ask if somebody can be asked.")
    ] = None
    approvals: Annotated[
        Mapping[str, Any] | None, Input("Rules on the use of tools: default, allow, ask, deny, expires.")
    ] = None
    tags: Annotated[tuple[str, ...], Input("Words to find it by.", longest=100, example=["daily"])] = ()
    progress_every: Annotated[
        float, Input("Send the progress at most this often: 15m, 2h; 0 for never.", seconds=True, most=1e9)
    ] = 0.0
    progress_at: Hidden[int | None] = None
    """When the progress was sent last."""
    tokens: Annotated[int, Example(1200)] = 0
    seconds: Annotated[float, Example(95.5)] = 0.0
    usd: Annotated[float, Example(0.02)] = 0.0
    paused_why: str | None = None
    summary: str | None = None
    created_at: int = 0
    updated_at: int = 0
    completed_at: int | None = None
    revision: Annotated[int, Example(4)] = 0
    idempotency_key: Annotated[
        Hidden[str | None], Input("Idempotency key: the same key and options create one goal.", once=True)
    ] = None
    body_hash: Hidden[str | None] = None
    declared_by: Annotated[str | None, Example(None)] = None
    """The set of the file that declares it; see `midwatch.domain.declaration`."""
    declaration: Hidden[Mapping[str, Any] | None] = None
    """What the file said when it was last applied."""

    @property
    def probe(self) -> Probe | None:
        """Return the command that runs after each step, or None."""
        return Probe("check", self.check_command, self.check_timeout) if self.check_command else None

    @property
    def checker(self) -> str | None:
        """Return the agent that says whether the goal is reached: its verifier or its judge, or None."""
        return self.verifier or self.judge

    @property
    def open(self) -> bool:
        """Return whether the goal has not ended."""
        return self.status in OPEN


class Templates(NamedTuple):
    """The prompts of the tasks of a goal.

    Placeholders such as `{objective}` are replaced; all other text stays as it is.
    """

    go_on: str = CONTINUE
    wrap_up: str = WRAP_UP
    verify: str = VERIFY
    judge: str = JUDGE


class Means(NamedTuple):
    """The terms of the agents that a goal uses, by name, the templates of its prompts, and the limit of its steps."""

    terms: Mapping[str, AgentTerms]
    templates: Templates = Templates()
    steps_per_minute: int = STEPS_PER_MINUTE


async def means_of(
    goal: Goal,
    terms: Callable[[str], Awaitable[AgentTerms]],
    templates: Templates,
    steps_per_minute: int = STEPS_PER_MINUTE,
) -> Means:
    """Return the terms of the agents that a goal uses, together with the templates and the limit of its steps."""
    names = {goal.agent, goal.checker or goal.agent}
    return Means({name: await terms(name) for name in names}, templates, steps_per_minute)


class GoalStore(Protocol):
    """Port: goals. They are written as part of a step, with `Changes`."""

    async def get_goal(self, goal_id: str) -> Goal | None:
        """Return the goal, or None."""

    async def list_named_goals(self, name: str, limit: int = 20) -> list[Goal]:
        """Return the goals with this name, the open ones first, then the newest first."""

    async def list_goals(
        self, statuses: tuple[Status, ...] = (), limit: int = 20, scope: tuple[str, str] | None = None,
        tags: tuple[str, ...] = (),
    ) -> list[Goal]:  # fmt: skip
        """Return goals with one of the `statuses` and all of the `tags`, newest first.

        Without `statuses`, goals of every status are returned. With `scope`, return only goals of this user or chat.
        """

    async def find_goal_key(self, creator: str | None, key: str) -> Goal | None:
        """Return the goal that this creator created with this idempotency key, or None."""

    async def list_declared_goals(self, declared_by: str) -> list[Goal]:
        """Return the goals that a set declares or has declared, even those that have ended, newest first."""

    async def has_open_goals(self) -> bool:
        """Return whether any goal is open. If none is, no goal can be due."""

    async def list_due_goals(self, now: int, limit: int = 64) -> list[Goal]:
        """Return goals that are due, the earliest first.

        Three sorts of goals are due: active goals without a task, when the time of their next step has come; waiting
        goals, when their session has a thread or has ended a task without one; and open goals after their deadline. An
        open goal after its deadline that has a task is returned only if this task must be stopped now.
        """

    async def find_next_goal_at(self) -> int | None:
        """Return the time when the next goal is due, or None."""

    async def find_open_step(self, goal_id: str) -> Task | None:
        """Return the open task of a goal, or None.

        If the work of its last task was transferred, return the open task that continues this work.
        """

    async def list_goal_steps(self, goal_id: str, limit: int = 20) -> list[Task]:
        """Return the tasks of a goal, newest first."""

    async def delete_goal(self, goal_id: str, revision: int, changes: Changes) -> bool:
        """Remove a goal and write `changes`.

        Return False, and write nothing, if the goal was changed meanwhile or does not exist any more.
        """


def parse_scope(text: str) -> tuple[str, str]:
    """Read a scope, such as user:ann or chat:main. Raise InvalidInput for any other text."""
    kind, _, name = text.strip().partition(":")
    if kind not in ("user", "chat") or not name.strip():
        raise InvalidInput("a scope is user:NAME or chat:SESSION; write one of them.", field="scope")
    return kind, name.strip()


# -- pure rules ----------------------------------------------------------------------------------------------------


def normalise(goal: Goal) -> Goal:
    """Return the goal in the form in which it is stored, without blanks around its texts."""
    return replace(
        goal,
        objective=goal.objective.strip(),
        scope_id=goal.scope_id.strip(),
        session_key=goal.session_key.strip() or f"goal:{goal.id}",
        name=(goal.name or "").strip() or None,
        approvals=check_policy(goal.approvals),
        notices=check_notices(goal.notices),
        tags=clean_tags(goal.tags),
    )


def validate(goal: Goal) -> None:
    """Raise InvalidInput if a field of the goal is not valid."""
    check_scope(goal)
    refuse_first(
        ("objective", not goal.objective, "the objective is empty; describe what to reach."),
        ("objective", len(goal.objective) > MAX_OBJECTIVE, f"write an objective of up to {MAX_OBJECTIVE} characters."),
        ("status", goal.status not in TRANSITIONS, f"`status` must be one of: {', '.join(TRANSITIONS)}."),
        check_name(goal.name, "g_"),
        ("judge", bool(goal.judge and goal.verifier), "name a judge or a verifier, but not both."),
        ("every_seconds", goal.every_seconds < 0, "`every_seconds` must be above 0, or 0 for the goal's own pace."),
        ("progress_every", goal.progress_every < 0, "`progress_every` must be above 0, or 0 for never."),
        ("max_steps", goal.max_steps < 0, "`max_steps` must be above 0, or 0 for no limit."),
        ("max_tokens", goal.max_tokens < 0, "`max_tokens` must be above 0, or 0 for no limit."),
        ("max_seconds", goal.max_seconds < 0, "`max_seconds` must be above 0, or 0 for no limit."),
        ("max_usd", not 0 <= goal.max_usd <= MOST, "`max_usd` must be above 0, or 0 for no limit."),
        *list_problems("check", goal.check_command, goal.check_timeout),
        ("check", bool(goal.check_command and goal.checker), "a check decides alone; leave out verifier and judge."),
        ("deadline", goal.deadline_at <= goal.created_at, "the deadline is in the past; choose a later one."),
        ("deadline", goal.deadline_at >= LAST, "the deadline must be before the year 9999; choose an earlier one."),
    )


# -- ends and pauses -------------------------------------------------------------------------------------------------
