"""The goal service: set, look, edit, step now, pause, resume, complete, delay, clear. What one is stands in
`midwatch.goal`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from midwatch import goal as rules
from midwatch.change import Changes
from midwatch.clock import SECOND, Clock, iso, new_id
from midwatch.errors import AlreadyFinished, Conflict, InvalidInput, NotFound
from midwatch.event import GoalChanged, GoalCreated
from midwatch.goal import DEADLINE_SECONDS, TRANSITIONS, Goal, GoalStore, Status, Templates, normalise, validate
from midwatch.identity import Actor
from midwatch.session import SessionStore, checked_key
from midwatch.submission import check
from midwatch.task import TRIES, AgentTerms, Task, TaskStore
from midwatch.tasks import Tasks

SETTABLE = frozenset({
    "agent", "workdir", "verifier", "route", "session_key", "scope_kind", "scope_id", "manage_mode", "max_steps",
    "max_tokens", "max_seconds", "deadline_at",
})  # fmt: skip
EDITABLE = frozenset({"objective", "deadline_at", "max_steps", "max_tokens", "max_seconds", "route", "manage_mode"})


class Store(GoalStore, TaskStore, SessionStore, Protocol):
    """What this service needs of the store."""


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
        templates: Templates | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._terms = terms
        self._check_route = check_route
        self._default_route = default_route
        self._templates = templates or Templates()

    async def create(self, objective: str, *, actor: str | None = None, **wish: Any) -> Goal:
        """Set a goal; its first step begins at once, or when the session it belongs to has a thread."""
        refuse_unknown(wish, SETTABLE)
        now = self._clock.now()
        agent = await self._tasks.known_agent(wish.pop("agent", None))
        if wish.get("verifier"):
            await self._tasks.known_agent(wish["verifier"])
        session = wish.pop("session_key", None)
        session = checked_key(session) if session else None
        route = wish.pop("route", None) or self._default_route
        deadline = wish.pop("deadline_at", None) or now + int(DEADLINE_SECONDS * SECOND)
        draft = Goal(
            id=new_id("g", now), objective=objective, agent=agent, deadline_at=deadline, creator=actor,
            scope_id=wish.pop("scope_id", None) or session or actor or "owner", session_key=session or "",
            status=await self._first_status(session), route=self._check_route(route) if route else None,
            created_at=now, updated_at=now, **wish,
        )  # fmt: skip
        made = normalise(draft)
        validate(made)
        check(made.objective, {"workdir": made.workdir}, rules.MAX_OBJECTIVE)
        created = GoalCreated(goal_id=made.id, objective=made.objective, deadline_at=iso(made.deadline_at) or "")
        try:
            await self._store.apply(Changes(records=(made,), events=(rules.told(made, created, now, actor),)))
        except Conflict:
            open_ = await self._store.open_goal((made.scope_kind, made.scope_id))
            other = f" ({open_.id})" if open_ else ""
            raise Conflict(f"{made.scope_id} has an open goal already{other}; complete or clear it first.") from None
        return made

    async def _first_status(self, session: str | None) -> Status:
        if session is None:
            return "active"
        found = await self._store.get_session(session)
        return "active" if found is not None and found.thread_id else "waiting_for_session"

    async def get(self, goal_id: str) -> Goal:
        """The goal, or NotFound."""
        found = await self._store.get_goal(goal_id.strip())
        if found is None:
            raise NotFound("goal", goal_id)
        return found

    async def steps(self, goal_id: str, limit: int = 20) -> list[Task]:
        """Its tasks, newest first."""
        await self.get(goal_id)
        return await self._store.steps(goal_id, min(max(1, limit), 200))

    async def edit(
        self, goal_id: str, values: Mapping[str, Any], *, revision: int | None = None, actor: str | None = None,
        may: Actor | None = None,
    ) -> Goal:  # fmt: skip
        """Change its objective, deadline or budget."""
        refuse_unknown(values, EDITABLE)

        def change(found: Goal, now: int) -> Changes:
            self._must_be_open(found)
            after = normalise(replace(found, **values))
            validate(after)
            if after.deadline_at <= now:
                raise InvalidInput("the deadline has passed already; choose a later one.", field="deadline")
            told = GoalChanged(goal_id=found.id, fields=tuple(sorted(values)), status=found.status)
            update = rules.changed(found, now, **{name: getattr(after, name) for name in values})
            return Changes(updates=(update,), events=(rules.told(found, told, now, actor),))

        return await self._change(goal_id, change, may, revision)

    async def pause(self, goal_id: str, *, why: str = "paused by a person", actor: str | None = None,
                    may: Actor | None = None) -> Goal:  # fmt: skip
        """Rest until it is resumed; a running step is stopped."""
        found = await self.get(goal_id)
        if found.status != "paused":
            self._must_be_open(found)
            found = await self._change(goal_id, lambda one, now: rules.paused(one, now, why, actor=actor), may)
        await self._stop_step(found, actor)
        return found

    async def resume(self, goal_id: str, *, actor: str | None = None, may: Actor | None = None) -> Goal:
        """Go on, with errors forgotten. A goal whose session has no thread yet waits for it."""
        found = await self.get(goal_id)
        if found.status in ("active", "waiting_for_session"):
            return found
        waits = not found.step and await self._waits(found)

        def change(one: Goal, now: int) -> Changes:
            self._must_be_open(one)
            status: Status = "waiting_for_session" if waits else "active"
            fields = {
                "status": status, "paused_why": None, "errors": 0, "alike": 0, "last_mark": None, "next_run_at": None,
                "delay_reason": None, "proposal": None,
            }  # fmt: skip
            told = GoalChanged(goal_id=one.id, fields=("status",), status=status)
            return Changes(updates=(rules.changed(one, now, **fields),), events=(rules.told(one, told, now, actor),))

        return await self._change(goal_id, change, may)

    async def _waits(self, found: Goal) -> bool:
        if found.session_key == f"goal:{found.id}":
            return False
        return await self._first_status(found.session_key) == "waiting_for_session"

    async def step(self, goal_id: str, *, actor: str | None = None, may: Actor | None = None) -> Goal:
        """Begin the next step now instead of waiting for its time."""

        def change(found: Goal, now: int) -> Changes:
            if found.status != "active":
                raise Conflict(f"goal {found.id} is {found.status}; resume it with `midwatch goal resume {found.id}`.")
            told = GoalChanged(goal_id=found.id, fields=("next_run_at",), status=found.status)
            update = rules.changed(found, now, next_run_at=None, delay_reason=None)
            return Changes(updates=(update,), events=(rules.told(found, told, now, actor),))

        return await self._change(goal_id, change, may)

    async def complete(
        self, goal_id: str, *, evidence: str = "", actor: str | None = None, may: Actor | None = None,
        in_step: bool = False,
    ) -> Goal:  # fmt: skip
        """It is reached. Said by its agent in a step (`in_step`), it counts when that step has ended and, if there is
        one, its verifier agrees; said by a person it counts at once."""
        if in_step and not evidence.strip():
            raise InvalidInput("say what proves that the goal is reached.", field="evidence")

        def change(found: Goal, now: int) -> Changes:
            self._must_be_open(found)
            proof = evidence.strip() or found.evidence
            if in_step:
                return Changes(updates=(rules.changed(found, now, proposal="complete", evidence=proof),))
            return rules.completed(replace(found, evidence=proof), now, actor=actor, evidence=proof)

        found = await self._change(goal_id, change, may)
        if not in_step:
            await self._stop_step(found, actor)
        return found

    async def delay(
        self, goal_id: str, seconds: float, reason: str, *, actor: str | None = None, may: Actor | None = None
    ) -> Goal:
        """Begin the next step later, or with 0 at once."""
        return await self._change(goal_id, lambda one, now: rules.delayed(one, now, seconds, reason, actor), may)

    async def clear(self, goal_id: str, *, actor: str | None = None, may: Actor | None = None) -> Goal:
        """Give it up and remove it; a running step is stopped."""
        found = await self._managed(goal_id, may)
        told = GoalChanged(goal_id=found.id, fields=("cleared",), status=found.status)
        if not await self._store.delete_goal(found.id, (rules.told(found, told, self._clock.now(), actor),)):
            raise NotFound("goal", goal_id)
        await self._stop_step(found, actor)
        return found

    async def list(self, status: str = "", *, limit: int = 20) -> list[Goal]:
        """Newest first; of one status, or all."""
        wanted = status.strip().lower()
        if wanted not in ("", "all", *TRANSITIONS):
            raise InvalidInput(f"the status is one of: all, {', '.join(TRANSITIONS)}.", field="status")
        statuses: tuple[Any, ...] = (wanted,) if wanted not in ("", "all") else ()
        return await self._store.list_goals(statuses, min(max(1, limit), 200))

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _stop_step(self, found: Goal, actor: str | None) -> None:
        for task in await self._store.steps(found.id, 2):
            if task.open:
                with suppress(AlreadyFinished):
                    await self._tasks.cancel(task.id, actor=actor)

    async def _change(
        self,
        goal_id: str,
        change: Callable[[Goal, int], Changes],
        may: Actor | None = None,
        revision: int | None = None,
    ) -> Goal:
        for _ in range(TRIES):
            found = await self._managed(goal_id, may)
            if revision is not None and found.revision != revision:
                raise Conflict(f"goal {found.id} changed meanwhile (revision {found.revision}); look at it again.")
            try:
                await self._store.apply(change(found, self._clock.now()))
            except Conflict as conflict:
                if revision is not None or (await self.get(goal_id)).revision == found.revision:
                    raise conflict
                continue
            return await self.get(goal_id)
        raise Conflict(f"goal {goal_id} keeps changing; try again.")

    async def _managed(self, goal_id: str, may: Actor | None) -> Goal:
        found = await self.get(goal_id)
        if may is not None:
            may.must_manage(found.creator, found.manage_mode)
        return found

    def _must_be_open(self, found: Goal) -> None:
        if not found.open:
            raise Conflict(f"goal {found.id} is {found.status}; set a new one.")


def refuse_unknown(wish: Mapping[str, Any], known: frozenset[str]) -> None:
    """InvalidInput for a wish that does not exist, so that a misspelt one is not lost."""
    if unknown := sorted(set(wish) - known):
        raise InvalidInput(
            f"{unknown[0]} cannot be set here; what can be: {', '.join(sorted(known))}.", field=unknown[0]
        )
