"""The goal service: set, look, edit, step now, pause, resume, complete, delay, clear. What one is stands in
`midwatch.domain.goal`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from midwatch.base.clock import SECOND, Clock, iso
from midwatch.base.errors import Conflict, Forbidden, InvalidInput, NotFound
from midwatch.base.ids import new_id
from midwatch.base.schedule import host_zone, parse_moment
from midwatch.domain import goal as rules
from midwatch.domain.agent import AgentTerms
from midwatch.domain.changes import Changes, change_record, event_about, update_record
from midwatch.domain.event import GoalChanged, GoalCreated
from midwatch.domain.fields import changeable, clearable, settable
from midwatch.domain.goal import (
    DEADLINE_SECONDS,
    TRANSITIONS,
    Goal,
    Status,
    normalise,
    over_budget,
    validate,
)
from midwatch.domain.identity import AnyActor, actor_name, agent_task
from midwatch.domain.requests import refuse_unknown
from midwatch.domain.session import Session, check_key
from midwatch.domain.store import Store
from midwatch.domain.task import TRIES, Task
from midwatch.services.authorization import check_manager
from midwatch.services.request_checks import check
from midwatch.services.tasks import Tasks, stop_task

SETTABLE, CHANGEABLE = settable(Goal) | {"deadline"}, changeable(Goal) | {"deadline"}
CLEARABLE = clearable(Goal)


class Goals:
    """Service: objectives that are pursued until they are reached."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tasks: Tasks,
        terms: Callable[[str], Awaitable[AgentTerms]],
        check_route: Callable[[str], str],
        default_route: str | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """`defaults` has the budgets, and in `deadline` the seconds, of a goal that names none."""
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._terms = terms
        self._check_route = check_route
        self._default_route = default_route
        self._defaults = dict(defaults or {})

    async def create(self, objective: str, *, actor: AnyActor = None, **wish: Any) -> Goal:
        """Set a goal; its first step begins at once, or when the session it belongs to has a thread. `deadline` is a
        moment in words or a number of seconds."""
        refuse_unknown(wish, SETTABLE)
        now, creator = self._clock.now(), actor_name(actor)
        given = {name: value for name, value in wish.items() if value is not None}
        wish = _read_deadline({"deadline": DEADLINE_SECONDS, **self._defaults, **given}, now)
        key = wish.pop("session_key", None)
        key = check_key(key) if key else None
        session = await self._store.get_session(key) if key else None
        agent = await self._agent(wish.pop("agent", None), session)
        if wish.get("verifier"):
            await self._tasks.known_agent(wish["verifier"])
        route = wish.pop("route", None) or self._default_route
        draft = Goal(
            id=new_id("g", now), objective=objective, agent=agent, creator=creator,
            scope_id=wish.pop("scope_id", key or creator or "owner"), session_key=key or "",
            workdir=wish.pop("workdir", session.workdir if session else None),
            status="waiting_for_session" if key and not (session and session.thread_id) else "active",
            route=self._check_route(route) if route else None, created_at=now, updated_at=now, **wish,
        )  # fmt: skip
        made = normalise(draft)
        validate(made)
        check(made.objective, {"workdir": made.workdir}, rules.MAX_OBJECTIVE)
        created = GoalCreated(goal_id=made.id, objective=made.objective, deadline_at=iso(made.deadline_at) or "")
        try:
            await self._store.apply(Changes(records=(made,), events=(event_about(made, created, now, creator),)))
        except Conflict:
            open_ = await self._store.find_open_goal((made.scope_kind, made.scope_id))
            other = f" ({open_.id})" if open_ else ""
            raise Conflict(f"{made.scope_id} has an open goal already{other}; complete or clear it first.") from None
        return made

    async def _agent(self, wanted: str | None, session: Session | None) -> str:
        """The agent of a conversation goes on in it; another one would know nothing of it."""
        if session is not None and wanted not in (None, session.agent):
            raise InvalidInput(f"session {session.key} is with agent {session.agent}; name that one.", field="agent")
        return await self._tasks.known_agent(session.agent if session else wanted)

    async def get(self, goal_id: str) -> Goal:
        """The goal, or NotFound."""
        found = await self._store.get_goal(goal_id.strip())
        if found is None:
            raise NotFound("goal", goal_id)
        return found

    async def steps(self, goal_id: str, limit: int = 20) -> list[Task]:
        """Its tasks, newest first."""
        await self.get(goal_id)
        return await self._store.list_goal_steps(goal_id, min(max(1, limit), 200))

    async def describe(self, goal: Goal) -> dict[str, Any]:
        """Return the goal as JSON, with whether a step of it runs."""
        return {**goal.snapshot(), "running": await self._store.find_open_step(goal.id) is not None}

    async def edit(
        self, goal_id: str, values: Mapping[str, Any], *, revision: int | None = None, actor: AnyActor = None
    ) -> Goal:
        """Change its objective, deadline or budget."""
        refuse_unknown(values, CHANGEABLE)
        given = {name: value for name, value in values.items() if value is not None or name in CLEARABLE}
        values = _read_deadline(given, self._clock.now())
        if values.get("route"):
            values["route"] = self._check_route(values["route"])

        def change(found: Goal, now: int) -> Changes:
            self._must_be_open(found)
            after = normalise(replace(found, **values))
            validate(after)
            check(after.objective, {}, rules.MAX_OBJECTIVE)
            if "deadline_at" in values and after.deadline_at <= now:
                raise InvalidInput("the deadline has passed already; choose a later one.", field="deadline")
            told = GoalChanged(goal_id=found.id, fields=tuple(sorted(values)), status=found.status)
            return change_record(found, told, now, actor_name(actor), **{name: getattr(after, name) for name in values})

        return await self._change(goal_id, change, actor, revision)

    async def pause(self, goal_id: str, *, why: str = "paused by a person", actor: AnyActor = None) -> Goal:
        """Rest until it is resumed; a running step is stopped. Pausing it again changes nothing."""
        if (found := await self._get_managed(goal_id, actor)).status == "paused":
            return found

        def change(goal: Goal, now: int) -> Changes:
            self._must_be_open(goal)
            return Changes() if goal.status == "paused" else rules.pause_goal(goal, now, why, actor=actor_name(actor))

        return await self._change(goal_id, change, actor, stops=True)

    async def resume(self, goal_id: str, *, actor: AnyActor = None) -> Goal:
        """Go on, with errors forgotten. A goal whose session has no thread yet waits for it."""
        found = await self._get_managed(goal_id, actor)
        if found.status in ("active", "waiting_for_session"):
            return found
        status: Status = "waiting_for_session" if not found.step and await self._waits(found) else "active"

        def change(goal: Goal, now: int) -> Changes:
            self._must_be_open(goal)
            if goal.status != "paused":
                return Changes()
            self._must_have_means(goal, now)
            fields = {
                **rules.BETWEEN, "status": status, "paused_why": None, "errors": 0, "alike": 0, "last_mark": None,
            }  # fmt: skip
            resumed = GoalChanged(goal_id=goal.id, fields=("status",), status=status)
            return change_record(goal, resumed, now, actor_name(actor), **fields)

        return await self._change(goal_id, change, actor)

    async def _waits(self, found: Goal) -> bool:
        if found.session_key == f"goal:{found.id}":
            return False
        session = await self._store.get_session(found.session_key)
        return session is None or not session.thread_id

    async def step(self, goal_id: str, *, actor: AnyActor = None) -> Goal:
        """Begin the next step now instead of waiting for its time."""

        def change(found: Goal, now: int) -> Changes:
            self._must_be_open(found)
            if found.status == "waiting_for_session":
                raise Conflict(f"goal {found.id} waits for session {found.session_key}; say something there first.")
            if found.status == "paused":
                raise Conflict(f"goal {found.id} is paused; resume it with `midwatch goal resume {found.id}`.")
            self._must_have_means(found, now)
            if found.next_run_at is None:
                return Changes()
            told = GoalChanged(goal_id=found.id, fields=("next_run_at",), status=found.status)
            return change_record(found, told, now, actor_name(actor), next_run_at=None, delay_reason=None)

        return await self._change(goal_id, change, actor)

    async def complete(
        self, goal_id: str, *, evidence: str = "", actor: AnyActor = None, in_step: str | None = None
    ) -> Goal:
        """Declare the goal reached. From its agent in a step (`in_step`: the task) it counts when that step has ended
        and its verifier, if there is one, agrees; from a person it counts at once."""
        in_step = in_step or await self._own_step(actor, goal_id)
        if in_step and not evidence.strip():
            raise InvalidInput("say what proves that the goal is reached.", field="evidence")

        def change(found: Goal, now: int) -> Changes:
            self._must_be_open(found)
            proof = evidence.strip() or found.evidence
            if in_step:
                self._must_be_its_step(found, in_step)
                return Changes(updates=(update_record(found, now, proposal="complete", evidence=proof),))
            return rules.complete_goal(found, now, actor=actor_name(actor), evidence=proof)

        return await self._change(goal_id, change, None if in_step else actor, stops=not in_step)

    async def delay(
        self, goal_id: str, seconds: float, reason: str, *, actor: AnyActor = None, in_step: str | None = None
    ) -> Goal:
        """Begin the next step later, or with 0 at once."""
        in_step = in_step or await self._own_step(actor, goal_id)

        def change(found: Goal, now: int) -> Changes:
            if in_step and found.open:
                self._must_be_its_step(found, in_step)
            return rules.delay_goal(found, now, seconds, reason, actor_name(actor))

        return await self._change(goal_id, change, None if in_step else actor)

    async def clear(self, goal_id: str, *, actor: AnyActor = None) -> Goal:
        """Give it up and remove it; a running step is stopped."""
        name = actor_name(actor)
        for _ in range(TRIES):
            found = await self._get_managed(goal_id, actor)
            now = self._clock.now()
            told = GoalChanged(goal_id=found.id, fields=("cleared",), status=found.status)
            step = await self._store.find_open_step(found.id)
            changes = Changes(events=(event_about(found, told, now, name),)).plus(_stop_step(step, now, name))
            try:
                if await self._store.delete_goal(found.id, found.revision, changes):
                    await self._stop_delegate(step, name)
                    return found
            except Conflict:  # its step went on meanwhile
                continue
        raise Conflict(f"goal {goal_id} keeps changing; try again.")

    async def list(self, status: str = "", *, limit: int = 20) -> list[Goal]:
        """Newest first; of one status, or all."""
        wanted = status.strip().lower()
        if wanted not in ("", "all", *TRANSITIONS):
            raise InvalidInput(f"the status is one of: all, {', '.join(TRANSITIONS)}.", field="status")
        statuses: tuple[Any, ...] = (wanted,) if wanted not in ("", "all") else ()
        return await self._store.list_goals(statuses, min(max(1, limit), 200))

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _own_step(self, actor: AnyActor, goal_id: str) -> str | None:
        """Return the step in which an agent speaks, None for a person; Forbidden if it works on something else."""
        task = agent_task(actor)
        if task is None:
            return None
        goal = await self._store.get_goal(goal_id)  # first: should it go on meanwhile, the signal is refused
        if goal is None or await goal_of(self._store, task) != goal_id:
            raise Forbidden("an agent may signal only the goal it works on.")
        return goal.task_id if task.cause == "handoff" and goal.task_id else task.id

    async def _stop_delegate(self, step: Task | None, actor: str | None) -> None:
        """Stop the agent to which the work of a step was handed over; that ends the handoff, too."""
        if step is not None and step.cause == "handoff":
            with suppress(Conflict):
                await self._tasks.cancel(step.id, actor=actor)

    async def _change(
        self,
        goal_id: str,
        change: Callable[[Goal, int], Changes],
        actor: AnyActor,
        revision: int | None = None,
        *,
        stops: bool = False,
    ) -> Goal:
        """Write a change, computed again when something came between. With `stops` its open step is stopped."""
        name = actor_name(actor)
        for _ in range(TRIES):
            found = await self._get_managed(goal_id, actor)
            if revision is not None and found.revision != revision:
                raise Conflict(f"goal {found.id} changed meanwhile (revision {found.revision}); look at it again.")
            now = self._clock.now()
            changes = change(found, now)
            step = await self._store.find_open_step(found.id) if stops else None
            changes = changes.plus(_stop_step(step, now, name))
            if changes == Changes():
                return found
            try:
                await self._store.apply(changes)
            except Conflict:
                continue
            await self._stop_delegate(step, name)
            return await self.get(goal_id)
        raise Conflict(f"goal {goal_id} keeps changing; try again.")

    async def _get_managed(self, goal_id: str, actor: AnyActor) -> Goal:
        """Return the goal; Forbidden if the actor may not manage it."""
        found = await self.get(goal_id)
        check_manager(actor, found.creator, found.manage_mode)
        return found

    def _must_be_open(self, found: Goal) -> None:
        if not found.open:
            raise Conflict(f"goal {found.id} is {found.status}; set a new one.")

    def _must_be_its_step(self, found: Goal, task_id: str) -> None:
        """Only the step that runs may signal; neither one that was stopped nor a verification can."""
        if found.status != "active" or found.task_id != task_id or found.work != "step":
            raise Conflict(f"task {task_id} is not the step goal {found.id} is at; it can signal nothing.")

    def _must_have_means(self, found: Goal, now: int) -> None:
        """Conflict for a goal that could only rest again at once."""
        if over := over_budget(found):
            raise Conflict(f"{over.why}; raise it with `{over.remedy}`.")
        if now >= found.deadline_at:
            raise Conflict("its deadline has passed; choose a later one with `midwatch goal edit`, or set a new goal.")


async def goal_of(store: Store, task: Task) -> str | None:
    """The goal the task works on: as its step, or in the place of the agent that gave the step away."""
    if task.cause != "handoff" or task.root_id is None:
        return task.cause_id if task.cause == "goal" else None
    root = await store.get_task(task.root_id)
    if root is None or root.cause != "goal" or root.cause_id is None:
        return None
    step = await store.find_open_step(root.cause_id)
    return root.cause_id if step is not None and step.id == task.id else None


def _read_deadline(values: Mapping[str, Any], now: int) -> dict[str, Any]:
    """Return the values with `deadline`, a moment in words or a number of seconds, as `deadline_at`."""
    result = dict(values)
    deadline = result.pop("deadline", None)
    if isinstance(deadline, str):
        result.setdefault("deadline_at", parse_moment(deadline, now, host_zone()))
    elif deadline is not None:
        result.setdefault("deadline_at", now + int(deadline * SECOND))
    return result


def _stop_step(step: Task | None, now: int, actor: str | None) -> Changes:
    """What stops the open step of a goal; to be written with what it is stopped for."""
    return stop_task(step, now, actor)[1] if step is not None and step.cause == "goal" else Changes()
