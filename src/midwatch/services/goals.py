"""The goal service: create, read, edit, pause, resume, complete, delay and clear goals, and begin a step now.

The record is `midwatch.domain.goal`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any

from midwatch.base.clock import SECOND, Clock, iso
from midwatch.base.errors import Conflict, Forbidden, InvalidInput
from midwatch.base.ids import new_id
from midwatch.base.schedule import host_zone, parse_moment
from midwatch.domain import goal as rules
from midwatch.domain import goal_step as steps
from midwatch.domain.agent import AgentTerms
from midwatch.domain.changes import Changes, change_record, event_about, update_record
from midwatch.domain.event import GoalChanged, GoalCreated
from midwatch.domain.fields import changeable, clearable, settable
from midwatch.domain.goal import TRANSITIONS, Goal, Status, normalise, validate
from midwatch.domain.identity import AnyActor, actor_name, agent_task
from midwatch.domain.notice import CheckRoute, PlanNotices, keep_policy
from midwatch.domain.requests import refuse_unknown
from midwatch.domain.session import Session, check_key
from midwatch.domain.store import Store
from midwatch.domain.task import TRIES, Task
from midwatch.services.accounts import change_limits, read_cost
from midwatch.services.authorization import authorize, own_record
from midwatch.services.records import ManagedRecords, parse_status, require
from midwatch.services.request_checks import check, resolve_workdir
from midwatch.services.task_stops import stop_work
from midwatch.services.tasks import Tasks

SETTABLE, CHANGEABLE = settable(Goal) | {"deadline"}, changeable(Goal) | {"deadline"}
CLEARABLE = clearable(Goal)
ACCOUNT_FIELDS = frozenset({"max_tokens", "max_usd", "max_seconds", "on_budget"})
"""The fields that decide about the account of a goal. An edit of another field leaves an open question as it is."""


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
        time as text, or a number of seconds from now.
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
        if wish.get("verifier"):
            await self._tasks.check_agent(wish["verifier"])
        route = wish.pop("route", None) or self._default_route
        draft = Goal(
            id=new_id("g", now), objective=objective, agent=agent, creator=creator,
            scope_id=wish.pop("scope_id", key or creator or "owner"), session_key=key or "",
            workdir=resolve_workdir(wish.pop("workdir", None)) or (session.workdir if session else None),
            status="waiting_for_session" if key and not (session and session.thread_id) else "active",
            route=self._check_route(route) if route else None, created_at=now, updated_at=now, **wish,
        )  # fmt: skip
        goal = normalise(draft)
        validate(goal)
        check(goal.objective, {"workdir": goal.workdir}, rules.MAX_OBJECTIVE)
        created = GoalCreated(goal_id=goal.id, objective=goal.objective, deadline_at=iso(goal.deadline_at) or "")
        try:
            account = steps.open_goal_account(goal, await self._terms(goal.agent))
            await self._store.apply(
                Changes(records=(goal, account), events=(event_about(goal, created, now, creator),))
            )
        except Conflict:
            open_goal = await self._store.find_open_goal((goal.scope_kind, goal.scope_id))
            goal_name = f" ({open_goal.id})" if open_goal else ""
            raise Conflict(f"{goal.scope_id} has an open goal{goal_name}; first complete or clear that goal.") from None
        return goal

    async def _choose_agent(self, requested: str | None, session: Session | None) -> str:
        """Return the agent of a new goal. If the goal has a session, this is the agent of the session."""
        if session is not None and requested not in (None, session.agent):
            raise InvalidInput(
                f"session {session.key} belongs to agent {session.agent}; name that agent.", field="agent"
            )
        return await self._tasks.check_agent(session.agent if session else requested)

    async def get(self, goal_id: str, *, actor: AnyActor = None) -> Goal:
        """Return the goal, or raise NotFound."""
        goal = require(await self._store.get_goal(goal_id.strip()), "goal", goal_id)
        authorize(actor, "read", own_record(goal))
        return goal

    async def steps(self, goal_id: str, limit: int = 20, *, actor: AnyActor = None) -> list[Task]:
        """Return the tasks of a goal, newest first."""
        await self.get(goal_id, actor=actor)
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
        values = _read_names(values)
        refuse_unknown(values, CHANGEABLE)
        given = {name: value for name, value in values.items() if value is not None or name in CLEARABLE}
        values = _read_deadline(given, self._clock.now())
        if values.get("route"):
            values["route"] = self._check_route(values["route"])
        if "check_command" in values:
            values["last_check"] = None

        async def change(goal: Goal, now: int) -> Changes:
            _check_open(goal)
            after = normalise(replace(goal, **values))
            validate(after)
            check(after.objective, {}, rules.MAX_OBJECTIVE)
            if "deadline_at" in values and after.deadline_at <= now:
                raise InvalidInput("the deadline has passed already; choose a later deadline.", field="deadline")
            payload = GoalChanged(goal_id=goal.id, fields=tuple(sorted(values)), status=goal.status)
            fields = {name: getattr(after, name) for name in values}
            step = change_record(goal, payload, now, actor_name(actor), **fields)
            return step.plus(await self._set_limits(goal, after, values.keys(), now))

        return await self._change(goal_id, change, actor, revision)

    async def pause(self, goal_id: str, *, why: str = "paused by a person", actor: AnyActor = None) -> Goal:
        """Pause a goal: stop its running step and start no more steps. A second call changes nothing."""

        async def change(goal: Goal, now: int) -> Changes:
            _check_open(goal)
            if goal.status == "paused":
                return Changes()
            step = steps.pause_goal(self._plan_notices(goal), now, why, actor=actor_name(actor))
            return step.plus(await self._stop_step(goal, now, actor))

        await self._change(goal_id, change, actor)
        return await self._cancel_delegate(goal_id, actor)

    async def resume(self, goal_id: str, *, actor: AnyActor = None) -> Goal:
        """Resume a paused goal and reset its number of errors.

        If the session of the goal has no thread yet, the goal waits until the session has a thread.
        """

        async def change(goal: Goal, now: int) -> Changes:
            _check_open(goal)
            if goal.status != "paused":
                return Changes()
            _check_can_continue(goal, now)
            status: Status = "waiting_for_session" if not goal.step and await self._lacks_thread(goal) else "active"
            fields = {
                **steps.BETWEEN, "status": status, "paused_why": None, "errors": 0, "alike": 0, "last_mark": None,
            }  # fmt: skip
            resumed = GoalChanged(goal_id=goal.id, fields=("status",), status=status)
            return change_record(goal, resumed, now, actor_name(actor), **fields)

        return await self._change(goal_id, change, actor)

    async def _lacks_thread(self, goal: Goal) -> bool:
        if goal.session_key == f"goal:{goal.id}":
            return False
        session = await self._store.get_session(goal.session_key)
        return session is None or not session.thread_id

    async def step(self, goal_id: str, *, actor: AnyActor = None) -> Goal:
        """Begin the next step of a goal now, even if the goal was delayed."""

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
        """Delay the next step of a goal by `seconds`. With 0 the next step begins at once."""
        in_step = in_step or await self._own_step(actor, goal_id)

        async def change(goal: Goal, now: int) -> Changes:
            if in_step and goal.open:
                _check_step(goal, in_step)
            return steps.delay_goal(goal, now, seconds, reason, actor_name(actor))

        return await self._change(goal_id, change, None if in_step else actor)

    async def clear(self, goal_id: str, *, actor: AnyActor = None) -> Goal:
        """Delete a goal and stop its running step."""
        name = actor_name(actor)
        for _ in range(TRIES):
            goal = await self._get_managed(goal_id, actor)
            now = self._clock.now()
            payload = GoalChanged(goal_id=goal.id, fields=("cleared",), status=goal.status)
            step = await self._store.find_open_step(goal.id)
            stop = (await stop_work(self._store, step, now, name))[1]
            changes = Changes(events=(event_about(goal, payload, now, name),)).plus(stop)
            with suppress(Conflict):  # its step changed meanwhile
                if await self._store.delete_goal(goal.id, goal.revision, changes):
                    return goal
        raise Conflict(f"goal {goal_id} keeps changing; try again.")

    async def list(self, status: str = "", *, limit: int = 20, actor: AnyActor = None) -> list[Goal]:
        """Return the goals with this status, newest first. Without a status, or with `all`, return all goals."""
        authorize(actor, "oversee")
        chosen = parse_status(status, TRANSITIONS)
        statuses: tuple[Any, ...] = (chosen,) if chosen not in ("", "all") else ()
        return await self._store.list_goals(statuses, min(max(1, limit), 200))

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


def _check_open(goal: Goal) -> None:
    if not goal.open:
        raise Conflict(f"goal {goal.id} is {goal.status} and cannot be changed; create a new goal.")


def _check_step(goal: Goal, task_id: str) -> None:
    """Raise Conflict unless the task is the goal's current step.

    An earlier step, or the task that verifies the goal, may not change the goal.
    """
    if goal.status != "active" or goal.task_id != task_id or goal.work != "step":
        raise Conflict(f"task {task_id} is not the current step of goal {goal.id}, so it cannot change the goal.")


def _check_can_continue(goal: Goal, now: int) -> None:
    """Raise Conflict if the goal would be paused again at once: a budget is spent, or the deadline has passed."""
    if over := steps.over_budget(goal):
        raise Conflict(f"{over.why}; increase the budget with `{over.remedy}`.")
    if now >= goal.deadline_at:
        raise Conflict("the deadline has passed; set a later one with `midwatch goal edit`, or create a new goal.")


async def goal_of(store: Store, task: Task) -> str | None:
    """Return the id of the goal that a task works on, or None.

    The task is a step of the goal, or a step has handed its work over to the task.
    """
    if task.cause != "handoff" or task.root_id is None:
        return task.cause_id if task.cause == "goal" else None
    root = await store.get_task(task.root_id)
    if root is None or root.cause != "goal" or root.cause_id is None:
        return None
    step = await store.find_open_step(root.cause_id)
    return root.cause_id if step is not None and step.id == task.id else None


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
