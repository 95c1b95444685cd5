"""The goal service: create, read, edit, pause, resume, complete, delay and clear goals, and begin a step now.

The record is `midwatch.domain.goal`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from midwatch.base.clock import SECOND, Clock, iso
from midwatch.base.errors import Conflict, Forbidden, InvalidInput, NotFound
from midwatch.base.ids import new_id
from midwatch.base.schedule import host_zone, parse_moment
from midwatch.domain import goal as rules
from midwatch.domain import goal_step as steps
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import BY_PERSON
from midwatch.domain.changes import Changes, change_record, event_about, update_record
from midwatch.domain.event import GoalChanged, GoalCreated
from midwatch.domain.fields import changeable, clearable, settable
from midwatch.domain.goal import TRANSITIONS, Goal, Status, normalise, validate
from midwatch.domain.goal_pace import EVERY
from midwatch.domain.identity import AnyActor, actor_name, agent_task
from midwatch.domain.notice import CheckRoute, PlanNotices, keep_policy
from midwatch.domain.requests import is_name, refuse_unknown
from midwatch.domain.session import Session, check_key
from midwatch.domain.store import Store
from midwatch.domain.task import TRIES, Task
from midwatch.domain.task_store import TaskFilter
from midwatch.services.accounts import change_limits, read_cost
from midwatch.services.authorization import authorize, own_record
from midwatch.services.records import ManagedRecords, find_first, mark_request, parse_status, require
from midwatch.services.request_checks import check, resolve_workdir
from midwatch.services.task_stops import goal_of, stop_work
from midwatch.services.tasks import Tasks

SETTABLE, CHANGEABLE = settable(Goal) | {"deadline"}, changeable(Goal) | {"deadline"}
CLEARABLE = clearable(Goal)
ACCOUNT_FIELDS = frozenset({"max_tokens", "max_usd", "max_seconds", "on_budget"})
"""The fields that decide about the account of a goal. An edit of another field leaves an open question as it is."""
RUNS_READ = 20
"""How many runs of an agent are read to see which usage it reports."""
WORDS = {"tokens": "tokens", "usd": "cost"}
MOST_WORK = 1000
"""How many tasks of a goal are cancelled at most when it is cleared."""


class Goals(ManagedRecords[Goal]):
    """Service: objectives that are pursued until they are reached."""

    noun = "goal"

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tasks: Tasks,
        terms: Callable[[str], Awaitable[AgentTerms]],
        check_route: CheckRoute,
        default_route: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        plan: PlanNotices = keep_policy,
    ) -> None:
        """Build the service.

        `defaults` contains the budgets for goals without budgets and, as `deadline`, the number of seconds until the
        deadline of goals without a deadline.
        """
        super().__init__(store, clock)
        self._tasks = tasks
        self._terms = terms
        self._check_route = check_route
        self._default_route = default_route
        self._plan = plan
        self._defaults = dict(defaults or {})

    async def create(self, objective: str, *, actor: AnyActor = None, **wish: Any) -> Goal:
        """Create a goal.

        The first step begins at once or, in a session without a thread, when the session has a thread. `deadline` is a
        time as text, or a number of seconds from now. A second call with the same `idempotency_key` and the same
        fields returns the first goal.
        """
        authorize(actor, "operate")
        key, mark = wish.get("idempotency_key"), mark_request(objective, wish)
        find = partial(self._store.find_goal_key, actor_name(actor))
        if first := await find_first(find, key, mark, actor):
            return first
        goal, changes = await self.draft(objective, actor=actor, body_hash=mark, **wish)
        try:
            await self._store.apply(changes)
        except Conflict:
            if first := await find_first(find, key, mark, actor):
                return first
            raise _name_conflict(goal) from None
        return goal

    async def draft(
        self, objective: str, *, actor: AnyActor = None, body_hash: str | None = None,
        declared: Mapping[str, Any] | None = None, **wish: Any,
    ) -> tuple[Goal, Changes]:  # fmt: skip
        """Return a new goal, and the changes that create it. Nothing is written.

        `declared` has the fields of the record that only a file which declares it sets.
        """
        authorize(actor, "operate")
        wish = _read_names(wish)
        refuse_unknown(wish, SETTABLE)
        now, creator = self._clock.now(), actor_name(actor)
        given = {name: value for name, value in wish.items() if value is not None}
        wish = _read_deadline({"deadline": rules.DEADLINE_SECONDS, **self._defaults, **given}, now)
        key = wish.pop("session_key", None)
        key = check_key(key) if key else None
        if key is not None:
            await self._tasks.authorization.check_session(actor, "manage", key)
        session = await self._store.get_session(key) if key else None
        agent = await self._choose_agent(wish.pop("agent", None), session)
        for checker in filter(None, (wish.get("verifier"), wish.get("judge"))):
            await self._tasks.check_agent(checker)
        wish.setdefault("scope_kind", "chat" if key and "scope_id" not in wish else "user")
        route = wish.pop("route", None) or self._default_route
        draft = Goal(
            id=new_id("g", now), objective=objective, agent=agent, creator=creator,
            scope_id=wish.pop("scope_id", key or creator or "owner"), session_key=key or "",
            workdir=resolve_workdir(wish.pop("workdir", None)) or (session.workdir if session else None),
            status="waiting_for_session" if key and await self._awaits_thread(key, agent) else "active",
            route=self._check_route(route) if route else None, created_at=now, updated_at=now, body_hash=body_hash,
            **wish, **(declared or {}),
        )  # fmt: skip
        goal = normalise(draft)
        validate(goal)
        check(goal.objective, {"workdir": goal.workdir}, rules.MAX_OBJECTIVE)
        created = GoalCreated(goal_id=goal.id, objective=goal.objective, deadline_at=iso(goal.deadline_at) or "")
        account = steps.open_goal_account(goal, await self._terms(goal.agent))
        return goal, Changes(records=(goal, account), events=(event_about(goal, created, now, creator),))

    async def _choose_agent(self, requested: str | None, session: Session | None) -> str:
        """Return the agent of a new goal. If the goal has a session, this is by default the agent of the session.

        Another agent may go on in a session that has no thread: then the agent of the session forgets nothing.
        """
        if session is not None and requested not in (None, session.agent):
            if session.thread_id or session.live_owner:
                raise InvalidInput(
                    f"session {session.key} continues a thread of agent {session.agent}, which another agent would "
                    f"end; name {session.agent}, or another session.",
                    field="agent",
                )
            return await self._tasks.check_agent(requested)
        return await self._tasks.check_agent(session.agent if session else requested)

    async def get(self, goal_id: str, *, actor: AnyActor = None) -> Goal:
        """Return the goal with this id or name, or raise NotFound.

        An open goal is preferred. Raise Conflict if several goals have the name, in different scopes.
        """
        goal = await self._store.get_goal(goal_id.strip()) or await self._find_named(goal_id.strip(), actor)
        goal = require(goal, "goal", goal_id)
        authorize(actor, "read", own_record(goal))
        return goal

    async def _resolve(self, goal_id: str, actor: AnyActor) -> str:
        """Return the id of the goal with this id or name. An unknown name is returned as it is."""
        if await self._store.get_goal(goal_id.strip()):
            return goal_id.strip()
        named = await self._find_named(goal_id.strip(), actor)
        return named.id if named else goal_id

    async def _find_named(self, name: str, actor: AnyActor) -> Goal | None:
        """Return the goal with this name that the actor may read, or None. A goal of the actor's own is preferred."""
        if not is_name(name, "g_"):
            return None
        may_read = self._tasks.authorization.may_read
        found = [goal for goal in await self._store.list_named_goals(name) if await may_read(actor, goal)]
        found = [goal for goal in found if goal.open] or found[:1]
        own = [goal for goal in found if (goal.scope_kind, goal.scope_id) == ("user", actor_name(actor))]
        if len(found) > 1 and not own:
            raise _several(f"have the name {name}", found)
        return next(iter(own or found), None)

    async def get_of_scope(self, scope: str, *, actor: AnyActor = None) -> Goal:
        """Return the only goal of a scope, such as user:ann or chat:main: its open goal or, without one, its newest.

        Raise NotFound if the scope has no goal, and Conflict if it has several open goals.
        """
        goals = await self.list(scope=scope, limit=200, actor=actor)
        found = [goal for goal in goals if goal.open] or goals[:1]
        if len(found) > 1:
            raise _several(f"are open in {scope}", found)
        return require(next(iter(found), None), "goal", scope)

    async def warn(self, goal: Goal) -> list[str]:
        """Return a warning for each budget of a goal whose usage its agent does not report."""
        limited = [kind for kind, most in (("tokens", goal.max_tokens), ("usd", goal.max_usd)) if most and goal.open]
        if not limited:
            return []
        which = TaskFilter(agent=goal.agent, statuses=("done",), limit=RUNS_READ)
        usages = [task.usage for task in await self._store.list_tasks(which)]
        terms = await self._terms(goal.agent)
        return [
            f"agent {goal.agent} does not report its {WORDS[kind]}, so `max_{kind}` never stops this goal; "
            "limit it with `max_steps` or `max_seconds`."
            for kind in limited
            if not (any(_reports(usage, kind) for usage in usages) if usages else kind in terms.reports)
        ]

    async def steps(self, goal_id: str, limit: int = 20, *, actor: AnyActor = None) -> list[Task]:
        """Return the tasks of a goal, newest first."""
        goal_id = (await self.get(goal_id, actor=actor)).id
        return await self._store.list_goal_steps(goal_id, min(max(1, limit), 200))

    async def describe(self, goal: Goal) -> dict[str, Any]:
        """Return the goal as JSON, also with whether a step of the goal runs. An unknown cost is None."""
        return {
            **goal.snapshot(),
            "usd": await read_cost(self._store, goal),
            "running": await self._store.find_open_step(goal.id) is not None,
        }

    async def edit(
        self, goal_id: str, values: Mapping[str, Any], *, revision: int | None = None, actor: AnyActor = None
    ) -> Goal:
        """Change the objective, deadline or budget of a goal."""
        values = self.read_edit(values)

        async def change(goal: Goal, now: int) -> Changes:
            return await self.compute_edit(goal, values, now, actor)

        goal_id = await self._resolve(goal_id, actor)
        try:
            return await self._change(goal_id, change, actor, revision)
        except Conflict:
            wanted = values.get("name")
            goal = await self.get(goal_id)
            if wanted and goal.name != wanted and await self._is_taken(replace(goal, name=wanted)):
                raise _name_conflict(replace(goal, name=wanted)) from None
            raise

    def read_edit(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the checked values of an edit, with the deadline as a time."""
        values = _read_names(values)
        refuse_unknown(values, CHANGEABLE)
        given = {name: value for name, value in values.items() if value is not None or name in CLEARABLE}
        values = _read_deadline(given, self._clock.now())
        if values.get("route"):
            values["route"] = self._check_route(values["route"])
        return values

    async def compute_edit(
        self, goal: Goal, values: Mapping[str, Any], now: int, actor: AnyActor,
        declared: Mapping[str, Any] | None = None,
    ) -> Changes:  # fmt: skip
        """Return the changes that write an edit with the values of `read_edit`.

        `declared` has the fields of the record that only a file which declares it sets.
        """
        _check_open(goal)
        after = normalise(replace(goal, **values))
        validate(after)
        check(after.objective, {}, rules.MAX_OBJECTIVE)
        if "deadline_at" in values and after.deadline_at <= now:
            raise InvalidInput("the deadline has passed already; choose a later deadline.", field="deadline")
        payload = GoalChanged(goal_id=goal.id, fields=tuple(sorted(values)), status=goal.status)
        fields = {name: getattr(after, name) for name in values} | dict(declared or {})
        if after.check_command != goal.check_command:
            fields["last_check"] = None
        if "every_seconds" in values and goal.delay_reason and goal.starts and goal.proposal is None:
            fields |= steps.plan_again(after, now) if goal.delay_reason.startswith(EVERY) else {}
        step = change_record(goal, payload, now, actor_name(actor), **fields)
        return step.plus(await self._set_limits(goal, after, values.keys(), now))

    async def _is_taken(self, wish: Goal) -> bool:
        """Return whether another open goal of the scope has the name."""
        scope = (wish.scope_kind, wish.scope_id)
        named = await self._store.list_named_goals(wish.name or "")
        return any(other.open and (other.scope_kind, other.scope_id) == scope for other in named)

    async def pause(self, goal_id: str, *, why: str = BY_PERSON, stop: bool = False, actor: AnyActor = None) -> Goal:
        """Pause a goal: start no more steps. A running step goes on to its end; with `stop` it is stopped, too."""
        goal_id = await self._resolve(goal_id, actor)

        async def change(goal: Goal, now: int) -> Changes:
            _check_open(goal)
            work = await self._store.find_open_step(goal.id)
            keeps = not stop and work is not None and work.status == "running"
            paused = goal.status == "paused"
            planned = self._plan_notices(goal)
            step = (
                Changes() if paused else steps.pause_goal(planned, now, why, actor=actor_name(actor), keeps_step=keeps)
            )
            return step if keeps or (paused and not stop) else step.plus(await self._stop_step(goal, now, actor))

        goal = await self._change(goal_id, change, actor)
        return goal if goal.task_id and not stop else await self._cancel_delegate(goal.id, actor)

    async def resume(self, goal_id: str, *, actor: AnyActor = None) -> Goal:
        """Resume a paused goal and reset its number of errors.

        If the session of the goal may still get a thread, the goal waits until the session has a thread.
        """
        goal_id = await self._resolve(goal_id, actor)

        async def change(goal: Goal, now: int) -> Changes:
            _check_open(goal)
            if goal.status != "paused":
                return Changes()
            _check_can_continue(goal, now)
            status: Status = "waiting_for_session" if not goal.step and await self._lacks_thread(goal) else "active"
            fields = {
                **steps.BETWEEN, "status": status, "paused_why": None, "errors": 0, "alike": 0, "repeats": 0,
                "last_mark": None, "pace": 0.0, "proposal": goal.proposal if goal.task_id else None,
            }  # fmt: skip
            resumed = GoalChanged(goal_id=goal.id, fields=("status",), status=status)
            return change_record(goal, resumed, now, actor_name(actor), **fields)

        return await self._change(goal_id, change, actor)

    async def _lacks_thread(self, goal: Goal) -> bool:
        if goal.session_key == f"goal:{goal.id}":
            return False
        return await self._awaits_thread(goal.session_key, goal.agent)

    async def _awaits_thread(self, key: str, agent: str) -> bool:
        """Return whether a goal in a session waits, because the agent has no thread in it but may still report one.

        An agent that has ended a task in the session without a thread reports none.
        """
        session = await self._store.get_session(key)
        if session is not None and (session.thread_id or session.agent != agent):
            return False
        if not (await self._terms(agent)).threads:
            return False
        return not await self._store.list_tasks(TaskFilter(session_key=key, statuses=("done",), limit=1))

    async def step(self, goal_id: str, *, actor: AnyActor = None) -> Goal:
        """Begin the next step of a goal now, even if the goal was delayed."""
        goal_id = await self._resolve(goal_id, actor)

        async def change(goal: Goal, now: int) -> Changes:
            _check_open(goal)
            if goal.status == "waiting_for_session":
                raise Conflict(f"goal {goal.id} waits for session {goal.session_key}; first send a message to it.")
            if goal.status == "paused":
                raise Conflict(f"goal {goal.id} is paused; resume it with `midwatch goal resume {goal.id}`.")
            _check_can_continue(goal, now)
            if goal.next_run_at is None:
                return Changes()
            payload = GoalChanged(goal_id=goal.id, fields=("next_run_at",), status=goal.status)
            return change_record(goal, payload, now, actor_name(actor), next_run_at=None, delay_reason=None)

        return await self._change(goal_id, change, actor)

    async def complete(
        self, goal_id: str, *, evidence: str = "", actor: AnyActor = None, in_step: str | None = None
    ) -> Goal:
        """Complete a goal, because its objective is reached. `evidence` is the proof.

        The request of a person has effect at once. The goal's agent makes the request in a step, whose task is
        `in_step`. The agent's request has effect after the step has ended and the verifier, if there is one, agrees.
        """
        goal_id = await self._resolve(goal_id, actor)
        in_step = in_step or await self._own_step(actor, goal_id)
        if in_step and not evidence.strip():
            raise InvalidInput("the evidence is empty; describe the proof that the goal is reached.", field="evidence")

        async def change(goal: Goal, now: int) -> Changes:
            _check_open(goal)
            proof = evidence.strip() or goal.evidence
            if in_step:
                _check_step(goal, in_step)
                return Changes(updates=(update_record(goal, now, proposal="complete", evidence=proof),))
            step = steps.complete_goal(self._plan_notices(goal), now, actor=actor_name(actor), evidence=proof)
            return step.plus(await self._stop_step(goal, now, actor))

        goal = await self._change(goal_id, change, None if in_step else actor)
        return goal if in_step else await self._cancel_delegate(goal_id, actor)

    async def delay(
        self, goal_id: str, seconds: float, reason: str, *, actor: AnyActor = None, in_step: str | None = None
    ) -> Goal:
        """Delay the next step of a goal by `seconds`. With 0 the next step begins at the pace of the goal."""
        goal_id = await self._resolve(goal_id, actor)
        in_step = in_step or await self._own_step(actor, goal_id)

        async def change(goal: Goal, now: int) -> Changes:
            if in_step and goal.open:
                _check_step(goal, in_step)
            return steps.delay_goal(goal, now, seconds, reason, actor_name(actor))

        return await self._change(goal_id, change, None if in_step else actor)

    async def clear(self, goal_id: str, *, actor: AnyActor = None) -> Goal:
        """Delete a goal, stop its running step, and cancel the background work that its steps have submitted."""
        name = actor_name(actor)
        goal_id = await self._resolve(goal_id, actor)
        work = await self._store.list_account_tasks(goal_id, MOST_WORK)
        for _ in range(TRIES):
            goal = await self._get_managed(goal_id, actor)
            changes = await self.compute_removal(goal, self._clock.now(), name)
            with suppress(Conflict):  # its step changed meanwhile
                if await self._store.delete_goal(goal.id, goal.revision, changes):
                    await self._cancel_work(goal.id, work, name)
                    return goal
        raise Conflict(f"goal {goal_id} keeps changing; try again.")

    async def compute_removal(self, goal: Goal, now: int, name: str | None) -> Changes:
        """Return the changes that go with the removal of a goal: an event, and the stop of its running step."""
        payload = GoalChanged(goal_id=goal.id, fields=("cleared",), status=goal.status)
        step = await self._store.find_open_step(goal.id)
        stop = (await stop_work(self._store, step, now, name))[1]
        return Changes(events=(event_about(goal, payload, now, name),)).plus(stop)

    async def _cancel_work(self, goal_id: str, work: Sequence[Task], actor: str | None) -> None:
        """Cancel the open tasks that the steps of a goal have submitted."""
        for task in work:
            if task.open and task.cause_id != goal_id:
                with suppress(Conflict, NotFound):
                    await self._tasks.cancel(task.id, actor=actor)

    async def end_work(self, goal_id: str, actor: AnyActor) -> None:
        """Cancel the open tasks that the steps of a removed goal have submitted."""
        await self._cancel_work(goal_id, await self._store.list_account_tasks(goal_id, MOST_WORK), actor_name(actor))

    async def list(
        self, status: str = "", *, scope: str = "", limit: int = 20, tags: Sequence[str] = (), actor: AnyActor = None
    ) -> Sequence[Goal]:
        """Return the goals with this status and all of the tags, newest first.

        Without a status, or with `all`, goals of every status are returned. With `scope`, such as user:ann or
        chat:main, return only goals of this scope.
        """
        authorize(actor, "oversee")
        chosen = parse_status(status, TRANSITIONS)
        statuses: tuple[Any, ...] = (chosen,) if chosen not in ("", "all") else ()
        where = rules.parse_scope(scope) if scope else None
        return await self._store.list_goals(statuses, min(max(1, limit), 200), where, tuple(tags))

    async def _set_limits(self, before: Goal, after: Goal, edited: Set[str], now: int) -> Changes:
        """Return the changes that give the account of a goal its new limits, if they were edited."""
        terms = await self._terms(after.agent)
        mode = steps.choose_mode(after, terms)
        if not edited & ACCOUNT_FIELDS and mode == steps.choose_mode(before, terms):
            return Changes()
        account = next(iter(await self._store.read_accounts([after.id])), None)
        if account is None:
            return Changes()
        return await change_limits(self._store, account, steps.limits_of(after), mode, now)

    def _plan_notices(self, goal: Goal) -> Goal:
        return replace(goal, notices=self._plan(goal.route, goal.notices))

    # -- internal ----------------------------------------------------------------------------------------------------

    async def _own_step(self, actor: AnyActor, goal_id: str) -> str | None:
        """Return the task id of the goal's step that the actor, an agent, works on. For a person, return None.

        Raise Forbidden if the actor is an agent that does not work on this goal.
        """
        authorize(actor, "signal")
        task = agent_task(actor)
        if task is None:
            return None
        goal = await self._store.get_goal(goal_id)  # read first, so that a concurrent change is refused
        if goal is None or await goal_of(self._store, task) != goal_id:
            raise Forbidden("an agent may complete or delay only the goal that its own task works on.")
        return goal.task_id if task.cause == "handoff" and goal.task_id else task.id

    async def _stop_step(self, goal: Goal, now: int, actor: AnyActor) -> Changes:
        """Return the changes that stop the open step of a goal.

        A step that was handed over and has not begun is left to `_cancel_delegate`.
        """
        step = await self._store.find_open_step(goal.id)
        if step is None or _is_waiting_delegate(step):
            return Changes()
        return (await stop_work(self._store, step, now, actor_name(actor)))[1]

    async def _cancel_delegate(self, goal_id: str, actor: AnyActor) -> Goal:
        """Cancel the open step of a goal if it was handed over and has not begun, and return the goal.

        The step is cancelled as a task, so that the end of the task adds its usage to the goal.
        """
        step = await self._store.find_open_step(goal_id)
        if step is not None and _is_waiting_delegate(step):
            with suppress(Conflict):
                await self._tasks.cancel(step.id, actor=actor_name(actor))
        return await self.get(goal_id)


def _is_waiting_delegate(step: Task) -> bool:
    return step.cause == "handoff" and step.status == "pending"


def _reports(usage: Mapping[str, Any] | None, kind: str) -> bool:
    """Return whether the usage of a task contains figures of this kind."""
    names = ("input_tokens", "output_tokens", "tokens") if kind == "tokens" else ("cost_usd", "usd")
    return any((usage or {}).get(name) for name in names)


def _name_conflict(goal: Goal) -> Conflict:
    scope = f"{goal.scope_kind}:{goal.scope_id}"
    return Conflict(f"{scope} has an open goal with the name {goal.name}; choose another name, or end that goal first.")


def _several(what: str, goals: Sequence[Goal]) -> Conflict:
    names = ", ".join(f"{goal.id} ({goal.scope_kind}:{goal.scope_id})" for goal in goals[:5])
    return Conflict(f"several goals {what}: {names}; name one by its id.")


def _check_open(goal: Goal) -> None:
    if not goal.open:
        raise Conflict(f"goal {goal.id} is {goal.status} and cannot be changed; create a new goal.")


def _check_step(goal: Goal, task_id: str) -> None:
    """Raise Conflict unless the task is the goal's current step.

    An earlier step, or the task that verifies the goal, may not change the goal.
    """
    if goal.status not in ("active", "paused") or goal.task_id != task_id or goal.work != "step":
        raise Conflict(f"task {task_id} is not the current step of goal {goal.id}, so it cannot change the goal.")


def _check_can_continue(goal: Goal, now: int) -> None:
    """Raise Conflict if the goal would be paused again at once: a budget is spent, or the deadline has passed."""
    if over := steps.over_budget(goal):
        raise Conflict(f"{over.why}; increase the budget with `{over.remedy}`.")
    if now >= goal.deadline_at:
        raise Conflict("the deadline has passed; set a later one with `midwatch goal edit`, or create a new goal.")


def _read_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a request with the command under the name of the record's field."""
    return {"check_command" if name == "check" else name: value for name, value in values.items()}


def _read_deadline(values: Mapping[str, Any], now: int) -> dict[str, Any]:
    """Return the values with `deadline_at` instead of `deadline`, which is a time as text or a number of seconds."""
    result = dict(values)
    deadline = result.pop("deadline", None)
    if isinstance(deadline, str):
        result.setdefault("deadline_at", parse_moment(deadline, now, host_zone()))
    elif deadline is not None:
        result.setdefault("deadline_at", now + int(deadline * SECOND))
    return result
