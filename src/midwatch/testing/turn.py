"""A turn that records what an agent does in it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from midwatch.base.clock import SystemClock
from midwatch.base.errors import AgentError, HandoffError
from midwatch.base.ids import new_id
from midwatch.domain.agent import MAY_START, Answer, Delegation, Permit, ProgramUsage, Question
from midwatch.domain.context_item import ContextItem
from midwatch.domain.event import MessageDelta, MessageUpdate, Payload
from midwatch.domain.handoff import Handoff, HandoffTask, Transfer
from midwatch.domain.hook import NO_HOOK, HookOutcome
from midwatch.domain.session import Message, Role, Session, gate_key
from midwatch.domain.steering import Mode, Steer
from midwatch.domain.task import new_task
from midwatch.domain.tool_call import GO_ON, Describe, ToolCall, ToolDecision, ToolResult


class RecordingTurn:
    """A turn without a worker: it gives an agent a prompt and records the calls of the agent.

    If the agent asks more questions than `answers` has items, the turn fails. `reserve` returns `permit`.
    """

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
        said: Iterable[tuple[Role, str]] = (),
        results: Iterable[ContextItem] = (),
        thread_id: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        task_id: str | None = None,
        attempt: int = 1,
        resumed: bool = False,
    ) -> None:
        # A new id: processes are found by their task, and other tests may run at the same time.
        task_id = self.task_id = task_id or new_id("t", SystemClock().now())
        self.attempt = attempt
        self.session_key = f"bg:{task_id}"
        self.prompt = prompt
        self.thread_id = thread_id
        self.workdir = workdir
        self.pin: str | None = None
        self.env: Mapping[str, str] = {"MIDWATCH_TASK": f"{task_id}/{attempt}", **(env or {})}
        self.deadline: float | None = None
        self.resumed = resumed
        self.events: list[Payload] = []
        self.groups: list[int] = []
        self.program_usage = ProgramUsage()
        self.tool_calls: list[ToolCall] = []
        self.asked: list[Question] = []
        self.questions: list[tuple[str, tuple[str, ...]]] = []
        self.progress = progress
        self.steps = list(steps)
        self.earlier = list(earlier)
        self.said = list(said)
        self._results = list(results)
        self.permit = MAY_START
        self._numbers = itertools.count(1)
        self._steers = [self._steer(text, "after_tool") for text in messages]
        self._steer_arrived = asyncio.Event()
        self._answers = list(answers)
        self._replies = list(replies)
        self.given_handoff = handoff
        self.hidden: set[str] = set()
        self.transferred: list[tuple[str | None, HandoffTask, dict[str, Any]]] = []
        self.delegated: list[tuple[str | None, HandoffTask, dict[str, Any]]] = []
        self._news = asyncio.Condition()

    def session(self, agent: str = "scripted") -> Session:
        """Return a session that fits this turn."""
        key = self.session_key
        return Session(key=key, agent=agent, gate_key=gate_key(key), thread_id=self.thread_id, workdir=self.workdir)

    def text(self) -> str:
        """Return the text of all live pieces so far."""
        return "".join(event.text for event in self.events if isinstance(event, MessageDelta))

    def kinds(self) -> list[str]:
        """Return the kinds of the events that the agent has emitted so far."""
        return [event.kind for event in self.events]

    async def until(self, condition: Callable[[RecordingTurn], bool]) -> None:
        """Wait until `condition` returns true for this turn."""
        async with self._news:
            await self._news.wait_for(lambda: condition(self))

    async def emit(self, payload: Payload) -> None:
        """Record an event; raise AgentError for an event that an agent may not emit, as a real turn does."""
        if not payload.agents:
            raise AgentError(f"an agent may not emit {payload.kind}; only midwatch itself does.")
        self.events.append(payload)
        await self._notify()

    async def tell(self, notice_id: str, text: str) -> None:
        """Record a notice of midwatch."""
        await self.emit(MessageUpdate(message_id=notice_id, role="notice", message=text))

    async def load_progress(self) -> Any:
        """Return the saved progress."""
        return self.progress

    async def save_progress(self, progress: Any) -> None:
        """Record the saved progress."""
        self.progress = progress
        await self._notify()

    async def load_steps(self) -> list[Any]:
        """Return the saved steps."""
        return list(self.steps)

    async def save_step(self, data: Any, took: Sequence[str] = ()) -> None:
        """Record a step in the form in which JSON stores it."""
        self.steps.append(json.loads(json.dumps(data)))
        self._steers = [steer for steer in self._steers if steer.id not in took]
        self._results = [item for item in self._results if item.id not in took]
        await self._notify()

    async def history(self) -> list[Any]:
        """Return the steps of earlier turns."""
        return list(self.earlier)

    async def earlier_messages(self) -> list[Message]:
        """Return the messages that the test gave as `said`: role and text of each."""
        return [
            Message(session_key=self.session_key, role=role, text=text, time=0, task_id=f"t_{number}")
            for number, (role, text) in enumerate(self.said)
        ]

    async def results(self, *, again: bool = False) -> tuple[ContextItem, ...]:
        """Return the results of background work that no step has taken yet."""
        return tuple(self._results)

    async def steer(self, text: str, mode: Mode = "after_tool") -> None:
        """Send a message of a person into the turn."""
        self._steers.append(self._steer(text, mode))
        self._steer_arrived.set()
        await self._notify()

    def _steer(self, text: str, mode: Mode) -> Steer:
        number = next(self._numbers)
        return Steer(
            id=f"m_{number}", task_id=self.task_id, number=number, session_key=self.session_key, mode=mode, text=text,
            created_at=0,
        )  # fmt: skip

    def steers(self, *modes: Mode) -> tuple[Steer, ...]:
        """Return the messages of people that no step has taken yet."""
        return tuple(steer for steer in self._steers if not modes or steer.mode in modes)

    async def wait_for_steer(self) -> None:
        """Wait until the test sends a message with `steer`."""
        self._steer_arrived.clear()
        await self._steer_arrived.wait()

    async def receive(self) -> str:
        """Wait for the next message of `steer` and return its text."""
        while not self._steers:
            await self.wait_for_steer()
        return self._steers.pop(0).text

    async def reserve(self) -> Permit:
        """Return `permit`, which a test may set."""
        return self.permit

    async def before_model(self, describe: Callable[[], dict[str, Any]], request_id: str) -> HookOutcome:
        """Allow the model call."""
        return NO_HOOK

    async def after_model(self, describe: Callable[[], dict[str, Any]], request_id: str) -> HookOutcome:
        """Keep the model's answer."""
        return NO_HOOK

    async def before_tool(self, call: ToolCall, describe: Describe | None = None) -> ToolDecision:
        """Record the call of a tool, and allow it."""
        self.tool_calls.append(call)
        return GO_ON

    async def after_tool(self, call: ToolCall, result: ToolResult) -> ToolDecision:
        """Keep the result of a tool."""
        return ToolDecision(result=result)

    async def ask(
        self, question: str | Question, choices: tuple[str, ...] = ("yes", "no"), *, expires: float | None = None
    ) -> Answer:
        """Return the next item of `answers`: the name of a choice, or an Answer."""
        asked_question = Question.plain(question, choices) if isinstance(question, str) else question
        names = tuple(choice.name for choice in asked_question.choices)
        self.questions.append((asked_question.text, names))
        self.asked.append(asked_question)
        await self._notify()
        if not self._answers:
            raise AgentError("the test gave no answer to this question; pass answers=[...]")
        answer = self._answers.pop(0)
        if isinstance(answer, Answer):
            return answer
        return Answer("granted" if asked_question.choices[names.index(answer)].allows else "denied", answer)

    async def handoff(self) -> Handoff | None:
        """Return the handoff that the test gave to this turn, or None."""
        return self.given_handoff

    async def delegate(
        self, to: str | None = None, task: HandoffTask | str = "", **wish: Unpack[Delegation]
    ) -> Handoff:
        """Record the handoff, and return it with the next item of `replies` as the answer."""
        work = HandoffTask(description=task) if isinstance(task, str) else task
        self.delegated.append((to, work, dict(wish)))
        await self._notify()
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
        """Record the handoff, and return its transfer; raise the next item of `replies` if that is an error."""
        work = HandoffTask(description=task or self.prompt) if isinstance(task, str) else task
        self.transferred.append((to, work, dict(wish)))
        await self._notify()
        if self._replies and isinstance(reply := self._replies.pop(0), Exception):
            raise reply
        handoff = Handoff(id=f"h_{len(self.transferred)}", form="transfer", to_agent=to or "", status="accepted")
        following = new_task(
            0, work.words(), to or "", self.session_key, task_id=f"{self.task_id}x", cause="handoff",
            cause_id=handoff.id,
        )  # fmt: skip
        return Transfer(handoff=handoff, task=following)

    def receivers(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return those of the agents `names` that are not in `hidden`."""
        return {name: "" for name in names if name not in self.hidden}

    async def keep_thread(self, thread_id: str) -> None:
        """Record the id of the agent's thread."""
        self.thread_id = thread_id
        await self._notify()

    async def own_group(self, pgid: int) -> None:
        """Record the id of a process group of this attempt."""
        self.groups.append(pgid)
        await self._notify()

    def note_usage(self, usage: ProgramUsage) -> None:
        """Add the usage of a program."""
        self.program_usage = self.program_usage.plus(usage)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()
