"""Test usage: sums that distinguish unknown values from zero."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midwatch.domain.usage import (
    COUNTS,
    FIGURES,
    QUARTER,
    UsageRow,
    add_up,
    describe_gaps,
    find_date,
    group_rows,
    split_days,
)

HERE = ZoneInfo("Europe/Berlin")
counts = st.integers(0, 1000)
figures = st.none() | st.integers(0, 10**9)
spent = st.builds(
    UsageRow,
    actor=st.sampled_from(["", "ann", "bob"]),
    agent=st.sampled_from(["demo", "claude"]),
    tasks=counts, done=counts, failed=counts, cancelled=counts, untold=counts, unpriced=counts, micros=counts,
    input_tokens=figures, output_tokens=figures, cost_usd=figures,
)  # fmt: skip


def quarter(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1_000_000) // QUARTER


def test_the_sum_of_no_tasks_has_unknown_tokens_and_cost() -> None:
    assert add_up([]) == {
        "tasks": 0, "done": 0, "failed": 0, "cancelled": 0, "untold": 0, "unpriced": 0, "seconds": 0.0,
        "input_tokens": None, "output_tokens": None, "cost_usd": None,
    }  # fmt: skip
    assert group_rows([], ("actor",)) == []


def test_zero_is_not_unknown() -> None:
    total = add_up([UsageRow(tasks=1, input_tokens=0.0, micros=1_500_000), UsageRow(tasks=2, micros=1)])
    assert (total["input_tokens"], total["output_tokens"], total["cost_usd"]) == (0, None, None)
    assert (total["tasks"], total["seconds"]) == (3, 1.5)


def test_tokens_are_integers_and_costs_are_rounded() -> None:
    total = add_up([UsageRow(cost_usd=0.1, input_tokens=3.0), UsageRow(cost_usd=0.2, output_tokens=1e300)])
    assert (total["cost_usd"], total["input_tokens"], total["output_tokens"]) == (0.3, 3, int(1e300))
    assert isinstance(total["input_tokens"], int)


def test_an_infinite_value_is_unknown() -> None:
    assert add_up([UsageRow(tasks=1, input_tokens=float("inf"))])["input_tokens"] is None


def test_rows_are_sorted_by_the_number_of_tasks() -> None:
    rows = [
        UsageRow(actor="b", agent="x", tasks=2),
        UsageRow(actor="a", agent="y", tasks=1),
        UsageRow("a", "x", tasks=1),
    ]
    pairs = [(row["actor"], row["agent"]) for row in group_rows(rows, ("actor", "agent"))]
    assert pairs == [("b", "x"), ("a", "x"), ("a", "y")]


def test_days_are_in_order() -> None:
    tasks = [("2026-03-29", 5), ("2026-03-28", 1), ("2026-03-29", 7)]
    rows = [UsageRow(day=day, tasks=count) for day, count in tasks]
    assert [(row["day"], row["tasks"]) for row in group_rows(rows, ("day",))] == [("2026-03-28", 1), ("2026-03-29", 12)]


@pytest.mark.parametrize(
    ("zone", "begin", "lengths"),
    [
        ("UTC", "2026-03-28T00:00:00+00:00", [96, 96, 96]),
        ("Europe/Berlin", "2026-03-27T23:00:00+00:00", [96, 92, 96]),
        ("Asia/Kathmandu", "2026-03-27T18:15:00+00:00", [96, 96, 96]),
        ("Australia/Lord_Howe", "2026-04-03T13:00:00+00:00", [96, 98, 96]),
        ("America/Nuuk", "2026-10-24T01:00:00+00:00", [100, 96, 96]),  # the hour before midnight comes twice
        ("Africa/Cairo", "2026-04-22T22:00:00+00:00", [96, 92, 96]),  # the hour after midnight does not exist
        ("Pacific/Apia", "2011-12-29T10:00:00+00:00", [96, 96, 96]),  # a whole day does not exist
    ],
)
def test_days_begin_at_midnight_in_the_zone(zone: str, begin: str, lengths: list[int]) -> None:
    first, here = quarter(begin), ZoneInfo(zone)
    days = split_days(first, first + sum(lengths), here)
    assert [after - began for began, after in days] == lengths
    assert [began for began, _ in days] == [first, *(after for _, after in days[:-1])], "no quarter is missing"
    for began, after in days:
        assert find_date(began, here) == find_date(after - 1, here) != find_date(after, here)


def test_a_period_may_begin_and_end_within_a_day() -> None:
    noon = quarter("2026-03-28T12:00:00+01:00")
    assert split_days(noon, noon + 60, HERE) == [(noon, noon + 48), (noon + 48, noon + 60)]
    assert split_days(noon, noon, HERE) == []


def test_rows_without_a_name_have_none() -> None:
    (row,) = group_rows([UsageRow(session="", tasks=1), UsageRow(session="", tasks=2)], ("session",))
    assert (row["session"], row["tasks"]) == ("", 3)


@given(st.lists(spent, max_size=30))
def test_the_rows_add_up_to_the_total(found: list[UsageRow]) -> None:
    total, rows = add_up(found), group_rows(found, ("actor", "agent"))
    for name in COUNTS:
        assert sum(row[name] for row in rows) == total[name]
    for name in FIGURES:
        values = [row[name] for row in rows if row[name] is not None]
        assert total[name] == (sum(values) if values else None)
    assert len({(row["actor"], row["agent"]) for row in rows}) == len(rows)


def test_tasks_without_usage_or_cost_are_counted() -> None:
    assert describe_gaps(add_up([])) == ""
    assert describe_gaps(add_up([UsageRow(tasks=12)])) == ""
    assert describe_gaps(add_up([UsageRow(tasks=12, untold=3, unpriced=3)])) == "no usage reported for 3 of 12 tasks"
    assert (
        describe_gaps(add_up([UsageRow(tasks=12, untold=3, unpriced=5)]))
        == "no usage reported for 3 of 12 tasks; no cost reported for 2 of 12 tasks"
    )
    assert describe_gaps(add_up([UsageRow(tasks=1, unpriced=1)])) == "no cost reported for 1 of 1 task"
