"""Usage: sums that keep what is unknown apart from nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from midwatch.usage import FIGURES, Spent, by_actor_and_agent, spent_seconds, summed

figures = st.none() | st.integers(0, 10**9)
usages = st.none() | st.fixed_dictionaries({}, optional=dict.fromkeys(FIGURES, figures))
spent = st.builds(
    Spent,
    actor=st.sampled_from(["", "ann", "bob"]),
    agent=st.sampled_from(["demo", "claude"]),
    status=st.sampled_from(["done", "failed", "cancelled"]),
    seconds=st.integers(0, 10_000).map(float),
    usage=usages,
)


def test_nothing_has_cost_nothing_and_nobody_knows_its_tokens() -> None:
    assert summed([]) == {
        "tasks": 0, "done": 0, "failed": 0, "cancelled": 0, "seconds": 0.0,
        "input_tokens": None, "output_tokens": None, "cost_usd": None,
    }  # fmt: skip
    assert by_actor_and_agent([]) == []


def test_a_figure_of_nothing_is_not_an_unknown_one() -> None:
    known = Spent("ann", "demo", "done", 1.0, {"input_tokens": 0, "cost_usd": None, "model": "x"})
    total = summed([known, Spent("ann", "demo", "failed", 0.5, None)])
    assert (total["input_tokens"], total["output_tokens"], total["cost_usd"]) == (0, None, None)
    assert (total["tasks"], total["done"], total["failed"], total["seconds"]) == (2, 1, 1, 1.5)


def test_what_is_no_number_is_not_counted() -> None:
    odd = Spent("ann", "demo", "done", 1.0, {"input_tokens": "12", "output_tokens": True, "cost_usd": [1]})
    assert [summed([odd])[name] for name in FIGURES] == [None, None, None]


def test_rows_are_ordered_by_how_much_was_done() -> None:
    rows = [Spent("b", "x", "done", 0, None), Spent("a", "y", "done", 0, None), Spent("a", "x", "done", 0, None)]
    assert [(row["actor"], row["agent"]) for row in by_actor_and_agent([*rows, rows[0]])] == [
        ("b", "x"), ("a", "x"), ("a", "y"),
    ]  # fmt: skip


@given(st.lists(spent, max_size=30))
def test_the_rows_together_are_the_total(found: list[Spent]) -> None:
    total, rows = summed(found), by_actor_and_agent(found)
    for name in ("tasks", "done", "failed", "cancelled", "seconds"):
        assert sum(row[name] for row in rows) == total[name]
    for name in FIGURES:
        known = [row[name] for row in rows if row[name] is not None]
        assert total[name] == (sum(known) if known else None)
    assert total["tasks"] == total["done"] + total["failed"] + total["cancelled"] == len(found)
    assert len({(row["actor"], row["agent"]) for row in rows}) == len(rows)


def test_a_task_that_never_began_took_no_time() -> None:
    assert spent_seconds(None, 5_000_000) == 0.0
    assert spent_seconds(1_000_000, 3_500_000) == 2.5
    assert spent_seconds(3_000_000, 1_000_000) == 0.0, "the clock was set back"
