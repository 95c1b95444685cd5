"""Notices: which notices about a task, an automation or a goal are sent, when, and what they say.

A policy is a word such as `result` or `digest:daily@08:00`. A plan says which policy each channel of a route has: one
word for all channels, and a word `channel=policy` for each channel with a policy of its own. In a digest the plan also
has the time zone, `digest:daily@08:00/Europe/Berlin`. A task stores its plan and, on a second line, its title.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from midwatch.base.errors import InvalidInput
from midwatch.base.ids import new_id
from midwatch.base.schedule import Schedule, next_run_at
from midwatch.base.text import cut
from midwatch.domain.budget import Over
from midwatch.domain.channel import PROMPT_SHOWN, TEXT_SHOWN, Delivery, read_routes
from midwatch.domain.probe import waits_for_command

Kind = Literal["start", "result", "failure", "urgent"]
CheckRoute = Callable[[str | Sequence[str]], str]
"""Returns the text to store for one or several routes, or raises InvalidInput."""
PlanNotices = Callable[[str | None, str | None], str | None]
"""Returns the plan for a stored route and of the policy that a request or a record names, if it names one."""

DEFAULT = "result"
DIGEST = "digest:"
DIGEST_AT = "08:00"
POLICIES = ("all", "result", "changes", "failures", "questions", "digest:hourly", "digest:daily", "off")
CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_DAILY = re.compile(rf"digest:daily@{CLOCK}")
KINDS: Mapping[str, Kind] = {
    "started": "start", "done": "result", "cancelled": "result", "goal_completed": "result",
    "goal_progress": "result", "failed": "failure",
    "timed_out": "failure", "goal_timeout": "failure", "chain_ended": "failure",
}  # fmt: skip
"""The kinds of notices. All others are urgent: questions, pauses, warnings, and alerts."""
_ENDS: frozenset[Kind] = frozenset({"result", "failure", "urgent"})
TOLD: Mapping[str, frozenset[Kind]] = {
    "all": _ENDS | {"start"}, "result": _ENDS, "changes": _ENDS, "failures": frozenset({"failure", "urgent"}),
    "questions": frozenset({"urgent"}), "digest:hourly": _ENDS, "digest:daily": _ENDS, "off": frozenset(),
}  # fmt: skip
DIGESTED = tuple(notice for notice, kind in KINDS.items() if kind in ("result", "failure"))
"""The notices that a digest may contain."""
RANK: Mapping[Kind, int] = {"urgent": 0, "failure": 1, "result": 2, "start": 3}
TITLE_SHOWN = 100
PART_SHOWN, MOST_PARTS = 300, 20
"""How much of each notice a digest shows, and how many notices."""


class Told(Protocol):
    """What notices tell of a task: some fields of `midwatch.domain.task.Task`, which imports this module."""

    @property
    def id(self) -> str:
        """Return the id of the task."""

    @property
    def agent(self) -> str:
        """Return the name of its agent."""

    @property
    def prompt(self) -> str:
        """Return its prompt."""

    @property
    def cause(self) -> str:
        """Return why it was created."""

    @property
    def quiet(self) -> str | None:
        """Return the answer that is not told."""

    @property
    def probe(self) -> Mapping[str, Any] | None:
        """Return the command that runs before or after its turn."""

    @property
    def route(self) -> str | None:
        """Return its routes, as they are stored."""

    @property
    def notices(self) -> str | None:
        """Return its plan and its title."""

    @property
    def status(self) -> str:
        """Return its status."""

    @property
    def outcome(self) -> str | None:
        """Return how it ended."""

    @property
    def result(self) -> str | None:
        """Return its result."""

    @property
    def error(self) -> str | None:
        """Return its error."""

    @property
    def transferred_to(self) -> str | None:
        """Return the task that continues its work."""

    @property
    def again(self) -> str:
        """Return the command that retries it."""


# -- policies ----------------------------------------------------------------------------------------------------------


def check_notices(text: str | None) -> str | None:
    """Return the policy in `text`, or None if it is empty. Raise InvalidInput if there is no such policy."""
    policy = (text or "").strip().lower()
    if policy and policy not in POLICIES and not _DAILY.fullmatch(policy):
        names = ", ".join(POLICIES)
        raise InvalidInput(f"`notices` must be one of: {names}; or digest:daily@HH:MM.", field="notices")
    return policy or None


def complete_policy(policy: str, zone: str, digest_at: str = DIGEST_AT) -> str:
    """Return a policy as a plan has it: a digest with its time and its time zone."""
    if not policy.startswith(DIGEST) or "/" in policy:
        return policy
    return f"{policy}@{digest_at}/{zone}" if policy == "digest:daily" else f"{policy}/{zone}"


def policy_of(plan: str | None, channel: str) -> str:
    """Return the policy that a plan has for a channel; without a plan the built-in default."""
    if not plan:
        return DEFAULT
    chosen = DEFAULT
    for word in plan.partition("\n")[0].split():
        name, equals, policy = word.partition("=")
        if not equals:
            chosen = word
        elif name == channel:
            return policy
    return chosen


def kind_of(notice: str) -> Kind:
    """Return the kind of a notice."""
    return KINDS.get(notice.partition(":")[0], "urgent")


def due_of(policy: str, notice: str, now: int) -> int | None:
    """Return when a notice is due under a policy, or None if the policy does not send it."""
    kind, base = kind_of(notice), policy.partition("/")[0].partition("@")[0]
    if kind not in TOLD.get(base, TOLD[DEFAULT]):
        return None
    return _next_digest(policy, now) if base.startswith(DIGEST) and kind != "urgent" else now


def _next_digest(policy: str, now: int) -> int:
    name, _, zone = policy.partition("/")
    hour, _, minute = (name.partition("@")[2] or DIGEST_AT).partition(":")
    cron = "0 * * * *" if name == "digest:hourly" else f"{minute} {hour} * * *"
    try:
        at = next_run_at(Schedule(zone=zone or "UTC", cron=cron), now)
    except InvalidInput:  # another machine had this time zone
        at = next_run_at(Schedule(zone="UTC", cron=cron), now)
    return now if at is None else at


def limit_to_questions(plan: str | None) -> str:
    """Return a plan that sends only questions and other urgent notices, and nothing to channels that are off."""
    off = [word for word in (plan or "").split() if word.endswith("=off")]
    return " ".join([*off, "questions"])


def keep_policy(route: str | None, policy: str | None) -> str | None:
    """Return the plan of a desk whose channels have no policies of their own."""
    return complete_policy(policy, "UTC") if route and policy else None


# -- titles ------------------------------------------------------------------------------------------------------------


def show_plan(notices: str | None) -> str | None:
    """Return the plan of a task as people see it, without the title and the time zone of a digest."""
    words = (notices or "").partition("\n")[0].split()
    return " ".join(word.partition("/")[0] for word in words) or None


def plan_of(notices: str | None) -> str | None:
    """Return the plan of a task, without the title."""
    return (notices or "").partition("\n")[0] or None


def add_title(plan: str | None, title: str) -> str:
    """Return the field `notices` of a task with this plan and title. A title that is there already stays."""
    words, _, present = (plan or "").partition("\n")
    return f"{words}\n{present or first_line(title)}"


def first_line(text: str) -> str:
    """Return the beginning of the first line of a text."""
    return cut(text.strip().partition("\n")[0].rstrip(), TITLE_SHOWN)


def title_of(task: Told) -> str:
    """Return the title of the work of a task: that of its automation or handoff, or the first line of its prompt."""
    title = (task.notices or "").partition("\n")[2]
    return title or cut(first_line(task.prompt), PROMPT_SHOWN)


def pass_on(task: Told) -> str | None:
    """Return the field `notices` for work that a task starts. Its results are told, even if a chat's are not."""
    chat = task.cause == "message" and (plan_of(task.notices) or "").endswith("questions")
    return None if chat else task.notices


# -- notices -----------------------------------------------------------------------------------------------------------


def notify(route: str | None, plan: str | None, about: str, notice: str, text: str, now: int) -> tuple[Delivery, ...]:
    """Return the deliveries of a notice about a task, a goal or an automation: one for each route that is told."""
    if not route:
        return ()
    deliveries = []
    for channel, target in read_routes(route):
        policy = policy_of(plan, channel)
        due = due_of(policy, notice, now)
        if due is not None:
            delivery = Delivery(
                id=new_id("d", now), task_id=about, channel=channel, target=target, notice=notice, text=text,
                policy=policy.partition("/")[0], due_at=due, created_at=now,
            )  # fmt: skip
            deliveries.append(delivery)
    return tuple(deliveries)


def make_notices(task: Told, notice: str, text: str, now: int) -> tuple[Delivery, ...]:
    """Return the deliveries of a notice about `task`; none if it has no route."""
    return notify(task.route, task.notices, task.id, notice, text, now)


def start_notice(task: Told, now: int) -> tuple[Delivery, ...]:
    """Return the deliveries of the notice that work on the task has begun; none if nobody should get it."""
    # the first agent's start notice was sent; a command may still skip the task
    if not task.route or task.quiet or task.cause == "handoff" or waits_for_command(task.probe):
        return ()
    return make_notices(task, "started", f"Started: {title_of(task)}\n{task.id} with {task.agent}", now)


def end_notice(task: Told, now: int, over: Over | None = None) -> tuple[Delivery, ...]:
    """Return the deliveries of the notice that the task ended, with the command for the next step.

    If the task was stopped by its budget, `over` is the limit that was reached.
    """
    if not task.route or task.outcome in ("silent", "skipped") or task.transferred_to:
        return ()
    notice = "timed_out" if task.outcome == "timeout" else task.status
    told = task.result if task.status == "done" else task.error
    again = task.again.replace("MORE", over.raised) if over is not None else task.again
    text = end_text(notice, task.id, title_of(task), told or "", again)
    return make_notices(task, notice, text, now)


def end_text(notice: str, task_id: str, title: str, text: str, again: str) -> str:
    """Return the text of the notice that work ended, with the command for the next step."""
    head = f"{notice.replace('_', ' ').capitalize()}: {title}"
    body = f"\n{cut(text, TEXT_SHOWN)}" if text else ""
    last_line = f"Full result: midwatch result {task_id}" if notice == "done" else f"Try again: {again}"
    return f"{head}{body}\n{last_line}"


def is_repeated(run: Told, status: str, result: str | None) -> bool:
    """Return whether a run has the same result as an earlier one, apart from blanks and upper and lower case."""
    return status == "done" and (run.result or "").casefold().split() == (result or "").casefold().split()


# -- digests -----------------------------------------------------------------------------------------------------------


def is_digest(delivery: Delivery) -> bool:
    """Return whether a delivery is sent as a part of a digest."""
    return (delivery.policy or "").startswith(DIGEST) and kind_of(delivery.notice) != "urgent"


def merge_digest(parts: Sequence[Delivery]) -> Delivery:
    """Return the message of a digest: its notices as one delivery, the most important first, with the digest's id."""
    first = parts[0]
    digest_id = first.digest_id or first.id
    if len(parts) == 1:
        return replace(first, id=digest_id)
    ordered = sorted(parts, key=lambda part: (RANK[kind_of(part.notice)], part.created_at, part.id))
    failures = sum(kind_of(part.notice) == "failure" for part in parts)
    head = f"{len(parts)} notices" + (f", {failures} of them about failures" if failures else "")
    texts = [head, *(cut(part.text, PART_SHOWN) for part in ordered[:MOST_PARTS])]
    if len(parts) > MOST_PARTS:
        texts.append(f"{len(parts) - MOST_PARTS} more: midwatch deliveries --limit {min(len(parts), 500)}")
    return replace(first, id=digest_id, notice="digest", text="\n\n".join(texts))
