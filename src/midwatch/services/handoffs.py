"""The handoff service: hand work over, read, cancel and retry handoffs. The record is `midwatch.domain.handoff`.

Before the task of the target is created, the service chooses an agent, checks that handoffs to this agent are enabled,
asks the agent to accept, calls the hook and filters the history. All this must end before the handoff's deadline. After
the task is created, the handoff no longer needs this process.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from midwatch.base import errors
from midwatch.base.clock import SECOND, Clock
from midwatch.base.errors import Conflict, HandoffError, InvalidInput, StoreError, UnknownAgent
from midwatch.base.foreign import ContainExit
from midwatch.base.ids import new_id
from midwatch.domain import handoff as rules
from midwatch.domain import handoff_history as history
from midwatch.domain.agent import Agent, AgentTerms, Candidate, best_first
from midwatch.domain.budget import Budget
from midwatch.domain.changes import Changes
from midwatch.domain.context_item import Returns
from midwatch.domain.handoff import Form, Handoff, HandoffFilter, HandoffTask, Limits, Link, RunningTasks, Transfer
from midwatch.domain.handoff_history import HandoffContext, HandoffInputData, HistoryMapper, InputFilter
from midwatch.domain.lineage import derive, latest_turn
from midwatch.domain.listing import Listing
from midwatch.domain.store import Store
from midwatch.domain.task import TRIES, Task, new_task
from midwatch.services.agent_registry import AgentRegistry
from midwatch.services.handoff_deadlines import HandoffDeadlines
from midwatch.services.records import apply_with_retry, require
from midwatch.services.rule_levels import inherit_rules
from midwatch.services.task_stops import stop_task
from midwatch.services.waiter import Waiter

Hook = Callable[[Handoff], Any]
Enable = Callable[["HandoffOptions", str], Any]
"""A function that gets the options and the name of the target, and returns whether the handoff is allowed."""

log = logging.getLogger("midwatch.handoffs")

TEXTS = (
    "from_agent", "to", "source_task", "once", "workdir", "actor", "tool_name_override", "tool_description_override",
)  # fmt: skip
TRANSFER_SECONDS = 86400.0
"""The timeout of a transfer in seconds. The task that gets the work has a timeout of its own."""
DISABLED = "handoffs to this agent are disabled; choose another agent."


@runtime_checkable
class Receiver(Protocol):
    """An agent that decides which work it accepts."""

    def can_handle(self, work: HandoffTask) -> bool:
        """Return whether this agent can do the work."""

    async def accept(self, handoff: Handoff) -> None:
        """Accept the handoff, or raise an error to refuse it. The text of the error is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffOptions:
    """The options of a handoff.

    Without `to`, an agent is chosen by its capabilities. If `timeout` or `nest_history` is None, the desk's setting is
    used. `enabled` and `enable_func` must both allow the handoff. Set `awaited` if the source task waits for the
    answer, but not in this call; with `returns`, its agent gets the result later, without waiting for it. `once` is an
    idempotency key: a second request with this key returns the same handoff.
    """

    task: HandoffTask
    from_agent: str = ""
    to: str | None = None
    context: HandoffContext = field(default_factory=HandoffContext)
    pre_handoff: tuple[Mapping[str, Any], ...] = ()
    form: Form = "delegate"
    timeout: float | None = None
    max_retries: int = 0
    wait: bool = True
    returns: Returns | None = None
    on_handoff: Hook | None = None
    input_filter: InputFilter | None = None
    enabled: bool | None = None
    enable_func: Enable | None = None
    tool_name_override: str | None = None
    tool_description_override: str | None = None
    nest_history: bool | None = None
    history_mapper: HistoryMapper | None = None
    source_task: str | None = None
    awaited: bool = False
    once: str | None = None
    retry_of: str | None = None
    workdir: str | None = None
    actor: str | None = None


class Handoffs:
    """Service: hands work over from agent to agent."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        registry: AgentRegistry,
        owner: str,
        running: RunningTasks,
        waiter: Waiter,
        limits: Limits | None = None,
        *,
        timeout: float = rules.TIMEOUT_SECONDS,
        nest_history: bool = False,
        input_filter: InputFilter | None = None,
    ) -> None:
        self.timeout = timeout
        self.limits = limits or Limits()
        self._store = store
        self._clock = clock
        self._deadlines = HandoffDeadlines(store, clock)
        self._registry = registry
        self._agents: Mapping[str, Agent] = registry.agents
        self._terms = registry.terms_or_none
        self._running = running
        self._waiter = waiter
        self._owner = owner
        self._nest = nest_history
        self.input_filter = input_filter  # for handoffs without a filter of their own
        self._disabled: set[str] = set()

    # -- targets of handoffs -------------------------------------------------------------------------------------

    async def register(self, agent: Agent) -> None:
        """Add an agent to this process. Raise Conflict if another agent of this process has the same name."""
        await self._registry.register(agent)

    async def unregister(self, name: str) -> None:
        """Remove an agent from this process, or raise UnknownAgent.

        The running tasks of the agent continue. Its pending tasks wait until a process offers the agent again.
        """
        await self._registry.unregister(name)

    def enable(self, agent: str, on: bool = True) -> None:
        """Allow or forbid handoffs to an agent of this process."""
        (self._disabled.discard if on else self._disabled.add)(agent)

    def receivers(self, names: Iterable[str] | None = None) -> Mapping[str, str]:
        """Return the descriptions of the agents to which work may be handed over, by name.

        With `names`, return only those of these agents.
        """
        wanted = self._agents if names is None else names
        known = {name: self._agents.get(name) for name in wanted if name not in self._disabled}
        return {name: getattr(agent, "description", "") for name, agent in known.items()}

    def can_receive(self, agent: str) -> bool:
        """Return whether work may be handed over to the agent."""
        return agent not in self._disabled

    async def find_agent(self, work: HandoffTask, without: frozenset[str] = frozenset()) -> list[str]:
        """Return the agents of this process that can do this work, the best first, without the agents `without`."""
        open_handoffs = await self._store.count_open_handoffs()
        candidates = [
            Candidate(name, agent.capabilities, open_handoffs.get(name, 0), position)
            for position, (name, agent) in enumerate(self._agents.items())
            if _can_handle(agent, work)
        ]
        return best_first(candidates, work.type, without)

    # -- hand over -----------------------------------------------------------------------------------------------

    async def handoff(self, options: HandoffOptions) -> Handoff:
        """Hand work over to an agent.

        If `options.wait` is True, return the handoff when it has completed, or raise an error if it ends without an
        answer. Otherwise return the handoff as soon as its task is created.
        """
        self._check(options)
        if not options.wait:
            return await self._create(options)
        async with self._running.pause(options.source_task) if options.source_task else nullcontext():
            return await self.wait((await self._create(options)).id)

    async def _create(self, options: HandoffOptions) -> Handoff:
        """Create the handoff and its task, or return the handoff of an earlier request with the same `once`."""
        if earlier := await self._find_known(options):
            return earlier
        try:
            return (await self._prepare_in_time(await self._begin(options), options)).handoff
        except Conflict:
            if earlier := await self._find_known(options):  # a concurrent request created it
                return earlier
            raise

    async def transfer(self, options: HandoffOptions) -> Transfer:
        """Prepare the transfer of the work of `source_task` to the target.

        The transfer begins when the worker of `source_task` writes the end of that task.
        """
        options = replace(options, form="transfer", wait=False, timeout=options.timeout or TRANSFER_SECONDS)
        self._check(options)
        if options.source_task is None:
            raise InvalidInput("`source_task` must be the id of the task to transfer.", field="source_task")
        earlier = await self._store.find_handoff(options.source_task, options.once) if options.once else None
        if earlier is not None:
            await self._free_name(earlier)
        return await self._prepare_in_time(await self._begin(options), options)

    def _check(self, options: HandoffOptions) -> None:
        """Raise InvalidInput if the options are invalid."""
        rules.check(options.task, options.context, self._get_timeout(options), options.max_retries)
        rules.check_texts({name: getattr(options, name) for name in TEXTS})

    def _get_timeout(self, options: HandoffOptions) -> float:
        return self.timeout if options.timeout is None else options.timeout

    async def _find_known(self, options: HandoffOptions) -> Handoff | None:
        if options.once is None:
            return None
        earlier = await self._store.find_handoff(options.source_task, options.once)
        if earlier is None:
            return None
        abandoned = earlier.status in ("pending", "accepted") and earlier.owner != self._owner
        if abandoned or (earlier.status == "cancelled" and earlier.task_id is None):
            return None if await self._free_name(earlier) else await self._find_known(options)
        return earlier

    async def _free_name(self, earlier: Handoff) -> bool:
        """Remove the key `once` from an earlier handoff that has no task, so that a new handoff can use the key.

        Return False if the earlier handoff changed meanwhile.
        """
        if earlier.open:
            why = "the process that prepared it ended"
            step = rules.fail_handoff(earlier, why, self._clock.now(), "choose", once=None)[1]
        else:
            step = rules.forget_name(earlier)
        with suppress(Conflict):
            await self._store.apply(step)
            return True
        return False

    async def _begin(self, options: HandoffOptions) -> _Stage:
        """Build a new handoff with the named agent, or the best one, as its target.

        The handoff is written now, or later together with its task if no code of users is called in between.
        """
        source = await self._get_source(options)
        chain = await self._read_chain(options, source)
        root = (source.root_id or source.id) if source else None
        total = await self._store.count_handoffs(root) if root else 0
        if options.to is not None:
            await self._check_agent(options.to)
            to = options.to
        else:
            candidates = await self.find_agent(options.task, rules.agents_to_avoid(chain, self.limits))
            to = candidates[0] if candidates else ""
        rules.check_chain(chain, to, total, self.limits)
        now = self._clock.now()
        handoff = Handoff(
            id=new_id("h", now), form=options.form, from_agent=options.from_agent or (source.agent if source else ""),
            to_agent=to, tool_name=rules.tool_name(to, options.tool_name_override),
            tool_description=rules.tool_description(to, options.tool_description_override),
            transfer_message=rules.transfer_message(to), request=options.task.data(),
            context=replace(options.context, parent_handoff=rules.latest_handoff(chain)).data(), chain=tuple(chain),
            source_task=source.id if source else None, root_id=root, once=options.once, creator=options.actor,
            parent_turn_id=latest_turn(source) if source else None,
            trace_path=(source.trace_path or source.id) if source else None,
            awaited=options.awaited or options.wait or options.form == "transfer", returns=options.returns,
            owner=self._owner, retry_of=options.retry_of, timeout=self._get_timeout(options),
            deadline_at=now + int(self._get_timeout(options) * SECOND), max_retries=options.max_retries, created_at=now,
        )  # fmt: skip
        request = rules.request_handoff(handoff, now)
        if self._needs_one_write(options, to):
            return _Stage(handoff, [request])
        if not to:
            why = f"no agent here can do work of type {options.task.type!r}; name an agent, or add a capability for it."
            await self._store.apply(rules.merge_steps([request, rules.fail_handoff(handoff, why, now, "choose")[1]]))
            raise errors.NoCandidate(why, handoff.id)
        await self._store.apply(request)
        return _Stage(handoff, [])

    def _needs_one_write(self, options: HandoffOptions, to: str) -> bool:
        """Return whether one write can create the handoff and its task, because no code of users runs in between."""
        filters = (options.input_filter, options.history_mapper, self.input_filter)
        calls = (options.on_handoff, options.enable_func, *filters)
        allowed = options.enabled is not False and to not in self._disabled
        return bool(to) and allowed and not any(calls) and not isinstance(self._agents.get(to), Receiver)

    async def _get_source(self, options: HandoffOptions) -> Task | None:
        key = options.source_task
        return None if key is None else require(await self._store.get_task(key), "task", key)

    async def _read_chain(self, options: HandoffOptions, source: Task | None) -> list[Link]:
        """Return the agents that had this work before, the first agent first."""
        chain: list[Link] = []
        parent = options.context.parent_handoff
        if source is not None and source.cause == "handoff":
            parent = source.cause_id
        if parent is not None:
            above = await self.get(parent)
            chain = [Link(*link) for link in above.chain] + [Link(above.to_agent, above.id)]
        agent = options.from_agent or (source.agent if source else "")
        if agent and (not chain or chain[-1].agent != agent):
            chain.append(Link(agent))
        return chain

    async def _check_agent(self, name: str) -> None:
        if name not in self._agents and await self._terms(name) is None:
            raise UnknownAgent(name, sorted(self._agents))

    async def _prepare_in_time(self, stage: _Stage, options: HandoffOptions) -> Transfer:
        """Prepare the task of a handoff before the handoff's deadline. After an error, end the handoff and raise."""
        handoff = stage.handoff
        try:
            async with self._deadlines.limit(handoff, stored=not stage.held) as limit:
                ready = await self._prepare(stage, options)
                if options.form == "delegate":
                    running, step = rules.start_handoff(ready.handoff, ready.task, self._clock.now())
                    await self._store.apply(rules.merge_steps([*stage.held, step]))
                    return replace(ready, handoff=running)
                if stage.held:
                    await self._store.apply(rules.merge_steps(stage.held))
                return ready
        except asyncio.CancelledError as problem:
            me = asyncio.current_task()
            if me is None or not me.cancelling():  # user code raised it; this task itself was not cancelled
                raise await self._fail(stage, problem) from problem
            now = self._clock.now()
            await asyncio.shield(
                self._end(stage, lambda handoff: rules.cancel_handoff(handoff, "its caller was cancelled", now))
            )
            raise
        except Exception as problem:
            if limit.expired() and isinstance(problem, TimeoutError):
                await self._end(stage, lambda handoff: rules.expire_handoff(handoff, self._clock.now()))
                why = f"handoff {handoff.id} did not begin within {handoff.timeout:g} s; set a longer timeout."
                raise errors.HandoffOverdue(why, handoff.id) from None
            if isinstance(problem, HandoffError) and not stage.handoff.open:
                raise
            raise await self._fail(stage, problem) from problem

    async def _fail(self, stage: _Stage, problem: BaseException) -> errors.MidwatchError:
        """End the handoff after an error in its preparation, and return the error to raise."""
        why = f"{stage.name}: {type(problem).__name__}: {problem}"
        ended = await self._end(stage, lambda handoff: rules.fail_handoff(handoff, why, self._clock.now(), stage.name))
        if ended is None and isinstance(problem, Conflict):
            return problem
        if ended is not None and ended.status != "failed":
            rules.require_answer(ended)
        return HandoffError(f"handoff {stage.handoff.id} failed before it began; {why}", stage.handoff.id)

    async def _prepare(self, stage: _Stage, options: HandoffOptions) -> Transfer:
        await self._find_accepting(stage, options)
        stage.name = "hook"
        if options.on_handoff is not None:
            await _call(options.on_handoff, stage.handoff)
        stage.name = "filter"
        data = HandoffInputData(
            input_history=options.context.messages, pre_handoff=options.pre_handoff, context=options.context,
            new_messages=({"role": "user", "content": options.task.words()},),
        )  # fmt: skip
        with ContainExit("the filter of the handoff"):
            data = await history.apply_filter(self._choose_filter(options), data)
        stage.name = "execute"
        task, context = await self._build_task(stage.handoff, options, data)
        return Transfer(handoff=replace(stage.handoff, context=context), task=task)

    async def _find_accepting(self, stage: _Stage, options: HandoffOptions) -> None:
        """Find an agent that accepts the handoff: ask the agent `to`, or without it, the best agents one by one."""
        tried: set[str] = set()
        while True:
            handoff, why = stage.handoff, ""
            tried.add(handoff.to_agent)
            stage.name = "enable"
            if not await self._is_enabled(options, handoff.to_agent):
                why = DISABLED
            agent: object = self._agents.get(handoff.to_agent)
            if not why and agent is None and options.to is None:
                why = "the agent is no longer registered in this process."
            stage.name = "accept"
            if not why and isinstance(agent, Receiver):
                try:
                    with ContainExit(f"agent {handoff.to_agent}"):
                        await agent.accept(handoff)
                except Exception as problem:
                    why = str(problem) or type(problem).__name__
            if not why:
                stage.handoff, step = rules.accept_handoff(handoff, self._clock.now())
                if stage.held:
                    stage.held.append(step)
                else:
                    await self._store.apply(step)
                return
            without = rules.agents_to_avoid([Link(*link) for link in handoff.chain], self.limits) | tried
            others = await self.find_agent(options.task, without) if options.to is None else []
            stage.handoff, step = rules.refuse_handoff(handoff, why, self._clock.now(), others[0] if others else None)
            await self._store.apply(step)
            if not others:
                kind = errors.HandoffDisabled if why == DISABLED else errors.HandoffRefused
                raise kind(f"handoff {handoff.id}: agent {handoff.to_agent!r} did not accept it: {why}", handoff.id)

    async def _is_enabled(self, options: HandoffOptions, agent: str) -> bool:
        if options.enabled is False or agent in self._disabled:
            return False
        return options.enable_func is None or bool(await _call(options.enable_func, options, agent))

    def _choose_filter(self, options: HandoffOptions) -> InputFilter | None:
        """Return the filter for the history, or None. A filter in the options replaces the filter of the desk."""
        if options.input_filter is not None:
            return options.input_filter
        if options.history_mapper is not None:
            return history.map_history(options.history_mapper)
        if options.nest_history is not None:
            return history.nested if options.nest_history else None
        return self.input_filter or (history.nested if self._nest else None)

    async def _build_task(
        self, handoff: Handoff, options: HandoffOptions, data: HandoffInputData
    ) -> tuple[Task, dict[str, Any]]:
        """Return the task of the target and the context of the handoff.

        If the target cannot take a history, the history becomes part of the prompt.
        """
        agent = self._agents.get(handoff.to_agent)
        terms = await self._terms(handoff.to_agent) or AgentTerms()
        latest = data.new_messages if data.input_messages is None else data.input_messages
        messages = data.input_history + (data.pre_handoff if data.input_messages is None else ())
        prompt = "\n\n".join(str(message.get("content") or "") for message in latest).strip() or options.task.words()
        if not getattr(agent, "takes_history", False) and messages:
            prompt = f"{history.as_text(messages)}\n\n{prompt}"
        source = await self._get_source(options)
        task = new_task(
            self._clock.now(), prompt, handoff.to_agent, cause="handoff", cause_id=handoff.id,
            priority=options.task.priority, creator=options.actor, workdir=options.workdir,
            dir_key=rules.lend_directory(terms.dir_key(options.workdir), source),
            timeout_seconds=terms.timeout_seconds, on_crash=terms.on_crash,
            max_attempts=min(handoff.max_retries + 1, terms.max_attempts), root_id=handoff.root_id,
            parent_id=handoff.source_task, internal_key=f"handoff:{handoff.id}", submitter=self._owner,
            source=options.form, returns_to=handoff.source_task if handoff.returns else None, returns=handoff.returns,
            budget=Budget.from_record(terms.budget).data(),
            on_budget=terms.on_budget or (source.on_budget if source else "stop"),
            approvals=await inherit_rules(self._store, source) if source else None,
        )  # fmt: skip
        task = task if source is None else derive(task, source, options.form)
        if options.form == "transfer" and source is not None:
            title = options.task.description.strip() or options.task.words()
            task = rules.take_over(task, source, title)._replace(dir_key=terms.dir_key(source.workdir))
        return task, {**handoff.context, "messages": [dict(message) for message in messages]}

    async def _end(self, stage: _Stage, ending: Callable[[Handoff], tuple[Handoff, Changes]]) -> Handoff | None:
        """End the handoff and return it, or return None if the handoff was never written.

        A handoff that has ended already is returned unchanged. An interrupted write may have succeeded, so the handoff
        is read again if the first try to end it fails.
        """
        with suppress(Conflict, StoreError):
            after, step = ending(stage.handoff)
            await self._store.apply(rules.merge_steps([*stage.held, step]))
            return after
        with suppress(StoreError):
            for _ in range(TRIES):
                handoff = await self._store.get_handoff(stage.handoff.id)
                if handoff is None or not handoff.open:
                    return handoff
                after, step = await self._add_stop(*ending(handoff))
                with suppress(Conflict):
                    await self._store.apply(step)
                    return after
        return stage.handoff

    # -- existing handoffs ---------------------------------------------------------------------------------------

    async def wait(self, handoff_id: str, by: str | None = None) -> Handoff:
        """Wait until the handoff has completed and return it, or raise an error if it ends without an answer.

        `by` is the id of the task whose agent waits with an HTTP request. If the handoff belongs to this task, the task
        releases its slot while it waits.
        """
        if by is not None:
            handoff = await self.get(handoff_id)
            if handoff.source_task == by:
                await self._running.attend(by, handoff)
        read = partial(self._read_in_time, handoff_id)
        return rules.require_answer(
            await self._waiter.wait(handoff_id, read, lambda handoff: not handoff.open, self._deadlines.get_patience)
        )

    async def _read_in_time(self, handoff_id: str) -> Handoff:
        """Return the handoff. If it is due, expire it first.

        The scheduler expires handoffs too, but a process that runs only its own tasks has no scheduler.
        """
        handoff = await self.get(handoff_id)
        if due := await self._deadlines.find_due(handoff):
            with suppress(Conflict):  # the handoff changed just now
                await self.expire(due)
            return await self.get(handoff_id)
        return handoff

    async def get(self, handoff_id: str) -> Handoff:
        """Return the handoff, or raise NotFound."""
        return require(await self._store.get_handoff(handoff_id), "handoff", handoff_id)

    async def list(self, which: HandoffFilter | None = None) -> Listing[Handoff]:
        """Return the handoffs that match a filter, newest first."""
        return await self._store.list_handoffs(which or HandoffFilter())

    async def cancel(self, handoff_id: str, *, why: str = "cancelled by a person", actor: str | None = None) -> Handoff:
        """Cancel a handoff and stop its task, also if the task runs in another process."""

        async def compute() -> tuple[Handoff, Changes]:
            handoff = await self.get(handoff_id)
            if not handoff.open:
                raise Conflict(
                    f"handoff {handoff.id} is already {handoff.status}; see `midwatch handoff show {handoff.id}`."
                )
            return await self._add_stop(*rules.cancel_handoff(handoff, why, self._clock.now()), actor)

        return await apply_with_retry(self._store, f"handoff {handoff_id}", compute)

    async def cancel_unattended(self, source_task: str, once: str) -> None:
        """Cancel the open handoff that `source_task` created with the key `once`. The source task is being stopped."""
        handoff = await self._store.find_handoff(source_task, once)
        if handoff is not None and handoff.open:
            with suppress(Conflict):
                await self.cancel(handoff.id, why="the task that handed it over was stopped")

    async def cancel_orphans(self) -> None:
        """Cancel all open handoffs whose source task waited for them and has ended."""
        for handoff in await self._store.list_orphaned_handoffs():
            with suppress(Conflict):
                await self.cancel(handoff.id, why="the task that waited for it has ended")

    async def expire(self, due: Handoff) -> None:
        """End a handoff as expired, because its deadline has passed, and stop its task."""
        await self._store.apply((await self._add_stop(*rules.expire_handoff(due, self._clock.now())))[1])

    async def abandon(self, handoff: Handoff) -> None:
        """Mark a handoff without a task as failed, because the process that prepared the handoff has ended."""
        why = "the process that prepared the handoff ended before its task was created; hand the work over again."
        await self._store.apply(rules.fail_handoff(handoff, why, self._clock.now(), "choose")[1])

    async def _add_stop(self, ended: Handoff, step: Changes, actor: str | None = None) -> tuple[Handoff, Changes]:
        """Return the ended handoff and its changes, with the changes that stop its task added."""
        task = await self._store.get_task(ended.task_id) if ended.task_id else None
        if task is not None and task.open:
            step = step.plus(stop_task(task, self._clock.now(), actor)[1])
        return ended, step

    async def retry(self, handoff_id: str, *, actor: str | None = None, once: str | None = None) -> Handoff:
        """Hand the work of a handoff to the same agent again, and return the new handoff without waiting for its end.

        A second call with the same `once` returns the same new handoff.
        """
        old = await self.get(handoff_id)
        if old.open or old.status == "completed":
            raise Conflict(f"handoff {old.id} is {old.status}; only one that ended without an answer can be retried.")
        task_id = old.task_id or old.source_task
        before = await self._store.get_task(task_id) if task_id else None
        options = HandoffOptions(
            task=old.work, from_agent=old.from_agent, to=old.to_agent or None, context=old.surroundings,
            timeout=old.timeout, max_retries=old.max_retries, wait=False, source_task=old.source_task,
            retry_of=old.id, once=once, actor=actor, workdir=before.workdir if before else None, returns=old.returns,
        )  # fmt: skip
        return await self.handoff(options)


class _Stage:
    """The state of a handoff that is being prepared: the name of the current stage, and changes to write later."""

    def __init__(self, handoff: Handoff, held: list[Changes]) -> None:
        self.handoff = handoff
        self.name = "choose"
        self.held = held


def _can_handle(agent: Agent, work: HandoffTask) -> bool:
    """Return whether the agent can do this work. If its method `can_handle` raises an error, return False."""
    try:
        with ContainExit(f"agent {agent.name}"):
            return not isinstance(agent, Receiver) or bool(agent.can_handle(work))
    except Exception:
        log.exception("agent %s raised an error in `can_handle` for work of type %r", agent.name, work.type)
        return False


async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a plain or async function and return its result."""
    with ContainExit("a function of the handoff"):
        result = function(*arguments)
        return await result if inspect.isawaitable(result) else result
