"""Uses of the public interface. Checked by mypy and never run: a change that breaks a user's types fails here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

import midwatch
from midwatch import (
    Agent,
    AgentCapability,
    AgentError,
    AgentTerms,
    Answer,
    Approval,
    Channel,
    Client,
    Conflict,
    Conversation,
    Delivery,
    Event,
    EventFilter,
    FunctionAgent,
    Hook,
    HookDecision,
    HookMeta,
    InvalidInput,
    Message,
    MidwatchError,
    NotFound,
    Runtime,
    Session,
    Settings,
    Summary,
    Task,
    TaskFilter,
    TaskProgress,
    TransientError,
    Turn,
    TurnResult,
    Usage,
)
from midwatch.channels.base import SendOnly
from midwatch.domain.agent import Interrupt
from midwatch.domain.requests import Submission
from midwatch.domain.session import View
from midwatch.domain.task import Outcome, Status
from midwatch.testing import FakeClock, RecordingChannel, RecordingTurn, ScriptedAgent, result, say
from midwatch.wire.events import EventInfo
from midwatch.wire.tasks import Counts, TaskInfo, TaskPage


async def the_library(home: str) -> None:
    settings = Settings.load(home, slots=2, notify="console")
    async with Runtime.open(home, settings=settings, agents={"echo": echo}, clock=FakeClock()) as desk:
        task = await desk.tasks.submit(
            "Say hello",
            actor="me",
            agent="demo",
            session_key="chat:1",
            route="webhook:https://example.org/hook",
            workdir=home,
            timeout=60.0,
            priority=5,
            delay=1.5,
            idempotency_key="hello-1",
            on_crash="rerun",
            max_attempts=2,
            origin_channel="console",
            origin_session="chat:2",
        )
        assert_type(task, Task)
        assert_type(task.status, Status)
        assert_type(task.outcome, Outcome | None)
        assert_type(task.tokens_used, int | None)
        assert_type(task.snapshot(), dict[str, Any])
        assert_type(await desk.tasks.wait(task.id), Task)
        assert_type(await desk.tasks.status(task.id), Task)
        assert_type(await desk.tasks.result(task.id), str)
        assert_type(await desk.tasks.cancel(task.id, actor="me"), Task)
        assert_type(await desk.tasks.retry(task.id), Task)
        listed: list[Task] = await desk.tasks.list(TaskFilter(statuses=("failed",), limit=10))
        assert_type(listed[0], Task)
        assert_type(await desk.tasks.summary(), Summary)
        assert_type(await desk.tasks.active_count(), int)
        assert_type(await desk.approvals.list(), list[Approval])
        assert_type(await desk.approvals.answer("a_1", grant=True, why="fine"), Approval)
        assert_type(await desk.sessions.get("chat:1"), View)
        assert_type(await desk.sessions.create(agent="demo", title="talk"), tuple[View, bool])
        assert_type(await desk.sessions.send("chat:1", "hello"), Task)
        assert_type(await desk.sessions.messages("chat:1"), list[Message])
        assert_type(await desk.notifications.list(task_id=task.id), list[Delivery])
        async for event in desk.bus.follow(0, EventFilter(kinds=("task_finished",)), live=True):
            assert_type(event, Event)
            assert_type(event.payload, Mapping[str, Any])


async def the_client(home: str) -> None:
    async with Client.for_home(home) as client:
        submission: Submission = {"agent": "demo", "priority": 1}
        assert_type(await client.submit("Say hello", submission), TaskInfo)
        page = await client.list(status=["pending"])
        assert_type(page, TaskPage)
        assert_type(page["tasks"], list[TaskInfo])
        assert_type(page["tasks"][0]["status_text"], Any)
        assert_type(await client.summary(), Counts)
        async for event in client.follow(0, kinds=["task_finished"]):
            assert_type(event, EventInfo)


async def errors(desk: Runtime) -> str | None:
    try:
        return await desk.tasks.result("t_1")
    except NotFound as problem:
        return problem.key
    except InvalidInput as problem:
        return problem.field
    except (Conflict, TransientError, AgentError):
        return None
    except MidwatchError as problem:
        return problem.code


# -- agents ------------------------------------------------------------------------------------------------------------


def echo(prompt: str) -> str:
    return prompt


async def asks(prompt: str, turn: Turn) -> TurnResult:
    await turn.emit(TaskProgress(text="thinking", percent=50.0))
    answer = await turn.ask("Go on?", ("yes", "no"), expires=60.0)
    assert_type(answer, Answer)
    assert_type(answer.granted, bool)
    await turn.save_progress({"step": 1})
    return TurnResult(text=await turn.receive(), usage=Usage(input_tokens=1), thread_id=turn.thread_id)


class OwnConversation:
    """A conversation of a user's own agent."""

    async def turn(self, turn: Turn) -> TurnResult:
        return TurnResult(text=turn.prompt, outcome="ok")

    async def interrupt(self, mode: Interrupt) -> None:
        return None

    async def close(self) -> None:
        return None


class OwnAgent:
    """A user's own agent."""

    name = "mine"
    kind = "mine"
    terms = AgentTerms(timeout_seconds=60.0, on_crash="fail")
    description = "answers with the prompt"
    capabilities = (AgentCapability(name="answering", task_types=("question",), priority=1),)

    async def open(self, session: Session) -> OwnConversation:
        return OwnConversation()

    def describe(self) -> Mapping[str, Any]:
        return {"target": "a class"}


class Pager(SendOnly):
    """A user's own channel."""

    async def deliver(self, delivery: Delivery) -> None:
        assert_type(delivery.target, str | None)


class OwnHook(Hook):
    """A user's own hook."""

    name = "mine"
    priority = 10
    seconds = 2.5

    async def before_tool(self, subject: dict[str, Any], meta: HookMeta) -> HookDecision | None:
        assert_type(meta.workdir, str | None)
        return HookDecision.deny("no") if subject["tool"] == "rm" else None


AGENTS: list[Agent] = [OwnAgent(), FunctionAgent("asks", asks, on_loop=True), ScriptedAgent(say("hi"), result("done"))]
TALK: Conversation = OwnConversation()
TURN: Turn = RecordingTurn("Say hello", answers=["yes"])
CHANNELS: list[Channel] = [Pager("pager"), RecordingChannel()]
VERSION: str = midwatch.__version__
