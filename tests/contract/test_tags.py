"""Test tags, idempotency keys and declared records in each store."""

from __future__ import annotations

from dataclasses import replace

from midwatch.base.clock import SECOND
from midwatch.base.schedule import Schedule
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import Automation
from midwatch.domain.automation_step import build_run
from midwatch.domain.changes import Changes, Removal, update_record
from midwatch.domain.goal import Goal
from midwatch.domain.rule import Rule
from midwatch.domain.store import Store
from midwatch.domain.task import new_task
from midwatch.domain.task_store import TaskFilter

NOW = 1_700_000_000 * SECOND
DAILY = Automation(
    id="am_1", prompt="x", agent="demo", schedule=Schedule.make(every=3600, zone="UTC", anchor=NOW).snapshot(),
    session_key="auto:am_1", tags=("a", "b"), created_at=NOW, updated_at=NOW, creator="ann",
)  # fmt: skip
GOAL = Goal(
    id="g_1", objective="x", agent="demo", session_key="goal:g_1", created_at=NOW, updated_at=NOW, creator="ann",
    deadline_at=NOW + SECOND, tags=("b",),
)  # fmt: skip


async def test_tasks_are_listed_by_all_their_tags_page_by_page(store: Store) -> None:
    tags = (("a",), ("a", "b"), None, ("b", "a"), ("a", "b", "c"))
    tasks = [new_task(NOW + number, "x", "demo", task_id=f"t_{number}", tags=each) for number, each in enumerate(tags)]
    for task in tasks:
        await store.submit(task)

    async def listed(*names: str, **more: object) -> list[str]:
        return [task.id for task in await store.list_tasks(TaskFilter(tags=names, **more))]  # type: ignore[arg-type]

    assert await listed("a") == ["t_4", "t_3", "t_1", "t_0"]
    assert await listed("b", "a") == ["t_4", "t_3", "t_1"]
    assert await listed("a", "b", before="t_4", limit=1) == ["t_3"]
    assert await listed("a", agent="other") == await listed("A") == []
    assert await listed("c", statuses=("pending",)) == ["t_4"]
    assert (await store.get_task("t_1"), await store.get_task("t_2")) == (tasks[1], tasks[2])
    run = build_run(DAILY, NOW, NOW, AgentTerms(), key="k")
    assert run.tags == ("a", "b")


async def test_tags_of_automations_and_goals_follow_their_changes(store: Store) -> None:
    await store.apply(Changes(records=(DAILY, GOAL)))
    assert await store.list_automations(tags=("b", "a")) == [DAILY]
    assert await store.list_goals(tags=("b",)) == [GOAL]
    assert await store.list_goals(tags=("a",)) == []
    updates = (update_record(DAILY, NOW, tags=("c",)), update_record(GOAL, NOW, tags=()))
    await store.apply(Changes(updates=updates))
    assert await store.list_automations(tags=("a",)) == await store.list_goals(tags=("b",)) == []
    (automation,) = await store.list_automations(tags=("c",))
    assert automation.tags == ("c",)


async def test_records_are_found_by_their_key_and_by_their_set(store: Store) -> None:
    declared = {"declared_by": "s", "declaration": {"table": {"x": 1}}, "idempotency_key": "k"}
    automation, goal = replace(DAILY, **declared), replace(GOAL, **declared)
    rule = Rule(id="r_1", agent="demo", effect="deny", kind="read", name="r", declared_by="s", created_at=NOW)
    other = replace(rule, id="r_2", name=None, declared_by=None)
    await store.apply(Changes(records=(automation, goal, rule, other)))
    assert await store.find_automation_key("ann", "k") == automation
    assert await store.find_goal_key("ann", "k") == goal
    assert await store.find_automation_key("bob", "k") is await store.find_goal_key(None, "k") is None
    assert await store.list_declared_automations("s") == [automation]
    assert await store.list_declared_goals("s") == [goal]
    assert await store.list_declared_rules("s") == [rule]
    assert await store.list_declared_rules("t") == []
    await store.apply(Changes(removals=(Removal("g_1", goal.revision),)))
    assert await store.list_declared_goals("s") == []
