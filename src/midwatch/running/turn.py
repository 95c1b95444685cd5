"""The turn a worker gives to an agent: its events, progress and questions, all written under the attempt's fence.

Events are kept in order and written in batches while the agent goes on; what is left goes with the task's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import replace
from typing import Any, Protocol, Unpack

from midwatch.base.clock import Clock
from midwatch.base.errors import AgentError, LeaseLost, MidwatchError, StoreUnavailable, TransientError
from midwatch.base.trace import Trace, incoming, noted, read
from midwatch.domain.agent import Answer, Delegation, Question
from midwatch.domain.approval import Approval, answer_of, ask, ruled, too_late
from midwatch.domain.budget import Over, Spending
from midwatch.domain.changes import Changes, Fence, Update
from midwatch.domain.event import (
    BudgetReached,
    Event,
    LlmRequest,
    LlmResponse,
    LoopError,
    MessageDelta,
    MessageUpdate,
    Payload,
    SteeringInjected,
    ToolExecEnd,
    ToolExecStart,
    TurnEnd,
    TurnStart,
    call_of,
    ending,
    event,
)
from midwatch.domain.handoff import Handoff, HandoffTask, Transfer
from midwatch.domain.rule import Judge, Pattern
from midwatch.domain.session import Message, Session, said
from midwatch.domain.steering import STOP, Mode, Steer
from midwatch.domain.store import Store
from midwatch.domain.task import Claim, Task, changed_status, conversation, in_turn, prompt_message, used
from midwatch.domain.turn_steps import Step
from midwatch.running.delegation import Giving
from midwatch.services.day_budget import Purse
from midwatch.services.handoffs import Handoffs
from midwatch.services.rule_decision import narrow

STEPS = (LlmRequest, LlmResponse, ToolExecStart, ToolExecEnd)
MOST_UNWRITTEN = 500
PAUSE_SECONDS = 0.5
"""Before events are written again that the store did not take."""
NOTED_SECONDS = 0.02
CUT_OFF = "cut off when the turn ended"


class Observed(Protocol):
    """A turn as telemetry sees it."""

    trace: Trace

    def told(self, made: Event) -> None: ...
    def lost(self, now: int) -> None: ...


Observe = Callable[[Task], Observed]


class Host(Protocol):
    """What a turn needs of the worker that runs it."""

    clock: Clock
    approval_seconds: float
    judge: Judge
    purse: Purse
    handoffs: Handoffs
    observe: Observe | None

    @property
    def store(self) -> Store: ...
    def env(self, task: Task) -> Mapping[str, str]: ...
    def show(self, live: Event) -> None: ...
    def lost(self, turn: LiveTurn) -> None: ...
    async def spent(self, turn: LiveTurn) -> None: ...
    async def identify(self, pgid: int) -> str: ...
    async def pause(self, turn: LiveTurn) -> None: ...
    async def go_on(self, turn: LiveTurn) -> None: ...
    async def answer(self, approval: Approval) -> Approval: ...


class LiveTurn:
    """Implements `midwatch.domain.agent.Turn` for one attempt."""

    pause_seconds = PAUSE_SECONDS

    def __init__(self, host: Host, claim: Claim, thread_id: str | None) -> None:
        task = claim.task
        self.task = task
        self.task_id = task.id
        self.attempt = task.attempt
        self.session_key = task.session_key
        self.prompt = task.prompt
        self.thread_id = thread_id
        self.workdir = task.workdir
        self.deadline: float | None = None
        self.resumed = task.on_crash != "rerun" and task.rescues + task.interruptions > 0
        self.fence = Fence(task.id, task.attempt)
        self.asked = False
        self._asking = asyncio.Lock()
        self.giving = Giving(host.handoffs, task)
        self._waits = 0
        """How much the turn waits for now."""
        self._pausing = asyncio.Lock()
        self.tools_used = 0
        self._steers: list[Steer] = []
        self._steered = asyncio.Event()
        self._took: set[str] = set()
        self._receiving = asyncio.Lock()
        self._returning: asyncio.Task[None] | None = None
        self._noting: asyncio.Task[None] | None = None
        self._noted = False
        """Whether the store was told that the turn waits for another agent."""
        self._saved = 0
        self._host = host
        self._progress = task.progress
        self._meta = in_turn(task)
        self._observed = host.observe(task) if host.observe is not None else None
        self._trace = self._observed.trace if self._observed is not None else read(task.trace)
        if self._trace is not None:
            self._meta |= {"trace_id": self._trace.trace_id, "span_id": self._trace.span_id}
        self._events: list[Event] = []
        self._messages: list[Message] = []
        self._sessions: list[Session] = []
        self._held: list[Event] = []
        self._open: dict[str, Event] = {}
        """Starts of model and tool calls that have not ended."""
        self._iteration = 0
        """Model calls the agent has told of."""
        self._started = host.clock.monotonic()
        self._works_since: float | None = self._started
        self._worked = 0.0
        self.meter = host.purse.open(task, self.worked)
        self.over: Over | None = None
        """The budget that is spent; told once."""
        self._unpriced: set[str] = set()
        self._flushing: asyncio.Task[None] | None = None
        self._ended = False
        self._lost = False

    # -- the port ------------------------------------------------------------------------------------------------

    async def emit(self, payload: Payload) -> None:
        payload = self._own(payload)
        if isinstance(payload, LlmResponse):
            payload = self._priced(payload)
        self._iteration += isinstance(payload, LlmRequest)
        made = event(payload, self._host.clock.now(), iteration=self._iteration or None, **self._meta)
        if self._observed is not None and not self._ended:
            self._observed.told(made)
        if payload.live:
            if self._events or self._flushing is not None:
                self._held.append(made)  # what was told before it is shown before it
            else:
                self._host.show(made)
            return
        if self._lost:
            return  # the agent is being ended; nothing it says is ours to tell
        if self._ended:
            raise LeaseLost(self.task_id, self.attempt)
        begins = self._note_call(payload, made)
        self._events.append(made)
        if isinstance(payload, STEPS):
            await self._count(payload, begins)
        if isinstance(payload, MessageUpdate) and conversation(self.task):
            self._messages.append(self._message(payload, made.time))
        self.flush_soon()
        while len(self._events) > MOST_UNWRITTEN and self._flushing is not None:
            await asyncio.shield(self._flushing)

    async def load_progress(self) -> Any:
        return self._progress

    async def save_progress(self, progress: Any) -> None:
        await self._write(Changes(fence=self.fence, updates=(Update("task", self.task_id, {"progress": progress}),)))
        self._progress = progress

    async def load_steps(self) -> list[Any]:
        before = await self._host.store.steps_before(self.task_id) if self.task.retry_of else []
        own = await self._host.store.steps_of(self.task_id)
        self._saved = len(own)
        return [step.data for step in (*before, *own)]

    async def save_step(self, data: Any, took: Sequence[str] = ()) -> None:
        if self.attempt > 1 and not self._saved:
            self._saved = len(await self._host.store.steps_of(self.task_id))
        now = self._host.clock.now()
        step = Step(
            task_id=self.task_id, number=self._saved + 1, thread_id=self.thread_id, created_at=now, data=data
        )  # fmt: skip
        await self._write(Changes(fence=self.fence, records=(step,), updates=self._taken(took)))
        self._saved += 1
        self._let_go(took)

    async def history(self) -> list[Any]:
        if self.thread_id is None:
            return []
        own = self.task.retry_of or self.task_id
        return [step.data for step in await self._host.store.thread_steps(self.thread_id, own)]

    def steers(self, *modes: Mode) -> tuple[Steer, ...]:
        return tuple(steer for steer in self._steers if not modes or steer.mode in modes)

    async def steered(self) -> None:
        self._steered.clear()
        await self._steered.wait()

    async def receive(self) -> str:
        async with self._receiving:
            while not self._steers:
                await self.steered()
            taken = self._steers[0]
            self._let_go((taken.id,))
            taking = asyncio.get_running_loop().create_task(self._take(taken))
            try:
                await asyncio.shield(taking)
            except BaseException:
                giving = self._give_back(taken, taking, self._returning)
                self._returning = asyncio.get_running_loop().create_task(giving)
                raise
            return taken.text or STOP

    async def _take(self, steer: Steer) -> None:
        told = SteeringInjected(count=1, total_content_len=len(steer.text), steer_ids=(steer.id,))
        made = event(told, self._host.clock.now(), **self._meta)
        await self._write(Changes(fence=self.fence, updates=self._taken((steer.id,)), events=(made,)))

    async def _give_back(self, steer: Steer, taking: asyncio.Task[None], before: asyncio.Task[None] | None) -> None:
        """Whoever wanted the message has stopped waiting: it is taken again, or becomes a task."""
        if before is not None:
            await before
        with suppress(MidwatchError):
            await taking
            again = Update("steer", steer.id, {"status": "queued", "attempt": None}, {"status": "injected"})
            await self._write(Changes(fence=self.fence, updates=(again,)))
        self._took.discard(steer.id)
        self.hear(sorted((*self._steers, steer), key=lambda one: one.number))

    def over_budget(self) -> str | None:
        over = self._reached()
        self.flush_soon()
        return over.words if over else None

    @property
    def env(self) -> Mapping[str, str]:
        """See the port."""
        found = self._host.env(self.task)
        return {**found, **self._trace.environment()} if self._trace is not None else found

    async def ask(
        self, question: str | Question, choices: tuple[str, ...] = ("yes", "no"), *, expires: float | None = None
    ) -> Answer:
        asked = Question.plain(question, choices) if isinstance(question, str) else question
        asked = replace(asked, root=asked.root or self.workdir)
        host = self._host
        if self._lost:
            raise LeaseLost(self.task_id, self.attempt)
        ruling, now = await host.judge(self.task, asked), host.clock.now()
        always = narrow(asked, asked.root or self.task.workdir)
        decided = ruled(self.task, asked, ruling.decision, now, always)
        if decided is None and ruling.until is not None and ruling.until <= now:
            decided = too_late(self.task, asked, now, "the goal's deadline has passed", always)
        if decided is not None:
            await self._write(decided[1])
            return answer_of(decided[0], asked)
        said = min((one for one in (expires, ruling.expires) if one), default=host.approval_seconds)
        async with self._asking:  # a turn asks one thing at a time
            return await self._ask_people(asked, said, ruling.until, always)

    async def _ask_people(self, asked: Question, expires: float, until: int | None, always: Pattern | None) -> Answer:
        host = self._host
        approval, changes = ask(self.task, asked, expires, host.clock.now(), until, always)
        async with self._idle():
            self.asked = True
            asking = changed_status(self.task, "asking", host.clock.now())
            await self._write(replace(changes, events=changes.events + asking))
            resolved = await host.answer(approval)
        going_on = Update("task", self.task_id, {"wait": None})
        busy = changed_status(self.task, "busy", host.clock.now())
        await self._write(Changes(fence=self.fence, updates=(going_on,), events=busy))
        if resolved.status == "pending":
            raise AgentError("the question was left unanswered because the task is being stopped.")
        return answer_of(resolved, asked)

    @asynccontextmanager
    async def _idle(self) -> AsyncIterator[None]:
        """Without its slot and with its timeout standing still, for as long as the turn waits for anything."""
        async with self._pausing:
            if not self._waits:
                await self._host.pause(self)
                self._stand_still()
            self._waits += 1
        try:
            yield
        finally:
            async with self._pausing:
                self._waits -= 1
                if not self._waits:
                    await self._host.go_on(self)
                    self._works_since = self._host.clock.monotonic()

    async def handoff(self) -> Handoff | None:
        return await self.giving.brought()

    async def delegate(
        self, to: str | None = None, task: HandoffTask | str = "", **wish: Unpack[Delegation]
    ) -> Handoff:
        if self._lost:
            raise LeaseLost(self.task_id, self.attempt)
        work = HandoffTask(description=task) if isinstance(task, str) else task
        return await self.giving.delegate(to, work, {"workdir": self.workdir, **wish})

    async def transfer(
        self, to: str | None = None, task: HandoffTask | str = "", **wish: Unpack[Delegation]
    ) -> Transfer:
        if self._lost:
            raise LeaseLost(self.task_id, self.attempt)
        work = HandoffTask(description=task or self.prompt) if isinstance(task, str) else task
        ready = await self.giving.transfer(to, work, wish)
        if self.deadline is None:
            return ready
        left = max(1.0, self.deadline - self._host.clock.monotonic())
        return replace(ready, task=ready.task._replace(timeout_seconds=left))

    def receivers(self, names: Sequence[str]) -> Mapping[str, str]:
        return self._host.handoffs.receivers(names)

    async def keep_thread(self, thread_id: str) -> None:
        if thread_id != self.thread_id:
            kept = used(self.task, self._host.clock.now(), thread_id)
            await self._write(Changes(fence=self.fence, sessions=(kept,)))
            self.thread_id = thread_id

    async def own_group(self, pgid: int) -> None:
        fields = {"pgid": pgid, "pgid_mark": await self._host.identify(pgid)}
        try:
            await self._write(Changes(fence=self.fence, updates=(Update("task", self.task_id, fields),)))
        except StoreUnavailable as problem:  # nothing has been started yet, so nothing is repeated
            raise TransientError(f"the program was not started: {problem}") from problem

    # -- for the worker ------------------------------------------------------------------------------------------

    def context(self) -> Context | None:
        """What it runs in: work that it hands in itself belongs to its trace."""
        if self._trace is None:
            return None
        made = copy_context()
        made.run(incoming.set, noted(self._trace.parent, self._trace.state or ""))
        return made

    def worked(self) -> float:
        """Seconds it has worked; while it waits for an answer its time stands still."""
        since = self._works_since
        return self._worked + (self._host.clock.monotonic() - since if since is not None else 0.0)

    def time_is_up(self) -> None:
        """It has worked as long as its budget lets it."""
        most = self.meter.budget.seconds or 0.0
        spent = max(most, self.meter.before.seconds + self.meter.task.seconds)
        self._reached(Over("seconds", most, spent, self.meter.scope))
        self.flush_soon()

    def stop(self, why: str) -> None:
        """The turn is being stopped: what it has handed over is not waited for any more."""
        self.giving.stop(why)

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """While it waits for work it has handed over, whoever asked for that in its name."""
        async with self._idle():
            noting = asyncio.get_running_loop().create_task(self._note_wait("handoff"))
            try:
                yield
            finally:
                noting.cancel()
                await asyncio.gather(noting, return_exceptions=True)
        if self._noted and not self._waits:
            self._noting = asyncio.get_running_loop().create_task(self._note_wait(None))

    async def _note_wait(self, wait: str | None) -> None:
        """Tell what the task waits for, unless that changes soon."""
        await asyncio.sleep(NOTED_SECONDS)
        self._noted = wait is not None
        with suppress(StoreUnavailable, LeaseLost):
            await self._write(Changes(fence=self.fence, updates=(Update("task", self.task_id, {"wait": wait}),)))

    def hear(self, queued: Sequence[Steer]) -> None:
        """What people have sent into the turn and it has not taken, oldest first."""
        known = {steer.id for steer in self._steers}
        self._steers = [steer for steer in queued if steer.id not in self._took]  # a look may be older than a step
        if any(steer.id not in known for steer in self._steers):
            self._steered.set()

    def begin(self) -> None:
        """Note the start of the turn and, in a conversation, the prompt."""
        now = self._host.clock.now()
        task = self.task
        told = TurnStart(user_message=task.prompt, channel=task.origin_channel, chat_id=task.origin_session)
        if conversation(task):
            self._events.extend(changed_status(task, "busy", now))
            if task.cause != "handoff":  # who goes on with a conversation was not spoken to again
                prompt = prompt_message(task, now)
                self._events.append(said(prompt, **self._meta))
                self._messages.append(prompt)
            self._sessions.append(used(task, now))
        self._add(event(told, now, **self._meta))

    def _add(self, made: Event) -> None:
        if self._observed is not None:
            self._observed.told(made)
        self._events.append(made)

    async def finish(self, status: str, iterations: int | None, length: int) -> Changes:
        """No more events: close what is open and hand over everything that is not written yet."""
        await self.giving.settled()
        if self._returning is not None:
            await self._returning
        if self._noting is not None:
            self._noting.cancel()
        self._ended = True
        if self._flushing is not None:
            await asyncio.shield(self._flushing)
        self._show_held()
        now = self._host.clock.now()
        spent = self._host.clock.monotonic() - self._started
        for opened in self._open.values():
            self._add(event(ending(opened, CUT_OFF), now, **self._meta))
        self._open.clear()
        told = TurnEnd(status=status, duration=round(spent, 6), iterations=iterations, final_content_len=length)
        self._add(event(told, now, **self._meta))
        return Changes(events=tuple(self._events), messages=tuple(self._messages), sessions=tuple(self._sessions))

    def _let_go(self, took: Sequence[str]) -> None:
        self._took.update(took)
        self._steers = [steer for steer in self._steers if steer.id not in self._took]

    def _taken(self, ids: Sequence[str]) -> tuple[Update, ...]:
        """Each message goes into one step, once."""
        fields = {"status": "injected", "attempt": self.attempt}
        return tuple(Update("steer", one, fields, {"status": "queued"}) for one in ids)

    def _own(self, payload: Payload) -> Payload:
        """What an agent may tell, in its own name: it ends no task, answers no question, and changes nobody's words."""
        if not payload.agents:
            raise AgentError(f"an agent cannot tell {payload.kind}, which is midwatch's own to tell.")
        if isinstance(payload, MessageUpdate):
            return MessageUpdate(message_id=self._own_id(payload), role="agent", message=payload.message)
        if isinstance(payload, MessageDelta):
            return MessageDelta(message_id=self._own_id(payload), offset=payload.offset, text=payload.text)
        return payload

    def _own_id(self, told: MessageUpdate | MessageDelta) -> str:
        """The message's id among those of this attempt."""
        answer = f"{self.task_id}.{self.attempt}"
        return told.message_id if f"{told.message_id}.".startswith(f"{answer}.") else f"{answer}.{told.message_id}"

    def _message(self, told: MessageUpdate, now: int) -> Message:
        """What the agent says in the middle of its turn, as a message of the conversation."""
        return Message(
            session_key=self.session_key, role="agent", text=told.message, time=now, task_id=self.task_id,
            id=told.message_id, author=self.task.agent,
        )  # fmt: skip

    def _note_call(self, payload: Payload, made: Event) -> bool:
        """Keep track of calls that are open. True for the first that is heard of one."""
        if isinstance(payload, ToolExecStart | LlmRequest):
            self._open[call_of(made)] = made
            return True
        if isinstance(payload, ToolExecEnd | LlmResponse):
            self.tools_used += isinstance(payload, ToolExecEnd)
            return self._open.pop(call_of(made), None) is None
        return False

    # -- what it spends ------------------------------------------------------------------------------------------

    def _priced(self, told: LlmResponse) -> LlmResponse:
        """With what it costs, where the agent did not tell and the price is known."""
        usage, purse = told.usage, self._host.purse
        if not isinstance(usage, Mapping) or not Spending.of(usage).tokens or usage.get("cost_usd") is not None:
            return told
        cost = purse.cost(self.task.agent, told.model, usage) if told.model else None
        if cost is not None:
            return replace(told, usage={**usage, "cost_usd": cost})
        if purse.counts_money(self.task.agent, self.meter) and (told.model or "") not in self._unpriced:
            self._unpriced.add(told.model or "")
            why = (
                f"what {told.model or 'its model'} costs is not known, so no budget of money can stop it; set [prices]."
            )
            self._tell(LoopError(stage="budget", message=why))
        return told

    async def _count(self, payload: Payload, begins: bool) -> None:
        """Add up what a step took. One that begins although nothing is left ends the turn."""
        if isinstance(payload, LlmResponse):
            self.meter.answered(payload.usage, payload.model, payload.finish_reason)
        elif isinstance(payload, ToolExecEnd):
            self.meter.used_tool()
        spent_before = self.over is not None
        await self._host.purse.look()
        if self._reached() and begins and (spent_before or isinstance(payload, LlmRequest | ToolExecStart)):
            await self._host.spent(self)

    def _reached(self, known: Over | None = None) -> Over | None:
        """The budget that is spent, if one is; the first time it is told."""
        if self.over is not None or self._ended:
            return self.over
        if over := known or self._host.purse.over(self.task.agent, self.meter):
            self.over = over
            self._tell(BudgetReached(budget=over.budget, scope=over.scope, limit=over.limit, spent=over.spent))
        return self.over

    def _tell(self, payload: Payload) -> None:
        """An event of our own among the agent's."""
        self._add(event(payload, self._host.clock.now(), **self._meta))

    def _stand_still(self) -> None:
        self._worked, self._works_since = self.worked(), None

    # -- writing -------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Begin to write what is not written."""
        if self._flushing is None and not self._ended and not self._lost and (self._events or self._messages):
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self._events or self._messages:
                events, messages, sessions = tuple(self._events), tuple(self._messages), tuple(self._sessions)
                step = Changes(fence=self.fence, events=events, messages=messages, sessions=sessions)
                try:
                    await self._host.store.apply(step)
                except StoreUnavailable:
                    self._show_held()  # order is good, but nobody should look at a standing text for it
                    await asyncio.sleep(self.pause_seconds)
                    if self._ended:
                        return
                    continue
                except LeaseLost:
                    self._lost = True
                    self._lose()
                    return
                del self._events[: len(events)]
                del self._messages[: len(messages)]
                del self._sessions[: len(sessions)]
        finally:
            self._flushing = None
            self._show_held()

    def _show_held(self) -> None:
        held, self._held = self._held, []
        for live in held:
            self._host.show(live)

    async def _write(self, changes: Changes) -> None:
        """Write a step of the turn after what was emitted before it."""
        self.flush_soon()
        while self._flushing is not None:  # one at a time; another may have begun while this one was awaited
            await asyncio.shield(self._flushing)
            self.flush_soon()
        try:
            await self._host.store.apply(changes)
        except LeaseLost:
            self._lose()
            raise

    def _lose(self) -> None:
        if self._observed is not None:
            self._observed.lost(self._host.clock.now())
        self._host.lost(self)
