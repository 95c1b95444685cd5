"""Test a task from its submission to its end, on a real store, with scripted agents."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from internals import engine_of, simulate_crash
from midwatch import FunctionAgent, Runtime, Settings, Task, TransientError, Turn, TurnResult, Usage
from midwatch.base.errors import AlreadyFinished, Conflict, StoreUnavailable
from midwatch.domain.agent import AgentTerms
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import EventFilter, ToolExecStart
from midwatch.testing import (
    FakeClock,
    RecordingChannel,
    ScriptedAgent,
    Step,
    ask,
    emit,
    own_group,
    raise_,
    result,
    save,
    say,
    settle,
    tool,
    wait_for,
)
from servers import eventually, until


async def kinds(desk: Runtime, task: Task) -> list[str]:
    return [e.kind for e in await desk.store.read_events(0, EventFilter(task_id=task.id))]


def status_is(desk: Runtime, task: Task, status: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return (await desk.tasks.get(task.id)).status == status

    return look


async def run(desk: Runtime, prompt: str = "do it", **fields: Any) -> Task:
    fields.setdefault("agent", "it")
    task = await desk.tasks.submit(prompt, **fields)
    async with asyncio.timeout(60):
        return await desk.tasks.wait(task.id)


async def test_a_turn_with_a_tool_logs_balanced_events_in_order(home: Path) -> None:
    usage = Usage(input_tokens=3, output_tokens=4)
    agent = ScriptedAgent(tool("read"), say("hm"), result("fine", usage=usage))
    async with Runtime.open(home, agents={"it": agent}) as desk:
        task = await run(desk)
        assert (task.status, task.outcome, task.result, task.tokens_used) == ("done", "ok", "fine", 7)
        assert await kinds(desk, task) == [
            "task_submitted", "task_started", "turn_start", "tool_exec_start", "tool_exec_end", "message_update",
            "turn_end", "task_finished",
        ]  # fmt: skip
        turns = {e.turn_id for e in await desk.store.read_events(0, EventFilter(kinds=("turn_start", "turn_end")))}
        assert turns == {f"{task.id}.1"}
        assert agent.closed == 1


async def test_an_ended_run_is_freed_without_the_garbage_collector(home: Path) -> None:
    runs: list[weakref.ref[object]] = []

    async def note_run(prompt: str) -> str:
        runs.extend(weakref.ref(run) for run in desk.crew.worker.running.values())
        return "noted"

    gc.disable()  # reference cycles would cost a tenth of the CPU of a task
    try:
        async with Runtime.open(home, agents={"it": FunctionAgent("it", note_run, on_loop=True)}) as desk:
            for _ in range(3):
                await run(desk)
            assert len(runs) == 3
            await until(lambda: all(run() is None for run in runs))
    finally:
        gc.enable()


async def test_unknown_usage_is_not_zero(home: Path) -> None:
    async with Runtime.open(home, agents={"it": ScriptedAgent(result("x"))}) as desk:
        task = await run(desk)
        assert (task.usage, task.tokens_used) == (None, None)


RAISED = (RuntimeError("boom"), KeyboardInterrupt(), SystemExit(3), ValueError("\x00 odd"), RecursionError())


@pytest.mark.parametrize("problem", RAISED, ids=lambda p: type(p).__name__)
async def test_an_agent_that_raises_anything_fails_its_task_only(home: Path, problem: BaseException) -> None:
    agents = {"it": ScriptedAgent(raise_(problem)), "good": ScriptedAgent(result("ok"))}
    async with Runtime.open(home, agents=agents) as desk:
        task = await run(desk)
        assert (task.status, task.outcome) == ("failed", "error")
        assert type(problem).__name__ in (task.error or "")
        assert (await run(desk, agent="good")).status == "done"


async def test_an_agent_that_returns_nonsense_or_cannot_open_fails_its_task(home: Path) -> None:
    class NonsenseAgent(ScriptedAgent):
        async def open(self, session: Any) -> Any:
            raise OSError("no such socket")

    class WrongTypeAgent(ScriptedAgent):
        async def open(self, session: Any) -> Any:
            talk = await super().open(session)
            talk.turn = lambda turn: asyncio.sleep(0, "just text")  # type: ignore[method-assign,assignment]
            return talk

    async with Runtime.open(home, agents={"odd": NonsenseAgent(), "liar": WrongTypeAgent()}) as desk:
        assert "no such socket" in ((await run(desk, agent="odd")).error or "")
        assert "TurnResult" in ((await run(desk, agent="liar")).error or "")


async def test_open_tool_calls_are_closed_with_their_turn(home: Path) -> None:
    agent = ScriptedAgent(emit(ToolExecStart(tool="dig", tool_call_id="1")), raise_(RuntimeError("x")))
    async with Runtime.open(home, agents={"it": agent}) as desk:
        event_kinds = await kinds(desk, await run(desk))
        assert event_kinds[2:] == ["turn_start", "tool_exec_start", "tool_exec_end", "turn_end", "task_finished"]


# -- cancel and timeout ------------------------------------------------------------------------------------------


async def test_a_task_cancelled_while_pending_never_starts(home: Path) -> None:
    agent, clock = ScriptedAgent(result("x")), FakeClock()
    async with Runtime.open(home, agents={"it": agent}, clock=clock) as desk:
        task = await desk.tasks.submit("later", agent="it", delay=5)
        cancelled = await desk.tasks.cancel(task.id)
        assert (cancelled.status, cancelled.outcome) == ("cancelled", "cancelled")
        after = await desk.tasks.submit("after it", agent="it", delay=6)
        await until(lambda: _advance(clock, desk, after))
        assert len(agent.turns) == 1
        with pytest.raises(AlreadyFinished):
            await desk.tasks.cancel(task.id)


async def test_a_task_cancelled_while_running_never_becomes_done(home: Path) -> None:
    """Not even if the agent finishes its work anyway."""
    go = asyncio.Event()
    agent = ScriptedAgent(wait_for(go), result("finished anyway"), deaf_to=("stop",))
    async with Runtime.open(home, agents={"it": agent}) as desk:
        task = await desk.tasks.submit("x", agent="it")
        await until(status_is(desk, task, "running"))
        assert (await desk.tasks.cancel(task.id)).status == "running"
        assert (await desk.tasks.get(task.id)).status_text == "running: stopping (cancel)"
        await until(lambda: agent.interrupts[:1] == ["stop"])
        go.set()
        ended_task = await desk.tasks.wait(task.id)
        assert (ended_task.status, ended_task.outcome, ended_task.result) == ("cancelled", "cancelled", None)


async def test_a_cancel_written_by_another_process_takes_effect(home: Path) -> None:
    agent = ScriptedAgent(wait_for(asyncio.Event()))
    async with Runtime.open(home, agents={"it": agent}) as desk, Runtime.open(home, work=False) as other_desk:
        task = await desk.tasks.submit("x", agent="it")
        await until(status_is(desk, task, "running"))
        await other_desk.tasks.cancel(task.id)
        ended_task = await desk.tasks.wait(task.id)
        assert ended_task.status == "cancelled"
        assert (await other_desk.tasks.wait(task.id)).status == "cancelled"


async def test_a_timeout_ends_the_turn_and_is_reported(home: Path) -> None:
    channel = RecordingChannel("there")
    agent = ScriptedAgent(wait_for(asyncio.Event()), deaf_to=("terminate",))
    async with Runtime.open(home, agents={"it": agent}, channels={"there": channel}) as desk:
        task = await run(desk, timeout=0.05, route="there", notices="all")
        assert (task.status, task.outcome) == ("failed", "timeout")
        assert "0.05" in (task.error or "")
        assert agent.interrupts == ["terminate", "kill"]
        await channel.until(lambda c: len(c.delivered) == 2)
        assert [d.notice for d in channel.delivered] == ["started", "timed_out"]
        assert channel.typed == [("start", None), ("stop", None)]


async def test_an_agent_that_ignores_interrupts_is_abandoned(home: Path) -> None:
    async def stubborn(turn: Turn) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if release.is_set():
                    raise

    release = asyncio.Event()
    agent = ScriptedAgent(stubborn, deaf_to=("stop", "terminate", "kill"))
    async with Runtime.open(home, agents={"it": agent}) as desk:
        task = await run(desk, timeout=0.05)
        assert (task.status, task.outcome) == ("failed", "timeout")
        release.set()
        for asyncio_task in asyncio.all_tasks():
            if "_contained" in repr(asyncio_task):
                asyncio_task.cancel()


# -- temporary failures ------------------------------------------------------------------------------------------


async def test_a_temporary_failure_is_retried_after_a_pause(home: Path) -> None:
    clock = FakeClock()
    tries: list[int] = []

    async def flaky(turn: Turn) -> str:
        tries.append(turn.attempt)
        if len(tries) < 3:
            raise TransientError("try later")
        return "there"

    async with Runtime.open(home, agents={"it": ScriptedAgent(flaky)}, clock=clock) as desk:
        task = await desk.tasks.submit("x", agent="it")
        await until(lambda: _is_waiting(desk, task))
        waiting_task = await desk.tasks.get(task.id)
        assert (waiting_task.wait, waiting_task.failures, waiting_task.attempt) == ("backoff", 1, 1)
        assert waiting_task.due_at > clock.now()
        await until(lambda: _advance(clock, desk, task))
        ended_task = await desk.tasks.get(task.id)
        assert (ended_task.status, ended_task.failures, ended_task.attempt) == ("done", 2, 3)
        assert tries == [1, 2, 3]


async def _is_waiting(desk: Runtime, task: Task) -> bool:
    return (await desk.tasks.get(task.id)).wait == "backoff"


async def _advance(clock: FakeClock, desk: Runtime, task: Task) -> bool:
    await clock.advance(1.0)
    return not (await desk.tasks.get(task.id)).open


async def test_a_task_that_keeps_failing_fails_after_max_attempts(home: Path) -> None:
    clock = FakeClock()
    agent = ScriptedAgent(raise_(ConnectionResetError("gone")))
    async with Runtime.open(home, agents={"it": agent}, clock=clock) as desk:
        task = await desk.tasks.submit("x", agent="it", max_attempts=2)
        await until(lambda: _advance(clock, desk, task))
        ended_task = await desk.tasks.get(task.id)
        assert (ended_task.status, ended_task.outcome, ended_task.attempt) == ("failed", "error", 2)
        assert len(agent.turns) == 2


@pytest.mark.parametrize(
    "steps",
    [
        (result("done"),),
        (save({"seen": (1, 2)}), result("done")),
        (say("hello"), result("done", usage=Usage(input_tokens=3, cost_usd=0.5, model="m"))),
        (raise_(RuntimeError("broken \0")),),
    ],
    ids=["plain", "progress", "usage", "failed"],
)
@pytest.mark.parametrize("session", [None, "chat:1"])
async def test_a_wait_returns_the_task_as_the_store_has_it(
    home: Path, steps: tuple[Step, ...], session: str | None
) -> None:
    async with Runtime.open(home, agents={"it": ScriptedAgent(*steps)}) as desk:
        task = await desk.tasks.submit("x", agent="it", session_key=session, budget={"tokens": 1000})
        ended_tasks = await asyncio.gather(*(desk.tasks.wait(task.id) for _ in range(2)))
        stored = await desk.store.get_task(task.id)
        assert ended_tasks == [stored, stored]


# -- leases ------------------------------------------------------------------------------------------------------


async def test_a_lost_lease_stops_the_agent_and_its_late_result_is_recorded_once(home: Path) -> None:
    go = asyncio.Event()

    async def work(turn: Turn) -> str:
        await go.wait()
        with pytest.raises(Exception, match="does not own"):
            await turn.save_progress("mine")
        return "too late"

    agent = ScriptedAgent(work, deaf_to=("terminate", "kill"))
    async with Runtime.open(home, agents={"it": agent}) as desk:
        task = await desk.tasks.submit("x", agent="it")
        await until(status_is(desk, task, "running"))
        update = Update("task", task.id, {"attempt": 7, "lease_owner": "i_other"}, {"status": "running"})
        await desk.store.apply(Changes(updates=(update,)))
        go.set()
        await until(lambda: _has_late_result(desk, task))
        current = await desk.store.get_task(task.id)
        assert current is not None and current.attempt >= 7  # the rescuer may have started it again
        assert (current.status != "done", current.result) == (True, None)
        assert agent.interrupts[:1] == ["terminate"]


async def _has_late_result(desk: Runtime, task: Task) -> bool:
    return (await kinds(desk, task)).count("task_late") == 1


@pytest.mark.parametrize(
    ("on_crash", "status", "outcome", "attempt"),
    [("rerun", "done", "ok", 2), ("resume", "done", "ok", 2), ("fail", "failed", "lost", 1)],
)
async def test_a_task_of_a_dead_process_is_recovered_by_its_crash_rule(
    home: Path, on_crash: Any, status: str, outcome: str, attempt: int
) -> None:
    never = asyncio.Event()
    stuck_agent = ScriptedAgent(
        tool("a"), save({"step": 1}), emit(ToolExecStart(tool="b", tool_call_id="b")), wait_for(never)
    )
    async with Runtime.open(home, agents={"it": stuck_agent}) as desk:
        task = await desk.tasks.submit("x", agent="it", on_crash=on_crash)
        await until(lambda: _has_emitted(desk, task, "tool_exec_start", 2))
        simulate_crash(desk)
    async with Runtime.open(home, work=False) as looking:  # the lease belongs to a process whose lock is free
        assert (await looking.tasks.get(task.id)).status == "running"
    again = ScriptedAgent(_is_resumed)
    async with Runtime.open(home, agents={"it": again}) as desk:
        ended_task = await desk.tasks.wait(task.id)
        assert (ended_task.status, ended_task.outcome, ended_task.attempt) == (status, outcome, attempt)
        event_kinds = await kinds(desk, task)
        for family in ("turn", "tool_exec"):
            assert event_kinds.count(f"{family}_start") == event_kinds.count(f"{family}_end")
        assert event_kinds.count("task_rescued") == 1
        if status == "done":
            assert ended_task.result == f"{on_crash == 'resume'} {{'step': 1}}"
            assert ended_task.rescues == 1


async def _is_resumed(turn: Turn) -> str:
    return f"{turn.resumed} {await turn.load_progress()}"


async def _has_emitted(desk: Runtime, task: Task, kind: str, count: int) -> bool:
    return (await kinds(desk, task)).count(kind) == count


# -- questions ---------------------------------------------------------------------------------------------------


async def _question(desk: Runtime) -> Any:
    return await desk.approvals.list()


async def test_a_question_waits_in_the_inbox_and_its_answer_reaches_the_agent(home: Path) -> None:
    channel = RecordingChannel("there")
    one_slot = AgentTerms(timeout_seconds=60.0, on_crash="rerun", slots=1)
    clock = FakeClock()
    asker = ScriptedAgent(ask("Deploy?", ("yes", "later", "no")), name="asker", terms=one_slot)
    async with Runtime.open(home, agents={"it": asker}, channels={"there": channel}, clock=clock) as desk:
        task = await desk.tasks.submit("x", agent="it", route="there")
        (question,) = await until(lambda: _question(desk))
        waiting = await desk.tasks.get(task.id)
        assert (waiting.status, waiting.status_text) == ("running", "running: waits for an answer")
        second = await desk.tasks.submit("y", agent="it")  # the slot is free meanwhile
        await until(lambda: _count(desk, 2))
        await clock.advance(90)  # longer than the timeout, which does not count meanwhile
        assert (await desk.tasks.get(task.id)).status == "running"
        await desk.approvals.answer(question.id, "later", actor="me", why="tests first")
        ended_task = await desk.tasks.wait(task.id)
        assert (ended_task.status, ended_task.result) == ("done", "later")
        (resolved,) = await desk.store.read_events(0, EventFilter(kinds=("approval_resolved",), task_id=task.id))
        assert (resolved.payload["status"], resolved.payload["why"], resolved.actor) == ("denied", "tests first", "me")
        await channel.until(lambda c: any(d.notice.startswith("asked:") for d in c.delivered))
        (second_approval,) = await desk.approvals.list()
        assert second_approval.task_id == second.id
        await desk.approvals.answer(second_approval.id, grant=True)
        assert (await desk.tasks.wait(second.id)).result == "yes"


async def _count(desk: Runtime, number: int) -> bool:
    return len(await desk.approvals.list()) == number


async def test_an_unanswered_question_expires(home: Path) -> None:
    clock = FakeClock()
    async with Runtime.open(home, agents={"it": ScriptedAgent(ask("Now?", expires=60))}, clock=clock) as desk:
        task = await desk.tasks.submit("x", agent="it")
        await until(lambda: _question(desk))
        await until(lambda: _advance(clock, desk, task))
        assert (await desk.tasks.get(task.id)).result == "expired"


async def test_cancelling_a_task_withdraws_its_question(home: Path) -> None:
    async with Runtime.open(home, agents={"it": ScriptedAgent(ask("Now?"))}) as desk:
        task = await desk.tasks.submit("x", agent="it")
        (question,) = await until(lambda: _question(desk))
        await desk.tasks.cancel(task.id)
        assert (await desk.tasks.wait(task.id)).status == "cancelled"
        assert (await desk.approvals.get(question.id)).status == "expired"


# -- notices and conversations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "notices"),
    [(result("x"), ["started", "done"]), (raise_(RuntimeError("x")), ["started", "failed"])],
)
async def test_the_route_gets_one_notice_of_the_start_and_one_of_the_end(
    home: Path, step: Step, notices: list[str]
) -> None:
    channel = RecordingChannel("there", fail=1)
    async with Runtime.open(home, agents={"it": ScriptedAgent(step)}, channels={"there": channel}) as desk:
        task = await run(desk, route="there", notices="all")
        await channel.until(lambda c: len(c.delivered) == 2)
        assert sorted(d.notice for d in channel.delivered) == sorted(notices)
        await until(lambda: _are_all_sent(desk, task))
        assert sorted(d.notice for d in await desk.notifications.list(task_id=task.id)) == sorted(notices)


async def _are_all_sent(desk: Runtime, task: Task) -> bool:
    return {d.status for d in await desk.notifications.list(task_id=task.id)} == {"sent"}


async def test_a_silent_result_is_stored_but_not_sent(home: Path) -> None:
    async with Runtime.open(home, agents={"it": ScriptedAgent(result("nothing new", outcome="silent"))}) as desk:
        task = await run(desk, route="console", notices="all")
        assert (task.status, task.outcome, task.result) == ("done", "silent", "nothing new")
        assert [d.notice for d in await desk.notifications.list(task_id=task.id)] == ["started"]


async def test_a_channel_that_hangs_or_raises_never_affects_a_task(home: Path) -> None:
    class Broken(RecordingChannel):
        def typing(self, target: str | None) -> Any:
            raise RuntimeError("no typing")

    channels = {"hang": RecordingChannel("hang", hang=True), "broken": Broken("broken", fail=99)}
    async with Runtime.open(home, agents={"it": ScriptedAgent(result("x"))}, channels=channels) as desk:
        for name in channels:
            assert (await run(desk, route=name)).status == "done"


async def test_a_conversation_keeps_prompt_answer_and_thread_and_notifies_the_origin(home: Path) -> None:
    async def talk(turn: Turn) -> TurnResult:
        return TurnResult(text=f"{turn.thread_id} heard {turn.prompt}", thread_id="th1")

    async with Runtime.open(home, agents={"it": ScriptedAgent(talk)}) as desk:
        await run(desk, "one", session_key="chat:1")
        await run(desk, "two", session_key="chat:1|message:5", origin_session="chat:9")
        third = await run(desk, "three", session_key="chat:1")
        assert third.result == "th1 heard three"
        messages = [(m.role, m.text) for m in await desk.sessions.messages("chat:1")]
        assert messages == [
            ("user", "one"), ("agent", "None heard one"), ("user", "three"), ("agent", "th1 heard three"),
        ]  # fmt: skip
        assert [(m.role, m.text) for m in await desk.sessions.messages("chat:9")] == [("result", "None heard two")]
        assert (await desk.sessions.get("chat:1")).session.thread_id == "th1"


async def test_a_retry_resumes_the_thread_of_a_private_session(home: Path) -> None:
    async def talk(turn: Turn) -> TurnResult:
        if turn.thread_id is None:
            return TurnResult(outcome="error", error="not yet", thread_id="th7")
        return TurnResult(text=f"went on in {turn.thread_id}")

    async with Runtime.open(home, agents={"it": ScriptedAgent(save("half"), talk)}) as desk:
        failed = await run(desk)
        assert (failed.status, failed.session_key) == ("failed", f"bg:{failed.id}")
        again = await desk.tasks.retry(failed.id)
        assert (again.retry_of, again.progress, again.root_id) == (failed.id, "half", failed.id)
        assert (await desk.tasks.wait(again.id)).result == "went on in th7"


# -- shutdown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("on_crash", "status"), [("rerun", "pending"), ("resume", "pending"), ("fail", "failed")])
async def test_shutdown_ends_turns_and_their_tasks_follow_their_crash_rule(
    home: Path, on_crash: Any, status: str
) -> None:
    settings = Settings.load(home, shutdown_grace=0)
    agent = ScriptedAgent(wait_for(asyncio.Event()))
    async with Runtime.open(settings=settings, agents={"it": agent}) as desk:
        task = await desk.tasks.submit("x", agent="it", on_crash=on_crash)
        await until(status_is(desk, task, "running"))
    assert agent.interrupts == ["stop"]
    async with Runtime.open(settings=settings, work=False) as looking:
        stored_task = await looking.store.get_task(task.id)
        assert stored_task is not None and stored_task.status == status
        assert stored_task.lease_owner is None
        if status == "pending":
            assert stored_task.interruptions == 1
        else:
            assert (stored_task.outcome, "retry" in (stored_task.error or "")) == ("lost", False)


async def test_shutdown_lets_a_turn_end_within_the_grace_period(home: Path) -> None:
    go = asyncio.Event()
    async with Runtime.open(home, agents={"it": ScriptedAgent(wait_for(go), result("made it"))}) as desk:
        task = await desk.tasks.submit("x", agent="it")
        await until(status_is(desk, task, "running"))
        asyncio.get_running_loop().call_later(0.05, go.set)
    async with Runtime.open(home, work=False) as looking:
        assert (await looking.tasks.result(task.id)) == "made it"


async def test_a_yielding_task_waits_again_and_continues(home: Path) -> None:
    go = asyncio.Event()
    agent = ScriptedAgent(wait_for(go), result("done at last"))
    async with Runtime.open(home, agents={"it": agent, "chat": ScriptedAgent(result("hello"))}) as desk:
        long_task = await desk.tasks.submit(
            "long", agent="it", session_key="chat:1", cause="automation", on_crash="rerun"
        )
        await until(status_is(desk, long_task, "running"))
        message = await desk.tasks.submit("hi", agent="chat", session_key="chat:1", cause="message")
        assert (await desk.tasks.wait(message.id)).result == "hello"
        go.set()
        ended_task = await desk.tasks.wait(long_task.id)
        assert (ended_task.status, ended_task.interruptions, ended_task.failures, ended_task.attempt) == (
            "done",
            1,
            0,
            2,
        )
        assert "task_interrupted" in await kinds(desk, long_task)


# -- which process runs a task -----------------------------------------------------------------------------------


async def test_a_task_without_an_available_agent_stays_pending_and_reports_it(home: Path) -> None:
    async with Runtime.open(home, agents={"special": ScriptedAgent(wait_for(asyncio.Event()))}) as desk:
        task = await desk.tasks.submit("x", agent="special", delay=3600)
    async with Runtime.open(home) as desk:
        await desk.store.apply(
            Changes(
                updates=(Update("task", task.id, {"wait": None, "due_at": task.created_at}, {"status": "pending"}),)
            )
        )
        stored_task = await desk.tasks.get(task.id)
        assert (stored_task.status, stored_task.status_text) == (
            "pending",
            "pending: no live process has agent 'special'",
        )
        assert (await desk.tasks.list())[0].wait == "agent"


async def test_a_library_beside_a_server_runs_its_own_tasks_and_those_only_it_can_run(home: Path) -> None:
    shared = {"both": ScriptedAgent(result("by the server"))}
    mine = {"both": ScriptedAgent(result("by the library")), "mine": ScriptedAgent(result("only here"))}
    async with Runtime.open(home, agents=shared, role="up") as server, Runtime.open(home, agents=mine) as library:
        theirs = await server.tasks.submit("x", agent="both")
        assert (await server.tasks.wait(theirs.id)).result == "by the server"
        own = await library.tasks.submit("x", agent="mine")
        assert (await library.tasks.wait(own.id)).result == "only here"
        across = await server.tasks.submit("x", agent="mine")  # known because a live process offers it
        assert (await server.tasks.wait(across.id)).result == "only here"


async def test_slots_limit_concurrent_tasks(home: Path) -> None:
    go = asyncio.Event()
    two = ScriptedAgent(wait_for(go), result("x"), terms=AgentTerms(slots=2))
    settings = Settings.load(home, slots=3)
    async with Runtime.open(settings=settings, agents={"two": two, "many": ScriptedAgent(wait_for(go))}) as desk:
        for agent in ("two", "two", "two", "many", "many"):
            await desk.tasks.submit("x", agent=agent)
        await until(lambda: (desk.running, len(two.turns)) == (3, 2))
        await settle(200)
        assert (desk.running, len(two.turns)) == (3, 2)
        waiting = [t for t in await desk.tasks.list() if t.status == "pending"]
        assert {(await desk.tasks.get(t.id)).wait for t in waiting} == {"slot"}
        go.set()


async def test_a_process_group_is_stored_before_the_agent_continues(home: Path) -> None:
    rows: list[Any] = []

    async def look(turn: Turn) -> None:
        rows.append(await desk.store.get_task(turn.task_id))

    async with Runtime.open(home, agents={"it": ScriptedAgent(own_group(4_000_000), look, result(""))}) as desk:
        task = await run(desk)
        assert [row.pgid for row in rows] == [4_000_000]
        assert task.pgid is None


# -- attempts to break the worker --------------------------------------------------------------------------------


class UnusualError(BaseException):
    """An error that is neither an Exception nor one of the interpreter."""


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = {"in": value}
    return value


async def return_unknown_outcome(turn: Turn) -> TurnResult:
    return TurnResult(text="x", outcome="weird")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (raise_(UnusualError("no")), "failed"),
        (return_unknown_outcome, "failed"),
        (emit(ToolExecStart(tool="x", arguments=nested(400))), "done"),
    ],
    ids=["BaseException", "outcome", "nesting"],
)
async def test_a_misbehaving_agent_ends_its_own_task_and_affects_no_other(home: Path, step: Step, status: str) -> None:
    agents = {"it": ScriptedAgent(step), "good": ScriptedAgent(tool("a"), result("ok"))}
    async with Runtime.open(home, agents=agents) as desk:
        tasks = [await desk.tasks.submit("x", agent=name) for name in ("it", "good") * 5]
        async with asyncio.timeout(60):
            ended_tasks = [await desk.tasks.wait(task.id) for task in tasks]
        assert [task.status for task in ended_tasks] == [status, "done"] * 5


async def test_a_clock_set_back_delays_no_task(home: Path) -> None:
    clock = FakeClock()
    go = asyncio.Event()
    agent = ScriptedAgent(wait_for(go), result("ok"), terms=AgentTerms(slots=1))
    async with Runtime.open(home, agents={"it": agent}, clock=clock) as desk:
        first, second = [await desk.tasks.submit("x", agent="it") for _ in range(2)]
        await until(status_is(desk, first, "running"))
        clock.set(clock.now() - 20_000_000)
        go.set()
        await until(status_is(desk, second, "done"))


async def test_long_results_are_not_held_in_memory(home: Path) -> None:
    async with Runtime.open(home, agents={"it": ScriptedAgent(result("x" * 1_000_000))}) as desk:
        task = await run(desk)
        assert sum(len(str(event.payload)) for event in desk.bus._tail) < 100_000
        event_kinds = []
        async for event in desk.bus.follow(0, EventFilter(task_id=task.id)):
            event_kinds.append(event.kind)
            if event.kind == "task_finished":
                break
        assert event_kinds == await kinds(desk, task)


async def test_a_server_leads_although_a_library_led_before(home: Path) -> None:
    async with Runtime.open(home) as library:
        leads = engine_of(library).leads
        assert leads()
        async with Runtime.open(home, role="up") as server:
            assert engine_of(server).leads()
            assert not leads()
        await until(leads)


async def test_an_answer_to_a_dead_attempt_is_refused(home: Path) -> None:
    async with Runtime.open(home, agents={"it": ScriptedAgent(ask("Go?"))}) as desk:
        task = await desk.tasks.submit("x", agent="it", on_crash="rerun")
        (question,) = await until(lambda: _question(desk))
        simulate_crash(desk)
    async with Runtime.open(home, work=False) as looking:
        with pytest.raises(Conflict, match="no longer runs"):
            await looking.approvals.answer(question.id, grant=True)
        assert (await looking.tasks.get(task.id)).status == "running"


async def test_concurrent_retries_make_one_task(home: Path) -> None:
    async with Runtime.open(home, agents={"it": ScriptedAgent(raise_(RuntimeError("x")))}) as desk:
        failed = await run(desk)
        results = await asyncio.gather(*(desk.tasks.retry(failed.id) for _ in range(10)), return_exceptions=True)
        assert sum(isinstance(result, Task) for result in results) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 9


async def test_a_removed_database_takes_no_more_tasks(home: Path) -> None:
    async with Runtime.open(home, agents={"it": ScriptedAgent(result("x"))}) as desk:
        await run(desk)
        (home / "midwatch.db").rename(home / "elsewhere.db")

        async def is_refused() -> bool:
            try:
                await desk.tasks.submit("x", agent="it", delay=60)
            except StoreUnavailable as problem:
                return "removed or replaced" in str(problem)
            return False

        await until(is_refused)
        (home / "elsewhere.db").rename(home / "midwatch.db")


# -- a process that was suspended --------------------------------------------------------------------------------

SUSPENDED = """
import asyncio, sys
import uvloop
from midwatch import Runtime, Settings
from midwatch.agents.command import CommandAgent, CommandOptions

async def main(home, *argv):
    settings = Settings.load(home, detect_agents=False)
    async with Runtime.open(settings=settings, agents={"x": CommandAgent("x", CommandOptions(argv=argv))}) as desk:
        task = await desk.tasks.submit("do it", agent="x", timeout=1.0, workdir=home)
        ended = await desk.tasks.wait(task.id)
        print(ended.outcome, ended.result, ended.error)

{"asyncio": asyncio.run, "uvloop": uvloop.run}[sys.argv[1]](main(*sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "ends"), [("asyncio", True), ("uvloop", True), ("uvloop", False)])
async def test_a_program_that_ended_while_midwatch_was_suspended_keeps_its_result(
    home: Path, loop: str, ends: bool
) -> None:
    home.mkdir()
    script = "echo $$ > pid.new; mv pid.new pid; while [ ! -e go ]; do sleep 0.01; done; echo the answer"
    process = subprocess.Popen(
        [sys.executable, "-c", SUSPENDED, loop, str(home), "sh", "-c", script], stdout=subprocess.PIPE, text=True
    )
    try:
        assert await eventually((home / "pid").exists)
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        program = int((home / "pid").read_text())
        assert await eventually(lambda: state_of(process.pid) == "T")
        if ends:
            (home / "go").touch()
            assert await eventually(lambda: state_of(program) == "Z")
        assert await eventually(lambda: time.monotonic() > began + 2.0)  # twice the timeout
        process.send_signal(signal.SIGCONT)
        out, _ = await asyncio.to_thread(process.communicate, timeout=60)
    finally:
        process.kill()
        process.wait()
    assert out.strip() == "ok the answer None" if ends else out.startswith("timeout None")


def state_of(pid: int) -> str:
    """Return the state of a process: T for stopped, Z for ended and not reaped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
