"""The worker: runs claimed tasks until they end. It works in the same way with every engine.

The worker has a `Run` for each task that runs in this process. The status of the tasks is only in the store. When a
stop request is written to the store, the worker interrupts the agent in ever stronger modes. The task ends when its
agent has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from midwatch.base.directories import UNKNOWN, check_pinned, real_directory
from midwatch.base.errors import AgentError, Conflict, DirectoryChanged, LeaseLost, MidwatchError, StoreUnavailable
from midwatch.base.foreign import CONTAIN_AGENT
from midwatch.base.text import cut
from midwatch.domain.agent import Agent
from midwatch.domain.changes import Changes
from midwatch.domain.event import LoopError, TaskLate, event
from midwatch.domain.handoff import finish_transfer
from midwatch.domain.session import Session
from midwatch.domain.task import Task, end, has_conversation, has_past, meta, touch_session
from midwatch.domain.task_step import TaskStep
from midwatch.domain.task_store import Claim
from midwatch.running.host import Host
from midwatch.running.open_agents import OpenAgents
from midwatch.running.outcome import (
    ERROR_SHOWN,
    STUCK,
    TurnOutcome,
    check_transfer,
    explain_kill,
    read_error,
    read_result,
    run_turn,
    sanitize,
    turn_status,
)
from midwatch.running.probe import check_goal, prepare_run
from midwatch.running.run import Run
from midwatch.running.running_tasks import RunningTasks
from midwatch.running.turn import LiveTurn
from midwatch.services.notifications import Notifications
from midwatch.services.task_endings import TaskEndings
from midwatch.services.task_stops import goal_of
from midwatch.services.worktrees import Worktrees

log = logging.getLogger("midwatch.worker")

FIRST_FLUSH_SECONDS = 0.03
STORE_PAUSE_SECONDS = 0.5
STORE_PATIENCE_SECONDS = 5.0
MOST_CONFLICTS = 10
"""How often the end of a task is written again without a pause, if other writes change its records."""
FINISH_SECONDS, STOPPED_FINISH_SECONDS = 60.0, 5.0
"""How long git may read the changes in a worktree at the end of a task, and of a task that was stopped."""


class Worker:
    """Runs tasks in this process."""

    def __init__(
        self,
        host: Host,
        running: RunningTasks,
        agents: Mapping[str, Agent],
        conversations: OpenAgents,
        endings: TaskEndings,
        notifications: Notifications,
        worktrees: Worktrees,
        owner: str,
    ) -> None:
        self.running = running
        self.slots = host.slots
        self.conversations = conversations
        self.endings = endings
        self._host = host
        self._store = host.store
        self._clock = host.clock
        self._agents = agents
        self._notifications = notifications
        self._worktrees = worktrees
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()
        self._stuck: set[asyncio.Task[None]] = set()
        """Asyncio tasks that wait for agents that could not be stopped."""
        self._unflushed: list[LiveTurn] = []
        self._stop_unseen = False
        self._steer_unseen = False
        self._stopping = False

    # -- called by the engine and the crew -----------------------------------------------------------------------

    def start(self, claim: Claim) -> asyncio.Future[None]:
        """Take a slot and start a claimed task. Return a future that is done when the task first releases its slot."""
        self.slots.take(claim.task.agent, claim.task.actor)
        run = self.running[claim.task.id] = Run(self._host, claim)
        has_steers, self._steer_unseen = self._steer_unseen, False
        self._spawn(self._run(run, has_steers))
        if self._stop_unseen:  # the stop may be for this task, which was claimed but not started
            self._stop_unseen = False
            self._spawn(self._look_for_stops())
        return run.slot_released

    def wake(self, topics: frozenset[str]) -> None:
        """Read what a commit has changed.

        The topic "stop" means stop requests, "session" sessions, "steer" messages, and "context_item" results.
        """
        if "stop" in topics:
            self._stop_unseen = True
            if self.running:
                self._spawn(self._look_for_stops())
        if "session" in topics:
            self.conversations.close_outdated()
        if "context_item" in topics:
            for run in self.running.values():
                run.inbox.may_have_results = True  # the turn looks at its next step
        if "steer" in topics:
            self._steer_unseen = True
            if self.running:
                self._spawn(self._look_for_steers())

    async def stop(self, grace: float) -> None:
        """Stop the worker. Turns have `grace` seconds to end without an interruption; then they are interrupted."""
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
        for waiting in self._stuck:
            waiting.cancel()
        await self.conversations.stop()

    # -- one task ------------------------------------------------------------------------------------------------

    async def _run(self, run: Run, has_steers: bool) -> None:
        stuck = False
        try:
            turn = LiveTurn(self._host, run)
            outcome = await self._work(run, turn, has_steers)
            stuck = await self._close(run, turn, outcome)
            outcome = await self._ask_for_more(run, turn, outcome)
            if not stuck:
                await check_goal(self._host, run, turn, self._agents.get(run.task.agent), outcome)
            outcome = explain_kill(outcome, turn.program_usage)
            if run.task.worktree is not None and run.reason != "lost":
                run.worktree = asyncio.get_running_loop().create_task(self._finish_worktree(run))
                await asyncio.wait({run.worktree})  # a cancel or a shutdown stops it
            await self._end_attempt(run, turn, outcome)
            if outcome.outcome == "skipped" and turn.task.worktree is not None:
                with suppress(MidwatchError):  # the command may have written something; then it is kept
                    await self._worktrees.remove(str(turn.task.worktree["id"]))
            if run.delegations.may_leave_handoffs:
                await self._host.handoffs.cancel_orphans()
        except Exception as problem:
            log.exception("the end of task %s could not be written", run.task.id)
            await self._fail(run, problem)
        finally:
            del self.running[run.task.id]
            if not stuck:
                run.release_slot()

    async def _finish_worktree(self, run: Run) -> None:
        """Add a summary of the changes in the worktree to the task, in limited time: git may wait for a FIFO."""
        try:
            async with asyncio.timeout(FINISH_SECONDS if run.reason is None else STOPPED_FINISH_SECONDS):
                run.task = await self._worktrees.finish_task(run.task)
        except Exception as problem:
            log.warning("the changes of task %s in its worktree cannot be read: %r", run.task.id, problem)

    async def _fail(self, run: Run, problem: Exception) -> None:
        """Mark a task as failed if its end could not be written, so that the task does not stay running for ever."""
        error = sanitize(f"the end of the task could not be written: {type(problem).__name__}: {problem}")
        with suppress(Exception):
            task = await self._store.get_task(run.task.id)
            if task is not None and task.status == "running" and task.attempt == run.task.attempt:
                step = TaskStep(*end(task, self._clock.now(), outcome="error", error=cut(error, ERROR_SHOWN)))
                changes = step.changes
                with suppress(Exception):  # this part may be the cause of the error
                    changes = await self.endings.end_attempt(task, step)
                await self._store.apply(changes)

    async def _work(self, run: Run, turn: LiveTurn, has_steers: bool) -> TurnOutcome:
        """Run the turn from start to end and return its outcome, also after an error."""
        task = run.task
        agent = self._agents.get(task.agent)
        if agent is None:
            return TurnOutcome("error", error=f"agent {task.agent!r} is no longer configured here; add it again.")
        try:
            if day := await turn.spending.open(reserves=getattr(agent, "reserves_steps", False)):
                return TurnOutcome("budget", error=day.over.words, day_spent=day)
            if task.cause == "result" and not await turn.results(again=True):
                return TurnOutcome("silent", text="")  # another turn took the results that this turn is for
            session = await self._session(task)
            run.goal_id = await goal_of(self._store, task)
            turn.agent_workdir = agent.terms.workdir
            turn.begin(session.thread_id)
            if task.steers or has_steers:
                run.inbox.fill(await self._store.list_queued_steers(task.id))
            self._flush_later(turn)
            if session.worktree is not None and task.worktree is None:
                run.task = task._replace(worktree={"id": session.worktree})
            if task.workdir is None:
                await self._enter_directory(turn, session.workdir, UNKNOWN)
            else:
                await self._enter_directory(turn, task.workdir, task.pin)
            if run.task.worktree is not None:
                session = await self._enter_worktree(run, turn, session, agent)
            permit = await turn.spending.admit()
            if permit.action != "go_on":
                return TurnOutcome("budget", error=permit.reason)
            if (ended := await prepare_run(self._host, run, turn, agent)) is not None:
                return ended
            run.conversation = await self.conversations.take(agent, session, turn)
            if not getattr(agent, "takes_results", False):
                await turn.add_results()  # last, so that a turn that cannot begin leaves them to another turn
            if task.route is None:
                return await self._take_turn(run, turn)
            async with self._notifications.typing(task.route):
                return await self._take_turn(run, turn)
        except Exception as problem:
            return read_error(problem, task)

    async def _enter_worktree(self, run: Run, turn: LiveTurn, session: Session, agent: Agent) -> Session:
        """Prepare the task's worktree, and return the session with the worktree as its working directory."""
        directory = run.task.workdir or session.workdir or agent.terms.workdir
        if run.reason is not None:
            raise AgentError("the task was stopped before its worktree was ready.")
        run.worktree = asyncio.get_running_loop().create_task(self._worktrees.prepare(run.task, directory))
        try:
            worktree = await run.worktree
        except asyncio.CancelledError:
            raise AgentError("the task was stopped before its worktree was ready.") from None
        run.task = run.task._replace(worktree=worktree.note_of_task())
        workdir = str(Path(real_directory(worktree.path), worktree.subdir))
        await self._enter_directory(turn, workdir, UNKNOWN)
        return replace(session, workdir=workdir)

    async def _enter_directory(self, turn: LiveTurn, workdir: str | None, pin: str | None) -> None:
        """Let the turn work in a directory, or raise DirectoryChanged if this is not the directory of the pin.

        A task of an earlier version of midwatch has no pin, and nothing is checked.
        """
        if workdir is None or pin is None:
            return
        try:
            turn.work_in(workdir, await asyncio.to_thread(check_pinned, workdir, pin))
        except DirectoryChanged as problem:
            await turn.emit(LoopError(stage=problem.code, message=str(problem)))
            raise

    async def _take_turn(self, run: Run, turn: LiveTurn) -> TurnOutcome:
        assert run.conversation is not None
        self.running.open_turn(turn)
        body = run_turn(run.conversation, turn)
        run.body = asyncio.get_running_loop().create_task(body, context=turn.context())
        run.body.add_done_callback(run.end)
        run.limit_time(turn.spending.remaining_seconds, turn.spending.spend_time)
        if run.reason is not None:  # the task was stopped while its conversation was opened
            run.interrupt_agent()
        await run.ended
        run.stop_timers()
        await self.running.close_turn(run.task.id)
        await run.delegations.close()
        if not run.body.done():
            return TurnOutcome("error", error="the agent could not be stopped and still runs.", result=STUCK)
        try:
            result = run.body.result()
        except asyncio.CancelledError:
            return TurnOutcome("error", error="the agent's turn was cancelled.")
        except Exception as problem:
            return read_error(problem, run.task)
        return read_result(result, run.task)

    async def _ask_for_more(self, run: Run, turn: LiveTurn, outcome: TurnOutcome) -> TurnOutcome:
        """Ask people for a larger budget if the budget interrupted an agent that can resume its work.

        Return the outcome of the turn, or an outcome with which the task goes on in a new attempt.
        """
        if run.reason != "budget" or outcome.outcome in ("ok", "silent", "transferred"):
            return outcome
        goes_on = False
        try:
            if (outcome.result.thread_id if outcome.result else None) is None and turn.thread_id is None:
                return outcome._replace(cannot_ask=await turn.spending.would_ask())
            run.reason = None  # a stop while people are asked sets its own reason
            goes_on = await turn.spending.ask_after_turn()
        except MidwatchError as problem:  # the outcome must not be lost
            log.warning("people were not asked about the spent budget of task %s: %s", run.task.id, problem)
        if goes_on and run.reason is None:
            return outcome._replace(may_go_on=True)
        run.reason = run.reason or "budget"
        return outcome

    async def _session(self, task: Task) -> Session:
        """Return the session of the task from the store, or a new session.

        A task without a conversation has a session of its own, which is stored only if the agent returns a thread id.
        """
        if has_past(task):
            session = await self._store.get_session(task.session_key)
            if session is not None and session.agent == task.agent:
                return session
        return Session(key=task.session_key, agent=task.agent, gate_key=task.gate_key, workdir=task.workdir)

    def _flush_later(self, turn: LiveTurn) -> None:
        """Write the start of a turn after a short delay, so that a short turn is written only once, at its end."""
        if not self._unflushed:
            self._clock.call_later(FIRST_FLUSH_SECONDS, self._flush_starts)
        self._unflushed.append(turn)

    def _flush_starts(self) -> None:
        turns, self._unflushed = self._unflushed, []
        for turn in turns:
            turn.log.flush_soon()

    # -- closing the conversation --------------------------------------------------------------------------------

    async def _close(self, run: Run, turn: LiveTurn, outcome: TurnOutcome) -> bool:
        """Close the conversation, unless it stays open for the next turn.

        Return True if the agent cannot be stopped. Then the run keeps its slot until the agent ends.
        """
        if run.conversation is None:
            return False
        broken_off = run.reason in ("timeout", "lost", "shutdown")
        if not broken_off and self.conversations.keep(turn, run.conversation):
            return False
        try:
            return not await self._close_in_time(run, outcome)
        finally:
            await self.conversations.release(run.task.session_key)

    async def _close_in_time(self, run: Run, outcome: TurnOutcome) -> bool:
        if not (outcome.result and outcome.result.stuck):
            try:
                if await run.close_conversation():
                    return True
            except Exception:
                log.exception("agent %s did not close cleanly", run.task.agent)
                return True
        log.warning("the agent of task %s cannot be stopped; its slot is not free until the agent ends", run.task.id)
        self._stuck.add(asyncio.get_running_loop().create_task(self._wait_for_stuck(run)))
        return False

    async def _wait_for_stuck(self, run: Run) -> None:
        """Wait for an agent that could not be stopped, then release its slot."""
        try:
            assert run.conversation is not None
            with CONTAIN_AGENT:
                await run.conversation.close()
        except Exception:
            log.exception("the agent of task %s, which could not be stopped, did not close cleanly", run.task.id)
        run.release_slot()

    # -- the end of an attempt -----------------------------------------------------------------------------------

    async def _end_attempt(self, run: Run, turn: LiveTurn, outcome: TurnOutcome) -> None:
        """Write the end of the attempt to the store, and try again until the store accepts it.

        If the task is cancelled meanwhile, it ends as cancelled.
        """
        if run.reason == "lost":
            await self._report_late(run, outcome)
            return
        unwritten: Changes | None = None
        patience = self._clock.monotonic() + STORE_PATIENCE_SECONDS
        pause, conflicts = STORE_PAUSE_SECONDS, 0
        while True:
            step = run.end_attempt(outcome)
            try:
                if unwritten is None:
                    iterations = outcome.result.iterations if outcome.result else None
                    status = turn_status(run.reason, outcome)
                    reported = outcome.result.usage.data() if outcome.result else None
                    usage = run.meter.usage(reported)
                    unwritten = await turn.finish(status, iterations, len(outcome.text or ""), usage)
                await self._store.apply(await self._collect(run, turn, outcome, step, unwritten))
                cancelled = step.task.outcome == "cancelled"  # the stored task may also have a reason
                if not step.task.open and not cancelled and step.task.progress is turn.progress:
                    self._host.waiter.keep_ended(step.task)
                return
            except LeaseLost:
                await self._report_late(run, outcome)
                return
            except Conflict as problem:
                task = await self._store.get_task(run.task.id)
                if task is None or task.attempt != run.task.attempt:
                    return
                run.task = task._replace(worktree=run.task.worktree)
                if task.stop_requested == "cancel":
                    run.reason = "cancel"
                outcome = await check_transfer(outcome, self._host.handoffs.get)
                conflicts += 1
                if conflicts <= MOST_CONFLICTS:
                    continue
                reason = str(problem)
            except StoreUnavailable as problem:
                reason = str(problem)
            log.error("the end of task %s is not written yet: %s", run.task.id, reason)
            if self._stopping and self._clock.monotonic() > patience:
                return  # another process will find the dead lease and rescue the task
            await asyncio.sleep(pause)
            pause = min(2 * pause, STORE_PATIENCE_SECONDS)

    async def _collect(
        self, run: Run, turn: LiveTurn, outcome: TurnOutcome, step: TaskStep, unwritten: Changes
    ) -> Changes:
        """Return all changes to write at the end of an attempt, in one transaction."""
        sessions: tuple[Session, ...] = ()
        task, now = run.task, self._clock.now()
        thread_id = outcome.result.thread_id if outcome.result else None
        if (has_conversation(task) and outcome.outcome != "skipped") or thread_id:
            sessions = (touch_session(task, now, thread_id),)
        asked = run.fence if turn.asked or turn.spending.asked else None
        changes = await self.endings.end_attempt(
            task, step, asked=asked, tools=turn.tools_used, thread_id=thread_id, charges=unwritten.charges,
            check=run.check,
        )  # fmt: skip
        if outcome.result is not None and outcome.result.transfer is not None:
            changes = changes.plus(finish_transfer(outcome.result.transfer, step.task, now))
        before = unwritten._replace(fence=run.fence if turn.began else None, sessions=unwritten.sessions + sessions)
        return before.plus(changes)

    async def _report_late(self, run: Run, outcome: TurnOutcome) -> None:
        """Record that the result of an attempt came too late, because another process owns the task now."""
        with suppress(MidwatchError):
            task = await self._store.get_task(run.task.id)
            if task is not None and not task.open and task.attempt == run.task.attempt and not run.reason:
                return  # the end was written, although the store did not confirm it
        log.warning("task %s attempt %d lost its lease; its result is not used", run.task.id, run.task.attempt)
        late = TaskLate(outcome=outcome.outcome, result=outcome.text, error=outcome.error)
        with suppress(MidwatchError):
            await self._store.record_late(event(late, self._clock.now(), **meta(run.task)))

    # -- stops and messages --------------------------------------------------------------------------------------

    async def _look_for_stops(self) -> None:
        try:
            tasks = await self._store.list_running_tasks(self._owner)
        except StoreUnavailable:
            return
        for task in tasks:
            run = self.running.get(task.id)
            if run is not None and task.stop_requested and run.task.attempt == task.attempt:
                run.task = run.task._replace(stop_requested=task.stop_requested)
                run.interrupt(task.stop_requested)

    async def _look_for_steers(self) -> None:
        for run in list(self.running.values()):
            with suppress(StoreUnavailable):
                run.inbox.fill(await self._store.list_queued_steers(run.task.id))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
