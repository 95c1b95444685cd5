"""The worker: runs one claimed task to its end. The same code under every engine.

It keeps handles of what runs here and never a status: what counts is in the store. A stop that somebody wrote there is
carried out by interrupting the agent, harder and harder; the task ends when its agent has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace

from midwatch.base.clock import Clock
from midwatch.base.errors import AgentError, Conflict, LeaseLost, LimitReached, MidwatchError, StoreUnavailable
from midwatch.base.text import cut
from midwatch.domain.agent import Agent, Conversation
from midwatch.domain.approval import Approval, resolve
from midwatch.domain.changes import Changes
from midwatch.domain.event import Event, TaskLate, event
from midwatch.domain.handoff import Handoff, given_on
from midwatch.domain.session import Session
from midwatch.domain.store import Store
from midwatch.domain.task import Claim, Task, conversation, end, meta, used
from midwatch.running.open_agents import OpenAgents
from midwatch.running.outcome import (
    ERROR_SHOWN,
    STUCK,
    Verdict,
    contained,
    failed,
    returned,
    still,
    storable,
    turn_status,
)
from midwatch.running.run import Run
from midwatch.running.slots import Slots
from midwatch.running.turn import LiveTurn, Observe
from midwatch.services.approvals import Approvals
from midwatch.services.day_budget import Purse
from midwatch.services.goals import goal_of
from midwatch.services.handoffs import Handoffs
from midwatch.services.notifications import Notifications
from midwatch.services.task_endings import Settle, nothing, settled
from midwatch.services.worktrees import Worktrees

log = logging.getLogger("midwatch.worker")

FIRST_FLUSH_SECONDS = 0.01
STOPPED_SECONDS = 0.2
STORE_PAUSE_SECONDS = 0.5
STORE_PATIENCE_SECONDS = 5.0


class Worker:
    """Runs tasks in this process."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        agents: Mapping[str, Agent],
        notifications: Notifications,
        approvals: Approvals,
        handoffs: Handoffs,
        slots: Slots,
        conversations: OpenAgents,
        *,
        owner: str,
        show: Callable[[Event], None],
        identify: Callable[[int], str],
        env: Callable[[], Mapping[str, str]] = dict,
        approval_seconds: float = 12 * 3600.0,
        max_waiting: int = 1000,
        settle: Settle = nothing,
        worktrees: Worktrees | None = None,
        purse: Purse | None = None,
        observe: Observe | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.approvals = approvals
        self.handoffs = handoffs
        handoffs.pausing, handoffs.attending = self.waiting, self.attend
        self.slots = slots
        self.conversations = conversations
        self.approval_seconds = approval_seconds
        self.judge = approvals.judge
        self.purse = purse or Purse()
        self.observe = observe
        self.running: dict[str, Run] = {}
        self.slot_freed: Callable[[], None] = lambda: None
        self._agents = agents
        self._notifications = notifications
        self._owner = owner
        self._show = show
        self._identify = identify
        self._env = env
        self._max_waiting = max_waiting
        self.settle = settle
        self._worktrees = worktrees
        self._questions: dict[str, asyncio.Future[Approval | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: set[asyncio.Task[None]] = set()
        """Waiting for what could not be stopped."""
        self._young: list[LiveTurn] = []
        self._stop_unseen = False
        self._steer_unseen = False
        self._stopping = False

    # -- from the engine and the loops ---------------------------------------------------------------------------

    def start(self, claim: Claim) -> asyncio.Future[None]:
        """Run a claimed task; takes its slot now. The future is done when the slot is given back."""
        self.slots.take(claim.task.agent, claim.task.actor)
        loop = asyncio.get_running_loop()
        run = Run(self.clock, claim, claim.task, loop.create_future(), loop.create_future())
        self.running[claim.task.id] = run
        self._spawn(self._run(run))
        if self._stop_unseen:  # it may have been meant for this task, which was claimed but not started yet
            self._stop_unseen = False
            self._spawn(self._look_for_stops())
        run.steered, self._steer_unseen = self._steer_unseen, False
        return run.slot_given

    def heard(self, topics: frozenset[str]) -> None:
        """Something was committed: stops and answers may be among it."""
        if "stop" in topics:
            self._stop_unseen = True
            if self.running:
                self._spawn(self._look_for_stops())
        if "approval" in topics and self._questions:
            self._spawn(self._look_for_answers())
        if "session" in topics:
            self.conversations.heard()
        if "steer" in topics:
            self._steer_unseen = True
            if self.running:
                self._spawn(self._look_for_steers())

    async def stop(self, grace: float) -> None:
        """End everything: turns get `grace` seconds to end by themselves, then they are interrupted."""
        self._stopping = True
        if self.running and grace > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    while self.running:
                        await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)
        for run in list(self.running.values()):
            run.interrupt("shutdown")
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        for left in self._left:
            left.cancel()
        await self.conversations.stop()

    # -- one task ------------------------------------------------------------------------------------------------

    async def _run(self, run: Run) -> None:
        stuck = False
        try:
            verdict = await self._work(run)
            stuck = await self._close(run, verdict)
            if self._worktrees is not None and run.task.worktree is not None and run.reason != "lost":
                run.task = await self._worktrees.done(run.task)
            await self._conclude(run, verdict)
            if run.turn is not None and run.turn.giving.loose:
                await self.handoffs.call_off()
        except Exception as problem:
            log.exception("task %s could not be brought to its end as it should", run.task.id)
            await self._end_somehow(run, problem)
        finally:
            del self.running[run.task.id]
            if run.turn is not None:
                self.purse.close(run.turn.meter, run.usage)
            if not stuck:
                self._give_slot(run)

    async def _end_somehow(self, run: Run, problem: Exception) -> None:
        """A mistake of ours, or a result nobody thought of: the task fails, and does not stay running for ever."""
        error = storable(f"its end could not be written: {type(problem).__name__}: {problem}")
        with suppress(Exception):
            current = await self.store.get_task(run.task.id)
            if current is not None and current.status == "running" and current.attempt == run.task.attempt:
                step = end(current, self.clock.now(), outcome="error", error=cut(error, ERROR_SHOWN))[1]
                with suppress(Exception):  # perhaps it is just this that cannot be written
                    step = await settled(self.settle, current, step)
                await self.store.apply(step)

    async def _work(self, run: Run) -> Verdict:
        """The turn from start to end; every way it can fail becomes a verdict."""
        task = run.task
        agent = self._agents.get(task.agent)
        if agent is None:
            return Verdict("error", error=f"agent {task.agent!r} is not configured here any more.")
        try:
            if rest := await self.purse.rest(task.agent):
                return Verdict("budget", error=rest.over.words, rest=rest)
            session = await self._session(task)
            run.goal_id = await goal_of(self.store, task)
            turn = LiveTurn(self, run.claim, session.thread_id)
            run.turn = turn
            turn.begin()
            if task.steers or run.steered:
                turn.hear(await self.store.queued_steers(task.id))
            self._write_soon(turn)
            if session.worktree is not None and task.worktree is None:
                run.task = task._replace(worktree={"id": session.worktree})
            if run.task.worktree is not None:
                session = await self._apart(run, turn, session, agent)
            run.conversation = await self.conversations.take(agent, session, turn)
            if task.route is None:
                return await self._turn(run, run.conversation, turn)
            async with self._notifications.typing(task.route):
                return await self._turn(run, run.conversation, turn)
        except Exception as problem:
            return failed(problem, task)

    async def _apart(self, run: Run, turn: LiveTurn, session: Session, agent: Agent) -> Session:
        """Has the task's own worktree ready; the turn works there."""
        if self._worktrees is None:
            raise AgentError("it wants a worktree, which this process cannot make.")
        place = run.task.workdir or session.workdir or agent.terms.workdir
        run.making = asyncio.get_running_loop().create_task(self._worktrees.ready(run.task, place))
        try:
            tree = await run.making
        except asyncio.CancelledError:
            raise AgentError("it was stopped while its worktree was being made.") from None
        run.task = run.task._replace(worktree=tree.note_of_task())
        turn.workdir = tree.workdir
        return replace(session, workdir=tree.workdir)

    async def _turn(self, run: Run, talk: Conversation, turn: LiveTurn) -> Verdict:
        run.body = asyncio.get_running_loop().create_task(contained(talk, turn), context=turn.context())
        run.body.add_done_callback(run.end)
        run.limit_time(turn)
        if run.reason is not None:  # somebody stopped it while it was opening
            run.climb()
        await run.ended
        if run.timer is not None:
            run.timer.cancel()
        if run.ladder is not None:
            run.ladder.cancel()
        await turn.giving.end()
        if not run.body.done():
            return Verdict("error", error="the agent could not be stopped and was left behind.", result=STUCK)
        try:
            result = run.body.result()
        except asyncio.CancelledError:
            return Verdict("error", error="the agent's turn was cancelled.")
        except Exception as problem:
            return failed(problem, run.task)
        return returned(result, run.task)

    async def _session(self, task: Task) -> Session:
        """The conversation the task runs in; a task's private one exists only once it has a thread."""
        if conversation(task) or task.retry_of or task.attempt > 1:
            found = await self.store.get_session(task.session_key)
            if found is not None and found.agent == task.agent:
                return found
        return Session(key=task.session_key, agent=task.agent, gate_key=task.gate_key, workdir=task.workdir)

    def _write_soon(self, turn: LiveTurn) -> None:
        """One timer for all turns that have just begun: a turn that is over by then is written once, with its end."""
        if not self._young:
            self.clock.call_later(FIRST_FLUSH_SECONDS, self._write_young)
        self._young.append(turn)

    def _write_young(self) -> None:
        young, self._young = self._young, []
        for turn in young:
            turn.flush_soon()

    def env(self, task: Task) -> dict[str, str]:
        """What a child of the turn finds in its environment."""
        run = self.running.get(task.id)
        own = {"MIDWATCH_TASK": f"{task.id}/{task.attempt}", "MIDWATCH_SESSION": task.session_key}
        if run is not None:
            own["MIDWATCH_TOKEN"] = run.claim.token
            if run.goal_id is not None:
                own["MIDWATCH_GOAL"] = run.goal_id
        if task.cause_id is not None:
            own[f"MIDWATCH_{task.cause.upper()}"] = task.cause_id
        return {**self._env(), **own}

    async def _close(self, run: Run, verdict: Verdict) -> bool:
        """End the conversation, unless it waits for the next turn. True when something of it cannot be ended: it then
        keeps its slot until it has."""
        if run.conversation is None or self._kept(run):
            return False
        try:
            return await self._end(run, run.conversation, verdict)
        finally:
            await self.conversations.let_go(run.task.session_key)

    def _kept(self, run: Run) -> bool:
        """Whether the conversation stays open; not one that had to be broken off."""
        if run.turn is None or run.conversation is None or run.reason in ("timeout", "lost", "shutdown"):
            return False
        return self.conversations.keep(run.turn, run.conversation)

    async def _end(self, run: Run, talk: Conversation, verdict: Verdict) -> bool:
        if not (verdict.result and verdict.result.stuck):
            try:
                if await run.closes_in_time(talk):
                    return False
            except Exception:
                log.exception("agent %s did not close cleanly", run.task.agent)
                return False
        log.warning("task %s left something behind that cannot be stopped; its slot stays taken", run.task.id)
        self._left.add(asyncio.get_running_loop().create_task(self._outlive(run, talk)))
        return True

    async def _outlive(self, run: Run, talk: Conversation) -> None:
        """Wait for what could not be stopped, then give back its slot."""
        try:
            await talk.close()
        except Exception:
            log.exception("what task %s left behind ended badly", run.task.id)
        self._give_slot(run)

    def _give_slot(self, run: Run) -> None:
        if run.has_slot:
            run.has_slot = False
            self.slots.give(run.task.agent, run.task.actor)
        if not run.slot_given.done():
            run.slot_given.set_result(None)
        self.slot_freed()

    # -- the end of a task ---------------------------------------------------------------------------------------

    async def _conclude(self, run: Run, verdict: Verdict) -> None:
        """Write how it ended, whatever it takes; a stop that came meanwhile is taken into account."""
        if run.reason == "lost":
            await self._late(run, verdict)
            return
        tail: Changes | None = None
        patience = self.clock.monotonic() + STORE_PATIENCE_SECONDS
        pause = STORE_PAUSE_SECONDS
        while True:
            step = run.step(verdict)
            try:
                if tail is None and run.turn is not None:
                    length = len(verdict.text or "")
                    iterations = verdict.result.iterations if verdict.result else None
                    tail = await run.turn.finish(turn_status(run.reason, verdict), iterations, length)
                await self.store.apply(await self._whole(run, verdict, step, tail or Changes()))
                return
            except LeaseLost:
                await self._late(run, verdict)
                return
            except Conflict:
                current = await self.store.get_task(run.task.id)
                if current is None or current.attempt != run.task.attempt:
                    return
                run.task = current._replace(worktree=run.task.worktree)
                if current.stop_requested == "cancel":
                    run.reason = "cancel"
                verdict = await still(verdict, self.handoffs.get)
            except StoreUnavailable as problem:
                log.error("the end of task %s is not written yet: %s", run.task.id, problem)
                if self._stopping and self.clock.monotonic() > patience:
                    return  # the next process finds the lease dead and rescues the task
                await asyncio.sleep(pause)
                pause = min(2 * pause, STORE_PATIENCE_SECONDS)

    async def _whole(self, run: Run, verdict: Verdict, step: Changes, tail: Changes) -> Changes:
        """The step with everything that belongs to it: unwritten events, the thread, questions left open."""
        sessions: tuple[Session, ...] = ()
        task, now = run.task, self.clock.now()
        thread = verdict.result.thread_id if verdict.result else None
        if conversation(task) or thread:
            sessions = (used(task, now, thread),)
        tools = run.turn.tools_used if run.turn else 0
        step = await settled(self.settle, task, step, tools=tools, thread_id=thread)
        if verdict.result is not None and verdict.result.transfer is not None:
            step = given_on(verdict.result.transfer, step, now)
        asked: list[Changes] = []
        if run.turn is not None and run.turn.asked:
            left = await self.store.pending_approvals(run.turn.fence)
            why = "the task has ended" if step.updates[0].fields["status"] != "pending" else "the task was interrupted"
            asked = [resolve(question, "expired", now, why=why) for question in left]
        return replace(
            step,
            fence=run.turn.fence if run.turn else None,
            updates=step.updates + tuple(u for c in asked for u in c.updates),
            events=tail.events + tuple(e for c in asked for e in c.events) + step.events,
            messages=tail.messages + step.messages,
            sessions=tail.sessions + sessions + step.sessions,
        )

    async def _late(self, run: Run, verdict: Verdict) -> None:
        """The task is somebody else's by now: say that a result came too late, once."""
        with suppress(MidwatchError):
            current = await self.store.get_task(run.task.id)
            if current is not None and not current.open and current.attempt == run.task.attempt and not run.reason:
                return  # our own end was written although the store could not say so
        log.warning("task %s attempt %d lost its lease; its result is not used", run.task.id, run.task.attempt)
        told = TaskLate(outcome=verdict.outcome, result=verdict.text, error=verdict.error)
        with suppress(MidwatchError):
            await self.store.record_late(event(told, self.clock.now(), **meta(run.task)))

    # -- stopping ------------------------------------------------------------------------------------------------

    async def _look_for_stops(self) -> None:
        try:
            mine = await self.store.running_tasks(self._owner)
        except StoreUnavailable:
            return
        for task in mine:
            run = self.running.get(task.id)
            if run is not None and task.stop_requested and run.task.attempt == task.attempt:
                run.task = run.task._replace(stop_requested=task.stop_requested)
                run.interrupt(task.stop_requested)

    # -- what turns ask for --------------------------------------------------------------------------------------

    def show(self, live: Event) -> None:
        self._show(live)

    async def identify(self, pgid: int) -> str:
        return self._identify(pgid)

    def lost(self, turn: LiveTurn) -> None:
        run = self.running.get(turn.task_id)
        if run is not None and run.turn is turn:
            run.interrupt("lost")

    async def spent(self, turn: LiveTurn) -> None:
        """The turn goes on although nothing is left: it is stopped, if it can be before it does more."""
        run = self.running.get(turn.task_id)
        if run is not None and run.turn is turn:
            run.interrupt("budget")
            await run.ends_within(STOPPED_SECONDS)

    async def pause(self, turn: LiveTurn) -> None:
        """A turn waits for a person: its slot goes back and its timeout stands still."""
        run = self.running[turn.task_id]
        if sum(1 for other in self.running.values() if not other.has_slot) >= self._max_waiting:
            raise LimitReached(f"{self._max_waiting} tasks wait for answers already; answer some first.")
        if run.timer is not None and turn.deadline is not None:
            run.timer.cancel()
            run.remaining = max(0.0, turn.deadline - self.clock.monotonic())
            run.timer = None
        self._give_slot(run)

    async def go_on(self, turn: LiveTurn) -> None:
        """The turn has its answer: it needs a slot again and its clock runs on."""
        run = self.running.get(turn.task_id)
        if run is None or run.has_slot:
            return
        if run.over:
            self.slots.take(run.task.agent, run.task.actor)  # it only needs to end
        else:
            await self.slots.take_back(run.task.agent, run.task.actor)
        run.has_slot = True
        if run.remaining is not None and not run.over:
            run.arm(run.remaining)

    def waiting(self, task_id: str) -> AbstractAsyncContextManager[None]:
        """While a task waits for work it handed over; one that does not run here keeps what it has."""
        run = self.running.get(task_id)
        return nullcontext() if run is None or run.turn is None else run.turn.waiting()

    async def attend(self, task_id: str, handoff: Handoff) -> None:
        """The agent of a task asks for work it handed over; of one that does not run here nothing is known."""
        run = self.running.get(task_id)
        if run is not None and run.turn is not None:
            await run.turn.giving.attend(handoff)

    async def answer(self, approval: Approval) -> Approval:
        """Wait until the question is answered or expired; comes back pending when the task is being stopped."""
        run = self.running[approval.task_id]
        run.question = asyncio.get_running_loop().create_future()
        self._questions[approval.id] = run.question
        try:
            current = await self.approvals.get(approval.id)
            if current.status != "pending" or run.reason is not None:
                return current
            return await run.question or approval
        finally:
            run.question = None
            del self._questions[approval.id]

    async def _look_for_answers(self) -> None:
        for approval_id, future in list(self._questions.items()):
            with suppress(MidwatchError):
                found = await self.approvals.get(approval_id)
                if found.status != "pending" and not future.done():
                    future.set_result(found)

    async def _look_for_steers(self) -> None:
        for run in list(self.running.values()):
            if run.turn is None:
                run.steered = True  # it looks when it has one
                continue
            with suppress(StoreUnavailable):
                run.turn.hear(await self.store.queued_steers(run.task.id))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
