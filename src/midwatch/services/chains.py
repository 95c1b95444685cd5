"""The service of chains: fires triggers when other work ends and when events are written.

It gets the events of the log in order, some of them twice. The place of each trigger in the log is stored together with
its firing, so that an event counts once, even after a crash at any point.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, LimitReached, StoreError
from midwatch.domain.automation import Automation
from midwatch.domain.chain import (
    MOST_DEEP,
    TAG,
    End,
    Graph,
    Joined,
    explain_skip,
    group_parts,
    is_bad,
    is_bad_end,
    join_end,
    list_parts,
    merge_paths,
    read_outcome,
    read_skip,
    summarise,
    write_notice,
    write_payload,
)
from midwatch.domain.changes import Changes
from midwatch.domain.event import Event, parse_kinds
from midwatch.domain.identity import AnyActor
from midwatch.domain.notice import PlanNotices, keep_policy, notify
from midwatch.domain.payload_filter import find_unmet
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.domain.trigger import Trigger, write_state
from midwatch.services.authorization import authorize
from midwatch.services.automations import find_automation
from midwatch.services.chain_view import read_chain
from midwatch.services.triggers import Triggers

log = logging.getLogger("midwatch.triggers")

END_KINDS = ("task_finished", "automation_triggered", "automation_missed")
"""The kinds of events that mark the end of a part of a chain."""
MOST_STEPS = 20
"""How far a task is traced back to the task or the handoff that it continues."""
TOO_DEEP = f"its chain has {MOST_DEEP} automations already"


class Chains:
    """Service: fires triggers of the kinds after and event."""

    def __init__(self, store: Store, clock: Clock, triggers: Triggers, plan: PlanNotices = keep_policy) -> None:
        self._store = store
        self._clock = clock
        self._triggers = triggers
        self._plan = plan

    async def find_kinds(self) -> tuple[str, ...]:
        """Return the kinds of events that some trigger waits for; there are none without such triggers."""
        kinds: set[str] = set()
        for trigger in await self._store.list_triggers(("event", "after"), True):
            kinds |= set(END_KINDS if trigger.kind == "after" else trigger.options.get("kinds", ()))
        return tuple(sorted(kinds))

    async def take(self, events: Sequence[Event]) -> None:
        """Fire all triggers that wait for one of these events."""
        waiting: dict[str, list[Trigger]] = {}
        for event in events:
            if event.kind == "gap":
                log.warning("events were removed from the log before triggers had read them; some firings are missing")
                continue
            try:
                if event.kind in END_KINDS:
                    await self._take_end(event)
                if event.kind not in waiting:
                    waiting[event.kind] = await self._find_waiting(event.kind)
                for trigger in waiting[event.kind]:
                    if event.time >= trigger.created_at:
                        await self._take_event(event, trigger)
            except (StoreError, Conflict):  # the caller passes these events again
                raise
            except Exception:
                log.exception("event %s could not be given to all triggers", event.id)

    async def view(self, automation_id: str, *, actor: AnyActor = None) -> list[dict[str, Any]]:
        """Return the automations that are linked with an automation, also through others, with their last outcomes."""
        authorize(actor, "oversee")
        return await read_chain(self._store, await find_automation(self._store, automation_id))

    # -- after ---------------------------------------------------------------------------------------------------------

    async def _find_waiting(self, kind: str) -> list[Trigger]:
        """Return the triggers that wait for a kind of events."""
        named = await self._store.list_triggers_naming("event", (f'"{kind}"', "*"))
        return [each for each in named if parse_kinds(tuple(each.options.get("kinds", ()))).has(kind)]

    async def _take_end(self, event: Event) -> None:
        found = await self._find_ends(event)
        words = [json.dumps(end.part.removeprefix(TAG), ensure_ascii=False) for end in found]
        triggers = await self._store.list_triggers_naming("after", words) if words else []
        graph = read_graph(await self._store.list_triggers(["after"], True)) if triggers else {}
        for trigger in triggers:
            parts = list_parts(trigger.options)
            own = any(trigger.automation_id in end.path for end in found)  # its own run may have such a tag
            ends = [end for end in found if end.part in parts and not (own and end.part.startswith(TAG))]
            if ends and event.time >= trigger.created_at:
                await self._join(trigger, ends, event.seq, graph)

    async def _find_ends(self, event: Event) -> list[End]:
        """Return the ends that an event marks: of an automation, and of each tag of its task."""
        if event.kind == "task_finished":
            task = await self._store.get_task(event.task_id) if event.task_id else None
            task = await self._find_source(task) if task else None
            return await self._end_task(task) if task else []
        firing_id = event.payload.get("firing_id")
        if firing_id is None or (event.kind == "automation_triggered" and not event.payload.get("skipped")):
            return []
        firing = await self._store.get_firing(str(firing_id))
        automation = await self._store.get_automation(firing.automation_id) if firing else None
        if firing is None or automation is None or firing.status != "skipped":
            return []
        end = End(
            automation.id, firing.id, automation.label, "skipped", firing.chain_id or firing.id, firing.path,
            firing.reason or "", *read_skip(firing.payload if firing.kind == "after" else None, automation.label),
        )  # fmt: skip
        return [end]

    async def _find_source(self, task: Task) -> Task | None:
        """Return the task whose work has ended: after a transfer it is the first one, with the end of the last."""
        ended = task
        for _ in range(MOST_STEPS):
            if task.outcome == "transferred" and task is ended:
                return None
            handoff = (
                await self._store.get_handoff(task.cause_id) if task.cause == "handoff" and task.cause_id else None
            )
            source = await self._store.get_task(handoff.source_task) if handoff and handoff.source_task else None
            if source is None or source.transferred_to != task.id:
                break
            task = source
        names = ("status", "outcome", "result", "error", "completed_at")
        return task._replace(**{name: getattr(ended, name) for name in names})

    async def _end_task(self, task: Task) -> list[End]:
        outcome = read_outcome(task.outcome)
        bad = is_bad_end(outcome, task.error)
        chain_id, path = await self.trace(task)
        ends = []
        if task.cause == "automation" and task.cause_id:
            automation = await self._store.get_automation(task.cause_id)
            title = automation.label if automation else task.cause_id
            ends.append(End(task.cause_id, task.id, title, outcome, chain_id, path, bad=bad))
        return ends + [
            End(TAG + tag, task.id, f"{task.id} ({tag})", outcome, chain_id, path, bad=bad) for tag in task.tags or ()
        ]

    async def trace(self, task: Task) -> tuple[str, tuple[str, ...]]:
        """Return the chain of a task and the automations that led to it. A retry belongs to the chain of its task."""
        own = (task.cause_id,) if task.cause == "automation" and task.cause_id else ()
        first = task.retry_of or task.id
        firing = await self._store.find_firing_of(first)
        if firing is None:
            return first, own
        return firing.chain_id or firing.id, merge_paths((firing.path, own))

    async def _join(self, trigger: Trigger, ends: Sequence[End], seq: int, graph: Graph) -> None:
        """Record the end of parts of a trigger, and fire the trigger if all its parts have ended."""
        parts, end = list_parts(trigger.options), ends[-1]
        if len(parts) == 1:
            _, joined = join_end(None, trigger.options, [parts], end)
            assert joined is not None
            await self._fire_after(trigger, joined, end, graph, Changes())
            return
        fresh = await self._store.get_trigger(trigger.id)
        if fresh is None or fresh.options != trigger.options or seq <= (fresh.state or {}).get("seq", -1):
            return
        groups = group_parts(parts, graph)
        state, joined = fresh.state, None
        for each in (*ends, *await self._find_missing(parts, end)):
            state, now_joined = join_end(state, trigger.options, groups, each)
            joined = now_joined or joined
        step = write_state(fresh, {**(state or {}), "seq": seq}, self._clock.now())
        if joined is None or not await self._fire_after(trigger, joined, end, graph, step):
            await self._store.apply(step)

    async def _find_missing(self, parts: Sequence[str], end: End) -> list[End]:
        """Return an end for each part that is deleted, so that nothing waits for it."""
        gone = []
        for part in parts:
            if part != end.part and not part.startswith(TAG):
                automation = await self._store.get_automation(part)
                if automation is None or automation.status == "deleted":
                    title = automation.label if automation else part
                    gone_id = f"gone:{part}:{end.chain_id}"
                    gone.append(End(part, gone_id, title, "skipped", end.chain_id, (), "it is deleted", (title,), True))
        return gone

    async def _fire_after(self, trigger: Trigger, joined: Joined, end: End, graph: Graph, also: Changes) -> bool:
        """Store the firing for some ends; return whether this call stored it, together with `also`."""
        automation = await self._store.get_automation(trigger.automation_id)
        if automation is None or await self._store.find_firing(trigger.id, joined.key):
            return False
        path = merge_paths([each.path for each in joined.ends])
        reason = None if joined.runs else explain_skip(joined.ends, trigger.options)
        reason = reason or (TOO_DEEP if len(path) >= MOST_DEEP else None)
        not_run = merge_paths([each.not_run for each in joined.ends])
        bad = joined.runs or is_bad(joined.ends, trigger.options)
        results = {each.id: await self._find_result(each) for each in joined.ends}
        if (
            reason
            and bad
            and automation.status == "active"
            and not any(automation.id in names for names in graph.values())
        ):
            also = also.plus(self._notify(automation, reason, not_run, joined.key))
        recorded = await self._triggers.fire(
            trigger, key=joined.key, summary=summarise(joined.ends), skipped=reason, chain_id=end.chain_id, path=path,
            payload=write_payload(joined.ends, results, {"not_run": not_run, "bad": bad} if reason else None),
            also=also, limited=False,
        )  # fmt: skip
        return recorded.created

    def _notify(self, automation: Automation, reason: str, not_run: Sequence[str], key: str) -> Changes:
        text = write_notice(automation.label, reason, not_run, automation.id)
        plan = self._plan(automation.route, automation.notices)
        notices = notify(automation.route, plan, automation.id, f"chain_ended:{key}", text, self._clock.now())
        return Changes(deliveries=notices)

    async def _find_result(self, end: End) -> str | None:
        task = await self._store.get_task(end.id) if end.id.startswith("t_") else None
        for _ in range(MOST_STEPS):
            if task is None or task.transferred_to is None:
                break
            task = await self._store.get_task(task.transferred_to)
        return (task.result or task.error) if task else None

    # -- events --------------------------------------------------------------------------------------------------------

    async def _take_event(self, event: Event, trigger: Trigger) -> None:
        shown = event.snapshot()
        if find_unmet(trigger.options.get("filter", ()), shown, {}) is not None:
            return
        automation = await self._store.get_automation(trigger.automation_id)
        if automation is None or automation.status != "active":
            return
        chain_id, path = await self._trace_event(event)
        if automation.id in path or (event.task_id is None and _is_session_of(automation, event.session_key)):
            return
        about = f"{event.kind} {event.task_id or event.session_key or ''}".strip()
        try:
            await self._triggers.fire(
                trigger, key=event.id, summary=about, payload=_write_event(shown), chain_id=chain_id, path=path,
                skipped=TOO_DEEP if len(path) >= MOST_DEEP else None,
            )  # fmt: skip
        except LimitReached as problem:
            log.warning("event %s starts no run: %s", event.id, problem)

    async def _trace_event(self, event: Event) -> tuple[str | None, tuple[str, ...]]:
        """Return the chain of an event and the automations that it stems from, also through other tasks."""
        named = [event.payload.get("automation_id"), event.payload.get("subject"), event.task_id]
        paths: list[Sequence[str]] = [[str(name) for name in named if str(name).startswith("am_")]]
        chain_id: str | None = None
        if firing_id := event.payload.get("firing_id"):
            firing = await self._store.get_firing(str(firing_id))
            if firing is not None:
                chain_id = firing.chain_id
                paths.append(firing.path)
        ids = [*(event.trace_path or "").split("/")[-MOST_STEPS:], event.task_id, event.payload.get("task_id")]
        for task_id in dict.fromkeys(str(name) for name in ids if name):
            task = await self._store.get_task(task_id) if task_id.startswith("t_") else None
            if task is not None:
                found, path = await self.trace(task)
                chain_id = chain_id or (found if path else None)
                paths.append(path)
        return chain_id, merge_paths(paths)


def read_graph(triggers: Collection[Trigger]) -> dict[str, list[str]]:
    """Return for each automation after which others it starts."""
    graph: dict[str, list[str]] = {}
    for trigger in triggers:
        graph.setdefault(trigger.automation_id, []).extend(trigger.options.get("automations", ()))
    return graph


def _is_session_of(automation: Automation, key: str | None) -> bool:
    return key is not None and key.partition("|")[0] == automation.session_key


def _write_event(shown: Mapping[str, Any]) -> str:
    return json.dumps(shown, ensure_ascii=False, default=str, indent=1)
