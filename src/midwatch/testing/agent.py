"""Agents that follow a script.

agent = ScriptedAgent(delta("Working"), ask("Deploy?"), result("done"))
turn = RecordingTurn("Ship it", answers=["yes"])
conversation = await agent.open(turn.session())
assert (await conversation.turn(turn)).text == "done"
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from midwatch.agents.base import message_id
from midwatch.agents.function import OnLoop
from midwatch.domain.agent import AgentCapability, AgentTerms, Conversation, Interrupt, Turn, TurnResult, Usage
from midwatch.domain.event import MessageDelta, MessageUpdate, Payload, ToolExecEnd, ToolExecStart
from midwatch.domain.session import Session
from midwatch.domain.task import Outcome

Step = Callable[[Turn], Awaitable[Any]]
"""One action of a scripted agent. The last step returns the result: a text, a TurnResult, or None."""


def say(text: str) -> Step:
    """Return a step that emits a complete message.

    If it is the last step, the message is the result of the turn.
    """

    async def step(turn: Turn) -> str:
        await turn.emit(MessageUpdate(message_id=message_id(turn), role="agent", message=text))
        return text

    return step


def delta(text: str, offset: int = 0) -> Step:
    """Return a step that emits a live piece of a message; `offset` is its position in the message."""
    return lambda turn: turn.emit(MessageDelta(message_id=message_id(turn), offset=offset, text=text))


def emit(payload: Payload) -> Step:
    """Return a step that emits any event."""
    return lambda turn: turn.emit(payload)


def tool(name: str, arguments: Any = None, result: str = "", *, is_error: bool = False) -> Step:
    """Return a step that emits the start and the end of a tool's use."""

    async def step(turn: Turn) -> None:
        await turn.emit(ToolExecStart(tool=name, arguments=arguments, tool_call_id=name))
        await turn.emit(ToolExecEnd(tool=name, tool_call_id=name, duration=0.0, result=result, is_error=is_error))

    return step


def ask(question: str, choices: tuple[str, ...] = ("yes", "no"), *, expires: float | None = None) -> Step:
    """Return a step that asks a question, waits for the answer, and returns the choice.

    If the answer has no choice, the step returns the status of the question.
    """

    async def step(turn: Turn) -> str:
        answer = await turn.ask(question, choices, expires=expires)
        return answer.choice or answer.status

    return step


def save(progress: Any) -> Step:
    """Return a step that saves `progress`."""
    return lambda turn: turn.save_progress(progress)


def load() -> Step:
    """Return a step that returns the saved progress as text."""

    async def step(turn: Turn) -> str:
        return str(await turn.load_progress())

    return step


def receive() -> Step:
    """Return a step that waits for a message of a person and returns its text."""
    return lambda turn: turn.receive()


def own_group(pgid: int) -> Step:
    """Return a step that reports that the process group `pgid` belongs to this attempt."""
    return lambda turn: turn.own_group(pgid)


def wait_for(event: asyncio.Event) -> Step:
    """Return a step that waits until the test sets `event`."""

    async def step(turn: Turn) -> None:
        await event.wait()

    return step


def raise_(problem: BaseException) -> Step:
    """Return a step that raises the error `problem`."""

    async def step(turn: Turn) -> None:
        raise problem

    return step


def result(
    text: str = "",
    *,
    outcome: Outcome = "ok",
    error: str | None = None,
    thread_id: str | None = None,
    usage: Usage | None = None,
) -> Step:
    """Return a step that ends the turn with this result."""

    async def step(turn: Turn) -> TurnResult:
        return TurnResult(text=text, outcome=outcome, error=error, thread_id=thread_id, usage=usage or Usage())

    return step


class ScriptedAgent:
    """An agent that performs its steps in every turn, one after the other.

    It records sessions, turns and interrupts. A step is any `async def step(turn)`. An interrupt cancels the running
    step, unless the mode of the interrupt is in `deaf_to`. With `lasting` the conversations of the agent stay open
    between turns.
    """

    kind = "scripted"

    def __init__(
        self,
        *steps: Step,
        name: str = "scripted",
        terms: AgentTerms | None = None,
        deaf_to: Iterable[Interrupt] = (),
        lasting: bool = False,
    ) -> None:
        self.name = name
        self.lasting = lasting
        self.terms = (terms or AgentTerms(timeout_seconds=60.0, on_crash="rerun"))._replace(steerable=True)
        self.description = ""
        self.capabilities: tuple[AgentCapability, ...] = ()
        self.opened: list[Session] = []
        self.turns: list[Turn] = []
        self.interrupts: list[Interrupt] = []
        self.closed = 0
        self.deaf_to = frozenset(deaf_to)
        self._steps = steps

    async def open(self, session: Session) -> Conversation:
        """Begin a conversation."""
        self.opened.append(session)
        return _LastingConversation(self) if self.lasting else _ScriptedConversation(self)

    def describe(self) -> Mapping[str, Any]:
        """Return the number of steps in the script."""
        return {"target": f"a script of {len(self._steps)} steps"}

    async def perform(self, prompt: str, turn: Turn) -> Any:
        """Perform all steps of the script."""
        self.turns.append(turn)
        value: Any = None
        for step in self._steps:
            value = await step(turn)
        return value


class _ScriptedConversation(OnLoop):
    def __init__(self, agent: ScriptedAgent) -> None:
        super().__init__(agent.perform)
        self._agent = agent

    async def interrupt(self, mode: Interrupt) -> None:
        self._agent.interrupts.append(mode)
        if mode not in self._agent.deaf_to:
            await super().interrupt(mode)

    async def close(self) -> None:
        self._agent.closed += 1
        await super().close()


class _LastingConversation(_ScriptedConversation):
    alive = True

    async def close(self) -> None:
        self.alive = False
        await super().close()
