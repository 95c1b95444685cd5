"""Test the pure rules of budgets: valid values, counting, limits, prices, days, dead attempts."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midwatch.agents.prices import find_listed_cost
from midwatch.base.clock import SECOND
from midwatch.base.errors import BadConfig, InvalidInput, StoreUnavailable
from midwatch.desk.config import Settings
from midwatch.domain.agent import AgentTerms
from midwatch.domain.budget import (
    NAMES,
    Budget,
    Meter,
    Over,
    Price,
    Prices,
    Spending,
    count_usage,
    format_amount,
    retry_command,
)
from midwatch.domain.event import ApprovalRequested, Event, LlmResponse, ToolExecEnd, TurnStart, event
from midwatch.domain.usage import UsageQuery, UsageRow
from midwatch.services.day_budget import FRESH_SECONDS, Budgets, DayBudget, day_of
from midwatch.testing import FakeClock

# -- values ----------------------------------------------------------------------------------------------------------

VALID: list[tuple[Any, dict[str, Any] | None]] = [
    (None, None),
    ({}, None),
    ({"tokens": 5, "usd": None}, {"tokens": 5}),
    ({"tokens": 5.0, "usd": 1, "steps": 2, "seconds": 3}, {"tokens": 5, "usd": 1.0, "steps": 2, "seconds": 3.0}),
    ({"seconds": "10m"}, {"seconds": 600.0}),
    ({"usd": 0.001}, {"usd": 0.001}),
]


@pytest.mark.parametrize(("said", "kept"), VALID)
def test_a_budget_is_read_back_unchanged(said: Any, kept: dict[str, Any] | None) -> None:
    assert Budget.from_data(said).data() == kept
    assert Budget.from_record(kept) == Budget.from_data(said)


INVALID: list[tuple[Any, str]] = [
    ("tokens=5", "an object"),
    ([1], "an object"),
    ({"token": 5}, "has no token; its fields are tokens, usd, steps, seconds"),
    ({"before": {"tokens": 5}}, "has no before"),
    ({"tokens": 0}, "whole number above 0"),
    ({"tokens": -1}, "whole number"),
    ({"tokens": 1.5}, "whole number"),
    ({"steps": "many"}, "whole number"),
    ({"steps": True}, "whole number"),
    ({"usd": float("nan")}, "number above 0"),
    ({"usd": float("inf")}, "number above 0"),
    ({"usd": []}, "number above 0"),
    ({"seconds": "soon"}, "a duration such as 10m"),
    ({"seconds": "0s"}, "a duration such as 10m"),
]


@pytest.mark.parametrize(("said", "why"), INVALID)
def test_invalid_budgets_are_refused_with_their_field(said: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as raised:
        Budget.from_data(said)
    assert raised.value.field == "budget"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("tokens=200000,usd=1.5,steps=30,seconds=600", Budget(200_000, 1.5, 30, 600.0)),
        (" seconds = 1h30m , tokens=7,", Budget(7, None, None, 5400.0)),
    ],
)
def test_a_budget_is_parsed_from_and_formatted_for_a_command_line(text: str, kept: Budget) -> None:
    assert Budget.parse(text) == kept == Budget.parse(kept.text())


@pytest.mark.parametrize("text", ["", " , ", "5000", "tokens", "tokens=", "tokens=5,tokens=6", "money=5", "usd=-1"])
def test_an_invalid_command_line_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        Budget.parse(text)


def test_budgets_are_combined_lowered_and_raised() -> None:
    agents, own = Budget(tokens=100, usd=2.0), Budget(tokens=500, steps=3)
    assert agents.override_with(own) == Budget(tokens=500, usd=2.0, steps=3)
    assert agents.within(own) == Budget(tokens=100, usd=2.0, steps=3)
    assert agents.grow_beyond(Spending(tokens=350)) == Budget(tokens=400, usd=2.0)
    assert agents.grow_beyond(Spending()) == agents
    assert AgentTerms(budget={"tokens": 9}).budget_of(Budget(usd=1.0)) == {"tokens": 9, "usd": 1.0}
    assert AgentTerms().budget_of(Budget()) is None


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (Over("tokens", 100, 120, "task"), "its budget of 100 tokens is spent: 120 tokens"),
        (Over("usd", 1.5, 1.6, "goal"), "the rest of its goal's budget of $1.50 is spent: $1.60"),
        (Over("steps", 1, 1, "automation"), "the budget of its run of 1 step is spent: 1 step"),
        (Over("seconds", 600, 601, "task"), "its budget of 10m of work is spent: 10m01s of work"),
        (Over("usd", 0.0005, 0.00051, "day"), "the day's budget of $0.0005 is spent: $0.00051"),
    ],
)
def test_a_spent_budget_is_described_in_words(over: Over, words: str) -> None:
    assert over.words == words
    assert format_amount(over.budget, over.limit) in words


def test_the_suggested_retry_names_a_sufficient_budget() -> None:
    assert retry_command("t_1", None, {"input_tokens": 5}) == "midwatch retry t_1"
    assert retry_command("t_1", {"tokens": 9}, {"input_tokens": 5}) == "midwatch retry t_1"
    assert (
        retry_command("t_1", {"tokens": 9, "usd": 1.0}, {"input_tokens": 19})
        == "midwatch retry t_1 --budget tokens=36,usd=1"
    )
    assert retry_command("t_1", {"tokens": 9, "before": {"tokens": 5}}, {"output_tokens": 4}).endswith("tokens=18")


# -- prices ----------------------------------------------------------------------------------------------------------

PRICE = Price(2.0, 8.0, 0.5)
USAGE = {"input_tokens": 1_000_000, "output_tokens": 500_000}


@pytest.mark.parametrize(
    ("price", "usage", "cost"),
    [
        (PRICE, USAGE, 6.0),
        (PRICE, {**USAGE, "cache_read_tokens": 400_000}, 5.4),
        (Price(2.0, 8.0), {**USAGE, "cached_tokens": 400_000}, 6.0),
        (PRICE, {"input_tokens": 10, "cached_tokens": 99_999_999}, 0.000005),
        (PRICE, {"input_tokens": "many", "output_tokens": -3}, 0.0),
        (Price(0.0, 0.0), USAGE, 0.0),
    ],
)
def test_the_cost_of_a_usage_is_computed(price: Price, usage: dict[str, Any], cost: float) -> None:
    assert price.cost(usage) == pytest.approx(cost)


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("openai:gpt-x", "a"), ("gpt-x", "b"), ("azure:gpt-x", "b"), ("gpt-x-2026-01-31", "b"), ("router/gpt-x", "b"),
        ("openai:gpt-x-2026-01-31", "a"), ("opus-20260131", "c"), ("anthropic:opus-latest", "c"), ("gpt-x-mini", None),
        ("", None), ("gpt", None),
    ],
)  # fmt: skip
def test_the_price_of_a_model_is_found_for_every_version(model: str, known: str | None) -> None:
    table = {"openai:gpt-x": Price(1, 0), "gpt-x": Price(2, 0), "opus": Price(3, 0)}
    price = Prices(table).of(model)
    assert price == ({"a": Price(1, 0), "b": Price(2, 0), "c": Price(3, 0)}[known] if known else None)


def test_known_models_have_a_price_and_others_are_unknown() -> None:
    pytest.importorskip("genai_prices")
    cost = find_listed_cost("openai:gpt-4o-mini", {"input_tokens": 1_000_000, "output_tokens": 0})
    assert cost is not None and 0 < cost < 10
    assert find_listed_cost("openai:no-such-model-at-all", USAGE) is None
    assert find_listed_cost("nobody:gpt-4o-mini", USAGE) is None


def test_settings_of_budgets_are_validated(tmp_path: Any) -> None:
    (tmp_path / "midwatch.toml").write_text(
        '[day_budget]\nusd = 5\n[prices."openai:x"]\ninput = 1\noutput = 2\n'
        '[agents.a]\nkind = "demo"\nbudget = {tokens = 9, seconds = "1m"}\nday_budget = {tokens = 7}\n'
    )
    settings = Settings.load(tmp_path)
    assert settings.day_budget.budget() == Budget(usd=5.0)
    assert settings.agents["a"].budget == {"tokens": 9, "seconds": 60.0}
    assert settings.agents["a"].day_budget and settings.agents["a"].day_budget.budget() == Budget(tokens=7)
    for wrong in ("[day_budget]\nusd = 0", "[prices.x]\ninput = 1", "[agents.a]\nbudget = {token = 1}"):
        (tmp_path / "midwatch.toml").write_text(wrong)
        with pytest.raises(BadConfig):
            Settings.load(tmp_path)


# -- counting --------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.just("tool"),
        st.fixed_dictionaries(
            {},
            optional={
                "input_tokens": st.integers(0, 10_000), "output_tokens": st.integers(0, 10_000),
                "cost_usd": st.floats(0, 3), "odd": st.just("x"),
            },
        ),
    ),
    max_size=20,
)  # fmt: skip
LIMITS = st.fixed_dictionaries(
    {}, optional={"tokens": st.integers(1, 50_000), "usd": st.floats(0.01, 9), "steps": st.integers(1, 15)}
)


def make_events(steps: list[Any]) -> list[Event]:
    """Return the events of the steps, one second apart."""
    payloads = [
        TurnStart(user_message="x"),
        *(ToolExecEnd(tool="t") if s == "tool" else LlmResponse(usage=s) for s in steps),
    ]
    return [event(payload, number * SECOND, task_id="t_1", attempt=1) for number, payload in enumerate(payloads)]


@given(STEPS, LIMITS, st.integers(0, 5000))
def test_the_budget_is_spent_exactly_when_a_sum_reaches_its_limit(
    steps: list[Any], limits: dict[str, Any], earlier: int
) -> None:
    meter = Meter(limits, {"input_tokens": earlier})
    answers = [step for step in steps if step != "tool"]
    for index, step in enumerate(steps):
        before = meter.over()
        meter.count_tool() if step == "tool" else meter.count_answer(step)
        assert before is None or meter.over() is not None, f"step {index} gave something back"
    sums = {
        "tokens": earlier + sum(a.get("input_tokens", 0) + a.get("output_tokens", 0) for a in answers),
        "usd": sum(a.get("cost_usd", 0.0) for a in answers),
        "steps": len(steps),
    }
    reached = [name for name, most in limits.items() if sums[name] >= most]
    over = meter.over()
    assert (over is not None) == bool(reached)
    if over is not None:
        assert over.budget == min(reached, key=NAMES.index)
        assert over.spent == pytest.approx(sums[over.budget])
    dead = Spending.of(count_usage(make_events(steps), {"steps": 1}))
    assert (dead.tokens + earlier, dead.steps, dead.seconds) == (sums["tokens"], sums["steps"], len(steps))
    assert dead.usd == pytest.approx(sums["usd"], abs=1e-8)  # costs are stored in billionths


def test_usage_of_earlier_tries_and_attempts_counts() -> None:
    meter = Meter(
        {"tokens": 100, "seconds": 60.0, "before": {"tokens": 40, "seconds": 20.0}},
        {"output_tokens": 50, "seconds": 15.0},
    )
    assert (meter.over(), meter.remaining_seconds()) == (None, 25.0)
    meter.count_answer({"input_tokens": 10})
    assert meter.over() == Over("tokens", 100, 100, "task")
    assert meter.usage() == {"input_tokens": 10, "steps": 1, "seconds": 0.0}


def test_a_call_without_an_answer_is_no_step_and_the_last_reported_usage_counts() -> None:
    meter = Meter()
    meter.count_answer(None, "m", "error")
    assert meter.usage() is None
    meter.count_answer({"input_tokens": 10, "cost_usd": 0.1}, "m", "stop")
    meter.count_answer(None)
    assert meter.own.steps == 2
    assert meter.usage() == {"input_tokens": 10, "cost_usd": 0.1, "model": "m"}
    assert meter.usage({"input_tokens": 99, "model": "n"}) == {"input_tokens": 99, "cost_usd": 0.1, "model": "n"}


def test_a_dead_attempt_worked_until_its_last_event_except_while_asking() -> None:
    def at(second: int, payload: Any) -> Event:
        return event(payload, second * SECOND, task_id="t_1", attempt=1)

    question = ApprovalRequested(approval_id="a", question="?", choices=())
    events = [
        at(0, TurnStart(user_message="x")),
        at(3, ToolExecEnd(tool="t")),
        at(4, question),
        at(504, ToolExecEnd(tool="t")),
    ]
    assert count_usage(events, {"seconds": 60.0}) == {"steps": 2, "seconds": 4.0}
    assert count_usage(events, None) is None
    assert count_usage([], None) is None


# -- the day ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "now", "hours"),
    [
        ("UTC", 1_700_000_000, 24),
        ("Europe/Berlin", 1_774_742_400, 23),  # the day on which summer time begins
        ("Europe/Berlin", 1_792_886_400, 25),  # the day on which it ends
        ("Pacific/Kiritimati", 1_700_000_000, 24),
    ],
)
def test_a_day_has_23_24_or_25_hours(zone: str, now: int, hours: int) -> None:
    begins, ends = day_of(now * SECOND, ZoneInfo(zone))
    assert begins <= now * SECOND < ends
    assert (ends - begins) / SECOND / 3600 == hours


class UsageStore:
    """A store that knows the cost of ended tasks."""

    def __init__(self, **spent: int) -> None:
        self.rows = spent
        self.asked: list[UsageQuery] = []
        self.away = False

    async def sum_usage(self, query: UsageQuery) -> list[UsageRow]:
        self.asked.append(query)
        if self.away:
            raise StoreUnavailable("away")
        return [UsageRow(agent=agent, input_tokens=count, output_tokens=0) for agent, count in self.rows.items()]


async def test_the_usage_of_a_day_counts_ended_and_running_tasks() -> None:
    clock, books = FakeClock(), UsageStore(a=40, b=30)
    day = DayBudget(books, clock, "UTC", Budget(tokens=100), {"a": Budget(tokens=60)})
    budgets = Budgets(day=day)
    meter = Meter(usage={"input_tokens": 5})
    assert await budgets.open("a", meter) is None
    meter.count_answer({"input_tokens": 14})
    assert (day.sum_spending("a").tokens, day.sum_spending(None).tokens, budgets.find_over("a", meter)) == (
        59,
        89,
        None,
    )
    meter.count_answer({"output_tokens": 1})
    assert budgets.find_over("a", meter) == Over("tokens", 60, 60, "day")
    assert (await budgets.open("b", Meter()), len(books.asked)) == (None, 1), "the store is not asked at every step"
    budgets.close(meter, {"input_tokens": 33})
    assert day.sum_spending("a").tokens == 73, "what ended a moment ago is not forgotten"
    resting = await budgets.open("b", Meter())
    assert resting and (resting.over.spent, resting.until) == (103, day.find_end())
    books.rows["a"] = 73
    await clock.advance(FRESH_SECONDS)
    await budgets.refresh()
    assert (day.sum_spending("a").tokens, len(books.asked)) == (73, 2), "nor is it counted twice"
    books.away = True
    await clock.advance(FRESH_SECONDS)
    assert await budgets.open("b", Meter())
    books.away, books.rows = False, {}
    await clock.advance((day.find_end() - clock.now()) / SECOND)
    assert await budgets.open("b", Meter()) is None


async def test_what_a_task_spent_on_an_earlier_day_does_not_postpone_it() -> None:
    day = DayBudget(UsageStore(), FakeClock(), "UTC", Budget(tokens=100), {})
    budgets, meter = Budgets(day=day), Meter(usage={"input_tokens": 150})
    assert await budgets.open("a", meter) is None
    assert budgets.find_over("a", meter) == Over("tokens", 100, 150, "day"), "it stops at its next step"
    postponed = Meter(usage={"input_tokens": 7})
    assert await budgets.open("a", postponed)
    budgets.close(postponed, {"input_tokens": 7})
    assert day.sum_spending("a").tokens == 150, "the attempt of a postponed task counts nothing"


async def test_a_desk_without_budgets_does_not_query_the_store() -> None:
    budgets = Budgets()
    meter = Meter()
    await budgets.refresh()
    assert (await budgets.open("a", meter), budgets.find_over("a", meter), budgets.counts_money("a", meter)) == (
        None,
        None,
        False,
    )
    budgets.close(meter, None)
