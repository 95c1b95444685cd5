"""Test which notices each policy sends, when, and what they say."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import InvalidInput
from midwatch.domain.agent import Question
from midwatch.domain.approval import ask
from midwatch.domain.channel import Delivery, hide_target, join_routes, name_again, read_routes
from midwatch.domain.notice import POLICIES, check_notices, complete_policy, end_notice, merge_digest, start_notice
from midwatch.domain.task import Task, end, new_task

ZONE = ZoneInfo("Asia/Kolkata")  # its full hours are half hours of UTC
NOW = int(datetime(2026, 3, 1, 9, 40, tzinfo=ZONE).timestamp()) * SECOND
HOUR = int(datetime(2026, 3, 1, 10, 0, tzinfo=ZONE).timestamp()) * SECOND
MORNING = int(datetime(2026, 3, 2, 8, 0, tzinfo=ZONE).timestamp()) * SECOND

OUTCOMES: dict[str, dict[str, Any]] = {
    "done": {"outcome": "ok", "result": "fine"},
    "cancelled": {"outcome": "cancelled"},
    "error": {"outcome": "error", "error": "no"},
    "timeout": {"outcome": "timeout", "error": "too long"},
    "lost": {"outcome": "lost", "error": "its process ended"},
    "budget": {"outcome": "budget", "error": "spent"},
    "silent": {"outcome": "silent", "result": "NOTHING"},
}
FAILED = ("error", "timeout", "lost", "budget")
ENDED = ("done", "cancelled", *FAILED)
SENT: dict[str, dict[str, int]] = {
    "all": dict.fromkeys(("started", *ENDED, "asked"), NOW),
    "result": dict.fromkeys((*ENDED, "asked"), NOW),
    "changes": dict.fromkeys((*ENDED, "asked"), NOW),
    "failures": dict.fromkeys((*FAILED, "asked"), NOW),
    "questions": {"asked": NOW},
    "digest:hourly": dict.fromkeys(ENDED, HOUR) | {"asked": NOW},
    "digest:daily": dict.fromkeys(ENDED, MORNING) | {"asked": NOW},
    "off": {},
}
"""For each policy, the notices that it sends, with the time at which they are due."""


def build_task(**fields: Any) -> Task:
    return new_task(NOW, "Look at the logs\nand report", "shell", task_id="t_1", **{"route": "phone"} | fields)


def test_each_policy_sends_its_notices_in_time() -> None:
    assert SENT.keys() == set(POLICIES)
    for policy, expected in SENT.items():
        task = build_task(notices=complete_policy(policy, ZONE.key))._replace(status="running", attempt=1)
        sent = {"started": start_notice(task, NOW), "asked": ask(task, Question(text="May I?"), 60, NOW)[1].deliveries}
        sent |= {name: end(task, NOW, **outcome)[1].deliveries for name, outcome in OUTCOMES.items()}
        due = {name: delivery.due_at for name, deliveries in sent.items() for delivery in deliveries}
        assert due == expected, policy
        assert all((d.policy or "").partition("@")[0] == policy for ds in sent.values() for d in ds)


def test_without_a_policy_ends_and_questions_are_sent_and_a_quiet_run_sends_no_start() -> None:
    task = build_task()._replace(status="running", attempt=1)
    assert start_notice(task, NOW) == ()
    assert [d.policy for d in end(task, NOW, outcome="ok")[1].deliveries] == ["result"]
    assert start_notice(build_task(notices="all"), NOW)
    assert start_notice(build_task(notices="all", quiet="NOTHING"), NOW) == ()
    unknown = build_task(notices="of-a-later-version")._replace(status="running")
    assert len(end(unknown, NOW, outcome="ok")[1].deliveries) == 1


def test_each_of_several_routes_has_its_own_policy() -> None:
    route = join_routes(["phone", "team:#ops", "team:#dev", "log"])
    task = build_task(route=route, notices="phone=failures team=all log=off")
    assert [(d.channel, d.target, d.policy) for d in start_notice(task, NOW)] == [
        ("team", "#ops", "all"), ("team", "#dev", "all"),
    ]  # fmt: skip
    failed = task._replace(status="failed", outcome="error", error="no")
    assert [d.channel for d in end_notice(failed, NOW)] == ["phone", "team", "team"]
    assert task.snapshot()["route"] == "phone team log" == hide_target(route)
    assert task.snapshot()["notices"] == "phone=failures team=all log=off"


@pytest.mark.parametrize(
    "route", ["desk:John Smith", "hook:https://u:p w@example.org/[a]?b=c,d e", 'hook:["x"]', "phone"]
)
def test_a_stored_route_with_odd_characters_stays_one_route(route: str) -> None:
    assert [(one.channel, one.target) for one in read_routes(route)] == [
        (route.partition(":")[0], route.partition(":")[2] or None)
    ]
    assert hide_target(route) == route.partition(":")[0]
    assert name_again(route) in (route, [route])


@pytest.mark.parametrize(
    ("text", "policy"), [(" Failures ", "failures"), ("digest:daily@18:30", "digest:daily@18:30"), ("", None)]
)
def test_a_policy_is_read(text: str, policy: str | None) -> None:
    assert check_notices(text) == policy
    for wrong in ("some", "digest", "digest:daily@25:00", "phone=all"):
        with pytest.raises(InvalidInput, match="digest:hourly"):
            check_notices(wrong)


def test_a_digest_begins_with_failures_and_has_the_id_of_its_first_notice() -> None:
    def build(number: int, notice: str) -> Delivery:
        return Delivery(
            id=f"d_{number:02}", task_id=f"t_{number}", channel="phone", notice=notice, text=f"{notice} {number}",
            policy="digest:hourly", digest_id="d_01", due_at=HOUR, created_at=NOW + number,
        )  # fmt: skip

    parts = [build(1, "done"), build(2, "failed"), build(3, "done"), build(4, "timed_out")]
    message = merge_digest(parts)
    assert (message.id, message.notice) == ("d_01", "digest")
    lines = message.text.split("\n\n")
    assert lines == ["4 notices, 2 of them about failures", "failed 2", "timed_out 4", "done 1", "done 3"]
    assert merge_digest(parts[3:]).text == "timed_out 4" and merge_digest(parts[3:]).id == "d_01"
    many = merge_digest([build(number, "done") for number in range(1, 31)])
    assert many.text.endswith("10 more: midwatch deliveries --limit 30")
