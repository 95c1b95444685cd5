"""Test the rules of goals: their prompts, the effect of the end of each task, and when a goal ends or pauses."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import BadConfig, Conflict, InvalidInput
from midwatch.domain.agent import AgentTerms
from midwatch.domain.budget import Spending
from midwatch.domain.changes import Changes
from midwatch.domain.channel import Delivery
from midwatch.domain.goal import OPEN, TRANSITIONS, Goal, Means, Templates, means_of, normalise, validate
from midwatch.domain.goal_pace import (
    ALIKE,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MINUTE,
    SHORT,
    find_free_start,
    next_pace,
    plan_start,
    remember_start,
)
from midwatch.domain.goal_step import (
    LONGEST_DELAY,
    MOST_ALIKE,
    MOST_ERRORS,
    MOST_REPEATS,
    SHORTEST_DELAY,
    advance,
    begin,
    complete_goal,
    delay_goal,
    over_budget,
    pause_goal,
    prompt_of,
    time_out_goal,
    wake,
)
from midwatch.domain.session import gate_key
from midwatch.domain.task import AUTOMATION_PAUSES, STATUS_OF, Task
from midwatch.domain.task_step import EndedAttempt
from records import a_goal, a_task

NOW = 1_700_000_000 * SECOND
HOUR = 3600 * SECOND
TERMS = AgentTerms(timeout_seconds=1800.0, on_crash="rerun")
MEANS = Means({"demo": TERMS, "judge": AgentTerms(timeout_seconds=60.0, on_crash="fail")})


def at_step(**fields: Any) -> Goal:
    """Return a goal in its second step."""
    return a_goal(NOW, **{"step": 2, "task_id": "t_1", "route": "there", "revision": 5, **fields})


def end_task(
    outcome: Any = "ok", text: str = "did it", *, tools: int = 0, task_id: str = "t_1", **fields: Any
) -> EndedAttempt:
    """Return an ended task of the goal."""
    status = STATUS_OF[outcome]
    outcome_fields = {"result": text} if status == "done" else {"error": "it broke"}
    base = {"started_at": NOW, "completed_at": NOW + 10 * SECOND, "cause": "goal", "cause_id": "g", **outcome_fields}
    ended = a_task(id=task_id, status=status, outcome=outcome, **{**base, **fields})
    return EndedAttempt(ended, tools, "th_2", spent=Spending.of(ended.usage)._replace(seconds=10.0))


def after(goal: Goal, changes: Changes) -> Goal:
    """Return the goal after the changes; check that each change is a guarded transition of the table."""
    for update in changes.updates:
        assert (update.noun, update.id, update.guard["revision"]) == ("goal", goal.id, goal.revision)
        if "status" in update.fields:
            assert update.guard["status"] == goal.status
            assert update.fields["status"] in TRANSITIONS[goal.status], (goal.status, update.fields["status"])
        goal = replace(goal, **update.fields)
    return goal


def task_of(changes: Changes) -> Task | None:
    """Return the task that the changes create."""
    tasks = [record for record in changes.records if isinstance(record, Task)]
    assert len(tasks) <= 1
    return tasks[0] if tasks else None


def kinds(changes: Changes) -> list[str]:
    return [event.kind for event in changes.events]


def notice(changes: Changes) -> Delivery:
    (delivery,) = changes.deliveries
    return delivery


# -- the table and the prompts ---------------------------------------------------------------------------------------


def test_an_ended_goal_never_changes() -> None:
    assert {status for status, to in TRANSITIONS.items() if to} == OPEN
    assert TRANSITIONS["complete"] == TRANSITIONS["timeout"] == frozenset()
    assert all(status not in to for status, to in TRANSITIONS.items())
    assert {to for targets in TRANSITIONS.values() for to in targets} == set(TRANSITIONS)


def test_a_prompt_is_filled_in_once_with_all_known_values() -> None:
    goal = a_goal(NOW, objective="fix {deadline} {{x}} {objective}", evidence="see {objective} {now}")
    templates = Templates(
        "{objective}|{now}|{deadline}|{elapsed}|{remaining}|{other} {{y}}", "{objective}", "{evidence}"
    )
    assert prompt_of(goal, "step", NOW + HOUR, templates) == (
        "fix {deadline} {{x}} {objective}|2023-11-14T23:13:20.000000Z|2023-11-15T22:13:20.000000Z|1h|23h|{other} {{y}}"
    )
    assert prompt_of(goal, "verify", NOW, templates) == "see {objective} {now}"
    assert prompt_of(goal, "wrap_up", NOW + 90 * HOUR, Templates(wrap_up="{objective} {remaining}")).endswith(" 0s")
    assert "none" in prompt_of(replace(goal, evidence=None), "verify", NOW, templates)


def test_the_built_in_prompts_contain_the_goal_and_the_agents_commands() -> None:
    goal = a_goal(NOW, objective="paint it", evidence="it is blue")
    step, last, check = (prompt_of(goal, work, NOW, Templates()) for work in ("step", "wrap_up", "verify"))  # type: ignore[arg-type]
    assert all("paint it" in text for text in (step, last, check))
    assert "midwatch goal complete" in step and "midwatch goal delay" in step
    assert "it is blue" in check and "REACHED" in check
    assert "midwatch goal complete" not in last


def test_the_next_prompt_contains_what_the_verification_found_missing() -> None:
    goal = a_goal(NOW, missing="the door is red")
    assert "the door is red" in prompt_of(goal, "step", NOW, Templates("{objective}"))
    assert "the door is red" not in prompt_of(goal, "verify", NOW, Templates())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"objective": "  "}, "objective"),
        ({"objective": "x" * 20_001}, "objective"),
        ({"scope_kind": "world"}, "scope_kind"),
        ({"scope_id": " "}, "scope_id"),
        ({"manage_mode": "all"}, "manage_mode"),
        ({"status": "blocked"}, "status"),
        ({"max_steps": -1}, "max_steps"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_seconds": -0.1}, "max_seconds"),
        ({"deadline_at": NOW}, "deadline"),
        ({"deadline_at": 10**30}, "deadline"),
    ],
)
def test_invalid_values_are_refused_with_their_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        validate(normalise(a_goal(NOW, **fields)))
    assert refused.value.field == field
    validate(normalise(a_goal(NOW)))


def test_normalising_is_idempotent() -> None:
    goal = normalise(a_goal(NOW, objective=" x ", scope_id=" ann ", session_key=" "))
    assert (goal.objective, goal.scope_id, goal.session_key) == ("x", "ann", f"goal:{goal.id}")
    assert normalise(goal) == goal


def test_a_prompt_without_the_objective_is_refused_when_settings_are_read(tmp_path: Any) -> None:
    from midwatch.desk.config import Settings

    (tmp_path / "midwatch.toml").write_text('[goals]\nverify_prompt = "look"\n')
    with pytest.raises(BadConfig, match=r"goals\.verify_prompt.*\{objective\}"):
        Settings.load(tmp_path)
    (tmp_path / "midwatch.toml").write_text(
        '[goals]\nverify_prompt = "look at {objective}"\ndeadline = "3h"\nmax_steps = 4\n'
    )
    goals = Settings.load(tmp_path).goals
    assert goals.templates() == Templates(verify="look at {objective}")
    assert goals.defaults() == {
        "deadline": 10800.0,
        "max_steps": 4,
        "max_tokens": 0,
        "max_seconds": 0.0,
        "max_usd": 0.0,
        "progress_every": 900.0,
    }
    (tmp_path / "midwatch.toml").write_text("[goals]\nmax_step = 4\n")
    with pytest.raises(BadConfig, match="max_step"):
        Settings.load(tmp_path)


# -- tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "agent", "number", "timeout", "on_crash"),
    [
        ("step", "demo", 3, 1800.0, "rerun"),
        ("wrap_up", "demo", 2, 1800.0, "rerun"),
        ("verify", "judge", 2, 60.0, "fail"),
    ],
)
def test_a_task_has_the_terms_of_the_agent_that_does_it(
    work: Any, agent: str, number: int, timeout: float, on_crash: str
) -> None:
    goal = at_step(verifier="judge", creator="ann", workdir="/w")
    changes = begin(goal, work, NOW, MEANS)
    task, now = task_of(changes), after(goal, changes)
    assert task is not None
    assert (task.agent, task.timeout_seconds, task.on_crash, task.max_attempts) == (agent, timeout, on_crash, 1)
    assert (task.cause, task.cause_id, task.creator, task.workdir) == ("goal", goal.id, "ann", "/w")
    assert (now.step, now.work, now.task_id, now.revision) == (number, work, task.id, 6)
    assert kinds(changes) == ["goal_step", "task_submitted"]
    assert task.gate_key == gate_key(task.session_key)
    assert (task.gate_key == "goal:1") == (work != "verify")


def test_a_verification_does_not_hold_the_gate_of_its_session() -> None:
    goal = at_step(session_key="chat:4|thread:7", verifier="judge")
    task = task_of(begin(goal, "verify", NOW, MEANS))
    assert task is not None and task.gate_key != gate_key(goal.session_key)


def test_a_step_is_limited_by_the_deadline() -> None:
    def limit(**fields: Any) -> float | None:
        task = task_of(begin(at_step(**fields), "step", NOW, MEANS))
        assert task is not None
        return task.timeout_seconds

    assert limit(deadline_at=NOW + 90 * SECOND) == 90.0
    endless = Means({"demo": AgentTerms(timeout_seconds=None)})
    task = task_of(begin(at_step(deadline_at=NOW + HOUR), "step", NOW, endless))
    assert task is not None and task.timeout_seconds == 3600.0


async def test_the_terms_of_agent_and_verifier_are_read() -> None:
    async def terms(name: str) -> AgentTerms:
        return AgentTerms(slots=len(name))

    means = await means_of(a_goal(NOW, verifier="judge"), terms, Templates())
    assert {name: agent_terms.slots for name, agent_terms in means.terms.items()} == {"demo": 4, "judge": 5}
    assert set((await means_of(a_goal(NOW), terms, Templates())).terms) == {"demo"}


# -- starting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", sorted(OPEN))
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("work", ["step", "verify", "wrap_up"])
def test_A20_the_deadline_applies_in_every_open_status(status: Any, steps: int, work: Any) -> None:
    goal = at_step(status=status, step=steps, work=work, task_id=None)
    changes = wake(goal, goal.deadline_at, MEANS)
    now = after(goal, changes)
    if status == "active" and steps and work != "wrap_up":
        assert (now.status, now.work) == ("active", "wrap_up")
        assert "last step" in (task_of(changes) or a_task()).prompt
        assert not changes.deliveries
    else:
        assert (now.status, now.completed_at, task_of(changes)) == ("timeout", goal.deadline_at, None)
        assert (kinds(changes), notice(changes).notice) == (["goal_timed_out"], "goal_timeout")


def test_a_waiting_goal_starts_with_the_thread_of_its_session() -> None:
    goal = a_goal(NOW, status="waiting_for_session")
    now = after(goal, wake(goal, NOW, MEANS, "th_1"))
    assert (now.status, now.thread_id, now.step, now.work) == ("active", "th_1", 1, "step")


def test_a_goal_without_budget_is_paused_instead_of_started() -> None:
    goal = at_step(max_steps=2, next_run_at=NOW)
    now = after(goal, wake(goal, NOW, MEANS))
    assert (now.status, now.next_run_at) == ("paused", None)


def test_a_failed_verification_is_repeated() -> None:
    goal = at_step(work="verify", proposal="complete", verifier="judge", next_run_at=NOW)
    assert after(goal, wake(goal, NOW, MEANS)).work == "verify"
    late = wake(goal, goal.deadline_at, MEANS)
    assert after(goal, late).work == "wrap_up"


# -- the end of a task: every kind of task, outcome and proposal -----------------------------------------------------

OUTCOMES = ("ok", "silent", "transferred", "error", "timeout", "lost", "budget", "cancelled")


def expected(work: str, outcome: str, proposal: str | None, verifier: bool, late: bool) -> str:
    """Return the expected effect of the end of a task, by a simple form of the rule."""
    done, cancelled = outcome in ("ok", "silent", "transferred"), outcome == "cancelled"
    if work == "wrap_up":
        if late:
            return "timeout"
        return "paused" if cancelled else "step" if done else "delayed"
    if cancelled and not late:
        return "paused"
    if work == "verify":
        return "wrap_up" if late else "step" if done else "delayed"  # the verifier never answers REACHED in these tests
    if proposal == "complete":
        return "verify" if verifier else "complete"
    if late:
        return "wrap_up"
    return "delayed"  # after a failure, as the agent wants, or because the step was short


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("verifier", [None, "judge"])
@pytest.mark.parametrize("work", ["step", "verify", "wrap_up"])
def test_every_end_of_a_task_has_its_effect(work: Any, verifier: str | None, late: bool) -> None:
    for outcome, proposal in itertools.product(OUTCOMES, (None, "complete", "delay")):
        if work != "step" and proposal is not None:
            continue  # only a step can propose
        goal = at_step(
            work=work, proposal=proposal, verifier=verifier, evidence="proof",
            next_run_at=NOW + 4 * HOUR if proposal == "delay" else None,
        )  # fmt: skip
        now = goal.deadline_at if late else NOW + 10 * SECOND
        changes = advance(goal, end_task(outcome), now, MEANS)
        what = after(goal, changes)
        next_task = task_of(changes)
        effect = expected(work, outcome, proposal, verifier is not None, late)
        about = (work, outcome, proposal, verifier, late, effect)
        if effect in ("step", "verify", "wrap_up"):
            assert next_task is not None and (what.status, what.work, what.task_id) == (
                "active",
                effect,
                next_task.id,
            ), about
            assert (what.proposal, what.next_run_at) == (None, None), about
        else:
            assert next_task is None, about
            state = (what.status, what.next_run_at is not None)
            assert state == {"delayed": ("active", True)}.get(effect, (effect, False)), about
        assert (what.seconds, what.thread_id) == (10.0, goal.thread_id if work == "verify" else what.thread_id), about
        assert len(changes.deliveries) == (effect in ("paused", "timeout", "complete")), about


def test_A11_the_end_of_an_older_task_only_adds_its_usage() -> None:
    """A step that was stopped before the goal was resumed."""
    goal = at_step(task_id=None, proposal=None)
    changes = advance(goal, end_task("cancelled", usage={"input_tokens": 7}), NOW, MEANS)
    what = after(goal, changes)
    assert (what.status, what.tokens, what.seconds) == ("active", 7, 10.0)
    assert (changes.records, changes.events, changes.deliveries) == ((), (), ())


@pytest.mark.parametrize("status", ["complete", "timeout"])
def test_the_end_of_a_step_only_adds_its_usage_to_an_ended_goal(status: Any) -> None:
    for outcome in OUTCOMES:
        goal = at_step(status=status, completed_at=NOW - 1)
        changes = advance(goal, end_task(outcome, usage={"input_tokens": 7}), NOW, MEANS)
        what = after(goal, changes)
        assert (what.status, what.completed_at, what.tokens, what.seconds) == (status, NOW - 1, 7, 10.0)
        assert (changes.records, changes.events, changes.deliveries) == ((), (), ())


@pytest.mark.parametrize("status", ["paused", "waiting_for_session"])
def test_a_paused_goal_is_not_resumed_by_the_end_of_a_step(status: Any) -> None:
    for outcome in OUTCOMES:
        goal = at_step(status=status)
        changes = advance(goal, end_task(outcome), NOW, MEANS)
        assert (after(goal, changes).status, changes.records, changes.events) == (status, (), ())


@pytest.mark.parametrize("outcome", OUTCOMES[:-1])
def test_a_completion_claim_counts_however_its_step_ends(outcome: Any) -> None:
    goal = at_step(proposal="complete", evidence="the tests pass", errors=4, max_steps=2)
    changes = advance(goal, end_task(outcome), NOW, MEANS)
    what = after(goal, changes)
    assert (what.status, what.completed_at, kinds(changes)) == ("complete", NOW, ["goal_completed"])
    assert (notice(changes).notice, "the tests pass" in notice(changes).text) == ("goal_completed", True)


# -- verification ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["REACHED", "reached", "**REACHED**", "REACHED.\nI looked.", "  REACHED  \n"])
def test_a_clear_yes_completes_the_goal(said: str) -> None:
    goal = at_step(work="verify", verifier="judge", evidence="proof", summary="all painted", missing="a door")
    changes = advance(goal, end_task(text=said), NOW, MEANS)
    what = after(goal, changes)
    assert (what.status, what.summary, what.missing) == ("complete", "all painted", None)


@pytest.mark.parametrize(
    "said", ["", "NOT REACHED: the door", "It is REACHED", "REACHED?", "REACHED, almost", "Yes", "not reached"]
)
def test_any_other_verification_continues_with_what_is_missing(said: str) -> None:
    goal = at_step(work="verify", verifier="judge", evidence="proof")
    changes = advance(goal, end_task(text=said), NOW, MEANS)
    what, next_task = after(goal, changes), task_of(changes)
    assert next_task is not None and (what.work, what.step, what.evidence) == ("step", 3, "proof")
    assert (said or "gave no answer") in next_task.prompt


def test_a_failing_verification_backs_off_and_ends() -> None:
    goal = at_step(work="verify", verifier="judge")
    for number in range(1, MOST_ERRORS):
        changes = advance(goal, end_task("error"), NOW, MEANS)
        what = after(goal, changes)
        assert (what.status, what.errors, what.proposal, what.work) == ("active", number, "complete", "verify")
        assert what.next_run_at == NOW + int(AUTOMATION_PAUSES[number - 1] * SECOND)
        again = wake(what, what.next_run_at, MEANS)
        goal = replace(after(what, again), task_id="t_1")
        assert (goal.work, goal.errors, goal.step) == ("verify", number, 2)
    assert after(goal, advance(goal, end_task("timeout"), NOW, MEANS)).status == "paused"


def test_the_same_claim_repeated_without_tools_is_a_loop() -> None:
    goal = at_step(verifier="judge", proposal="complete", evidence="proof")
    for _ in range(MOST_ALIKE - 1):
        checked = after(goal, advance(goal, end_task(text="done!"), NOW, MEANS))
        rejected = after(
            replace(checked, task_id="t_1"), advance(replace(checked, task_id="t_1"), end_task(text="NO"), NOW, MEANS)
        )
        assert (rejected.status, rejected.delay_reason) == ("active", ALIKE if goal.step > 2 else SHORT)
        goal = replace(rejected, task_id="t_1", proposal="complete", work="step", step=goal.step + 1)
    checked = replace(after(goal, advance(goal, end_task(text="done!"), NOW, MEANS)), task_id="t_1")
    assert after(checked, advance(checked, end_task(text="NO"), NOW, MEANS)).status == "paused"
    reached = after(checked, advance(checked, end_task(text="REACHED"), NOW, MEANS))
    assert reached.status == "complete"  # a verified goal is completed although a guard would pause it


# -- errors, loops, budgets ------------------------------------------------------------------------------------------


def test_A1_errors_back_off_and_finally_pause_the_goal() -> None:
    goal, waited = at_step(), []
    for _ in range(MOST_ERRORS - 1):
        changes = advance(goal, end_task("error"), NOW, MEANS)
        goal = after(goal, changes)
        assert (goal.status, task_of(changes), kinds(changes)) == ("active", None, ["goal_delayed"])
        waited.append(((goal.next_run_at or 0) - NOW) / SECOND)
        goal = replace(after(goal, wake(goal, NOW + HOUR, MEANS)), task_id="t_1")
    assert tuple(waited) == AUTOMATION_PAUSES[: MOST_ERRORS - 1]
    changes = advance(goal, end_task("error"), NOW, MEANS)
    assert after(goal, changes).status == "paused"
    assert f"midwatch goal resume {goal.id}" in notice(changes).text and "it broke" in notice(changes).text


def test_a_successful_step_resets_the_errors() -> None:
    goal = at_step(errors=4)
    assert after(goal, advance(goal, end_task(), NOW, MEANS)).errors == 0


def test_a_back_off_ends_at_the_deadline_and_keeps_a_longer_delay() -> None:
    goal = at_step(errors=3, deadline_at=NOW + 100 * SECOND)
    assert after(goal, advance(goal, end_task("error"), NOW, MEANS)).next_run_at == NOW + 100 * SECOND
    goal = at_step(proposal="delay", next_run_at=NOW + 4 * HOUR)
    what = after(goal, advance(goal, end_task("timeout"), NOW, MEANS))
    assert (what.next_run_at, what.errors, what.proposal) == (NOW + 4 * HOUR, 1, None)
    goal = at_step(proposal="delay", next_run_at=None)
    what = after(goal, advance(goal, end_task("error"), NOW, MEANS))
    assert what.next_run_at == NOW + 30 * SECOND  # a step that sets `delay 0` and then fails still backs off


def test_steps_with_the_same_text_and_no_tool_are_a_loop() -> None:
    goal = at_step()
    for number in range(1, MOST_ALIKE):
        goal = replace(after(goal, advance(goal, end_task(text=" hm "), NOW, MEANS)), task_id="t_1")
        assert (goal.status, goal.alike) == ("active", number)
    changes = advance(goal, end_task(text="hm"), NOW, MEANS)
    assert (after(goal, changes).status, after(goal, changes).summary) == ("paused", "hm")
    assert "same words" in notice(changes).text
    assert after(goal, advance(goal, end_task(text="hm", tools=1), NOW, MEANS)).alike == 0
    assert after(goal, advance(goal, end_task(text="ah"), NOW, MEANS)).alike == 1


@pytest.mark.parametrize("due", [None, NOW + HOUR])
def test_A3_a_delay_or_claim_takes_precedence_over_the_loop_guard(due: int | None) -> None:
    first = at_step()
    ripe = replace(
        first, alike=MOST_ALIKE - 1, last_mark=after(first, advance(first, end_task(), NOW, MEANS)).last_mark
    )
    assert after(ripe, advance(ripe, end_task(), NOW, MEANS)).status == "paused"
    patient = replace(ripe, proposal="delay", next_run_at=due)
    what = after(patient, advance(patient, end_task(), NOW, MEANS))
    assert (what.status, what.next_run_at, what.alike) == ("active", due or NOW + 2 * SECOND, 0)
    claim = replace(ripe, proposal="complete")
    assert after(claim, advance(claim, end_task(), NOW, MEANS)).status == "complete"


@pytest.mark.parametrize(
    ("budget", "option"),
    [({"max_steps": 2}, "--max-steps"), ({"max_tokens": 12}, "--max-tokens"), ({"max_seconds": 10.0}, "--max-time")],
)
@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_a_spent_budget_pauses_the_goal_with_a_summary_and_a_remedy(
    budget: dict[str, Any], option: str, outcome: str
) -> None:
    goal = at_step(**budget)
    changes = advance(goal, end_task(outcome, usage={"input_tokens": 5, "output_tokens": 7}), NOW, MEANS)
    what, text = after(goal, changes), notice(changes).text
    assert (what.status, what.tokens, what.summary) == ("paused", 12, "did it" if outcome == "ok" else None)
    assert option in text and f"midwatch goal resume {goal.id}" in text and "budget" in (what.paused_why or "")
    assert ("did it" in text) == (outcome == "ok")
    assert over_budget(what) and not over_budget(replace(what, max_steps=0, max_tokens=0, max_seconds=0.0))
    rejected = replace(goal, work="verify", verifier="judge")
    changes = advance(rejected, end_task(text="NO", usage={"input_tokens": 12}), NOW, MEANS)
    assert after(rejected, changes).status == "paused"  # it does not continue after a verification either


# -- delays, ends and pauses -----------------------------------------------------------------------------------------


def test_a_delay_is_zero_or_between_a_minute_and_half_a_day_before_the_deadline() -> None:
    goal = at_step(task_id=None)
    for length in (SHORTEST_DELAY, 3600.0, LONGEST_DELAY):
        what = after(goal, delay_goal(goal, NOW, length, " the build "))
        assert (what.next_run_at, what.delay_reason) == (NOW + int(length * SECOND), "the build")
    what = after(goal, delay_goal(goal, NOW, 0, "next"))
    assert (what.next_run_at, what.delay_reason, what.proposal) == (None, None, "delay")
    short = at_step(deadline_at=NOW + 90 * SECOND)
    assert after(short, delay_goal(short, NOW, 7200, "x")).next_run_at == short.deadline_at
    for wrong in (-1.0, 0.5, 59.9, LONGEST_DELAY + 0.1, float("nan"), float("inf")):
        with pytest.raises(InvalidInput):
            delay_goal(goal, NOW, wrong, "x")
    with pytest.raises(InvalidInput):
        delay_goal(goal, NOW, 60, "  ")


@pytest.mark.parametrize("status", sorted(set(TRANSITIONS) - {"active"}))
def test_A21_only_an_active_goal_can_be_delayed(status: Any) -> None:
    with pytest.raises(Conflict):
        delay_goal(at_step(status=status), NOW, 60, "x")


def test_a_delay_keeps_a_claim_and_is_ignored_in_the_last_step() -> None:
    goal = at_step(work="verify", verifier="judge", proposal="complete")
    assert after(goal, delay_goal(goal, NOW, 60, "x")).proposal == "complete"
    with pytest.raises(Conflict):
        delay_goal(at_step(work="wrap_up"), at_step().deadline_at, 60, "x")
    rejected = at_step(work="verify", verifier="judge", next_run_at=NOW + HOUR)
    what = after(rejected, advance(rejected, end_task(text="NO"), NOW, MEANS))
    assert (what.next_run_at, what.missing) == (NOW + HOUR, "NO")


def test_a_later_deadline_during_the_closing_step_continues_the_goal() -> None:
    goal = at_step(work="wrap_up")
    what = after(goal, advance(goal, end_task(text="so far"), NOW, MEANS))
    assert (what.status, what.work, what.step, what.summary) == ("active", "step", 3, "so far")


@pytest.mark.parametrize("how", [complete_goal, time_out_goal])
def test_A6_the_end_has_one_notice_with_the_goal(how: Any) -> None:
    goal = at_step(
        evidence="proof", summary="so far", next_run_at=NOW, delay_reason="x", paused_why="y", status="paused"
    )
    changes = how(goal, NOW, actor="ann")
    what, delivery = after(goal, changes), notice(changes)
    assert (what.next_run_at, what.delay_reason, what.paused_why, what.completed_at) == (None, None, None, NOW)
    assert not what.open and goal.objective in delivery.text and delivery.task_id == goal.id
    assert changes.events[0].actor == "ann"
    assert how(replace(goal, route=None), NOW).deliveries == ()


def test_each_pause_has_a_notice() -> None:
    goal = at_step()
    first, second = pause_goal(goal, NOW, "a"), pause_goal(replace(goal, revision=9), NOW, "b")
    assert notice(first).notice != notice(second).notice
    assert after(goal, first).task_id is None


# -- the pace --------------------------------------------------------------------------------------------------------


def test_the_pause_grows_with_short_or_equal_steps_and_shrinks_with_progress() -> None:
    pauses = [0.0]
    for _ in range(12):
        pauses += [next_pace(pauses[-1], seconds=1, tools=0, same=False)]
    assert pauses[:5] == [0, FIRST_PAUSE, 4, 8, 16] and pauses[-3:] == [LONGEST_PAUSE] * 3
    assert next_pace(40, seconds=1, tools=2, same=False) == 20  # short, but it worked
    assert next_pace(FIRST_PAUSE, seconds=1, tools=2, same=False) == 0
    assert next_pace(40, seconds=1, tools=2, same=True) == next_pace(40, seconds=90, tools=0, same=True) == 80
    assert next_pace(40, seconds=90, tools=0, same=False) == next_pace(40, seconds=90, tools=1, same=True) == 0


def test_the_next_step_is_planned_by_pace_interval_rate_and_deadline() -> None:
    def plan(pace: float = 0, every: float = 0, started: int = NOW - 60 * SECOND, deadline: int = NOW + HOUR) -> Any:
        return plan_start(NOW, deadline, pace=pace, alike=False, every=every, started=started)

    assert plan() == (None, None)
    assert plan(pace=40) == (NOW + 40 * SECOND, SHORT)
    assert plan(pace=40, every=600) == (NOW + 540 * SECOND, "a step every 10m")
    assert plan(pace=40, every=70) == (NOW + 40 * SECOND, SHORT)  # not faster than the pace
    assert plan(every=30) == (None, None)
    assert plan(pace=40, deadline=NOW + 5 * SECOND) == (NOW + 5 * SECOND, SHORT)
    starts: tuple[int, ...] = ()
    for second in range(0, 100, 10):
        starts = remember_start(starts, NOW + second * SECOND)
    assert (len(starts), starts[-1]) == (6, NOW + 90 * SECOND)
    assert find_free_start(starts, NOW + 91 * SECOND, 6) == starts[0] + MINUTE
    assert find_free_start(starts, starts[0] + MINUTE, 6) is None
    assert find_free_start((NOW + HOUR,) * 9, NOW, 1) is None  # the clock was set back


def test_a_full_minute_delays_a_step_however_it_begins() -> None:
    goal = at_step(task_id=None, starts=tuple(NOW - second * SECOND for second in range(5, 0, -1)))
    changes = wake(goal, NOW, MEANS._replace(steps_per_minute=5))
    resting = after(goal, changes)
    assert (task_of(changes), resting.next_run_at) == (None, NOW + 55 * SECOND)
    assert resting.delay_reason == "5 steps started within a minute"
    assert task_of(wake(goal, NOW, MEANS._replace(steps_per_minute=6)))


def test_a_goal_with_an_interval_starts_steps_at_this_interval() -> None:
    goal = at_step(every_seconds=600.0, starts=(NOW - 100 * SECOND,))
    what = after(goal, advance(goal, end_task(tools=1, started_at=NOW - 90 * SECOND), NOW, MEANS))
    assert (what.next_run_at, what.pace, what.delay_reason) == (NOW + 500 * SECOND, 0, "a step every 10m")
    failed = after(goal, advance(goal, end_task("error"), NOW, MEANS))
    assert failed.next_run_at == NOW + 500 * SECOND
    delayed = replace(goal, proposal="delay", next_run_at=NOW + 60 * SECOND)
    assert after(delayed, advance(delayed, end_task(), NOW, MEANS)).next_run_at == NOW + 60 * SECOND


def test_steps_that_use_tools_and_end_with_the_same_words_are_a_loop_too() -> None:
    goal = at_step()
    for number in range(1, MOST_REPEATS):
        goal = replace(after(goal, advance(goal, end_task(tools=1), NOW, MEANS)), task_id="t_1")
        assert (goal.status, goal.repeats, goal.alike) == ("active", number, 0)
    assert after(goal, advance(goal, end_task("ok", "other words", tools=1), NOW, MEANS)).repeats == 1
    paused = after(goal, advance(goal, end_task(tools=1), NOW, MEANS))
    assert (paused.status, paused.paused_why) == (
        "paused",
        "6 steps ended with the same words although they used tools",
    )


# -- the judge and the progress --------------------------------------------------------------------------------------


def test_a_judge_is_asked_after_each_step_except_a_delayed_one() -> None:
    goal = at_step(judge="judge", max_steps=2)  # the judge decides, although no step is left
    changes = advance(goal, end_task(text="painted the door"), NOW, MEANS)
    asked, task = after(goal, changes), task_of(changes)
    assert task is not None and (task.agent, asked.work, asked.step) == ("judge", "verify", 2)
    assert "Result of the last step: painted the door" in task.prompt
    asked = replace(asked, task_id="t_1")
    reached = after(asked, advance(asked, end_task(text="REACHED\nit is blue"), NOW, MEANS))
    assert (reached.status, reached.evidence) == ("complete", "REACHED\nit is blue")
    assert "steps" in (after(asked, advance(asked, end_task(text="NO"), NOW, MEANS)).paused_why or "")
    asked = replace(asked, max_steps=0)
    resting = after(asked, advance(asked, end_task(text="NOT REACHED\npaint the frame"), NOW, MEANS))
    assert (resting.status, resting.delay_reason) == ("active", SHORT)
    again = task_of(wake(resting, resting.next_run_at or 0, MEANS))
    assert again is not None and "a judge found" in again.prompt and "paint the frame" in again.prompt
    delayed = replace(goal, max_steps=0, proposal="delay", next_run_at=NOW + HOUR)
    assert after(delayed, advance(delayed, end_task(), NOW, MEANS)).work == "step"


def test_the_progress_is_sent_once_in_an_interval_and_only_if_the_goal_goes_on() -> None:
    goal = at_step(step=7, max_steps=50, progress_every=900.0, created_at=NOW - 900 * SECOND)
    changes = advance(goal, end_task(text="half of it"), NOW, MEANS)
    assert (notice(changes).notice, notice(changes).text.splitlines()[0]) == (
        "goal_progress:7", "step 7 of 50: half of it",
    )  # fmt: skip
    sent = replace(after(goal, changes), task_id="t_1")
    assert not advance(sent, end_task(text="more"), NOW + 899 * SECOND, MEANS).deliveries
    assert advance(sent, end_task(text="more"), NOW + 900 * SECOND, MEANS).deliveries
    for quiet in ({"progress_every": 0.0}, {"created_at": NOW - 899 * SECOND}, {"route": None}):
        assert not advance(replace(goal, **quiet), end_task(), NOW, MEANS).deliveries
    ends = advance(replace(goal, max_steps=7), end_task(), NOW, MEANS)
    assert notice(ends).notice.startswith("goal_paused")
