"""Test authorization: the services refuse forbidden calls, whoever the caller is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from midwatch.base.errors import Forbidden, NotFound
from midwatch.domain.agent import AgentTerms
from midwatch.domain.identity import OWNER, Actor, AnyActor
from midwatch.domain.task import Task
from midwatch.services.approvals import Approvals
from midwatch.services.authorization import TASK_FIELDS, Authorization, check_manager
from midwatch.services.rules import Rules
from midwatch.services.tokens import Tokens
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock
from records import put

ANN, BOB = Actor("ann", "operator"), Actor("bob", "operator")


def make_terms(*, submits: bool) -> Callable[[str], Awaitable[AgentTerms]]:
    async def terms(agent: str) -> AgentTerms:
        return AgentTerms(submits=submits)

    return terms


def agent_of(task: Task) -> Actor:
    return Actor("ann", "attempt", "attempt", task=task)


@pytest.mark.parametrize("actor", [None, "bob", OWNER, ANN])
def test_programs_owners_and_the_creator_may_manage_a_record(actor: AnyActor) -> None:
    check_manager(actor, "ann", "creator_only")


def test_others_may_manage_only_shared_records() -> None:
    check_manager(BOB, "ann", "scope_all")
    check_manager(BOB, None, "creator_only")
    with pytest.raises(Forbidden, match="only ann may manage"):
        check_manager(BOB, "ann", "creator_only")


async def test_the_setting_decides_who_manages_a_task_without_creator(memory: SqliteStore) -> None:
    task = await put(memory, creator="ann")
    await Authorization(memory, make_terms(submits=True)).check_task(BOB, task.id)
    strict = Authorization(memory, make_terms(submits=True), "creator_only")
    await strict.check_task("bob", task.id)
    with pytest.raises(Forbidden):
        await strict.check_task(BOB, task.id)
    with pytest.raises(NotFound):
        await strict.check_task(BOB, "t_none")


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
