"""Goals: an objective that an agent works on, task after task, until it is reached or its deadline passes.

Between two steps a goal uses no slot and no gate. `advance` computes how a goal continues after a step; the result is
written together with the end of that step.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from midwatch.base.clock import SECOND, iso
from midwatch.base.durations import duration
from midwatch.base.errors import Conflict, InvalidInput
from midwatch.base.schedule import LAST
from midwatch.base.text import cut
from midwatch.domain.account import Account
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import ManagedBy, NoticeRoute, Scope, ScopeId, check_scope
from midwatch.domain.budget import MOST, Budget, format_amount
from midwatch.domain.changes import Changes, Update, change_record, event_about, update_record
from midwatch.domain.channel import notify
from midwatch.domain.event import GoalCompleted, GoalDelayed, GoalPaused, GoalStep, GoalTimedOut, Payload
from midwatch.domain.fields import Example, Hidden, Input, JsonRecord
from midwatch.domain.lineage import extend_path, latest_turn
from midwatch.domain.requests import OnBudget, refuse_first
from midwatch.domain.rule import check_policy
from midwatch.domain.task import AUTOMATION_PAUSES, Task, correlate, new_task, submit_task
from midwatch.domain.task_step import EndedAttempt

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
LONGEST_DELAY = 12 * 3600.0
SHORTEST_DELAY = 60.0
MOST_ERRORS = 5
MOST_ALIKE = 3
"""After this many steps with the same text and without a tool, the goal counts as stuck in a loop."""
LAST_SECONDS = 3600.0
"""How long a wrap-up, or the verification of a claim from before the deadline, may run after the deadline."""
MAX_OBJECTIVE = 20_000
OBJECTIVE_SHOWN = 200
TEXT_SHOWN = 500

CONTINUE = """\
You are pursuing a goal over many steps. Work on it now, then say how to go on.

Goal: {objective}
Now: {now}. Deadline: {deadline}. Elapsed: {elapsed}. Remaining: {remaining}.

Before you end this step, check what is really done, then do exactly one of these:
- the goal is reached and you can prove it: run `midwatch goal complete --evidence "what proves it"`
- something must happen first: run `midwatch goal delay DURATION "what you wait for"` (1m to 12h)
- otherwise just end; the next step begins at once."""
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
MISSING = "\n\nIt was claimed before that the goal is reached. A check found that it is not: {missing}"
PLACEHOLDER = re.compile(r"\{(objective|now|deadline|elapsed|remaining|evidence)\}")


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
    thread_id: str | None = None
    scope_kind: Scope = "user"
    scope_id: ScopeId = "owner"
    route: NoticeRoute = None
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
    tokens: Annotated[int, Example(1200)] = 0
    seconds: Annotated[float, Example(95.5)] = 0.0
    usd: Annotated[float, Example(0.02)] = 0.0
    paused_why: str | None = None
    summary: str | None = None
    created_at: int = 0
    updated_at: int = 0
    completed_at: int | None = None
    revision: Annotated[int, Example(4)] = 0

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


class Means(NamedTuple):
    """The terms of the agents that a goal uses, by name, and the templates of the goal's prompts."""

    terms: Mapping[str, AgentTerms]
    templates: Templates = Templates()


async def means_of(goal: Goal, terms: Callable[[str], Awaitable[AgentTerms]], templates: Templates) -> Means:
    """Return the terms of the agents that a goal uses, together with the templates of the goal's prompts."""
    return Means({name: await terms(name) for name in {goal.agent, goal.verifier or goal.agent}}, templates)


class GoalStore(Protocol):
    """Port: goals. They are written as part of a step, with `Changes`."""

    async def get_goal(self, goal_id: str) -> Goal | None:
        """Return the goal, or None."""

    async def find_open_goal(self, scope: tuple[str, str]) -> Goal | None:
        """Return the open goal of a user or a chat, or None. A scope has at most one open goal."""

    async def list_goals(self, statuses: tuple[Status, ...] = (), limit: int = 20) -> list[Goal]:
        """Return goals with one of the `statuses`, newest first; without `statuses` return all goals."""

    async def has_open_goals(self) -> bool:
        """Return whether any goal is open. If none is, no goal can be due."""

    async def list_due_goals(self, now: int, limit: int = 64) -> list[Goal]:
        """Return goals that are due, the earliest first.

        Three sorts of goals are due: active goals without a task, when the time of their next step has come; waiting
        goals, when their session has a thread; and open goals after their deadline. An open goal after its deadline
        that has a task is returned only if this task must be stopped now.
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


# -- pure rules ----------------------------------------------------------------------------------------------------


def normalise(goal: Goal) -> Goal:
    """Return the goal in the form in which it is stored, without blanks around its texts."""
    return replace(
        goal,
        objective=goal.objective.strip(),
        scope_id=goal.scope_id.strip(),
        session_key=goal.session_key.strip() or f"goal:{goal.id}",
        approvals=check_policy(goal.approvals),
    )


def validate(goal: Goal) -> None:
    """Raise InvalidInput if a field of the goal is not valid."""
    check_scope(goal)
    refuse_first(
        ("objective", not goal.objective, "the objective is empty; describe what to reach."),
        ("objective", len(goal.objective) > MAX_OBJECTIVE, f"write an objective of up to {MAX_OBJECTIVE} characters."),
        ("status", goal.status not in TRANSITIONS, f"`status` must be one of: {', '.join(TRANSITIONS)}."),
        ("max_steps", goal.max_steps < 0, "`max_steps` must be above 0, or 0 for no limit."),
        ("max_tokens", goal.max_tokens < 0, "`max_tokens` must be above 0, or 0 for no limit."),
        ("max_seconds", goal.max_seconds < 0, "`max_seconds` must be above 0, or 0 for no limit."),
        ("max_usd", not 0 <= goal.max_usd <= MOST, "`max_usd` must be above 0, or 0 for no limit."),
        ("deadline", goal.deadline_at <= goal.created_at, "the deadline is in the past; choose a later one."),
        ("deadline", goal.deadline_at >= LAST, "the deadline must be before the year 9999; choose an earlier one."),
    )


def prompt_of(goal: Goal, work: Work, now: int, templates: Templates) -> str:
    """Return the prompt for the next task of a goal.

    Only placeholders of the template are replaced; braces in the objective and in the evidence stay as they are.
    """
    text = {"step": templates.go_on, "wrap_up": templates.wrap_up, "verify": templates.verify}[work]
    values = {
        "now": iso(now), "deadline": iso(goal.deadline_at), "elapsed": duration((now - goal.created_at) / SECOND),
        "remaining": duration(max(0, goal.deadline_at - now) / SECOND), "evidence": goal.evidence or "none",
        "objective": goal.objective,
    }  # fmt: skip
    text = PLACEHOLDER.sub(lambda match: str(values[match[1]]), text)
    return text + MISSING.replace("{missing}", goal.missing) if work == "step" and goal.missing else text


def begin(goal: Goal, work: Work, now: int, means: Means, **fields: Any) -> Changes:
    """Return the step that begins the next task of a goal; `fields` are other fields of the goal to change."""
    after = replace(goal, **fields)
    number = goal.step + (1 if work == "step" else 0)
    agent = goal.verifier if work == "verify" and goal.verifier else goal.agent
    session = f"goal:{goal.id}|thread:verify-{number}" if work == "verify" else goal.session_key
    terms = means.terms[agent]
    task = new_task(
        now, prompt_of(after, work, now, means.templates), agent, session, cause="goal", cause_id=goal.id,
        creator=goal.creator, workdir=goal.workdir, dir_key=terms.dir_key(goal.workdir),
        timeout_seconds=_limit(after, work, now, terms.timeout_seconds), on_crash=terms.on_crash, max_attempts=1,
        budget=Budget.from_record(terms.budget).data(), account_id=goal.id,
        on_budget=choose_mode(goal, terms), approvals=goal.approvals,
        internal_key=f"{goal.id}#{work}:{number}:{goal.revision}", parent_turn_id=after.last_turn, source="goal",
    )  # fmt: skip
    task = task._replace(trace_path=extend_path(goal.id, task.id))
    new = {**BETWEEN, **fields, "step": number, "work": work, "task_id": task.id}
    begun = event_about(goal, GoalStep(goal_id=goal.id, step=number, work=work, task_id=task.id), now, task_id=task.id)
    step = Changes(updates=(update_record(goal, now, **new),), events=(begun._replace(**correlate(task)),))
    return step.plus(submit_task(task, now))


BETWEEN: Mapping[str, Any] = {"proposal": None, "next_run_at": None, "delay_reason": None}
"""Fields that are reset when a step begins or the goal stops."""


def _limit(goal: Goal, work: Work, now: int, limit: float | None) -> float | None:
    """Return for how many seconds the task may work.

    A step may work only until the deadline.
    """
    limits = [] if limit is None else [limit]
    if work == "step":
        limits.append((goal.deadline_at - now) / SECOND)
    return min(limits, default=None)


def limits_of(goal: Goal) -> Budget:
    """Return the limits of the goal's account. They apply to its steps and to all work that grows out of them."""
    return Budget(tokens=goal.max_tokens or None, usd=goal.max_usd or None, seconds=goal.max_seconds or None)


def raise_goal(goal: Goal, limits: Budget, now: int) -> Update:
    """Return the update that gives a goal the limits of its account, after these were raised."""
    fields = {f"max_{name}": most for name, most in (limits.data() or {}).items() if name != "steps"}
    return update_record(goal, now, **fields)


def choose_mode(goal: Goal, terms: AgentTerms) -> OnBudget:
    """Return what happens when the budget of a goal is spent."""
    return terms.mode_of(goal.on_budget, askable=bool(goal.route or goal.creator))


def open_goal_account(goal: Goal, terms: AgentTerms) -> Account:
    """Return the account of a new goal."""
    limits = limits_of(goal).data() or {}
    return Account(
        id=goal.id, scope="goal", limits=limits, on_budget=choose_mode(goal, terms), created_at=goal.created_at
    )


def wake(goal: Goal, now: int, means: Means, thread_id: str | None = None) -> Changes:
    """Return the step that continues a goal that is due and has no task."""
    if now >= goal.deadline_at and (goal.status != "active" or goal.work == "wrap_up"):
        return time_out_goal(goal, now)
    if goal.status == "waiting_for_session":
        return _go_on(goal, now, means, status="active", thread_id=thread_id)
    if goal.work == "verify" and goal.proposal == "complete" and now < goal.deadline_at:
        return begin(goal, "verify", now, means)
    return _go_on(goal, now, means)


def _go_on(goal: Goal, now: int, means: Means, *, asks: bool = False, **fields: Any) -> Changes:
    """Return the step with which a goal goes on.

    It begins the next task, now or, if the goal was delayed, later. If the deadline has passed or the budget is spent,
    it ends or pauses the goal. With `asks`, the next task begins although the budget is spent, and asks people first.
    """
    if now >= goal.deadline_at:
        return begin(goal, "wrap_up", now, means, **fields) if goal.step else time_out_goal(goal, now, **fields)
    over = over_budget(replace(goal, **fields))
    if over is not None and not (asks and over.askable):
        return pause_goal(goal, now, over.why, remedy=over.remedy, **fields)
    if goal.next_run_at is not None and goal.next_run_at > now:
        return Changes(updates=(update_record(goal, now, **{"proposal": None, **fields}),))
    return begin(goal, "step", now, means, **fields)


def advance(goal: Goal, ended: EndedAttempt, now: int, means: Means) -> Changes:
    """Return the step that continues a goal after one of its tasks has ended."""
    task = ended.task
    spent = _add_spending(goal, ended)
    if goal.status != "active" or task.id != goal.task_id:
        return Changes(updates=(update_record(goal, now, **spent),))
    if goal.work != "verify" and task.status == "done" and task.result:
        spent["summary"] = task.result
    late = now >= goal.deadline_at
    if goal.work == "wrap_up" and late:
        return time_out_goal(goal, now, **spent)
    if task.status == "cancelled" and not late:
        return pause_goal(goal, now, "its running step was stopped", **spent)
    if goal.work == "verify":
        return _judge_claim(goal, task, now, means, spent)
    if goal.proposal == "complete":
        if goal.verifier:
            return begin(goal, "verify", now, means, errors=0, **_count_alike(goal, ended), **spent)
        return complete_goal(goal, now, **spent)
    if late or over_budget(replace(goal, **spent)):
        return _go_on(goal, now, means, asks=ended.asks and task.outcome != "budget", **spent)
    if task.status == "failed":
        return _retry_later(goal, task, now, spent)
    if goal.proposal == "delay":  # the agent waits for something, so equal texts are no loop
        return _go_on(goal, now, means, errors=0, alike=0, last_mark=None, **spent)
    spent |= {"errors": 0, **_count_alike(goal, ended)}
    if spent["alike"] >= MOST_ALIKE:
        return pause_goal(goal, now, f"{MOST_ALIKE} steps ended with the same words and used no tool", **spent)
    return _go_on(goal, now, means, **spent)


def _count_alike(goal: Goal, ended: EndedAttempt) -> dict[str, Any]:
    """Return the fields that count how many steps in a row ended with the same text and used no tool."""
    if ended.tools:
        return {"alike": 0, "last_mark": None}
    mark = hashlib.sha256((ended.task.result or "").strip().encode()).hexdigest()[:16]
    return {"alike": goal.alike + 1 if mark == goal.last_mark else 1, "last_mark": mark}


def _add_spending(goal: Goal, ended: EndedAttempt) -> dict[str, Any]:
    """Return the fields of a goal that tell what its account has spent: its steps, and all work that they handed on."""
    task, spent = ended.task, ended.spent
    fields: dict[str, Any] = {"last_turn": latest_turn(task) or goal.last_turn}
    if spent is not None:
        fields |= {"tokens": int(spent.tokens), "usd": round(spent.usd, 9), "seconds": round(spent.seconds, 3)}
    if ended.thread_id and task.session_key == goal.session_key:
        fields["thread_id"] = ended.thread_id
    return fields


class Over(NamedTuple):
    """A budget that is spent, and the command that raises it. `askable` is whether a task asks people for more."""

    why: str
    remedy: str
    askable: bool = True


def over_budget(goal: Goal) -> Over | None:
    """Return the first budget of the goal that is spent, or None if no budget is spent."""
    for name, most, used, words in (
        ("max-steps", goal.max_steps, goal.step, f"{goal.max_steps} steps"),
        ("max-tokens", goal.max_tokens, goal.tokens, f"{goal.max_tokens} tokens"),
        ("max-usd", goal.max_usd, goal.usd, format_amount("usd", goal.max_usd)),
        ("max-time", goal.max_seconds, goal.seconds, f"{duration(goal.max_seconds)} of work"),
    ):
        if 0 < most <= used:
            remedy = f"midwatch goal edit {goal.id} --{name} MORE"
            return Over(f"its budget of {words} is spent", remedy, name != "max-steps")
    return None


def _retry_later(goal: Goal, task: Task, now: int, spent: dict[str, Any], **fields: Any) -> Changes:
    """Return the step that plans another task after a failed task, with a longer pause after each failure.

    After too many failures in a row, the step pauses the goal.
    """
    errors = goal.errors + 1
    what = "verifications" if goal.work == "verify" else "steps"
    error = cut(task.error or task.outcome or "", TEXT_SHOWN)
    if errors >= MOST_ERRORS:
        return pause_goal(goal, now, f"{errors} {what} failed in a row: {error}", errors=errors, **spent)
    pause = AUTOMATION_PAUSES[min(errors, len(AUTOMATION_PAUSES)) - 1]
    due = min(max(now + int(pause * SECOND), goal.next_run_at or 0), goal.deadline_at)
    why = f"one of its {what} failed: {error}"
    new = {"errors": errors, "next_run_at": due, "delay_reason": why, "proposal": None, **spent, **fields}
    return change_record(goal, GoalDelayed(goal_id=goal.id, until=iso(due), reason=why), now, **new)


def _judge_claim(goal: Goal, task: Task, now: int, means: Means, spent: dict[str, Any]) -> Changes:
    """Return the step after a verification: complete the goal if the verifier clearly says yes, otherwise go on."""
    answer = (task.result or "").strip()
    if task.status == "done" and (answer.splitlines() or [""])[0].strip(" .!*_#`").upper() == "REACHED":
        return complete_goal(goal, now, missing=None, **spent)
    over = over_budget(replace(goal, **spent)) if task.outcome == "budget" else None
    if over is not None and now < goal.deadline_at:  # the verification itself went beyond the limit
        return pause_goal(goal, now, over.why, remedy=over.remedy, **spent)
    if task.status != "done" and now < goal.deadline_at:  # the claim was not checked, so it is verified again
        return _retry_later(goal, task, now, spent, proposal="complete")
    missing = cut(answer or task.error or "the verification gave no answer", TEXT_SHOWN)
    if goal.alike >= MOST_ALIKE and now < goal.deadline_at:
        why = f"{MOST_ALIKE} steps claimed it was reached with the same words and used no tool; it is not: {missing}"
        return pause_goal(goal, now, why, missing=missing, **spent)
    return _go_on(goal, now, means, missing=missing, errors=0, **spent)


# -- ends and pauses -------------------------------------------------------------------------------------------------


def complete_goal(goal: Goal, now: int, *, actor: str | None = None, **fields: Any) -> Changes:
    """End a goal that is reached."""
    after = replace(goal, **fields)
    payload = GoalCompleted(goal_id=goal.id, evidence=after.evidence, steps=after.step)
    text = f"Goal reached: {cut(goal.objective, OBJECTIVE_SHOWN)}\n{cut(after.evidence or '', TEXT_SHOWN)}"
    ends = {**fields, **BETWEEN, "status": "complete", "completed_at": now, "paused_why": None}
    return _write_with_notice(goal, payload, now, actor, ends, "goal_completed", text)


def time_out_goal(goal: Goal, now: int, *, actor: str | None = None, **fields: Any) -> Changes:
    """End a goal whose deadline has passed."""
    after = replace(goal, **fields)
    payload = GoalTimedOut(goal_id=goal.id, steps=after.step)
    text = f"Goal ran out of time: {cut(goal.objective, OBJECTIVE_SHOWN)}\n{cut(after.summary or '', TEXT_SHOWN)}"
    ends = {**fields, **BETWEEN, "status": "timeout", "completed_at": now, "paused_why": None}
    return _write_with_notice(goal, payload, now, actor, ends, "goal_timeout", text)


def pause_goal(
    goal: Goal, now: int, why: str, *, remedy: str = "", actor: str | None = None, **fields: Any
) -> Changes:  # fmt: skip
    """Pause a goal until it is resumed; its deadline does not change."""
    after = replace(goal, **fields)
    lines = [
        f"Goal paused: {cut(goal.objective, OBJECTIVE_SHOWN)}", f"{why}.", cut(after.summary or "", TEXT_SHOWN),
        f"Raise it: {remedy}" if remedy else "", f"Resume it: midwatch goal resume {goal.id}",
    ]  # fmt: skip
    rests = {**fields, **BETWEEN, "status": "paused", "paused_why": why, "task_id": None}
    text = "\n".join(line for line in lines if line)
    payload = GoalPaused(goal_id=goal.id, why=why)
    return _write_with_notice(goal, payload, now, actor, rests, f"goal_paused:{goal.revision}", text)


def _write_with_notice(
    goal: Goal, payload: Payload, now: int, actor: str | None, fields: dict[str, Any], notice: str, text: str
) -> Changes:
    step = change_record(goal, payload, now, actor, **fields)
    return step._replace(deliveries=notify(goal.route, goal.id, notice, text.rstrip(), now))


def delay_goal(goal: Goal, now: int, seconds: float, reason: str, actor: str | None = None) -> Changes:
    """Delay the next step of a goal by `seconds`, but not beyond the deadline; with 0 the step begins at once."""
    if goal.status != "active":
        raise Conflict(f"goal {goal.id} is {goal.status}; only an active goal can be delayed, so resume it first.")
    if goal.work == "wrap_up" and now >= goal.deadline_at:
        raise Conflict(f"goal {goal.id} cannot be delayed after its deadline; finish its last step now.")
    if seconds and not SHORTEST_DELAY <= seconds <= LONGEST_DELAY:
        raise InvalidInput("a delay must be 0, or from 1 minute to 12 hours.", field="duration")
    if not reason.strip():
        raise InvalidInput("the reason is empty; say what the goal waits for.", field="reason")
    due = min(now + int(seconds * SECOND), goal.deadline_at) if seconds else None
    fields: dict[str, Any] = {"next_run_at": due, "delay_reason": reason.strip() if seconds else None}
    if goal.work != "verify":  # a claim stays while it is verified
        fields["proposal"] = "delay"
    payload = GoalDelayed(goal_id=goal.id, until=iso(due), reason=reason.strip())
    return change_record(goal, payload, now, actor, **fields)
