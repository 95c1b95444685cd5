"""Tasks: submit, claim, read, count, prune."""

from __future__ import annotations

import hashlib
import secrets
import time
from functools import cached_property

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict, KeyReused, LimitReached
from midwatch.domain import task as steps
from midwatch.domain.changes import Changes, Fence
from midwatch.domain.claiming import ClaimRequest, FreeSlots
from midwatch.domain.event import Event, TaskStarted, call_of, event
from midwatch.domain.identity import attempt_token, hash_of
from midwatch.domain.listing import Listing
from midwatch.domain.notice import start_notice
from midwatch.domain.store import STEP_SECONDS
from midwatch.domain.task import OPEN, Task
from midwatch.domain.task_store import Claim, Claims, SubmitResult, Summary, TaskFilter
from midwatch.stores.rows import decode_task, dumps, get_values
from midwatch.stores.verbs import account, usage
from midwatch.stores.verbs.changes import add_deliveries, apply
from midwatch.stores.verbs.listing import list_page
from midwatch.stores.verbs.tx import Move, Tx

UNFINISHED = frozenset({"failed", "cancelled"})
TESTED_BY = {"statuses": ("open",), "session_key": ("session",), "creator": ("creator",), "agent": ("agent",)}
"""For each field of a filter, the paths whose tasks all match it."""
PRUNE_STEP = 200
"""Maximum number of tasks removed in one transaction, for each of the two reasons."""
PRUNE_PAGE = 20
"""Number of tasks that pruning removes before it checks how much of its time is used."""
LONGEST_DAY = 2 * 86400 * SECOND
"""The account of a day is kept this much longer than tasks: then the day is over on every host, in every time zone."""


def submit(
    tx: Tx, task: Task, max_open: int | None = None, max_of_actor: int | None = None, also: Changes | None = None
) -> SubmitResult:
    if task.idempotency_key is not None:
        first = find_key(tx, task.creator, task.idempotency_key)
        if first is not None:
            if first.body_hash != task.body_hash:
                raise KeyReused(task.idempotency_key, f"task {first.id}")
            return SubmitResult(first, created=False)
        if row := tx.row("steer.find_key", {"actor": task.creator or "", "key": task.idempotency_key}):
            raise KeyReused(task.idempotency_key, f"message {row[0]}")
    if max_open is not None:
        count = tx.count_once(None, "task.count_outside", most=max_open)
        _check_limit(count, max_open, "tasks", "max_open")
    if max_of_actor is not None:
        count = tx.count_once(task.actor, "task.count_outside_of", actor=task.actor, most=max_of_actor)
        tasks = f"tasks of {task.actor}" if task.actor else "tasks without an actor"
        _check_limit(count, max_of_actor, tasks, "max_open_per_actor")
    if steps.has_conversation(task) and not check_open(tx, task.session_key):
        tx.run("session.ensure", get_values(steps.touch_session(task, task.created_at)))
    apply(tx, steps.submit_task(task, task.created_at))
    if also is not None:
        apply(tx, also)
    for whose in tx.counts.keys() & {None, task.actor}:
        tx.counts[whose] += task.cause in steps.OUTSIDE
    if task.cause == "message" and tx.run("task.ask_to_yield", {"gate": task.gate_key}):
        tx.topics.add("stop")
    return SubmitResult(task, created=True)


def find_key(tx: Tx, creator: str | None, key: str) -> Task | None:
    """Return the task that this creator submitted with this idempotency key, or None."""
    return tx.find(Task, "task.find_key", creator=creator or "", key=key)


def check_open(tx: Tx, key: str) -> bool:
    """Return whether the session with this key exists. Raise Conflict if the session is closed."""
    status = tx.value(str, "session.status", key=key)
    if status == "closed":
        raise Conflict(f"session {key} is closed; to open it again, create it with the same key.")
    return status is not None


def _check_limit(count: int, most: int, tasks: str, setting: str) -> None:
    if count >= most:
        raise LimitReached(
            f"{most} {tasks} are open already; wait until some end, cancel some, or raise the setting `{setting}`."
        )


def claim(tx: Tx, request: ClaimRequest, now: int) -> Claims:
    search, claims = _Search(tx, request, now), list[Claim]()
    while search.free_slots.agents():
        chosen, contested = search.choose_in_order()
        claims += _claim_tasks(tx, chosen, request, now)
        if contested is None or (fairest := search.choose_fairest(contested)) is None:
            break
        claims += _claim_tasks(tx, [fairest], request, now)
    if len(claims) == request.free:
        return Claims(claims, None)
    tx.topics.discard("task")  # nothing is left to claim of what this transaction has stored so far
    return Claims(claims, tx.value(int, "task.next_due", now=now))


class _Search:
    """A search for tasks to claim: in claim order, but fair if tasks of several actors wait and slots are scarce."""

    def __init__(self, tx: Tx, request: ClaimRequest, now: int) -> None:
        self.free_slots = FreeSlots(request)
        self._tx = tx
        self._terms = {
            "now": now, "owner": request.owner, "own_only": request.own_only, "leave": dumps(list(request.leave)),
            "free": request.free,
        }  # fmt: skip

    def choose_in_order(self) -> tuple[list[Task], Task | None]:
        """Return the next tasks in claim order, up to the first contested task; and that task, or None.

        A task is contested if tasks of several actors want its slot. `choose_fairest` decides which task gets it.
        """
        free_slots, chosen, gates, places = self.free_slots, list[Task](), set[str](), set[str | None]()
        agents = free_slots.agents()
        for row in self._tx.rows("task.claimable", {**self._terms, "agents": dumps(agents)}):
            task, several = decode_task(row[:-1]), row[-1]
            if task.gate_key in gates or task.agent not in agents or (task.dir_key and task.dir_key in places):
                continue
            if task.cause == "goal" and task.agent in free_slots.agents_with_last_slot():
                continue
            if free_slots.full(task.actor) or (several and self._is_scarce(task.agent)):
                return chosen, task
            gates.add(task.gate_key)
            places.add(task.dir_key)
            free_slots.take(task)
            chosen.append(task)
            if not (agents := free_slots.agents()):
                break
        return chosen, None

    def choose_fairest(self, contested: Task) -> Task | None:
        """Return the task that gets the slot, or None: the contested task, or the first task of another actor."""
        actors = [actor for actor in self._actors if not self.free_slots.full(actor)]
        wide = self.free_slots.full(contested.actor) or self.free_slots.scarce(None, len(actors))
        agents = self.free_slots.agents() if wide else [contested.agent]
        last = self.free_slots.agents_with_last_slot()
        lists = {"actors": dumps(actors), "agents": dumps(agents), "last": dumps(last)}
        heads = self._tx.find_all(Task, "task.heads", **self._terms, **lists)
        fairest = self.free_slots.choose_fairest(sorted(heads, key=lambda task: (task.rank, task.due_at, task.id)))
        if fairest is not None:
            self.free_slots.take(fairest)
        return fairest

    def _is_scarce(self, agent: str) -> bool:
        waiting = len(self._actors)
        return self.free_slots.scarce(None, waiting) or self.free_slots.scarce(agent, waiting)

    @cached_property
    def _actors(self) -> list[str]:
        return [row[0] for row in self._tx.rows("task.waiting_actors", {})]


def _claim_tasks(tx: Tx, tasks: list[Task], request: ClaimRequest, now: int) -> list[Claim]:
    """Set tasks to running. Nobody can change them meanwhile, because this transaction has locked them."""
    claims, changed = [], []
    for task in tasks:
        token = _make_token(task.id, task.attempt + 1)
        fields = {
            "status": "running", "attempt": task.attempt + 1, "lease_owner": request.owner, "host": request.host,
            "started_at": now, "token_hash": hash_of(token), "wait": None, "stop_requested": None, "pgid": None,
            "pgid_mark": None,
        }  # fmt: skip
        running = steps.change(task, fields)
        started = TaskStarted(agent=running.agent, owner=request.owner, host=request.host)
        tx.events.append(event(started, now, **steps.meta(running)))
        if running.route:
            add_deliveries(tx, start_notice(running, now))
        tx.moves.append(Move(task.id, "pending", "running"))
        claims.append(Claim(running, token))
        changed.append({**fields, "id": task.id})
    tx.run_many("task.claim", changed)
    return claims


_SECRET = secrets.token_bytes(32)


def _make_token(task_id: str, attempt: int) -> str:
    """Return the token of an attempt. It is computed from a secret of this process, because this is fast."""
    digest = hashlib.blake2b(f"{task_id}/{attempt}".encode(), key=_SECRET, digest_size=24)
    return attempt_token(task_id, digest.hexdigest())


def record_late(tx: Tx, late: Event) -> bool:
    if tx.row("event.has_late", {"task_id": late.task_id, "attempt": late.attempt}) is not None:
        return False
    tx.events.append(late)
    return True


def get(tx: Tx, task_id: str) -> Task | None:
    return tx.find(Task, "task.get", id=task_id)


def list_(tx: Tx, which: TaskFilter) -> Listing[Task]:
    path = _choose_path(which)
    params = {
        "statuses": dumps(which.statuses), "agent": which.agent, "session_key": which.session_key,
        "creator": which.creator,
    }  # fmt: skip
    filtered = any(getattr(which, name) for name in TESTED_BY if path not in TESTED_BY[name])
    return list_page(tx, Task, f"task.{path}", params, before=which.before, limit=which.limit, filtered=filtered)


def _choose_path(which: TaskFilter) -> str:
    """Return the path of `midwatch.stores.sql.PATHS` that probably finds the fewest tasks for a filter."""
    if which.statuses and OPEN.issuperset(which.statuses):
        return "open"
    if which.session_key is not None:
        return "session"
    if which.creator is not None:
        return "creator"
    if which.statuses and UNFINISHED.issuperset(which.statuses):
        return "unfinished"
    return "all" if which.agent is None else "agent"


def list_running(tx: Tx, owner: str | None = None) -> list[Task]:
    return tx.find_all(Task, "task.running", owner=owner)


def list_related(tx: Tx, root_id: str) -> list[Task]:
    return tx.find_all(Task, "task.related", root=root_id)


def list_failed(tx: Tx, since: int, limit: int = 10) -> list[Task]:
    return tx.find_all(Task, "task.failed", since=since, limit=limit)


def count(tx: Tx) -> Summary:
    counts = tx.row("task.count", {})
    assert counts is not None
    return Summary(sum(counts), *counts)


def find_gate_holder(tx: Tx, gate: str) -> str | None:
    return tx.value(str, "task.gate_holder", gate=gate)


def find_dir_holder(tx: Tx, dir_key: str) -> str | None:
    return tx.value(str, "task.dir_holder", dir_key=dir_key)


def list_open_events(tx: Tx, fence: Fence) -> list[Event]:
    opened: dict[str, Event] = {}
    for stored in tx.find_all(Event, "event.of_attempt", task_id=fence.task_id, attempt=fence.attempt):
        key = "turn" if stored.kind.startswith("turn") else call_of(stored)
        if stored.kind.endswith(("_start", "_request")):
            opened[key] = stored
        else:
            opened.pop(key, None)
    return list(opened.values())


def prune(tx: Tx, before: int, keep: int, seconds: float = STEP_SECONDS) -> int:
    counts = count(tx)
    too_many = max(0, counts.total - counts.active - keep)
    limits = {"before": before, "step": PRUNE_STEP, "too_many": min(too_many, PRUNE_STEP)}
    ids = [row[0] for row in tx.rows("task.prunable", limits)]
    deadline, removed = time.perf_counter() + seconds, 0
    while removed < len(ids) and (not removed or time.perf_counter() < deadline):
        page = ids[removed : removed + PRUNE_PAGE]
        for part in ("steps", "steers", "results", "waiting", "taken", "deliveries", "approvals"):
            tx.run_many(f"task.prune_{part}", [{"id": task_id} for task_id in page])
        rows = list(tx.rows("task.prune", {"ids": dumps(page)}))
        tx.moves += [Move(task_id, status, None) for task_id, status, _, _ in rows]
        account.prune(tx, {name for task_id, _, *others in rows for name in (task_id, *others) if name})
        removed += len(page)
    if not ids:
        tx.run("account.prune_days", {"before": before - LONGEST_DAY})
        usage.prune(tx)
    return removed
