"""Steps of goals: begin a task, decide how the goal continues after it, and end or pause the goal.

`advance` computes how a goal continues after a step; the result is written together with the end of that step.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from midwatch.base.clock import SECOND, iso
from midwatch.base.durations import duration
from midwatch.base.errors import Conflict, InvalidInput
from midwatch.base.text import cut
from midwatch.domain.account import Account
from midwatch.domain.agent import AgentTerms
from midwatch.domain.budget import Budget, format_amount
from midwatch.domain.changes import Changes, Update, change_record, event_about, update_record
from midwatch.domain.event import GoalCompleted, GoalDelayed, GoalPaused, GoalStep, GoalTimedOut, Payload
from midwatch.domain.goal import Goal, Means, Templates, Work
from midwatch.domain.goal_pace import find_free_start, next_pace, plan_start, remember_start
from midwatch.domain.lineage import extend_path, latest_turn
from midwatch.domain.notice import notify
from midwatch.domain.probe import EVIDENCE_SHOWN, CommandResult, Probe, note_check, write_check
from midwatch.domain.requests import OnBudget
from midwatch.domain.task import AUTOMATION_PAUSES, Task, correlate, new_task, submit_task
from midwatch.domain.task_step import EndedAttempt

LONGEST_DELAY = 12 * 3600.0
SHORTEST_DELAY = 60.0
MOST_ERRORS = 5
MOST_ALIKE = 3
"""After this many steps with the same text and without a tool, the goal counts as stuck in a loop."""
MOST_REPEATS = 6
"""After this many steps with the same text, the goal counts as stuck in a loop although its steps used tools."""
OBJECTIVE_SHOWN = 200
TEXT_SHOWN = 500
RESULT_JUDGED = 20_000
MISSING = "\n\nIt was claimed before that the goal is reached. A check found that it is not: {missing}"
JUDGED = "\n\nAfter the last step, a judge found that the goal is not reached yet: {missing}"
CHECKED = (
    "\n\nAfter this step, midwatch runs this command in your directory: `{command}`. The goal is reached when it ends "
    "with exit status 0. This check alone decides."
)
PLACEHOLDER = re.compile(r"\{(objective|now|deadline|elapsed|remaining|evidence|result)\}")


def prompt_of(goal: Goal, work: Work, now: int, templates: Templates) -> str:
    """Return the prompt for the next task of a goal.

    Only placeholders of the template are replaced; braces in the objective and in the evidence stay as they are.
    """
    check = templates.judge if goal.judge else templates.verify
    text = {"step": templates.go_on, "wrap_up": templates.wrap_up, "verify": check}[work]
    values = {
        "now": iso(now), "deadline": iso(goal.deadline_at), "elapsed": duration((now - goal.created_at) / SECOND),
        "remaining": duration(max(0, goal.deadline_at - now) / SECOND), "evidence": goal.evidence or "none",
        "objective": goal.objective, "result": cut(goal.summary or "none", RESULT_JUDGED),
    }  # fmt: skip
    text = PLACEHOLDER.sub(lambda match: str(values[match[1]]), text)
    if work == "step" and goal.check_command:
        text += describe_check(goal)
    missing = JUDGED if goal.judge else MISSING
    return text + missing.replace("{missing}", goal.missing) if work == "step" and goal.missing else text


def describe_check(goal: Goal) -> str:
    """Return what a step is told about the command that checks the goal, and about the last result of this command."""
    said = f"\n\n{write_check(goal.last_check)}" if goal.last_check else ""
    return CHECKED.replace("{command}", cut(" ".join((goal.check_command or "").split()), TEXT_SHOWN)) + said


def begin(goal: Goal, work: Work, now: int, means: Means, **fields: Any) -> Changes:
    """Return the step that begins the next task of a goal; `fields` are other fields of the goal to change."""
    after = replace(goal, **fields)
    number = goal.step + (1 if work == "step" else 0)
    agent = goal.checker if work == "verify" and goal.checker else goal.agent
    session = f"goal:{goal.id}|thread:verify-{number}" if work == "verify" else goal.session_key
    terms = means.terms[agent]
    task = new_task(
        now, prompt_of(after, work, now, means.templates), agent, session, cause="goal", cause_id=goal.id,
        creator=goal.creator, workdir=goal.workdir, dir_key=terms.dir_key(goal.workdir),
        timeout_seconds=_limit(after, work, now, terms.timeout_seconds), on_crash=terms.on_crash, max_attempts=1,
        budget=Budget.from_record(terms.budget).data(), account_id=goal.id,
        on_budget=choose_mode(goal, terms), approvals=goal.approvals,
        probe=goal.probe.data() if goal.probe and work == "step" else None,
        internal_key=f"{goal.id}#{work}:{number}:{goal.revision}", parent_turn_id=after.last_turn, source="goal",
        tags=goal.tags or None,
    )  # fmt: skip
    task = task._replace(trace_path=extend_path(goal.id, task.id))
    new = {**fields, **BETWEEN, "step": number, "work": work, "task_id": task.id}
    if work == "step":
        new["starts"] = remember_start(goal.starts, now)
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

    It begins the next task, now or, if the goal rests or was delayed, later. If the deadline has passed or the budget
    is spent, it ends or pauses the goal. With `asks`, the next task begins although the budget is spent, and asks
    people first.
    """
    if now >= goal.deadline_at:
        return begin(goal, "wrap_up", now, means, **fields) if goal.step else time_out_goal(goal, now, **fields)
    after = replace(goal, **fields)
    over = over_budget(after)
    if over is not None and not (asks and over.askable):
        return pause_goal(goal, now, over.why, remedy=over.remedy, **fields)
    if after.next_run_at is not None and after.next_run_at > now:
        return Changes(updates=(update_record(goal, now, **{"proposal": None, **fields}),))
    free = find_free_start(goal.starts, now, means.steps_per_minute) if over is None else None
    if free is not None:
        why = f"{means.steps_per_minute} steps started within a minute"
        rests = {"proposal": None, "next_run_at": min(free, goal.deadline_at), "delay_reason": why}
        return Changes(updates=(update_record(goal, now, **{**fields, **rests}),))
    return begin(goal, "step", now, means, **fields)


def advance(goal: Goal, ended: EndedAttempt, now: int, means: Means) -> Changes:
    """Return the step that continues a goal after one of its tasks has ended."""
    spent = _add_spending(goal, ended)
    if ended.task.id != goal.task_id or goal.status not in ("active", "paused"):
        return Changes(updates=(update_record(goal, now, **spent),))
    if goal.work != "verify" and ended.task.status == "done" and ended.task.result:
        spent["summary"] = ended.task.result
    spent |= _note_check(ended)
    if goal.status == "paused":
        return _end_last_step(goal, ended, now, spent)
    return _add_progress(goal, ended.task, now, _follow(goal, ended, now, means, spent))


def _follow(goal: Goal, ended: EndedAttempt, now: int, means: Means, spent: dict[str, Any]) -> Changes:
    """Return the step with which an active goal goes on, ends or pauses after its task has ended."""
    task, late = ended.task, now >= goal.deadline_at
    if goal.work == "wrap_up" and late:
        return time_out_goal(goal, now, **spent)
    if task.status == "cancelled" and not late:
        stopped = f"{ended.actor} stopped its step {task.id}" if ended.actor else "its running step was stopped"
        return pause_goal(goal, now, stopped, **spent)
    if goal.work == "verify":
        return _judge_claim(goal, task, now, means, spent)
    if ended.check is not None and ended.check.passed:
        return complete_checked(goal, ended.check, now, spent)
    claims = goal.proposal == "complete" and not goal.check_command
    if claims and not goal.checker:
        return complete_goal(goal, now, **spent)
    if claims:
        return begin(goal, "verify", now, means, errors=0, **_measure(goal, ended), **spent)
    judged = bool(goal.judge) and task.status == "done" and goal.proposal is None
    if late or (over_budget(replace(goal, **spent)) and not judged):
        return _go_on(goal, now, means, asks=ended.asks and task.outcome != "budget", **spent)
    if task.status == "failed":
        return _retry_later(goal, task, now, spent)
    spent |= {"errors": 0, **(_measure(goal, ended) if goal.work == "step" else {})}
    if goal.proposal == "delay":  # the agent waits for something, so equal texts are no loop
        spent |= {"alike": 0, "repeats": 0, "last_mark": None}
        return _go_on(goal, now, means, **spent, **_plan_next(goal, now, spent, every=0))
    if judged:
        return begin(goal, "verify", now, means, **spent)
    if why := _find_loop(replace(goal, **spent)):
        return pause_goal(goal, now, why, **spent)
    return _go_on(goal, now, means, **spent, **_plan_next(goal, now, spent))


def _end_last_step(goal: Goal, ended: EndedAttempt, now: int, spent: dict[str, Any]) -> Changes:
    """Return the step after the last step of a goal that was paused meanwhile.

    The goal is complete if its check passed, or if the agent claims so and nobody checks it.
    """
    spent["task_id"] = None
    if ended.check is not None and ended.check.passed:
        return complete_checked(goal, ended.check, now, spent)
    claims = goal.proposal == "complete" and ended.task.status != "cancelled"
    if claims and not goal.checker and not goal.check_command:
        return complete_goal(goal, now, **spent)
    return Changes(updates=(update_record(goal, now, **spent),))


def _measure(goal: Goal, ended: EndedAttempt) -> dict[str, Any]:
    """Return the fields that a step changes by its length, its tools and its words: the pace, and what is alike."""
    task = ended.task
    mark = hashlib.sha256((task.result or "").strip().encode()).hexdigest()[:16]
    same = mark == goal.last_mark
    repeats, alike = (goal.repeats + 1, goal.alike + 1) if same else (1, 1)
    seconds = ((task.completed_at or 0) - (task.started_at or task.completed_at or 0)) / SECOND
    pace = next_pace(goal.pace, seconds=seconds, tools=ended.tools, same=same)
    return {"pace": pace, "repeats": repeats, "alike": 0 if ended.tools else alike, "last_mark": mark}


def _find_loop(goal: Goal) -> str | None:
    """Return why a goal counts as stuck in a loop, or None."""
    if goal.alike >= MOST_ALIKE:
        return f"{MOST_ALIKE} steps ended with the same words and used no tool"
    if goal.repeats >= MOST_REPEATS:
        return f"{MOST_REPEATS} steps ended with the same words although they used tools"
    return None


def _plan_next(goal: Goal, now: int, fields: dict[str, Any], every: float | None = None) -> dict[str, Any]:
    """Return the fields with the time of the next step. A time that the agent asked for stays as it is."""
    after = replace(goal, **fields)
    if after.next_run_at is not None and after.next_run_at > now:
        return {}
    due, why = plan_start(
        now, after.deadline_at, pace=after.pace, alike=after.repeats > 1,
        every=after.every_seconds if every is None else every, started=max(after.starts, default=None),
    )  # fmt: skip
    return {"next_run_at": due, "delay_reason": why}


def plan_again(goal: Goal, now: int) -> dict[str, Any]:
    """Return the fields with the time of the next step of a goal whose interval was changed between two steps."""
    return _plan_next(replace(goal, next_run_at=None), now, {})


def _add_progress(goal: Goal, task: Task, now: int, changes: Changes) -> Changes:
    """Return the changes, with a notice about the progress if the goal goes on and its last notice is long ago."""
    last = goal.progress_at if goal.progress_at is not None else goal.created_at
    due = goal.route and goal.progress_every and now >= last + int(goal.progress_every * SECOND)
    if not due or goal.work != "step" or task.status != "done" or changes.deliveries:
        return changes
    of = f" of {goal.max_steps}" if goal.max_steps else ""
    text = f"step {goal.step}{of}: {cut(task.result or '', TEXT_SHOWN)}\n{cut(goal.objective, OBJECTIVE_SHOWN)}"
    sent = notify(goal.route, goal.notices, goal.id, f"goal_progress:{goal.step}", text, now)
    first = changes.updates[0]
    update = first._replace(fields={**first.fields, "progress_at": now})
    return changes._replace(updates=(update, *changes.updates[1:]), deliveries=sent)


def _note_check(ended: EndedAttempt) -> dict[str, Any]:
    """Return the field with the result of the command that ran after the step; none if no command ran."""
    probe = Probe.of(ended.task.probe)
    return {"last_check": note_check(probe.command, ended.check)} if probe and ended.check else {}


def complete_checked(goal: Goal, check: CommandResult, now: int, spent: dict[str, Any]) -> Changes:
    """End a goal whose command says that it is reached. The evidence is the command and the end of its output."""
    evidence = check.tell(str(spent["last_check"]["command"]), EVIDENCE_SHOWN)
    return complete_goal(goal, now, evidence=evidence, missing=None, **spent)


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
    wanted = [now + int(pause * SECOND), goal.next_run_at or 0]
    if goal.every_seconds and goal.starts:
        wanted.append(goal.starts[-1] + int(goal.every_seconds * SECOND))
    due = min(max(wanted), goal.deadline_at)
    why = f"one of its {what} failed: {error}"
    new = {"errors": errors, "next_run_at": due, "delay_reason": why, "proposal": None, **spent, **fields}
    return change_record(goal, GoalDelayed(goal_id=goal.id, until=iso(due), reason=why), now, **new)


def _judge_claim(goal: Goal, task: Task, now: int, means: Means, spent: dict[str, Any]) -> Changes:
    """Return the step after a check: complete the goal if the verifier or the judge clearly says yes, else go on."""
    answer = (task.result or "").strip()
    if task.status == "done" and (answer.splitlines() or [""])[0].strip(" .!*_#`").upper() == "REACHED":
        evidence = goal.evidence or (cut(answer, TEXT_SHOWN) if goal.judge else None)
        return complete_goal(goal, now, missing=None, evidence=evidence, **spent)
    over = over_budget(replace(goal, **spent)) if task.outcome == "budget" else None
    if over is not None and now < goal.deadline_at:  # the verification itself went beyond the limit
        return pause_goal(goal, now, over.why, remedy=over.remedy, **spent)
    if task.status != "done" and now < goal.deadline_at:  # the claim was not checked, so it is verified again
        return _retry_later(goal, task, now, spent, proposal="complete")
    missing = cut(answer or task.error or "the verification gave no answer", TEXT_SHOWN)
    spent |= {"missing": missing, "errors": 0}
    if (loop := _find_loop(goal)) and now < goal.deadline_at:
        return pause_goal(goal, now, f"{loop}, and the goal is not reached: {missing}", **spent)
    return _go_on(goal, now, means, **spent, **_plan_next(goal, now, spent))


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
    goal: Goal, now: int, why: str, *, remedy: str = "", actor: str | None = None, keeps_step: bool = False,
    **fields: Any,
) -> Changes:  # fmt: skip
    """Pause a goal until it is resumed; its deadline does not change.

    With `keeps_step` its running step goes on to its end and may still report that the goal is reached.
    """
    after = replace(goal, **fields)
    lines = [
        f"Goal paused: {cut(goal.objective, OBJECTIVE_SHOWN)}", f"{why}.", cut(after.summary or "", TEXT_SHOWN),
        f"Raise it: {remedy}" if remedy else "", f"Resume it: midwatch goal resume {goal.id}",
    ]  # fmt: skip
    rests = {**fields, **BETWEEN, "status": "paused", "paused_why": why}
    if keeps_step:
        rests["proposal"] = goal.proposal
    else:
        rests["task_id"] = None
    text = "\n".join(line for line in lines if line)
    payload = GoalPaused(goal_id=goal.id, why=why)
    return _write_with_notice(goal, payload, now, actor, rests, f"goal_paused:{goal.revision}", text)


def _write_with_notice(
    goal: Goal, payload: Payload, now: int, actor: str | None, fields: dict[str, Any], notice: str, text: str
) -> Changes:
    step = change_record(goal, payload, now, actor, **fields)
    return step._replace(deliveries=notify(goal.route, goal.notices, goal.id, notice, text.rstrip(), now))


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
