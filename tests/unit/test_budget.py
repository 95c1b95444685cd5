"""Test the pure rules of budgets: valid values, counting, limits, prices, days, dead attempts."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midwatch.agents.prices import find_listed_cost
from midwatch.base.clock import SECOND
from midwatch.base.errors import BadConfig, InvalidInput
from midwatch.desk.config import Settings
from midwatch.domain.account import Account
from midwatch.domain.agent import AgentTerms
from midwatch.domain.budget import (
    MOST,
    NAMES,
    Budget,
    Meter,
    Over,
    Price,
    Prices,
    Spending,
    count_usage,
    format_amount,
    suggest_retry,
)
from midwatch.domain.budget_question import CHOICES, RAISES, answer_question
from midwatch.domain.event import ApprovalRequested, Event, LlmResponse, ToolExecEnd, TurnStart, event
from midwatch.services.budgets import day_of

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
    ({"usd": float("inf")}, "usd must be at most 1000000000000000"),
    ({"tokens": 10**400}, "tokens must be at most"),
    ({"tokens": "1e16"}, "tokens must be at most"),
    ({"tokens": "१२"}, "whole number"),
    ({"seconds": "१२m"}, "a duration such as 10m"),
    ({"usd": []}, "number above 0"),
    ({"seconds": "soon"}, "a duration such as 10m"),
    ({"seconds": "0s"}, "a duration such as 10m"),
]


@pytest.mark.parametrize(("said", "why"), INVALID)
def test_invalid_budgets_are_refused_with_their_field(said: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as raised:
        Budget.from_data(said)
    assert raised.value.field == ".".join(["budget", *(name for name in said if name in NAMES)])


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
        (Over("usd", 1.5, 1.6, "goal"), "its goal's budget of $1.50 is spent: $1.60"),
        (Over("tokens", 5, 6, "tree"), "the shared budget of 5 tokens is spent: 6 tokens"),
        (Over("steps", 1, 1, "automation"), "its run's budget of 1 step is spent: 1 step"),
        (Over("seconds", 600, 601, "task"), "its budget of 10m of work is spent: 10m01s of work"),
        (Over("usd", 0.0005, 0.00051, "day"), "the day's budget of $0.0005 is spent: $0.00051"),
    ],
)
def test_a_spent_budget_is_described_in_words(over: Over, words: str) -> None:
    assert over.words == words
    assert format_amount(over.budget, over.limit) in words


def test_the_suggested_retry_asks_for_more_if_the_budget_is_spent() -> None:
    over = Over("tokens", 9, 19, "task")
    assert suggest_retry("t_1", "error", "it broke") == "midwatch retry t_1"
    assert suggest_retry("t_1", "budget", over.words) == "midwatch retry t_1 --budget MORE"
    assert suggest_retry("t_1", "budget", over._replace(scope="day").words) == "midwatch retry t_1", "midnight comes"
    assert over.raised == "tokens=36"
    assert over.warning == "its budget of 9 tokens is spent: 19 tokens"


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
    meter, settled = Meter(), Spending(tokens=earlier)
    account = Account(id="t_1", limits=limits)
    answers = [step for step in steps if step != "tool"]
    for step in steps:
        meter.count_start()
        if step != "tool":
            meter.count_answer(step)
        settled = settled.plus(meter.settle())
    sums = {
        "tokens": earlier + sum(a.get("input_tokens", 0) + a.get("output_tokens", 0) for a in answers),
        "usd": sum(a.get("cost_usd", 0.0) for a in answers),
        "steps": len(steps),
    }
    assert settled == pytest.approx((*sums.values(), 0.0)), "what is settled is what was counted"
    reached = [name for name, most in limits.items() if getattr(settled, name) >= most]
    over = account.budget.over(settled, "task")
    assert (over.budget if over else None) == min(reached, key=NAMES.index, default=None)
    dead = Spending.of(count_usage(make_events(steps), limited=True))
    assert (dead.tokens + earlier, dead.steps, dead.seconds) == (sums["tokens"], sums["steps"], len(steps))
    assert dead.usd == pytest.approx(sums["usd"], abs=1e-8)  # costs are stored in billionths


def test_what_the_agent_reports_at_its_end_is_settled_with_what_was_counted() -> None:
    meter = Meter(lambda: 2.5)
    meter.count_start()
    meter.skip_step()  # the store counted it when it was reserved
    meter.count_answer({"input_tokens": 10, "cost_usd": 0.1}, "m")
    assert meter.settle() == Spending(10, 0.1, 0, 2.5)
    meter.count_start()
    meter.give_back()  # a model call without an answer is no step
    assert meter.settle({"input_tokens": 99, "model": "n"}) == Spending(89, 0.0, 0, 0.0)
    assert meter.usage() == {"input_tokens": 10, "cost_usd": 0.1, "model": "m"}
    reported = meter.usage({"input_tokens": 99, "model": "n"}, limited=True)
    assert reported == {"input_tokens": 99, "cost_usd": 0.1, "model": "n", "steps": 1, "seconds": 2.5}


def test_a_small_report_at_the_end_gives_nothing_back() -> None:
    meter = Meter()
    meter.count_answer({"input_tokens": 300, "cost_usd": 0.3}, "m")
    assert meter.settle() == Spending(300, 0.3, 0, 0.0)
    assert meter.settle({"input_tokens": 1, "cost_usd": 0.01}) == Spending(), "the larger amount counts"
    assert meter.settle({"input_tokens": 310, "cost_usd": 0.01}) == Spending(tokens=10)
    assert meter.settle() == Spending(), "a larger report stays charged"


@pytest.mark.parametrize(
    ("limits", "spent", "answer", "raised"),
    [
        (Budget(tokens=1000), Spending(tokens=1020), "raise by 25 %", Budget(tokens=1250)),
        (Budget(tokens=1000), Spending(tokens=2000), "raise by 50 %", Budget(tokens=3000)),
        (Budget(tokens=1000, steps=5), Spending(tokens=10, steps=5), "raise by 100 %", Budget(tokens=1000, steps=10)),
        (Budget(steps=3), Spending(steps=3), "raise by 25 %", Budget(steps=4)),
        (Budget(usd=2.0), Spending(usd=2.0), "wind up", Budget(usd=2.0)),
        (Budget(usd=2.0), Spending(usd=2.0), "stop", Budget(usd=2.0)),
    ],
)
def test_an_answer_raises_only_the_limits_that_are_reached(
    limits: Budget, spent: Spending, answer: str, raised: Budget
) -> None:
    figures = {**spent._asdict(), "tokens": int(spent.tokens), "steps": int(spent.steps)}
    account = Account(id="t_1", limits=limits.data() or {}, on_budget="ask", approval_id="a_1", **figures)
    after, update = answer_question(account, answer)
    assert after == raised and update.guard == {"approval_id": "a_1"}, "only the first answer counts"
    assert update.fields["on_budget"] == {"stop": "stop", "wind up": "wind_up"}.get(answer, "ask")
    assert answer in [choice.name for choice in CHOICES]


@pytest.mark.parametrize(
    ("wanted", "agents", "askable", "mode"),
    [
        ("stop", "ask", True, "stop"),
        (None, "stop", True, "stop"),
        (None, None, True, "ask"),
        (None, None, False, "stop"),
    ],
)
def test_people_are_asked_by_default_if_somebody_can_be_asked(
    wanted: Any, agents: Any, askable: bool, mode: str
) -> None:
    assert AgentTerms(on_budget=agents).mode_of(wanted, askable=askable) == mode


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
    assert count_usage(events, limited=True) == {"steps": 2, "seconds": 4.0}
    assert count_usage(events, limited=False) is None
    assert count_usage([], limited=False) is None


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


def test_ten_tenths_reach_a_limit_of_one() -> None:
    """Once one more call was made, because the sum of the costs was 0.9999999999999999."""
    spent = Spending(usd=sum([0.1] * 10))
    account = Account(id="t_1", limits={"usd": 1.0}, usd=spent.usd)
    assert spent.usd < 1.0 and Budget(usd=1.0).over(spent, "task") is not None
    assert answer_question(account, "raise by 25 %")[0] == Budget(usd=1.25)
    assert Budget(usd=1.0).grow_beyond(spent) == Budget(usd=2.0)


@pytest.mark.parametrize("missing", [1e-10, 1e-9, 0.0])
def test_a_raised_limit_is_never_reached_at_once(missing: float) -> None:
    """Once 1.25 was the answer to a spending a little below 1.25, and counted as reached."""
    spent = Spending(usd=1.25 * (1 - missing))
    account = Account(id="t_1", limits={"usd": 1.0}, usd=spent.usd)
    assert answer_question(account, "raise by 25 %")[0].over(spent, "task") is None


@pytest.mark.parametrize("used", [125, 130, 200, 249, 400])
def test_a_larger_raise_gives_more(used: int) -> None:
    account = Account(id="t_1", limits={"tokens": 100}, tokens=used)
    raised = [answer_question(account, answer)[0].tokens or 0 for answer in RAISES]
    assert used < raised[0] < raised[1] < raised[2]


def test_a_raise_never_removes_a_limit() -> None:
    """Once a limit was raised above the largest one that a record may have, and then counted as no limit."""
    account = Account(id="t_1", limits={"tokens": 1000}, tokens=int(MOST))
    limits, update = answer_question(account, "raise by 100 %")
    assert Budget.from_record(update.fields["limits"]) == limits == Budget(tokens=MOST)


def test_a_very_small_limit_can_be_raised() -> None:
    """Once the raised limit was rounded to 0, which is no limit."""
    account = Account(id="t_1", limits={"usd": 1e-10}, usd=1e-10)
    assert answer_question(account, "raise by 25 %")[0].usd == pytest.approx(1.25e-10)


def test_a_sum_of_large_figures_does_not_become_nothing() -> None:
    meter = Meter()
    for _ in range(3):
        meter.count_answer({"input_tokens": 6 * 10**14})
    assert meter.own.tokens == 10**15
