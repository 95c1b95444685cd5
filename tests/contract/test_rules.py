"""Test approval rules and approvals with all their fields in every kind of store."""

from __future__ import annotations

import pytest

from midwatch.base.errors import Conflict
from midwatch.domain.agent import Choice, Question
from midwatch.domain.approval import answer_by_rule, ask
from midwatch.domain.changes import Changes
from midwatch.domain.event import EventFilter
from midwatch.domain.rule import Decision, Rule
from midwatch.domain.store import Store
from midwatch.services.approvals import Approvals
from midwatch.services.rule_decision import narrow
from midwatch.services.rules import Rules
from records import CLOCK, an_automation, submit_and_claim

ALLOW, REJECT = Choice("Allow", "allow_once"), Choice("Reject", "reject_once")


def make_question(command: str = "git status", **fields: object) -> Question:
    return Question(text="May I?", kind="execute", command=command, choices=(REJECT, ALLOW), **fields)  # type: ignore[arg-type]


async def test_an_approval_is_stored_with_all_its_fields(store: Store) -> None:
    task = await submit_and_claim(store, creator="ann", workdir="/tmp")
    question = make_question(tool="shell", paths=("a", "b"), diff="-ä\n+b\n", risk="high")
    approval, changes = ask(task, question, 60, CLOCK.now(), always=narrow(question, "/tmp"))
    await store.apply(changes)
    stored = await store.get_approval(approval.id)
    assert stored == approval
    assert stored is not None and (stored.tool, stored.paths, stored.diff, stored.diff_bytes) == (
        "shell",
        ("a", "b"),
        "-ä\n+b\n",
        7,
    )
    assert (stored.creator, stored.risk, stored.choices[:2]) == ("ann", "high", (REJECT, ALLOW))


async def test_an_always_answer_makes_a_rule_in_the_same_transaction(store: Store) -> None:
    task = await submit_and_claim(store, workdir="/tmp")
    approval, changes = ask(task, make_question(), 60, CLOCK.now(), always=narrow(make_question(), "/tmp"))
    await store.apply(changes)
    answered = await Approvals(store, CLOCK).answer(approval.id, grant=True, always=True, actor="ann")
    (rule,) = await store.list_rules("demo")
    assert await store.get_rule(rule.id) == rule
    assert (rule.effect, rule.command, rule.approval_id, rule.created_by) == ("allow", "git status", approval.id, "ann")
    assert (answered.status, answered.rule) == ("granted", rule.text)
    events = await store.read_events(0, EventFilter(kinds=("approval_resolved", "rule_added")))
    assert [(event.kind, event.actor) for event in events] == [("approval_resolved", "ann"), ("rule_added", "ann")]
    with pytest.raises(Conflict):
        await Approvals(store, CLOCK).answer(approval.id, grant=False, always=True)
    assert await store.list_rules() == [rule]


async def test_rules_are_listed_newest_first_by_agent_and_can_be_revoked_once(store: Store) -> None:
    rules = [
        Rule(id=f"r_{n}", agent="demo" if n else "other", effect="deny", kind="edit", created_at=n) for n in range(3)
    ]
    await store.apply(Changes(records=tuple(rules)))
    assert [rule.id for rule in await store.list_rules()] == ["r_2", "r_1", "r_0"]
    assert [rule.id for rule in await store.list_rules("demo", limit=1)] == ["r_2"]
    revoked = await Rules(store, CLOCK).revoke("r_2", actor="ann")
    assert (revoked.revoked_by, revoked.revoked_at is not None) == ("ann", True)
    assert [rule.id for rule in await store.list_rules("demo")] == ["r_1"]
    assert [rule.id for rule in await store.list_rules("demo", revoked=True)] == ["r_2", "r_1"]
    with pytest.raises(Conflict, match="revoked already"):
        await Rules(store, CLOCK).revoke("r_2")
    assert await store.get_rule("r_none") is None
    assert len(await store.read_events(0, EventFilter(kinds=("rule_revoked",)))) == 1


async def test_an_approval_answered_by_a_rule_is_stored_and_never_in_the_inbox(store: Store) -> None:
    task = await submit_and_claim(store, route="console", notices="all")
    decided = answer_by_rule(task, make_question(), Decision("deny", "rule:agent", "deny `git push`"), CLOCK.now())
    assert decided is not None
    await store.apply(decided[1])
    (approval,) = await store.list_approvals(None)
    assert approval == decided[0]
    assert (approval.status, approval.answer, approval.answered_by) == ("denied", "Reject", "rule:agent")
    assert await store.list_approvals("pending") == [] and await store.find_next_expiry() is None
    assert [delivery.notice for delivery in await store.list_deliveries(task_id=task.id)] == ["started"]


async def test_an_automation_keeps_its_approval_policy(store: Store) -> None:
    automation = an_automation(CLOCK.now(), approvals={"default": "deny", "allow": [{"command": "git log *"}]})
    await store.apply(Changes(records=(automation,)))
    assert await store.get_automation(automation.id) == automation
