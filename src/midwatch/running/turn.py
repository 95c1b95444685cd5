"""The turn that an agent gets. Its events, progress and questions are written with the fence of the attempt.

Events are written in order and in batches while the agent works. The last events are written with the end of the task.
"""

from __future__ import annotations

import asyncio
import os.path
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from midwatch.base.directories import real_directory
from midwatch.base.errors import AgentError, Conflict, LeaseLost, MidwatchError, StoreUnavailable, TransientError
from midwatch.base.trace import incoming, parse_trace, validate_trace
from midwatch.domain.agent import Answer, Delegation, Permit, ProgramUsage, Question
from midwatch.domain.approval import Approval, answer_by_rule, answer_of, ask, expire_at_once, resolve
from midwatch.domain.budget import Spending, is_unanswered
from midwatch.domain.changes import Changes, Update
from midwatch.domain.context_item import ContextItem, announce_items, take_items, write_items
from midwatch.domain.event import (
    Event,
    LlmRequest,
    LlmResponse,
    LoopError,
    MessageDelta,
    MessageUpdate,
    Payload,
    SteeringInjected,
    ToolExecEnd,
    ToolExecSkipped,
    ToolExecStart,
    TurnEnd,
    TurnStart,
    call_of,
    end_call,
    event,
)
from midwatch.domain.handoff import Handoff, HandoffTask, Transfer
from midwatch.domain.hook import NO_HOOK, HookOutcome, describe_turn
from midwatch.domain.probe import waits_for_command
from midwatch.domain.rule import Decision, Pattern, Ruling
from midwatch.domain.session import Message, announce_message
from midwatch.domain.steering import STOP, Mode, Steer
from midwatch.domain.task import announce_status, has_conversation, in_turn, prompt_message, touch_session
from midwatch.domain.tool_call import Describe, ToolCall, ToolDecision, ToolResult
from midwatch.domain.turn_steps import Step
from midwatch.running.host import Host
from midwatch.running.run import Run
from midwatch.running.seams import Seams
from midwatch.running.spending import TurnSpending
from midwatch.running.turn_log import TurnLog, lose_turn, report_event
from midwatch.services.rule_decision import narrow

STEPS = (LlmRequest, LlmResponse, ToolExecStart, ToolExecEnd)
MOST_EARLIER = 200
"""Messages of the session that an agent can get again."""
STOPPED_SECONDS = 0.2
"""Seconds for which a call of `emit` waits for the end of the turn, if the agent works although its budget is spent."""
CUT_OFF = "cut off when the turn ended"
PROMPT_FOLLOWS = "The message to answer:"


class LiveTurn:
    """Implements `midwatch.domain.agent.Turn` for one attempt."""

    def __init__(self, host: Host, run: Run) -> None:
        task = run.task
        self.task = task
        self.task_id = task.id
        self.attempt = task.attempt
        self.session_key = task.session_key
        self.prompt = task.prompt
        self.thread_id: str | None = None
        self.workdir = task.workdir
        self.agent_workdir: str | None = None
        """The agent's directory for tasks that name no `workdir`; None for the one where midwatch was started."""
        self.pin: str | None = None
        self.resumed = task.on_crash != "rerun" and task.rescues + task.interruptions > 0
        self.fence = run.fence
        self.began = False
        self.asked = False
        self.tools_used = 0
        self.program_usage: ProgramUsage | None = None
        self._host = host
        self._run = run
        self._asking = asyncio.Lock()
        self._receiving = asyncio.Lock()
        self._returning: asyncio.Task[None] | None = None
        self._saved = 0
        self._results: dict[str, ContextItem] = {}
        """The results that the turn has read, by id."""
        self.progress = task.progress
        self._meta = in_turn(task)
        self._observed = host.observe(task) if host.observe is not None else None
        self._trace = self._observed.trace if self._observed is not None else parse_trace(task.trace)
        if self._trace is not None:
            self._meta |= {"trace_id": self._trace.trace_id, "span_id": self._trace.span_id}
        self.log = TurnLog(
            host.store, run.fence, host.show, partial(lose_turn, host.clock, run.interrupt, self._observed)
        )
        self._approved: str | None = None
        """The tool that hooks have approved and that runs now. If it asks a person, hooks are not asked again."""
        self.report = partial(report_event, host.clock, self._meta, self._observed, self.log)
        """Adds an event of midwatch itself to the events of the turn."""
        self.run_env: Mapping[str, str] = {}
        """The variables that the task's automation gives to the programs of its runs."""
        self.spending = TurnSpending(host, run, self.log, self.report)
        self._open: dict[str, Event] = {}
        """The start events of the model calls and tool calls that have not ended, by the id of the call."""
        self._iteration = 0
        """The number of model calls that the agent has reported."""
        self._started = host.clock.monotonic()
        self._unpriced: set[str] = set()

    @property
    def deadline(self) -> float | None:
        """See the port."""
        return self._run.deadline

    # -- the port ------------------------------------------------------------------------------------------------

    async def emit(self, payload: Payload) -> None:
        await self._emit(self._check(payload))

    async def tell(self, notice_id: str, text: str) -> None:
        await self._emit(
            MessageUpdate(message_id=f"{self.task_id}.{self.attempt}.{notice_id}", role="notice", message=text)
        )

    async def _emit(self, payload: Payload) -> None:
        if isinstance(payload, LlmResponse):
            payload = self._add_cost(payload)
        self._iteration += isinstance(payload, LlmRequest)
        record = event(payload, self._host.clock.now(), iteration=self._iteration or None, **self._meta)
        if self._observed is not None and not self.log.ended:
            self._observed.record(record)
        if payload.live:
            self.log.show_live(record)
            return
        if self.log.lost:
            return  # another process owns the task now
        if self.log.ended:
            raise LeaseLost(self.task_id, self.attempt)
        begins = self._note_call(payload, record)
        self.log.add(record)
        if isinstance(payload, STEPS):
            await self._count(payload, begins)
        if isinstance(payload, MessageUpdate) and has_conversation(self.task):
            self.log.add_message(self._message(payload, record.time))
        self.log.flush_soon()
        await self.log.wait_for_room()

    async def load_progress(self) -> Any:
        return self.progress

    async def save_progress(self, progress: Any) -> None:
        await self.log.write(Changes(fence=self.fence, updates=(Update("task", self.task_id, {"progress": progress}),)))
        self.progress = progress

    async def load_steps(self) -> list[Any]:
        before = await self._host.store.list_earlier_steps(self.task_id) if self.task.retry_of else []
        own = await self._host.store.list_task_steps(self.task_id)
        self._saved = len(own)
        return [step.data for step in (*before, *own)]

    async def save_step(self, data: Any, took: Sequence[str] = ()) -> None:
        if self.attempt > 1 and not self._saved:
            self._saved = len(await self._host.store.list_task_steps(self.task_id))
        now = self._host.clock.now()
        step = Step(
            task_id=self.task_id, number=self._saved + 1, thread_id=self.thread_id, created_at=now, data=data
        )  # fmt: skip
        await self.log.write(self._mark_received(took)._replace(fence=self.fence, records=(step,)))
        self._saved += 1
        self._run.inbox.take(took)

    async def history(self) -> list[Any]:
        if self.thread_id is None:
            return []
        own = self.task.retry_of or self.task_id
        return [step.data for step in await self._host.store.list_thread_steps(self.thread_id, own)]

    async def earlier_messages(self) -> list[Message]:
        if not has_conversation(self.task) or self.task.cause == "handoff":
            return []
        own = f"{self.task_id}.{self.attempt}."
        last = await self._host.store.read_last_messages(self.session_key, MOST_EARLIER)
        return [
            message
            for message in await self._skip_withheld(last)
            if message.role in ("user", "agent")
            and not f"{message.id}.".startswith(own)
            and not (message.role == "user" and message.task_id == self.task_id)
        ]

    async def _skip_withheld(self, messages: list[Message]) -> list[Message]:
        """Leave out what was said before this agent got the conversation by a transfer, whose prompt replaces it.

        The transfer may have withheld some of it. The task of a transfer has no prompt among the messages.
        """
        prompted = {message.id for message in messages if message.role == "user"}
        others = {message.task_id: at for at, message in reversed([*enumerate(messages)]) if message.role == "agent"}
        for task_id, first in sorted(others.items(), key=lambda item: -item[1]):
            if task_id is None or task_id in prompted:
                continue
            task = await self._host.store.get_task(task_id)
            if task is not None and task.cause == "handoff" and task.agent == self.task.agent:
                return [prompt_message(task, messages[first].time), *messages[first:]]
        return messages

    async def results(self, *, again: bool = False) -> tuple[ContextItem, ...]:
        inbox = self._run.inbox
        if not inbox.may_have_results:
            return ()
        inbox.may_have_results = False  # before the read: what arrives meanwhile sets it again
        own = self.task.retry_of or self.task_id
        items = await self._host.store.list_context_items(self.session_key, own if again else None)
        inbox.may_have_results |= bool(items)
        self._results |= {item.id: item for item in items}
        known = [] if again else [item for item in items if item.taken_by == own]
        if known:  # a cancelled try of this task took them; its steps, which this try continues, contain them
            await self.log.write(Changes(fence=self.fence, updates=take_items(known, own, self.attempt)))
        return tuple(item for item in items if item not in known)

    async def add_results(self) -> None:
        """Take the results of background work that wait, and put them before the prompt."""
        if items := await self.results(again=True):
            took = self._mark_received([item.id for item in items])
            await self.log.write(took._replace(fence=self.fence))
            self.prompt = f"{write_items(items)}\n\n{PROMPT_FOLLOWS}\n{self.prompt}"

    def steers(self, *modes: Mode) -> tuple[Steer, ...]:
        return self._run.inbox.list(*modes)

    async def wait_for_steer(self) -> None:
        await self._run.inbox.wait()

    async def receive(self) -> str:
        inbox = self._run.inbox
        async with self._receiving:
            while not (steers := inbox.list()):
                await inbox.wait()
            steer = steers[0]
            inbox.take((steer.id,))
            taking = asyncio.get_running_loop().create_task(self._take(steer))
            try:
                await asyncio.shield(taking)
            except BaseException:
                returning = self._give_back(steer, taking, self._returning)
                self._returning = asyncio.get_running_loop().create_task(returning)
                raise
            return steer.text or STOP

    async def _take(self, steer: Steer) -> None:
        injected = SteeringInjected(count=1, total_content_len=len(steer.text), steer_ids=(steer.id,))
        record = event(injected, self._host.clock.now(), **self._meta)
        await self.log.write(self._mark_received((steer.id,))._replace(fence=self.fence, events=(record,)))

    async def _give_back(self, steer: Steer, taking: asyncio.Task[None], before: asyncio.Task[None] | None) -> None:
        """Put a message back that the agent did not get, because its call was cancelled.

        The agent gets the message later in this turn, or the message becomes a task. First wait for the write `taking`
        of this message and for the message `before`, so that the messages keep their order.
        """
        if before is not None:
            await before
        with suppress(MidwatchError):
            await taking
            again = Update("steer", steer.id, {"status": "queued", "attempt": None}, {"status": "injected"})
            await self.log.write(Changes(fence=self.fence, updates=(again,)))
        self._run.inbox.put_back(steer)

    async def reserve(self) -> Permit:
        if self.log.lost:
            raise LeaseLost(self.task_id, self.attempt)
        return await self.spending.reserve()

    @property
    def env(self) -> Mapping[str, str]:
        """See the port."""
        task, run = self.task, self._run
        env = {
            **self.run_env, **self._host.env(), "MIDWATCH_TASK": f"{task.id}/{task.attempt}",
            "MIDWATCH_SESSION": task.session_key, "MIDWATCH_TOKEN": run.claim.token,
        }  # fmt: skip
        if run.goal_id is not None:
            env["MIDWATCH_GOAL"] = run.goal_id
        if task.cause_id is not None:
            env[f"MIDWATCH_{task.cause.upper()}"] = task.cause_id
        return {**env, **self._trace.environment()} if self._trace is not None else env

    @property
    def _seams(self) -> Seams:
        """Return the seams of this turn. They are built for each use, so that the turn does not refer to itself."""
        parent = self._trace.parent if self._trace is not None else None
        describe = partial(describe_turn, self.task, self.workdir, parent)
        return Seams(self._host.hooks, describe, self.report, self._judge, self._ask_approved)

    async def before_model(self, describe: Callable[[], dict[str, Any]], request_id: str) -> HookOutcome:
        return await self._seams.before_model(describe, request_id)

    async def after_model(self, describe: Callable[[], dict[str, Any]], request_id: str) -> HookOutcome:
        return await self._seams.after_model(describe, request_id)

    async def before_tool(self, call: ToolCall, describe: Describe | None = None) -> ToolDecision:
        self._approved = None
        call = call._replace(root=call.root or self.root)
        decision = await self._seams.before_tool(call, describe)
        if decision.action == "stop" and describe is None:
            self._run.stop_by_hook(decision.reason or "")
        if decision.action == "go_on" and call.asks:
            self._approved = call.name
        return decision

    async def after_tool(self, call: ToolCall, result: ToolResult) -> ToolDecision:
        self._approved = None
        return await self._seams.after_tool(call, result)

    async def _judge(self, question: Question) -> Decision:
        return (await self._host.approvals.judge(self.task, question)).decision

    async def ask(
        self, question: str | Question, choices: tuple[str, ...] = ("yes", "no"), *, expires: float | None = None
    ) -> Answer:
        asked = Question.plain(question, choices) if isinstance(question, str) else question
        asked = replace(asked, root=asked.root or self.root)
        if self.log.lost:
            raise LeaseLost(self.task_id, self.attempt)
        approval = NO_HOOK if asked.tool and asked.tool == self._approved else await self._seams.approve_question(asked)
        return await self._decide(asked, expires, approval)

    async def _ask_approved(self, question: Question) -> Answer:
        """Ask a person about a tool that the hooks have approved."""
        return await self._decide(question, None, NO_HOOK)

    async def _decide(self, asked: Question, expires: float | None, approval: HookOutcome) -> Answer:
        """Answer a question by the decision of the hooks or of the rules, or ask a person."""
        host = self._host
        ruling = await host.approvals.judge(self.task, asked)
        if approval.action != "go_on":
            ruling = ruling._replace(decision=Decision("deny", "hook", approval.words))
        always = await asyncio.to_thread(narrow, asked, asked.root or self.task.workdir)  # it reads links
        now = host.clock.now()
        decided = answer_by_rule(self.task, asked, ruling.decision, now, always)
        if decided is None and ruling.until is not None and ruling.until <= now:
            decided = expire_at_once(self.task, asked, now, "the goal's deadline has passed", always)
        if decided is not None:
            await self.log.write(decided[1])
            if decided[0].status == "denied" and asked.kind != "choice":
                rule = f"hook:{approval.hook}" if approval.action != "go_on" else decided[0].rule
                why, name = decided[0].why or "", asked.tool or asked.kind
                self.report(ToolExecSkipped(tool=name, reason=why, tool_call_id=asked.call_id, rule=rule))
            if approval.action == "stop":
                self._run.stop_by_hook(approval.words)
            return answer_of(decided[0], asked)
        expiry = min((time for time in (expires, ruling.expires) if time), default=host.approval_seconds)
        async with self._asking:  # a turn has one open question at a time
            return await self._ask_people(asked, expiry, ruling, always)

    async def _ask_people(self, question: Question, expires: float, ruling: Ruling, always: Pattern | None) -> Answer:
        host = self._host
        approval, changes = ask(self.task, question, expires, host.clock.now(), ruling, always)
        async with self._run.pause():
            self.asked = True
            asking = announce_status(self.task, "asking", host.clock.now())
            await self.log.write(changes._replace(events=changes.events + asking))
            try:
                resolved = await self._run.wait_for_answer(approval)
            except asyncio.CancelledError:
                await self._withdraw(approval)
                raise
        going_on = Update("task", self.task_id, {"wait": None})
        busy = announce_status(self.task, "busy", host.clock.now())
        await self.log.write(Changes(fence=self.fence, updates=(going_on,), events=busy))
        if resolved.status == "pending":
            raise AgentError("the question has no answer, because the task is being stopped.")
        return answer_of(resolved, question)._replace(by_person=resolved.status != "expired")

    async def _withdraw(self, approval: Approval) -> None:
        """Expire a question that the agent no longer asks, such as one that was answered in the agent's terminal."""
        if self.log.lost or self._run.reason is not None:
            return  # the end of the attempt expires it
        now = self._host.clock.now()
        expired = resolve(approval, "expired", now, why="the agent no longer asks this")
        going_on = Update("task", self.task_id, {"wait": None})
        busy = announce_status(self.task, "busy", now)
        with suppress(Conflict, LeaseLost):  # it was answered at the same time, or the attempt has ended
            await self.log.write(
                expired._replace(fence=self.fence, updates=(*expired.updates, going_on), events=expired.events + busy)
            )

    async def handoff(self) -> Handoff | None:
        return await self._run.delegations.find_source()

    async def delegate(
        self, to: str | None = None, task: HandoffTask | str = "", **wish: Unpack[Delegation]
    ) -> Handoff:
        if self.log.lost:
            raise LeaseLost(self.task_id, self.attempt)
        work = HandoffTask(description=task) if isinstance(task, str) else task
        if requested := wish.get("workdir"):
            wish["workdir"] = real_directory(requested)
        return await self._run.delegations.delegate(to, work, {"workdir": self.workdir, **wish})

    async def transfer(
        self, to: str | None = None, task: HandoffTask | str = "", **wish: Unpack[Delegation]
    ) -> Transfer:
        if self.log.lost:
            raise LeaseLost(self.task_id, self.attempt)
        work = HandoffTask(description=task or self.prompt) if isinstance(task, str) else task
        transfer = await self._run.delegations.transfer(to, work, wish)
        if self.deadline is None:
            return transfer
        remaining = max(1.0, self.deadline - self._host.clock.monotonic())
        return replace(transfer, task=transfer.task._replace(timeout_seconds=remaining))

    def receivers(self, names: Sequence[str]) -> Mapping[str, str]:
        return self._host.handoffs.receivers(names)

    async def keep_thread(self, thread_id: str) -> None:
        if thread_id != self.thread_id:
            session = touch_session(self.task, self._host.clock.now(), thread_id)
            await self.log.write(Changes(fence=self.fence, sessions=(session,)))
            self.thread_id = thread_id

    async def own_group(self, pgid: int) -> None:
        fields = {"pgid": pgid, "pgid_mark": self._host.identify(pgid)}
        try:
            await self.log.write(Changes(fence=self.fence, updates=(Update("task", self.task_id, fields),)))
        except StoreUnavailable as problem:  # the program has not started yet, so the task can be retried
            raise TransientError(f"the agent's program was not started, because of the store: {problem}") from problem

    def note_usage(self, usage: ProgramUsage) -> None:
        self.program_usage = (self.program_usage or ProgramUsage()).plus(usage)

    # -- for the worker ------------------------------------------------------------------------------------------

    def context(self) -> Context | None:
        """Return the Python context in which the turn runs, so that tasks that the turn submits belong to its trace."""
        if self._trace is None:
            return None
        context = copy_context()
        context.run(incoming.set, validate_trace(self._trace.parent, self._trace.state or ""))
        return context

    @property
    def root(self) -> str:
        """Return the directory of the work, at which the paths of rules begin."""
        return self.workdir or real_directory(os.path.expanduser(self.agent_workdir or "."))  # noqa: PTH111

    def work_in(self, workdir: str, pin: str) -> None:
        """Set the directory in which the agent works, and its pin."""
        self.workdir, self.pin = workdir, pin

    def begin(self, thread_id: str | None) -> None:
        """Record the start of the turn and, unless a command decides first whether it goes on, the prompt."""
        self.began, self.thread_id = True, thread_id
        task = self.task
        start = TurnStart(user_message=task.prompt, channel=task.origin_channel, chat_id=task.origin_session)
        if not waits_for_command(task.probe):
            self.enter_conversation()
        self._add(event(start, self._host.clock.now(), **self._meta))

    def enter_conversation(self) -> None:
        """If the task has a conversation, record that it is busy, and the prompt as a message."""
        task, now = self.task, self._host.clock.now()
        if has_conversation(task):
            self.log.add(*announce_status(task, "busy", now))
            if task.cause != "handoff":  # after a handoff the conversation contains the prompt already
                prompt = prompt_message(task, now)
                self.log.add(announce_message(prompt, **self._meta))
                self.log.add_message(prompt)
            self.log.add_session(touch_session(task, now))

    def _add(self, record: Event) -> None:
        if self._observed is not None:
            self._observed.record(record)
        self.log.add(record)

    async def finish(
        self, status: str, iterations: int | None, length: int, usage: Mapping[str, Any] | None = None
    ) -> Changes:
        """Record the end of the open calls and of the turn. Return all changes that are not written yet.

        `usage` is the whole usage of the attempt.
        """
        if not self.began:
            return Changes()
        await self._run.delegations.wait_until_cancelled()
        if self._returning is not None:
            await self._returning
        self._run.stop_timers()
        await self.log.end()
        now = self._host.clock.now()
        spent = self._host.clock.monotonic() - self._started
        for opened in self._open.values():
            self._add(event(end_call(opened, CUT_OFF), now, **self._meta))
        self._open.clear()
        used = self.program_usage
        end = TurnEnd(
            status=status, duration=round(spent, 6), iterations=iterations, final_content_len=length,
            cpu_seconds=round(used.cpu_seconds, 3) if used else None, peak_memory=used.peak_memory if used else None,
        )  # fmt: skip
        self._add(event(end, now, **self._meta))
        self.spending.finish(usage)
        return self.log.unwritten()

    def _mark_received(self, ids: Sequence[str]) -> Changes:
        """Return the changes that mark messages and results as received; each can be received only once."""
        results = [self._results[name] for name in ids if name in self._results]
        fields = {"status": "injected", "attempt": self.attempt}
        steers = tuple(Update("steer", name, fields, {"status": "queued"}) for name in ids if name not in self._results)
        taken = take_items(results, self.task.retry_of or self.task_id, self.attempt)
        told = (event(announce_items(results), self._host.clock.now(), **self._meta),) if taken else ()
        return Changes(updates=steers + taken, events=told)

    def _check(self, payload: Payload) -> Payload:
        """Return the payload. The id of a message gets the prefix of this attempt.

        Raise AgentError if agents may not emit events of this kind.
        """
        if not payload.agents:
            raise AgentError(f"an agent cannot emit events of kind {payload.kind}; only midwatch itself emits them.")
        if isinstance(payload, MessageUpdate):
            return MessageUpdate(message_id=self._message_id(payload), role="agent", message=payload.message)
        if isinstance(payload, MessageDelta):
            return MessageDelta(message_id=self._message_id(payload), offset=payload.offset, text=payload.text)
        return payload

    def _message_id(self, payload: MessageUpdate | MessageDelta) -> str:
        """Return the message id with the prefix of this attempt, so that two attempts never use the same id."""
        prefix, message_id = f"{self.task_id}.{self.attempt}", payload.message_id
        return message_id if f"{message_id}.".startswith(f"{prefix}.") else f"{prefix}.{message_id}"

    def _message(self, update: MessageUpdate, now: int) -> Message:
        """Return the record of a message that the agent sends, or of a notice about it, during its turn."""
        return Message(
            session_key=self.session_key, role="notice" if update.role == "notice" else "agent", text=update.message,
            time=now, task_id=self.task_id, id=update.message_id, author=self.task.agent,
        )  # fmt: skip

    def _note_call(self, payload: Payload, record: Event) -> bool:
        """Add or remove an open call, if the event begins or ends a model call or a tool call.

        Return True for the first event of a call. That is the end event, if the agent did not report the start.
        """
        if isinstance(payload, ToolExecStart | LlmRequest):
            self._open[call_of(record)] = record
            return True
        if isinstance(payload, ToolExecEnd | LlmResponse):
            self.tools_used += isinstance(payload, ToolExecEnd)
            return self._open.pop(call_of(record), None) is None
        return False

    # -- budget --------------------------------------------------------------------------------------------------

    def _add_cost(self, response: LlmResponse) -> LlmResponse:
        """Return the response with the cost of the model call, if the agent reported no cost and the price is known."""
        usage, budgets, model = response.usage, self._host.budgets, response.model or ""
        if not isinstance(usage, Mapping) or not Spending.of(usage).tokens or usage.get("cost_usd") is not None:
            return response
        cost = budgets.cost(self.task.agent, model, usage) if model else None
        if cost is not None:
            return replace(response, usage={**usage, "cost_usd": cost})
        if self.spending.counts_money and model not in self._unpriced:
            self._unpriced.add(model)
            why = f"the price of {model or 'the model'} is unknown, so no budget in dollars applies; set [prices]."
            self.report(LoopError(stage="budget", message=why))
        return response

    async def _count(self, payload: Payload, begins: bool) -> None:
        """Count a step and what it has spent. Interrupt the turn if a step begins although the budget is spent."""
        spent_before = self._run.over is not None
        if isinstance(payload, LlmRequest | ToolExecStart):
            may_go_on = await self.spending.start()
        else:
            if isinstance(payload, LlmResponse):
                self._run.meter.count_answer(payload.usage, payload.model)
            nothing = isinstance(payload, LlmResponse) and is_unanswered(payload.usage, payload.finish_reason)
            self.spending.count(unreserved=begins, given_back=nothing)
            await self.spending.warn()
            may_go_on = not (begins and spent_before)
        if not may_go_on:
            self._run.interrupt("budget")
            await self._run.wait_for_end(STOPPED_SECONDS)
