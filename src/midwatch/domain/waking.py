"""Waking: the result of background work begins a turn of the agent that started the work, if the agent asked for it."""

from __future__ import annotations

from midwatch.domain.changes import Changes
from midwatch.domain.context_item import ContextItem
from midwatch.domain.event import LoopError, event
from midwatch.domain.lineage import derive, own_budget
from midwatch.domain.notice import pass_on
from midwatch.domain.session import Message, announce_message
from midwatch.domain.task import Task, has_conversation, meta, new_task, submit_task

MOST_WAKES = 32
"""How many turns results may begin among the tasks that come from one first task."""
PROMPT = (
    "Background work that you started has ended, and you asked to be told. Its results come with this message. Go on "
    "with your work. If nothing is left to do, say so in one sentence."
)
TOO_OFTEN = (
    f"The result of {{}} began no turn: results have begun {MOST_WAKES} turns of this work already. The agent gets it, "
    "and all later results, with the next messages; send one if the work should go on."
)


def wake_starter(starter: Task, agent: str, item: ContextItem, key: str, now: int) -> Changes:
    """Return the step that submits a turn for a result, in the session of the task that started the work.

    `agent` is the agent of this session now. `key` makes the turn unique. The count of messages begins with 1, so that
    the end of the turn looks for results that the turn has not taken.
    """
    task = new_task(
        now, PROMPT, agent, starter.session_key, cause="result", cause_id=item.from_task, parent_id=starter.id,
        internal_key=f"wake:{key}", steers=1, budget=own_budget(starter) if agent == starter.agent else None,
        worktree={"id": starter.worktree["id"]} if starter.worktree else None,
        notices=pass_on(starter), **{name: getattr(starter, name) for name in KEPT_FIELDS},
    )  # fmt: skip
    return submit_task(derive(task, starter, "wake"), now)


def refuse_wake(starter: Task, item: ContextItem, now: int) -> Changes:
    """Return the step that tells people that a result began no turn, because too many results have begun one."""
    text = TOO_OFTEN.format(item.from_task)
    problem = event(LoopError(stage="wake", message=text), now, **meta(starter))
    if not has_conversation(starter):
        return Changes(events=(problem,))
    notice = Message(
        session_key=starter.session_key, role="notice", text=text, time=now, task_id=starter.id, id=f"{item.id}.wake"
    )  # fmt: skip
    return Changes(messages=(notice,), events=(announce_message(notice, **meta(starter)), problem))


KEPT_FIELDS = (
    "creator", "priority", "origin_channel", "origin_session", "route", "workdir", "pin", "dir_key",
    "timeout_seconds", "on_crash", "max_attempts", "submitter", "on_budget", "root_id", "trace", "returns_to",
    "returns", "approvals",
)  # fmt: skip
