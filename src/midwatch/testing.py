"""Fakes for tests: a clock that is moved by hand, agents that follow a script, a turn and a channel that remember.

agent = ScriptedAgent(delta("Working"), ask("Deploy?"), result("done"))
turn = RecordingTurn("Ship it", answers=["yes"])
conversation = await agent.open(turn.session())
assert (await conversation.turn(turn)).text == "done"
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack

from midwatch.agent import (
    AgentCapability,
    Answer,
    Conversation,
    Delegation,
    Interrupt,
    Question,
    Turn,
    TurnResult,
    Usage,
)
from midwatch.agents.base import message_id
from midwatch.agents.function import OnLoop
from midwatch.channel import Delivery
from midwatch.clock import LONGEST_NAP, SECOND, SystemClock, Timer, new_id
from midwatch.errors import AgentError, DeliveryError, HandoffError
from midwatch.event import MessageDelta, MessageUpdate, Payload, ToolExecEnd, ToolExecStart
from midwatch.handoff import Handoff, HandoffTask, Transfer
from midwatch.session import Session, gate_key
from midwatch.steering import Mode, Steer
from midwatch.task import AgentTerms, Outcome, Task

# -- time --------------------------------------------------------------------------------------------------------


class FakeTimer:
    """A call that happens when the clock is moved past its time."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """It will never happen."""
        self.callback = None


class FakeClock:
    """A clock that stands still until `advance` moves it."""

    def __init__(self, now: int = 1_700_000_000 * SECOND) -> None:
        self._now = now
        self._monotonic = 1000.0
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._order = itertools.count()

    def now(self) -> int:
        """Microseconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self._monotonic

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` when the clock has been moved that far."""
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (self._monotonic + max(0.0, seconds), next(self._order), timer))
        return timer

    async def sleep_until(self, when: int) -> None:
        """Return once the clock has been moved to `when`."""
        while (left := when - self._now) > 0:
            woken = asyncio.Event()
            timer = self.call_later(min(left / SECOND, LONGEST_NAP), woken.set)
            try:
                await woken.wait()
            finally:
                timer.cancel()

    async def advance(self, seconds: float) -> None:
        """Move on, making the calls that fall due in order and letting what they woke run before the next."""
        end, end_now = self._monotonic + seconds, self._now + round(seconds * SECOND)
        await settle()
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self._monotonic = max(self._monotonic, due)
                self._now = max(self._now, end_now - round((end - due) * SECOND))
                timer.callback()
                await settle()
        self._monotonic, self._now = end, end_now
        await settle()

    def set(self, now: int) -> None:
        """Set the wall clock, as a person or a time server might; timers do not notice."""
        self._now = now


async def settle(turns: int = 20) -> None:
    """Let everything that can run do so."""
    for _ in range(turns):
        await asyncio.sleep(0)


# -- agents ------------------------------------------------------------------------------------------------------

Step = Callable[[Turn], Awaitable[Any]]
"""One thing a scripted agent does. What the last step returns is the result: a text, a TurnResult, or nothing."""


def say(text: str) -> Step:
    """Emit a whole message; it is the result if nothing follows."""

    async def step(turn: Turn) -> str:
        await turn.emit(MessageUpdate(message_id=message_id(turn), role="agent", message=text))
        return text

    return step


def delta(text: str, offset: int = 0) -> Step:
    """Emit a live piece of text."""

    async def step(turn: Turn) -> None:
        await turn.emit(MessageDelta(message_id=message_id(turn), offset=offset, text=text))

    return step


def emit(payload: Payload) -> Step:
    """Emit any event."""

    async def step(turn: Turn) -> None:
        await turn.emit(payload)

    return step


def tool(name: str, arguments: Any = None, result: str = "", *, is_error: bool = False) -> Step:
    """Emit the start and the end of a tool's use."""

    async def step(turn: Turn) -> None:
        await turn.emit(ToolExecStart(tool=name, arguments=arguments, tool_call_id=name))
        await turn.emit(ToolExecEnd(tool=name, tool_call_id=name, duration=0.0, result=result, is_error=is_error))

    return step


def ask(question: str, choices: tuple[str, ...] = ("yes", "no"), *, expires: float | None = None) -> Step:
    """Ask, wait, and return the choice (or what became of the question)."""

    async def step(turn: Turn) -> str:
        answer = await turn.ask(question, choices, expires=expires)
        return answer.choice or answer.status

    return step


def save(progress: Any) -> Step:
    """Save progress."""

    async def step(turn: Turn) -> None:
        await turn.save_progress(progress)

    return step


def load() -> Step:
    """Return the saved progress as text."""

    async def step(turn: Turn) -> str:
        return str(await turn.load_progress())

    return step


def receive() -> Step:
    """Wait for a message and return it."""

    async def step(turn: Turn) -> str:
        return await turn.receive()

    return step


def own_group(pgid: int) -> Step:
    """Say that a process group belongs to this attempt."""

    async def step(turn: Turn) -> None:
        await turn.own_group(pgid)

    return step


def wait_for(event: asyncio.Event) -> Step:
    """Wait until the test sets the event."""

    async def step(turn: Turn) -> None:
        await event.wait()

    return step


def raise_(problem: BaseException) -> Step:
    """Fail."""

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
    """End the turn with this."""
    made = TurnResult(text=text, outcome=outcome, error=error, thread_id=thread_id, usage=usage or Usage())

    async def step(turn: Turn) -> TurnResult:
        return made

    return step


class ScriptedAgent:
    """Does the steps it is given, one after the other, in every turn; remembers what it was asked.

    A step is any `async def step(turn)`. An interrupt cancels the step it is in, unless its mode is in `deaf_to`. With
    `lasting` its conversations stay open between turns.
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
        """It has a script."""
        return {"target": f"a script of {len(self._steps)} steps"}

    async def perform(self, prompt: str, turn: Turn) -> Any:
        """The whole script."""
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


class RecordingTurn:
    """A turn without a worker: gives an agent its prompt and remembers what it does. A question beyond `answers`
    fails the turn."""

    def __init__(
        self,
        prompt: str = "Say hello",
        *,
        answers: Iterable[str | Answer] = (),
        replies: Iterable[Any] = (),
        handoff: Handoff | None = None,
        messages: Iterable[str] = (),
        progress: Any = None,
        steps: Iterable[Any] = (),
        earlier: Iterable[Any] = (),
        thread_id: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        task_id: str | None = None,
        attempt: int = 1,
        resumed: bool = False,
    ) -> None:
        # Its own id: processes are found by it, and other tests may run beside this one.
        task_id = self.task_id = task_id or new_id("t", SystemClock().now())
        self.attempt = attempt
        self.session_key = f"bg:{task_id}"
        self.prompt = prompt
        self.thread_id = thread_id
        self.workdir = workdir
        self.env: Mapping[str, str] = {"MIDWATCH_TASK": f"{task_id}/{attempt}", **(env or {})}
        self.deadline: float | None = None
        self.resumed = resumed
        self.events: list[Payload] = []
        self.groups: list[int] = []
        self.asked: list[Question] = []
        self.questions: list[tuple[str, tuple[str, ...]]] = []
        self.progress = progress
        self.steps = list(steps)
        self.earlier = list(earlier)
        self.spent: str | None = None
        """What `over_budget` tells."""
        self._numbers = itertools.count(1)
        self._steers = [self._steer(text, "after_tool") for text in messages]
        self._steered = asyncio.Event()
        self._answers = list(answers)
        self._replies = list(replies)
        self.brought = handoff
        self.hidden: set[str] = set()
        self.transferred: list[tuple[str | None, HandoffTask, dict[str, Any]]] = []
        self.delegated: list[tuple[str | None, HandoffTask, dict[str, Any]]] = []
        self._news = asyncio.Condition()

    def session(self, agent: str = "scripted") -> Session:
        """A session this turn could be of."""
        key = self.session_key
        return Session(key=key, agent=agent, gate_key=gate_key(key), thread_id=self.thread_id, workdir=self.workdir)

    def text(self) -> str:
        """The live text so far."""
        return "".join(seen.text for seen in self.events if isinstance(seen, MessageDelta))

    def kinds(self) -> list[str]:
        """Names of the events so far."""
        return [seen.kind for seen in self.events]

    async def until(self, seen: Callable[[RecordingTurn], bool]) -> None:
        """Return once the agent has done what `seen` looks for."""
        async with self._news:
            await self._news.wait_for(lambda: seen(self))

    async def emit(self, payload: Payload) -> None:
        """Remember an event; one that is not an agent's to tell is refused, as a real turn does."""
        if not payload.agents:
            raise AgentError(f"an agent cannot tell {payload.kind}, which is midwatch's own to tell.")
        self.events.append(payload)
        await self._tell()

    async def load_progress(self) -> Any:
        """The progress given or saved."""
        return self.progress

    async def save_progress(self, progress: Any) -> None:
        """Remember progress."""
        self.progress = progress
        await self._tell()

    async def load_steps(self) -> list[Any]:
        """The steps given or saved."""
        return list(self.steps)

    async def save_step(self, data: Any, took: Sequence[str] = ()) -> None:
        """Remember a step, as JSON would."""
        self.steps.append(json.loads(json.dumps(data)))
        self._steers = [steer for steer in self._steers if steer.id not in took]
        await self._tell()

    async def history(self) -> list[Any]:
        """The earlier steps given."""
        return list(self.earlier)

    async def steer(self, text: str, mode: Mode = "after_tool") -> None:
        """Send a message into the turn."""
        self._steers.append(self._steer(text, mode))
        self._steered.set()
        await self._tell()

    def _steer(self, text: str, mode: Mode) -> Steer:
        number = next(self._numbers)
        return Steer(
            id=f"m_{number}", task_id=self.task_id, number=number, session_key=self.session_key, mode=mode, text=text,
            created_at=0,
        )  # fmt: skip

    def steers(self, *modes: Mode) -> tuple[Steer, ...]:
        """The messages no step took."""
        return tuple(steer for steer in self._steers if not modes or steer.mode in modes)

    async def steered(self) -> None:
        """Wait for one."""
        self._steered.clear()
        await self._steered.wait()

    async def receive(self) -> str:
        """The next message."""
        while not self._steers:
            await self.steered()
        return self._steers.pop(0).text

    def over_budget(self) -> str | None:
        """What `spent` says."""
        return self.spent

    async def ask(
        self, question: str | Question, choices: tuple[str, ...] = ("yes", "no"), *, expires: float | None = None
    ) -> Answer:
        """The next of `answers`: a choice's name, or an Answer."""
        asked = Question.plain(question, choices) if isinstance(question, str) else question
        names = tuple(choice.name for choice in asked.choices)
        self.questions.append((asked.text, names))
        self.asked.append(asked)
        await self._tell()
        if not self._answers:
            raise AgentError("the test gave no answer to this question; pass answers=[...]")
        answer = self._answers.pop(0)
        if isinstance(answer, Answer):
            return answer
        return Answer("granted" if asked.choices[names.index(answer)].allows else "denied", answer)

    async def handoff(self) -> Handoff | None:
        """The handoff given."""
        return self.brought

    async def delegate(
        self, to: str | None = None, task: HandoffTask | str = "", **wish: Unpack[Delegation]
    ) -> Handoff:
        """Remember what was handed over; the answer is the next of `replies`."""
        work = HandoffTask(description=task) if isinstance(task, str) else task
        self.delegated.append((to, work, dict(wish)))
        await self._tell()
        if not self._replies:
            raise HandoffError("the test gave no answer to this handoff; pass replies=[...]")
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        answer = {"output": reply, "error": None, "duration_ms": 0}
        return Handoff(id=f"h_{len(self.delegated)}", to_agent=to or "", status="completed", answer=answer)

    async def transfer(
        self, to: str | None = None, task: HandoffTask | str = "", **wish: Unpack[Delegation]
    ) -> Transfer:
        """Remember what was handed over; the next of `replies` may refuse it with an error."""
        work = HandoffTask(description=task or self.prompt) if isinstance(task, str) else task
        self.transferred.append((to, work, dict(wish)))
        await self._tell()
        if self._replies and isinstance(reply := self._replies.pop(0), Exception):
            raise reply
        made = Handoff(id=f"h_{len(self.transferred)}", form="transfer", to_agent=to or "", status="accepted")
        key = self.session_key
        begins = Task(
            id=f"{self.task_id}x", status="pending", prompt=work.words(), agent=to or "", session_key=key,
            gate_key=gate_key(key), created_at=0, due_at=0, cause="handoff", cause_id=made.id,
        )  # fmt: skip
        return Transfer(handoff=made, task=begins)

    def receivers(self, names: Sequence[str]) -> Mapping[str, str]:
        """All but those in `hidden`."""
        return {name: "" for name in names if name not in self.hidden}

    async def keep_thread(self, thread_id: str) -> None:
        """Remember it."""
        self.thread_id = thread_id
        await self._tell()

    async def own_group(self, pgid: int) -> None:
        """Remember a process group."""
        self.groups.append(pgid)
        await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


# -- channels ----------------------------------------------------------------------------------------------------


class RecordingChannel:
    """A channel that remembers what it was given, and can be told to fail or to hang."""

    def __init__(self, name: str = "recording", *, fail: int = 0, permanent: bool = False, hang: bool = False) -> None:
        self.name = name
        self.fail = fail
        """How many of the next deliveries fail."""
        self.permanent = permanent
        self.hang = hang
        """While set, deliveries do not return."""
        self.tried: list[Delivery] = []
        self.delivered: list[Delivery] = []
        self.typing_now = 0
        self.typed: list[tuple[str, str | None]] = []
        """(start or stop, target), in order."""
        self.closed = False
        self._news = asyncio.Condition()

    async def deliver(self, delivery: Delivery) -> None:
        """Remember it, or do as told."""
        self.tried.append(delivery)
        await self._tell()
        if self.hang:
            await asyncio.Event().wait()
        if self.fail > 0:
            self.fail -= 1
            raise DeliveryError(f"channel {self.name} was told to fail", permanent=self.permanent)
        self.delivered.append(delivery)
        await self._tell()

    def typing(self, target: str | None) -> AbstractAsyncContextManager[None]:
        """Remember when it starts and stops."""
        return self._typing(target)

    def listen(self) -> AsyncIterator[Mapping[str, Any]] | None:
        """Nothing arrives here."""
        return None

    async def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    async def until(self, seen: Callable[[RecordingChannel], bool]) -> None:
        """Return once `seen` is true of what was tried and delivered."""
        async with self._news:
            await self._news.wait_for(lambda: seen(self))

    @asynccontextmanager
    async def _typing(self, target: str | None) -> AsyncIterator[None]:
        self.typing_now += 1
        self.typed.append(("start", target))
        try:
            yield
        finally:
            self.typing_now -= 1
            self.typed.append(("stop", target))

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()
