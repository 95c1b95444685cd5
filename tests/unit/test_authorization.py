"""Test authorization: the services refuse forbidden calls, whoever the caller is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from midwatch.base.errors import Forbidden, NotFound
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import Automation
from midwatch.domain.changes import Changes
from midwatch.domain.identity import OWNER, Actor, AnyActor, Role
from midwatch.domain.session import Session
from midwatch.domain.task import Task
from midwatch.services.approvals import Approvals
from midwatch.services.authorization import ACTIONS, RIGHTS, TASK_FIELDS, Action, Authorization, Owner, authorize
from midwatch.services.rules import Rules
from midwatch.services.tasks import Tasks
from midwatch.services.tokens import Tokens
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock
from records import KnownAgents, a_goal, put

ANN, BOB = Actor("ann", "operator"), Actor("bob", "operator")


def make_terms(*, submits: bool) -> Callable[[str], Awaitable[AgentTerms]]:
    async def terms(agent: str) -> AgentTerms:
        return AgentTerms(submits=submits)

    return terms


def agent_of(task: Task) -> Actor:
    return Actor("ann", "attempt", "attempt", task=task)


@pytest.mark.parametrize("actor", [None, "bob", OWNER, ANN])
def test_programs_owners_and_the_creator_may_manage_a_record(actor: AnyActor) -> None:
    authorize(actor, "manage", Owner("ann"))


def test_others_may_manage_only_shared_records() -> None:
    authorize(BOB, "manage", Owner("ann", "scope_all"))
    authorize(BOB, "manage", Owner(None))
    authorize(BOB, "read", Owner("ann"))
    with pytest.raises(Forbidden, match="only ann and owners may do it"):
        authorize(BOB, "manage", Owner("ann"))


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("role", ["viewer", "operator", "owner", "attempt"])
async def test_the_role_decides_by_the_table(memory: SqliteStore, role: Role, action: Action) -> None:
    actor = Actor("ann", role, task=await put(memory) if role == "attempt" else None)
    if getattr(RIGHTS[action], role) is not None:
        authorize(actor, action)
        return
    with pytest.raises(Forbidden, match=r"; (only an owner|ask )"):
        authorize(actor, action)


async def test_the_setting_decides_who_manages_a_task_without_automation(memory: SqliteStore) -> None:
    task = await put(memory, creator="ann")
    await Authorization(memory, manage_tasks="scope_all").check_task(BOB, "manage", task.id)
    strict = Authorization(memory)
    await strict.check_task("bob", "manage", task.id)
    await strict.check_task(BOB, "read", task.id)
    with pytest.raises(Forbidden, match="`manage_tasks`"):
        await strict.check_task(BOB, "manage", task.id)
    with pytest.raises(NotFound):
        await strict.check_task(BOB, "manage", "t_none")


async def test_an_agent_uses_only_its_own_work(memory: SqliteStore) -> None:
    own = await put(memory, creator="ann", session_key="chat:1", root_id="t_first")
    agent, rights = agent_of(own), Authorization(memory)
    child, sibling = await put(memory, root_id="t_first", parent_id=own.id), await put(memory, session_key="chat:1")
    for task in (own, child, sibling):
        await rights.check_task(agent, "read", task.id)
    await rights.check_session(agent, "read", "chat:1")
    with pytest.raises(Forbidden, match="only its own work"):
        await rights.check_task(agent, "read", (await put(memory, creator="ann", session_key="chat:2")).id)
    for key in ("chat:2", "chat:none"):
        with pytest.raises(Forbidden, match="only its own work"):
            await rights.check_session(agent, "read", key)
    with pytest.raises(Forbidden, match="may not change, stop"):
        await rights.check_task(agent, "manage", own.id)


async def test_a_task_that_comes_from_a_run_belongs_to_the_automation(memory: SqliteStore, clock: FakeClock) -> None:
    shared = Authorization(memory, manage_tasks="scope_all")
    automation = Automation(
        id="am_1", prompt="x", agent="demo", schedule={}, creator="ann", session_key="chat:run", scope_id="ann",
        created_at=0, updated_at=0,
    )  # fmt: skip
    await memory.apply(Changes(records=(automation,)))
    run = await put(memory, cause="automation", cause_id="am_1", creator="ann", session_key="chat:run")
    child = await put(memory, cause="handoff", root_id=run.id, parent_id=run.id, creator="ann")
    session = Session(key="chat:run", agent="demo", gate_key="chat:run", creator="ann")
    await memory.open_session(session, ())
    for task in (run, child):
        await shared.check_task(ANN, "manage", task.id)
        with pytest.raises(Forbidden, match="`manage_mode`"):
            await shared.check_task(BOB, "manage", task.id)
    for key in ("chat:run", "auto:am_1", f"auto:am_1|message:{run.id}"):
        await shared.check_session(ANN, "manage", key)
        await shared.check_session(BOB, "read", key)
        with pytest.raises(Forbidden, match="only ann and owners"):
            await shared.check_session(BOB, "manage", key)


async def test_an_agent_submits_only_in_its_directory_and_to_its_own_route(memory: SqliteStore) -> None:
    task = await put(memory, creator="ann", workdir="/tmp", route="console", session_key="chat:1")
    rights = Authorization(memory, make_terms(submits=True))
    fields = await rights.restrict_task(agent_of(task), {"agent": "demo"})
    assert fields == {"agent": "demo", "workdir": "/tmp", "route": "console", "origin_session": "chat:1"}
    with pytest.raises(Forbidden, match="cannot set `priority`"):
        await rights.restrict(agent_of(task), {"priority": 1}, TASK_FIELDS)
    with pytest.raises(Forbidden, match="inside of the agent's own directory"):
        await rights.restrict(agent_of(task), {"workdir": "/"}, TASK_FIELDS)
    with pytest.raises(Forbidden, match="may not submit work"):
        await Authorization(memory, make_terms(submits=False)).restrict_task(agent_of(task), {})
    assert await rights.restrict_task(ANN, {"priority": 1}) == {"priority": 1}


async def test_an_idempotency_key_finds_only_own_tasks(memory: SqliteStore, clock: FakeClock) -> None:
    """Once an agent could take a key of the person for whom it works, and this person got the task of the agent."""
    rights = Authorization(memory, make_terms(submits=True))
    tasks = Tasks(memory, clock, KnownAgents("demo"), lambda route: route, authorization=rights)  # type: ignore[arg-type]
    agent, other = agent_of(await put(memory, creator="ann")), agent_of(await put(memory, creator="ann"))
    child = await tasks.submit("x", actor=agent, idempotency_key="k" * 200)
    assert (await tasks.submit("x", actor=agent, idempotency_key="k" * 200)).id == child.id
    with pytest.raises(Forbidden, match="only its own work"):
        await tasks.submit("x", actor=other, idempotency_key="k" * 200)
    own = await tasks.submit("x", actor=ANN, idempotency_key="k" * 200)
    assert (own.parent_id, own.creator) == (None, "ann")


async def test_an_agent_reads_only_the_account_of_its_own_work(memory: SqliteStore, clock: FakeClock) -> None:
    rights = Authorization(memory)
    goal, foreign = (a_goal(clock.now(), id=name, scope_id=name, session_key=name) for name in ("g_own", "g_foreign"))
    await memory.apply(Changes(records=(goal, foreign)))
    step = agent_of(await put(memory, cause="goal", cause_id=goal.id, session_key=goal.session_key, account_id=goal.id))
    run = agent_of(await put(memory, account_id="t_first"))
    for agent, own, other in ((step, goal.id, "t_first"), (run, "t_first", goal.id), (run, "t_first", foreign.id)):
        await rights.check_account(agent, own)
        await rights.check_account(ANN, other)
        with pytest.raises(Forbidden, match="only its own work"):
            await rights.check_account(agent, other)


async def test_a_message_belongs_to_the_creator_of_the_session(memory: SqliteStore) -> None:
    await memory.open_session(Session(key="chat:1", agent="demo", gate_key="chat:1", creator="ann"), ())
    task = await put(memory, creator="owner", session_key="chat:1", cause="message")
    rights = Authorization(memory)
    await rights.check_task(ANN, "manage", task.id)
    for check in (rights.check_task(BOB, "manage", task.id), rights.check_session(BOB, "manage", "chat:1")):
        with pytest.raises(Forbidden, match="only ann and owners"):
            await check


async def test_an_agent_cannot_answer_questions_or_read_rules(memory: SqliteStore, clock: FakeClock) -> None:
    agent = agent_of(await put(memory))
    with pytest.raises(Forbidden):
        await Approvals(memory, clock).answer("a_1", grant=True, actor=agent)
    with pytest.raises(Forbidden):
        await Rules(memory, clock).list(actor=agent)


async def test_only_an_owner_manages_tokens(memory: SqliteStore, clock: FakeClock) -> None:
    tokens = Tokens(memory, clock, "secret")
    token, _ = await tokens.create("ci", "viewer", by=OWNER)
    with pytest.raises(Forbidden, match="only an owner"):
        await tokens.create("more", "viewer", by=ANN)
    with pytest.raises(Forbidden):
        await tokens.list(by=ANN)
    with pytest.raises(Forbidden):
        await tokens.revoke(token.id, by=Actor("ci", "viewer", "bearer", token))
    await tokens.sign_out(Actor("ci", "viewer", "bearer", token))
    assert (await tokens.list())[0].revoked_at is None, "only a browser signs out"
