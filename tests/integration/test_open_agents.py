"""Test conversations that stay open between turns, in one process, until idle, closed, broken or taken over."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from internals import worker_of
from midwatch import Runtime, Settings, Task
from midwatch.base.errors import AgentError, UsageLimit
from midwatch.domain.agent import AgentTerms
from midwatch.testing import FakeClock, ScriptedAgent, raise_, result, settle, wait_for


def desk(folder: Path, *agents: ScriptedAgent, clock: FakeClock | None = None, **options: Any) -> Any:
    agents_by_name = {agent.name: agent for agent in agents}
    settings = Settings.load(folder, detect_agents=False, shutdown_grace=0, default_agent="scripted", **options)
    return Runtime.open(settings=settings, agents=agents_by_name, clock=clock)


async def send_message(desk: Runtime, key: str, text: str) -> Task:
    task = await desk.sessions.send(key, text)
    return await desk.tasks.wait(task.id)


async def wait_for_close(agent: ScriptedAgent, times: int) -> None:
    async with asyncio.timeout(60):
        while agent.closed < times:
            await asyncio.sleep(0.01)


async def test_a_session_has_one_conversation_for_all_turns(tmp_path: Path) -> None:
    agent = ScriptedAgent(result("yes", thread_id="th"), lasting=True)
    async with desk(tmp_path, agent) as open_desk:
        await open_desk.sessions.create(key="chat:1")
        for _ in range(3):
            assert (await send_message(open_desk, "chat:1", "go on")).status == "done"
        view = await open_desk.sessions.get("chat:1")
        assert (len(agent.opened), agent.closed) == (1, 0)
        assert (view.session.epoch, view.snapshot()["live"]) == (1, True)
    assert agent.closed == 1
    async with desk(tmp_path, agent) as again:
        assert (await again.sessions.get("chat:1")).session.live_owner is None
        await send_message(again, "chat:1", "and after a restart?")
        assert (await again.sessions.get("chat:1")).session.epoch == 2
    assert agent.opened[1].thread_id == "th"


async def test_a_task_without_a_session_leaves_nothing_open(tmp_path: Path) -> None:
    agent = ScriptedAgent(result("yes"), lasting=True)
    async with desk(tmp_path, agent) as open_desk:
        task = await open_desk.tasks.submit("once")
        await open_desk.tasks.wait(task.id)
        assert agent.closed == 1


async def test_a_goals_step_has_its_own_process_and_the_sessions_is_reopened(tmp_path: Path) -> None:
    agent = ScriptedAgent(result("yes", thread_id="th"), lasting=True)
    async with desk(tmp_path, agent) as open_desk:
        await open_desk.sessions.create(key="chat:1")
        await send_message(open_desk, "chat:1", "hello")
        task = await open_desk.tasks.submit("a step", session_key="chat:1", cause="automation", cause_id="am_1")
        assert (await open_desk.tasks.wait(task.id)).status == "done"
        assert (len(agent.opened), agent.closed) == (2, 2)
        assert agent.opened[1].thread_id == "th"
        assert (await open_desk.sessions.get("chat:1")).session.live_owner is None
        await send_message(open_desk, "chat:1", "and I am back")
        assert (len(agent.opened), agent.closed) == (3, 2)


async def test_closing_a_session_closes_its_conversation(tmp_path: Path) -> None:
    agent = ScriptedAgent(result("yes"), lasting=True)
    async with desk(tmp_path, agent) as open_desk:
        await open_desk.sessions.create(key="chat:1")
        await send_message(open_desk, "chat:1", "hello")
        assert agent.closed == 0
        await open_desk.sessions.close("chat:1")
        await wait_for_close(agent, 1)


async def test_a_restarted_session_resumes_the_conversation_in_a_new_process(tmp_path: Path) -> None:
    blocked, script = asyncio.Event(), [result("yes", thread_id="th")]
    agent = ScriptedAgent(lambda turn: script[-1](turn), lasting=True)
    async with desk(tmp_path, agent) as open_desk:
        await open_desk.sessions.create(key="chat:1")
        await open_desk.sessions.restart("chat:1")  # no conversation is open
        await send_message(open_desk, "chat:1", "hello")
        await open_desk.sessions.restart("chat:1")
        await wait_for_close(agent, 1)
        script.append(wait_for(blocked))
        task = await open_desk.sessions.send("chat:1", "work")
        async with asyncio.timeout(60):
            while len(agent.turns) < 2:
                await asyncio.sleep(0.01)
        assert agent.opened[1].thread_id == "th"
        await open_desk.sessions.restart("chat:1")  # during a turn
        assert (await open_desk.tasks.wait(task.id)).status == "cancelled"
        await wait_for_close(agent, 2)
        script.append(result("back"))
        assert (await send_message(open_desk, "chat:1", "again")).result == "back"
        assert len(agent.opened) == 3


async def test_an_idle_conversation_is_closed_and_reopened_by_the_next_message(tmp_path: Path) -> None:
    clock = FakeClock()
    agent = ScriptedAgent(result("yes"), lasting=True)
    async with desk(tmp_path, agent, clock=clock, keep_open=60) as open_desk:
        await open_desk.sessions.create(key="chat:1")
        await send_message(open_desk, "chat:1", "hello")
        await clock.advance(59)
        await settle()
        assert agent.closed == 0
        await clock.advance(2)
        await wait_for_close(agent, 1)
        await send_message(open_desk, "chat:1", "still there?")
        assert len(agent.opened) == 2


async def test_a_conversation_is_fully_closed_before_the_next_opens(tmp_path: Path) -> None:
    closing, may_close = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedAgent):
        async def open(self, session: Any) -> Any:
            talk: Any = await super().open(session)
            close = talk.close

            async def slowly() -> None:
                closing.set()
                await may_close.wait()
                await close()

            talk.close = slowly
            return talk

    clock, agent = FakeClock(), Slow(result("yes"), lasting=True)
    async with desk(tmp_path, agent, clock=clock, keep_open=60) as open_desk:
        await open_desk.sessions.create(key="chat:1")
        await send_message(open_desk, "chat:1", "hello")
        await clock.advance(61)
        await closing.wait()
        task = await open_desk.sessions.send("chat:1", "still there?")
        async with asyncio.timeout(60):
            while (await open_desk.tasks.get(task.id)).status == "pending":
                await asyncio.sleep(0.01)
        await settle()
        assert len(agent.opened) == 1
        may_close.set()
        await open_desk.tasks.wait(task.id)
        assert len(agent.opened) == 2
        assert (await open_desk.sessions.get("chat:1")).session.live_owner is not None, "the new one is kept"
        await send_message(open_desk, "chat:1", "and now?")
        assert len(agent.opened) == 2


async def test_a_new_conversation_is_not_closed_by_an_outdated_query(tmp_path: Path) -> None:
    """The list of closed sessions is read while another conversation is opened and has its turn."""
    looked, go = asyncio.Event(), asyncio.Event()

    class Slow:
        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def list_live_sessions(self, owner: str) -> Any:
            sessions = await self._store.list_live_sessions(owner)
            looked.set()
            await go.wait()
            return sessions

    agent = ScriptedAgent(result("yes"), lasting=True)
    async with desk(tmp_path, agent) as open_desk:
        talks: Any = worker_of(open_desk).conversations
        talks._store = Slow(talks._store)
        await open_desk.sessions.create(key="chat:1")
        await send_message(open_desk, "chat:1", "hello")
        await looked.wait()
        await open_desk.sessions.create(key="chat:2")
        await send_message(open_desk, "chat:2", "hello")
        go.set()
        while talks._reading is not None:
            await asyncio.sleep(0.01)
        assert agent.closed == 0
        await open_desk.sessions.close("chat:2")
        await wait_for_close(agent, 1)


async def test_above_the_limit_the_conversation_idle_longest_is_closed(tmp_path: Path) -> None:
    agent = ScriptedAgent(result("yes"), lasting=True)
    async with desk(tmp_path, agent, max_live=2) as open_desk:
        for number in range(3):
            await open_desk.sessions.create(key=f"chat:{number}")
            await send_message(open_desk, f"chat:{number}", "hello")
        await wait_for_close(agent, 1)
        await send_message(open_desk, "chat:2", "you are still open")
        assert len(agent.opened) == 3
        await send_message(open_desk, "chat:0", "you were closed")
        assert len(agent.opened) == 4


async def test_a_broken_conversation_is_closed_and_reopened(tmp_path: Path) -> None:
    class Broken(ScriptedAgent):
        async def open(self, session: Any) -> Any:
            talk: Any = await super().open(session)
            talk.alive = False
            return talk

    agent = Broken(raise_(AgentError("the pipe broke")), lasting=True)
    async with desk(tmp_path, agent) as open_desk:
        await open_desk.sessions.create(key="chat:1")
        assert (await send_message(open_desk, "chat:1", "hello")).status == "failed"
        assert agent.closed == 1
        assert (await open_desk.sessions.get("chat:1")).session.live_owner is None


async def test_a_provider_limit_parks_the_task_and_it_continues_by_itself(tmp_path: Path) -> None:
    clock = FakeClock()
    tries: list[bool] = []

    async def limited(turn: Any) -> str:
        tries.append(turn.resumed)
        await turn.keep_thread("th-1")
        if len(tries) == 1:
            raise UsageLimit("5-hour limit reached", resets_at=clock.now() + 3600 * 1_000_000)
        return f"went on with {turn.thread_id}"

    agent = ScriptedAgent(limited, terms=AgentTerms(on_crash="resume"))
    async with desk(tmp_path, agent, clock=clock, notify="console") as open_desk:
        task = await open_desk.tasks.submit("a long night's work")
        async with asyncio.timeout(60):
            while (await open_desk.tasks.get(task.id)).wait != "limit":
                await asyncio.sleep(0.01)
        parked = await open_desk.tasks.get(task.id)
        assert (parked.status, parked.failures, parked.attempt) == ("pending", 0, 1)
        assert "until" in parked.status_text
        began = clock.now()
        while (await open_desk.tasks.get(task.id)).open:
            await clock.advance(30)
            await asyncio.sleep(0.01)
        done = await open_desk.tasks.get(task.id)
        assert (done.status, done.result, done.attempt) == ("done", "went on with th-1", 2)
        assert done.started_at is not None and done.started_at - began >= 3590 * 1_000_000
        assert tries == [False, True]
        deliveries = await open_desk.store.list_deliveries(task_id=task.id)
        assert sorted(delivery.notice for delivery in deliveries) == ["done", "limit"]


async def test_another_process_sends_interrupts_and_takes_over_the_session(tmp_path: Path, database: str) -> None:
    """Both processes could run the agent; the conversation stays in one until that process ends."""
    blocked, script = asyncio.Event(), [result("here", thread_id="th")]
    first_agent, second_agent = (ScriptedAgent(lambda turn: script[-1](turn), lasting=True) for _ in range(2))
    async with AsyncExitStack() as here:
        a = await here.enter_async_context(desk(tmp_path / "a", first_agent, db=database))
        await a.sessions.create(key="chat:1")
        await send_message(a, "chat:1", "hello")
        holder = (await a.sessions.get("chat:1")).session.live_owner
        async with desk(tmp_path / "b", second_agent, db=database) as b:
            for _ in range(5):
                assert (await send_message(b, "chat:1", "from elsewhere")).status == "done"
            assert (len(first_agent.turns), len(second_agent.turns)) == (6, 0)
            script.append(wait_for(blocked))
            task = await b.sessions.send("chat:1", "stop me")
            async with asyncio.timeout(60):
                while len(first_agent.turns) < 7:  # a claimed task is running before its turn has started
                    await asyncio.sleep(0.01)
            assert await b.sessions.interrupt("chat:1") == task.id
            assert (await b.tasks.wait(task.id)).status == "cancelled"
            assert (await b.sessions.get("chat:1")).session.live_owner == holder
            script.pop()
            await here.aclose()
            assert (await send_message(b, "chat:1", "and now?")).status == "done"
            assert (len(first_agent.turns), len(second_agent.turns)) == (7, 1)
            assert second_agent.opened[0].thread_id == "th"
            assert (await b.sessions.get("chat:1")).session.epoch == 2
