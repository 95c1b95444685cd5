"""The handoff service: pass work on, look at it, stop it, have it again. The record is `midwatch.domain.handoff`.

Everything before the target's task is made happens here, within the deadline: choose, ask whether it is enabled, have
it accepted, tell the hook, filter what goes along. From then on the task carries it, whatever becomes of this process.
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

from midwatch.base.clock import SECOND, Clock
from midwatch.base.errors import (
    Conflict,
    HandoffDisabled,
    HandoffError,
    HandoffOverdue,
    HandoffRefused,
    InvalidInput,
    MidwatchError,
    NoCandidate,
    NotFound,
    StoreError,
    UnknownAgent,
)
from midwatch.base.ids import new_id
from midwatch.domain import handoff as steps
from midwatch.domain.agent import Agent, AgentTerms, Candidate, best_first
from midwatch.domain.changes import Changes
from midwatch.domain.handoff import (
    TIMEOUT_SECONDS,
    Form,
    Handoff,
    HandoffFilter,
    HandoffTask,
    Limits,
    Link,
    RunningTasks,
    Transfer,
    agents_to_avoid,
    check,
    check_chain,
    check_texts,
    latest_handoff,
    lend_directory,
    remaining,
    require_answer,
    take_over,
    tool_description,
    tool_name,
    transfer_message,
)
from midwatch.domain.handoff_history import (
    HandoffContext,
    HandoffInputData,
    HistoryMapper,
    InputFilter,
    apply_filter,
    as_text,
    mapped,
    nested,
)
from midwatch.domain.store import Store
from midwatch.domain.task import TRIES, Task, new_task
from midwatch.services.agent_registry import AgentRegistry
from midwatch.services.tasks import stop_task
from midwatch.services.waiter import Waiter

Hook = Callable[[Handoff], Any]
Enable = Callable[["HandoffOptions", str], Any]
"""Asked with the options and the agent that would get the work."""

log = logging.getLogger("midwatch.handoffs")

TEXTS = (
    "from_agent", "to", "source_task", "once", "workdir", "actor", "tool_name_override", "tool_description_override",
)  # fmt: skip
TRANSFER_SECONDS = 86400.0
"""A transfer is over at the latest when this has passed; its task has its own timeout."""
DISABLED = "it may not be handed to; choose another agent."


@runtime_checkable
class Receiver(Protocol):
    """An agent that has a say in what it is given."""

    def can_handle(self, work: HandoffTask) -> bool:
        """Whether it could do this."""
        ...

    async def accept(self, handoff: Handoff) -> None:
        """Take it, or raise to refuse it; the error's text is the reason."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffOptions:
    """What can be said with a handoff. `to` is chosen by what agents can do when it is not given."""

    task: HandoffTask
    from_agent: str = ""
    to: str | None = None
    context: HandoffContext = field(default_factory=HandoffContext)
    pre_handoff: tuple[Mapping[str, Any], ...] = ()
    form: Form = "delegate"
    timeout: float | None = None
    """None: as the desk is set."""
    max_retries: int = 0
    wait: bool = True
    on_handoff: Hook | None = None
    input_filter: InputFilter | None = None
    enabled: bool | None = None
    enable_func: Enable | None = None
    """Both must allow it."""
    tool_name_override: str | None = None
    tool_description_override: str | None = None
    nest_history: bool | None = None
    """None: as the desk is set."""
    history_mapper: HistoryMapper | None = None
    source_task: str | None = None
    awaited: bool = False
    """Its source waits for the answer, though not by this call."""
    once: str | None = None
    """A name the source gives it, so that asking again does not do it twice."""
    retry_of: str | None = None
    workdir: str | None = None
    actor: str | None = None


class Handoffs:
    """Service: work passed from agent to agent."""

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
        timeout: float = TIMEOUT_SECONDS,
        nest_history: bool = False,
        input_filter: InputFilter | None = None,
    ) -> None:
        self.timeout = timeout
        self.limits = limits or Limits()
        self._store = store
        self._clock = clock
        self._registry = registry
        self._agents: Mapping[str, Agent] = registry.agents
        self._terms = registry.terms_or_none
        self._running = running
        self._waiter = waiter
        self._owner = owner
        self._nest = nest_history
        self.input_filter = input_filter  # what goes along where a handoff does not say
        self._disabled: set[str] = set()

    # -- who can be handed to ------------------------------------------------------------------------------------

    async def register(self, agent: Agent) -> None:
        """Have one more agent work in this process: it can be handed to, and given tasks, at once. Conflict when there
        is one of its name."""
        await self._registry.register(agent)

    async def unregister(self, name: str) -> None:
        """Give an agent of this process no new work. What runs of it ends as ever; what waits for it, waits until it
        is there again. UnknownAgent when it does not work here."""
        await self._registry.unregister(name)

    def enable(self, agent: str, on: bool = True) -> None:
        """Whether an agent of this process may be handed to."""
        (self._disabled.discard if on else self._disabled.add)(agent)

    def receivers(self, names: Iterable[str] | None = None) -> Mapping[str, str]:
        """Of these agents, or of all that work here, those that may be handed to, with what they are for."""
        asked = self._agents if names is None else names
        known = {name: self._agents.get(name) for name in asked if name not in self._disabled}
        return {name: getattr(agent, "description", "") for name, agent in known.items()}

    def enabled(self, agent: str) -> bool:
        """Whether it may."""
        return agent not in self._disabled

    async def find_agent(self, work: HandoffTask, without: frozenset[str] = frozenset()) -> list[str]:
        """Who could do this work here, best first."""
        given = await self._store.count_open_handoffs()
        able = [
            Candidate(name, agent.capabilities, given.get(name, 0), place)
            for place, (name, agent) in enumerate(self._agents.items())
            if _able(agent, work)
        ]
        return best_first(able, work.type, without)

    # -- handing over --------------------------------------------------------------------------------------------

    async def handoff(self, options: HandoffOptions) -> Handoff:
        """Pass work on. With `wait` the handoff as it ended, or the error that says why there is no answer; without it
        the handoff as soon as its task is made: it goes on whatever becomes of the caller."""
        self._check(options)
        if not options.wait:
            return await self._made(options)
        async with self._running.pause(options.source_task) if options.source_task else nullcontext():
            return await self.wait((await self._made(options)).id)

    async def _made(self, options: HandoffOptions) -> Handoff:
        """The handoff, with its task; the one there is when it was asked for before."""
        if known := await self._known(options):
            return known
        try:
            return (await self._in_time(await self._begin(options), options)).handoff
        except Conflict:
            if known := await self._known(options):  # asked for twice at once
                return known
            raise

    async def transfer(self, options: HandoffOptions) -> Transfer:
        """Have the target take over the work of `source_task`. It begins with the step that ends that task, which the
        one who runs it writes."""
        options = replace(options, form="transfer", wait=False, timeout=options.timeout or TRANSFER_SECONDS)
        self._check(options)
        if options.source_task is None:
            raise InvalidInput("only a task can be transferred; say which.", field="source_task")
        left = await self._store.find_handoff(options.source_task, options.once) if options.once else None
        if left is not None:
            await self._drop(left)
        return await self._in_time(await self._begin(options), options)

    def _check(self, options: HandoffOptions) -> None:
        """InvalidInput when it makes no sense."""
        check(options.task, options.context, self._time_of(options), options.max_retries)
        check_texts({name: getattr(options, name) for name in TEXTS})

    def _time_of(self, options: HandoffOptions) -> float:
        return self.timeout if options.timeout is None else options.timeout

    async def _known(self, options: HandoffOptions) -> Handoff | None:
        if options.once is None:
            return None
        found = await self._store.find_handoff(options.source_task, options.once)
        if found is None:
            return None
        left = found.status in ("pending", "accepted") and found.owner != self._owner
        if left or (found.status == "cancelled" and found.task_id is None):
            return None if await self._drop(found) else await self._known(options)
        return found

    async def _drop(self, left: Handoff) -> bool:
        """An earlier attempt of the source was preparing it and was cut off; its name is free again."""
        if left.open:
            step = steps.fail_handoff(
                left, "the process that prepared it ended", self._clock.now(), "choose", once=None
            )[1]
        else:
            step = steps.forget_name(left)
        with suppress(Conflict):
            await self._store.apply(step)
            return True
        return False

    async def _begin(self, options: HandoffOptions) -> _Stage:
        """The record, and who will be asked first."""
        source = await self._source(options)
        chain = await self._chain(options, source)
        root = (source.root_id or source.id) if source else None
        total = await self._store.count_handoffs(root) if root else 0
        if options.to is not None:
            await self._check_agent(options.to)
            check_chain(chain, options.to, total, self.limits)
            candidates = [options.to]
        else:
            candidates = await self.find_agent(options.task, agents_to_avoid(chain, self.limits))
            check_chain(chain, candidates[0] if candidates else "", total, self.limits)
        now = self._clock.now()
        to = candidates[0] if candidates else ""
        made = Handoff(
            id=new_id("h", now), form=options.form, from_agent=options.from_agent or (source.agent if source else ""),
            to_agent=to, tool_name=tool_name(to, options.tool_name_override),
            tool_description=tool_description(to, options.tool_description_override),
            transfer_message=transfer_message(to), request=options.task.data(),
            context=replace(options.context, parent_handoff=latest_handoff(chain)).data(), chain=tuple(chain),
            source_task=source.id if source else None, root_id=root, once=options.once, creator=options.actor,
            awaited=options.awaited or options.wait or options.form == "transfer",
            owner=self._owner, retry_of=options.retry_of, timeout=self._time_of(options),
            deadline_at=now + int(self._time_of(options) * SECOND), max_retries=options.max_retries, created_at=now,
        )  # fmt: skip
        if self._plain(options, to):
            return _Stage(made, [steps.request_handoff(made, now)])
        await self._store.apply(steps.request_handoff(made, now))
        if not candidates:
            why = f"no agent here can do work of type {options.task.type!r}; name one, or give one that capability."
            await self._store.apply(steps.fail_handoff(made, why, now, "choose")[1])
            raise NoCandidate(why, made.id)
        return _Stage(made, [])

    def _plain(self, options: HandoffOptions, to: str) -> bool:
        """Whether nobody else is asked before its task is made: then all of it is written at once."""
        filters = (options.input_filter, options.history_mapper, self.input_filter)
        asked = (options.on_handoff, options.enable_func, *filters)
        open_to_all = options.enabled is not False and to not in self._disabled
        return bool(to) and open_to_all and not any(asked) and not isinstance(self._agents.get(to), Receiver)

    async def _source(self, options: HandoffOptions) -> Task | None:
        if options.source_task is None:
            return None
        found = await self._store.get_task(options.source_task)
        if found is None:
            raise NotFound("task", options.source_task)
        return found

    async def _chain(self, options: HandoffOptions, source: Task | None) -> list[Link]:
        """Who had the work before, in order."""
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

    async def _in_time(self, stage: _Stage, options: HandoffOptions) -> Transfer:
        """What comes before the task, within the deadline; whatever fails ends the handoff and not the process."""
        made = stage.handoff
        limit = asyncio.timeout(remaining(made, self._clock.now()))
        try:
            async with limit:
                ready = await self._prepare(stage, options)
                if options.form == "delegate":
                    running, step = steps.start_handoff(ready.handoff, ready.task, self._clock.now())
                    await self._store.apply(steps.merge_steps([*stage.held, step]))
                    return replace(ready, handoff=running)
                if stage.held:
                    await self._store.apply(steps.merge_steps(stage.held))
                return ready
        except asyncio.CancelledError as problem:
            me = asyncio.current_task()
            if me is None or not me.cancelling():  # what was asked has cancelled itself
                raise await self._broken(stage, problem) from problem
            left = self._end(stage, lambda found: steps.cancel_handoff(found, "its caller left", self._clock.now()))
            await asyncio.shield(left)
            raise
        except Exception as problem:
            if limit.expired() and isinstance(problem, TimeoutError):
                await self._end(stage, lambda found: steps.expire_handoff(found, self._clock.now()))
                why = f"handoff {made.id} was not even begun within its {made.timeout:g} s."
                raise HandoffOverdue(why, made.id) from None
            if isinstance(problem, HandoffError) and not stage.handoff.open:
                raise
            raise await self._broken(stage, problem) from problem

    async def _broken(self, stage: _Stage, problem: BaseException) -> MidwatchError:
        """It ends because of something that failed on the way; what its caller is told."""
        why = f"{stage.name}: {type(problem).__name__}: {problem}"
        ended = await self._end(stage, lambda found: steps.fail_handoff(found, why, self._clock.now(), stage.name))
        if ended is None and isinstance(problem, Conflict):
            return problem
        if ended is not None and ended.status != "failed":
            require_answer(ended)
        return HandoffError(f"handoff {stage.handoff.id} failed before it began; {why}", stage.handoff.id)

    async def _prepare(self, stage: _Stage, options: HandoffOptions) -> Transfer:
        await self._take(stage, options)
        stage.name = "hook"
        if options.on_handoff is not None:
            await _called(options.on_handoff, stage.handoff)
        stage.name = "filter"
        data = HandoffInputData(
            input_history=options.context.messages, pre_handoff=options.pre_handoff, context=options.context,
            new_messages=({"role": "user", "content": options.task.words()},),
        )  # fmt: skip
        seen = await apply_filter(self._chosen_filter(options), data)
        stage.name = "execute"
        task, context = await self._task(stage.handoff, options, seen)
        return Transfer(handoff=replace(stage.handoff, context=context), task=task)

    async def _take(self, stage: _Stage, options: HandoffOptions) -> None:
        """Have it taken by the one it is for, or, when nobody was named, by the first who does."""
        tried: set[str] = set()
        while True:
            made, why = stage.handoff, ""
            tried.add(made.to_agent)
            stage.name = "enable"
            if not await self._enabled(options, made.to_agent):
                why = DISABLED
            agent: object = self._agents.get(made.to_agent)
            if not why and agent is None and options.to is None:
                why = "it is not here any more."
            stage.name = "accept"
            if not why and isinstance(agent, Receiver):
                try:
                    await agent.accept(made)
                except Exception as problem:
                    why = str(problem) or type(problem).__name__
            if not why:
                stage.handoff, step = steps.accept_handoff(made, self._clock.now())
                if stage.held:
                    stage.held.append(step)
                else:
                    await self._store.apply(step)
                return
            without = agents_to_avoid([Link(*link) for link in made.chain], self.limits) | tried
            others = await self.find_agent(options.task, without) if options.to is None else []
            stage.handoff, step = steps.refuse_handoff(made, why, self._clock.now(), others[0] if others else None)
            await self._store.apply(step)
            if not others:
                kind = HandoffDisabled if why == DISABLED else HandoffRefused
                raise kind(f"handoff {made.id}: agent {made.to_agent!r} did not take it: {why}", made.id)

    async def _enabled(self, options: HandoffOptions, agent: str) -> bool:
        if options.enabled is False or agent in self._disabled:
            return False
        return options.enable_func is None or bool(await _called(options.enable_func, options, agent))

    def _chosen_filter(self, options: HandoffOptions) -> InputFilter | None:
        """The handoff's own filter, mapper or wish to nest, before the desk's."""
        if options.input_filter is not None:
            return options.input_filter
        if options.history_mapper is not None:
            return mapped(options.history_mapper)
        if options.nest_history is not None:
            return nested if options.nest_history else None
        return self.input_filter or (nested if self._nest else None)

    async def _task(
        self, made: Handoff, options: HandoffOptions, seen: HandoffInputData
    ) -> tuple[Task, dict[str, Any]]:
        """What the target runs, and what goes along. An agent that keeps no messages is told the history as text."""
        agent = self._agents.get(made.to_agent)
        terms = await self._terms(made.to_agent) or AgentTerms()
        latest = seen.new_messages if seen.input_messages is None else seen.input_messages
        history = seen.input_history + (seen.pre_handoff if seen.input_messages is None else ())
        prompt = "\n\n".join(str(one.get("content") or "") for one in latest).strip() or options.task.words()
        if not getattr(agent, "takes_history", False) and history:
            prompt = f"{as_text(history)}\n\n{prompt}"
        now = self._clock.now()
        task = new_task(
            now, prompt, made.to_agent, cause="handoff", cause_id=made.id, priority=options.task.priority,
            creator=options.actor, workdir=options.workdir,
            dir_key=lend_directory(terms.dir_key(options.workdir), await self._source(options)),
            timeout_seconds=terms.timeout_seconds, on_crash=terms.on_crash,
            max_attempts=made.max_retries + 1, root_id=made.root_id, parent_id=made.source_task,
            internal_key=f"handoff:{made.id}", submitter=self._owner,
        )  # fmt: skip
        source = await self._source(options)
        if options.form == "transfer" and source is not None:
            task = take_over(task, source)._replace(dir_key=terms.dir_key(source.workdir))
        context = {**made.context, "messages": [dict(message) for message in history]}
        return task, context

    async def _end(self, stage: _Stage, ending: Callable[[Handoff], tuple[Handoff, Changes]]) -> Handoff | None:
        """The handoff as it ends, also when the step it was cut off in was written, or somebody else has ended it;
        None when there is no record of it."""
        with suppress(Conflict, StoreError):
            after, step = ending(stage.handoff)
            await self._store.apply(steps.merge_steps([*stage.held, step]))
            return after
        with suppress(StoreError):
            for _ in range(TRIES):
                found = await self._store.get_handoff(stage.handoff.id)
                if found is None or not found.open:
                    return found
                with suppress(Conflict):
                    return await self._stop(found, ending(found), None)
        return stage.handoff

    # -- afterwards ----------------------------------------------------------------------------------------------

    async def wait(self, handoff_id: str, by: str | None = None) -> Handoff:
        """The handoff once it is completed; the error that says why it has no answer otherwise. `by` is the task whose
        agent asks, if that is not in the middle of its turn: while it waits for its own handoff it holds no slot."""
        if by is not None:
            found = await self.get(handoff_id)
            if found.source_task == by:
                await self._running.attend(by, found)
        read = partial(self._read_in_time, handoff_id)
        return require_answer(
            await self._waiter.wait(handoff_id, read, lambda handoff: not handoff.open, self._time_left)
        )

    def _time_left(self, handoff: Handoff) -> float:
        return remaining(handoff, self._clock.now())

    async def _read_in_time(self, handoff_id: str) -> Handoff:
        """Return the handoff; end it first when its deadline has passed. The scheduler does that, too, but it does not
        run in a process that runs only its own tasks."""
        handoff = await self.get(handoff_id)
        if handoff.open and not remaining(handoff, self._clock.now()):
            with suppress(Conflict):  # it changed just now
                await self.expire(handoff)
            return await self.get(handoff_id)
        return handoff

    async def get(self, handoff_id: str) -> Handoff:
        """The handoff, or NotFound."""
        found = await self._store.get_handoff(handoff_id)
        if found is None:
            raise NotFound("handoff", handoff_id)
        return found

    async def list(self, which: HandoffFilter | None = None) -> list[Handoff]:
        """Newest first."""
        return await self._store.list_handoffs(which or HandoffFilter())

    async def cancel(self, handoff_id: str, *, why: str = "cancelled by a person", actor: str | None = None) -> Handoff:
        """It is not wanted any more: it ends now, and its task is stopped wherever it runs."""
        for _ in range(TRIES):
            found = await self.get(handoff_id)
            if not found.open:
                raise Conflict(
                    f"handoff {found.id} is already {found.status}; look at it with `midwatch handoff show`."
                )
            with suppress(Conflict):
                return await self._stop(found, steps.cancel_handoff(found, why, self._clock.now()), actor)
        raise Conflict(f"handoff {handoff_id} keeps changing; try again.")

    async def leave(self, source_task: str, once: str) -> None:
        """Who waited for it was stopped: what is still open of it ends."""
        found = await self._store.find_handoff(source_task, once)
        if found is not None and found.open:
            with suppress(Conflict):
                await self.cancel(found.id, why="the task that handed it over was stopped")

    async def call_off(self) -> None:
        """End what was waited for by tasks that have ended."""
        for left in await self._store.list_orphaned_handoffs():
            with suppress(Conflict):
                await self.cancel(left.id, why="the task that waited for it has ended")

    async def expire(self, due: Handoff) -> None:
        """Its deadline has passed."""
        await self._stop(due, steps.expire_handoff(due, self._clock.now()), None)

    async def abandon(self, left: Handoff) -> None:
        """The process that prepared it is gone, and nothing of it runs."""
        why = "the process that prepared it ended before its task was made; hand it over again."
        await self._store.apply(steps.fail_handoff(left, why, self._clock.now(), "choose")[1])

    async def _stop(self, found: Handoff, ended: tuple[Handoff, Changes], actor: str | None) -> Handoff:
        after, step = ended
        task = await self._store.get_task(found.task_id) if found.task_id else None
        if task is not None and task.open:
            step = step.plus(stop_task(task, self._clock.now(), actor)[1])
        await self._store.apply(step)
        return after

    async def retry(self, handoff_id: str, *, actor: str | None = None, once: str | None = None) -> Handoff:
        """A new handoff of the same work to the same agent; it is not waited for. With the same `once`, one new one."""
        old = await self.get(handoff_id)
        if old.open or old.status == "completed":
            raise Conflict(f"handoff {old.id} is {old.status}; only one that ended without an answer is tried again.")
        ran = old.task_id or old.source_task
        before = await self._store.get_task(ran) if ran else None
        options = HandoffOptions(
            task=old.work, from_agent=old.from_agent, to=old.to_agent or None, context=old.surroundings,
            timeout=old.timeout, max_retries=old.max_retries, wait=False, source_task=old.source_task,
            retry_of=old.id, once=once, actor=actor, workdir=before.workdir if before else None,
        )  # fmt: skip
        return await self.handoff(options)


class _Stage:
    """How far the preparation of a handoff has come."""

    def __init__(self, handoff: Handoff, held: list[Changes]) -> None:
        self.handoff = handoff
        self.name = "choose"
        self.held = held
        """Steps that are written with the next one."""


def _able(agent: Agent, work: HandoffTask) -> bool:
    """Whether it says that it could do this; who cannot even say that is not asked."""
    try:
        return not isinstance(agent, Receiver) or bool(agent.can_handle(work))
    except Exception:
        log.exception("agent %s cannot tell whether it can handle work of type %r", agent.name, work.type)
        return False


async def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, awaited where it is to be."""
    made = function(*arguments)
    return await made if inspect.isawaitable(made) else made
