"""Tasks: submit, claim, look, count, prune."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from typing import Any

from midwatch.base.errors import Conflict, KeyReused, LimitReached
from midwatch.domain.changes import Changes, Fence
from midwatch.domain.claiming import ClaimRequest, Room
from midwatch.domain.event import Event, TaskStarted, call_of, event
from midwatch.domain.identity import attempt_token, hash_of
from midwatch.domain.task import (
    STATUSES,
    Claim,
    Claims,
    Submitted,
    Summary,
    Task,
    TaskFilter,
    conversation,
    meta,
    start_notice,
    used,
)
from midwatch.domain.usage import PARTS, Asked, Spent
from midwatch.stores.sql import TASK_JSON, dumps, loads
from midwatch.stores.verbs.changes import add_deliveries, apply, fields_of, insert
from midwatch.stores.verbs.event import event_of
from midwatch.stores.verbs.tx import Row, Tx

NO_JSON = (None,) * TASK_JSON


def task_of(row: Row) -> Task:
    """A task from its row."""
    if row[-TASK_JSON:] == NO_JSON:
        return Task._make(row)
    decoded = (value if value is None else loads(value) for value in row[-TASK_JSON:])
    return Task._make((*row[:-TASK_JSON], *decoded))


def submit(tx: Tx, task: Task, changes: Changes, max_open: int | None, max_of_actor: int | None = None) -> Submitted:
    if task.idempotency_key is not None:
        row = tx.row("task.find_key", {"creator": task.creator or "", "key": task.idempotency_key})
        if row is not None:
            first = task_of(row)
            if first.body_hash != task.body_hash:
                raise KeyReused(task.idempotency_key, f"task {first.id}")
            return Submitted(first, created=False)
        if row := tx.row("steer.find_key", {"actor": task.creator or "", "key": task.idempotency_key}):
            raise KeyReused(task.idempotency_key, f"message {row[0]}")
    if max_open is not None:
        _check_room(tx, max_open)
    if max_of_actor is not None:
        _check_actors_room(tx, task.actor, max_of_actor)
    if conversation(task):
        _check_session(tx, task)
    insert(tx, task)
    if task.cause == "message" and tx.run("task.ask_to_yield", {"gate": task.gate_key}):
        tx.topics.add("stop")
    apply(tx, changes)
    return Submitted(task, created=True)


def _check_session(tx: Tx, task: Task) -> None:
    """A conversation that is closed takes nothing more; one that is new begins with this task."""
    if not check_open(tx, task.session_key):
        tx.run("session.ensure", fields_of(used(task, task.created_at)))


def check_open(tx: Tx, key: str) -> bool:
    """Whether there is such a session; Conflict when it is closed."""
    row = tx.row("session.status", {"key": key})
    if row is not None and row[0] == "closed":
        raise Conflict(f"session {key} is closed; open it again by creating it with the same key.")
    return row is not None


def _check_room(tx: Tx, max_open: int) -> None:
    row = tx.row("task.count_outside", {"most": max_open})
    if row is not None and row[0] >= max_open:
        raise LimitReached(
            f"{max_open} tasks are open already; wait until some have ended, cancel some, or raise max_open."
        )


def _check_actors_room(tx: Tx, actor: str, most: int) -> None:
    row = tx.row("task.count_outside_of", {"actor": actor, "most": most})
    if row is not None and row[0] >= most:
        whose = f"of {actor}" if actor else "without an actor"
        raise LimitReached(
            f"{most} tasks {whose} are open already; wait until some have ended, cancel some, "
            "or raise max_open_per_actor."
        )


def claim(tx: Tx, request: ClaimRequest, now: int) -> Claims:
    search, taken = _Search(tx, request, now), list[Claim]()
    while search.room.agents():
        chosen, contested = search.in_order()
        taken += [made for task in chosen if (made := _take(tx, task, request, now))]
        if contested is None or (fairest := search.fairest(contested)) is None:
            break
        taken += [made] if (made := _take(tx, fairest, request, now)) else []
    later = tx.row("task.next_due", {"now": now}) if len(taken) < request.free else None
    return Claims(taken, later[0] if later else None)


class _Search:
    """Finds what a claim is to take. Claim order decides, unless several actors wait and slots are scarce."""

    def __init__(self, tx: Tx, request: ClaimRequest, now: int) -> None:
        self.room = Room(request)
        self._tx = tx
        self._terms = {
            "now": now, "owner": request.owner, "own_only": request.own_only, "leave": dumps(list(request.leave)),
        }  # fmt: skip
        self._waiting: list[str] | None = None

    def in_order(self) -> tuple[list[Task], Task | None]:
        """Tasks in claim order, and the one at which it does not decide any more."""
        room, chosen, gates, places = self.room, list[Task](), set[str](), set[str | None]()
        agents = room.agents()
        for row in self._tx.rows("task.claimable", {**self._terms, "agents": dumps(agents)}):
            task, several = task_of(row[:-1]), row[-1]
            if task.gate_key in gates or task.agent not in agents or (task.dir_key and task.dir_key in places):
                continue
            if task.cause == "goal" and task.agent in room.last():
                continue
            if room.full(task.actor) or (several and self._scarce(task.agent)):
                return chosen, task
            gates.add(task.gate_key)
            places.add(task.dir_key)
            room.take(task)
            chosen.append(task)
            if not (agents := room.agents()):
                break
        return chosen, None

    def fairest(self, contested: Task) -> Task | None:
        """Who gets the slot the contested task would take: it, or somebody's first one."""
        actors = [actor for actor in self._actors() if not self.room.full(actor)]
        wide = self.room.full(contested.actor) or self.room.scarce(None, len(actors))
        agents = self.room.agents() if wide else [contested.agent]
        params = {**self._terms, "actors": dumps(actors), "agents": dumps(agents), "last": dumps(self.room.last())}
        heads = [task_of(row) for row in self._tx.rows("task.heads", params)]
        found = self.room.fairest(sorted(heads, key=lambda task: (task.rank, task.due_at, task.id)))
        if found is not None:
            self.room.take(found)
        return found

    def _scarce(self, agent: str) -> bool:
        waiting = len(self._actors())
        return self.room.scarce(None, waiting) or self.room.scarce(agent, waiting)

    def _actors(self) -> list[str]:
        if self._waiting is None:
            self._waiting = [row[0] for row in self._tx.rows("task.waiting_actors", {})]
        return self._waiting


def _take(tx: Tx, task: Task, request: ClaimRequest, now: int) -> Claim | None:
    """Make the task running; None when it was cancelled since it was looked at."""
    token = _token(task.id, task.attempt + 1)
    running = task._replace(
        status="running", attempt=task.attempt + 1, lease_owner=request.owner, host=request.host, started_at=now,
        token_hash=hash_of(token), wait=None, stop_requested=None, pgid=None, pgid_mark=None,
    )  # fmt: skip
    params = {"id": task.id, "owner": request.owner, "host": request.host, "now": now, "token_hash": running.token_hash}
    if tx.run("task.claim", params) != 1:
        return None
    told = TaskStarted(agent=running.agent, owner=request.owner, host=request.host)
    tx.events.append(event(told, now, **meta(running)))
    if running.route:
        add_deliveries(tx, start_notice(running, now))
    return Claim(running, token)


_SECRET = secrets.token_bytes(32)


def _token(task_id: str, attempt: int) -> str:
    """A secret for one attempt, made from this process's own: no system call for each claim."""
    made = hashlib.blake2b(f"{task_id}/{attempt}".encode(), key=_SECRET, digest_size=24).hexdigest()
    return attempt_token(task_id, made)


def record_late(tx: Tx, late: Event) -> bool:
    if tx.row("event.has_late", {"task_id": late.task_id, "attempt": late.attempt}) is not None:
        return False
    tx.events.append(late)
    return True


def get(tx: Tx, task_id: str) -> Task | None:
    row = tx.row("task.get", {"id": task_id})
    return None if row is None else task_of(row)


def list_(tx: Tx, which: TaskFilter) -> list[Task]:
    params = {
        "before": which.before, "statuses": dumps(list(which.statuses)), "agent": which.agent,
        "session_key": which.session_key, "creator": which.creator, "limit": which.limit,
    }  # fmt: skip
    return [task_of(row) for row in tx.rows("task.list", params)]


def count(tx: Tx) -> Summary:
    found: Counter[str] = Counter(dict(tx.rows("task.count", {})))
    return Summary(found.total(), *(found[status] for status in STATUSES))


def running(tx: Tx, owner: str | None) -> list[Task]:
    return [task_of(row) for row in tx.rows("task.running", {"owner": owner})]


def gate_holder(tx: Tx, gate: str) -> str | None:
    row = tx.row("task.gate_holder", {"gate": gate})
    return None if row is None else str(row[0])


def dir_holder(tx: Tx, dir_key: str) -> str | None:
    row = tx.row("task.dir_holder", {"dir_key": dir_key})
    return None if row is None else str(row[0])


def open_events(tx: Tx, fence: Fence) -> list[Event]:
    opened: dict[str, Event] = {}
    for row in tx.rows("event.of_attempt", {"task_id": fence.task_id, "attempt": fence.attempt}):
        found = event_of(row)
        key = "turn" if found.kind.startswith("turn") else call_of(found)
        if found.kind.endswith(("_start", "_request")):
            opened[key] = found
        else:
            opened.pop(key, None)
    return list(opened.values())


def prune(tx: Tx, before: int, keep: int) -> int:
    gone = [{"id": row[0]} for row in tx.rows("task.prunable", {"before": before, "keep": keep})]
    for what in ("prune_steps", "prune_steers", "prune", "prune_deliveries", "prune_approvals"):
        tx.run_many(f"task.{what}", gone)
    return len(gone)


def spent(tx: Tx, asked: Asked) -> list[Spent]:
    wanted: dict[str, Any] = {part: part in asked.by for part in PARTS}
    wanted |= {"since": asked.since, "until": asked.until, "session_key": asked.session_key}
    return [
        Spent(*parts, *(int(count) for count in counts), *figures)
        for parts, counts, figures in ((row[:5], row[5:12], row[12:]) for row in tx.rows("task.spent", wanted))
    ]


def kin(tx: Tx, root_id: str) -> list[Task]:
    return [task_of(row) for row in tx.rows("task.kin", {"root": root_id})]


def failed(tx: Tx, since: int, limit: int) -> list[Task]:
    return [task_of(row) for row in tx.rows("task.failed", {"since": since, "limit": limit})]
