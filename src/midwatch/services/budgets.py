"""Budgets: computes the cost of turns, and opens the accounts of each day."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, time, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from midwatch.base.clock import SECOND, Clock
from midwatch.domain.account import DAY, AccountStore, Day
from midwatch.domain.budget import Budget, Over, Prices
from midwatch.domain.usage import UsageQuery

FindCost = Callable[[str, str, Mapping[str, Any]], float | None]
"""A function of agent, model and usage that returns the cost in dollars, or None if no price is known."""


class DaySpent(NamedTuple):
    """A day budget that is spent, and the time `until` when the next day begins."""

    over: Over
    until: int


class Budgets:
    """The prices and the budgets of the day for the turns of this process."""

    def __init__(
        self, prices: Prices | None = None, days: Days | None = None, find_cost: FindCost | None = None
    ) -> None:
        """Build the budgets. For a model that is not in `prices`, `find_cost` is called."""
        self._prices = prices or Prices()
        self._days = days
        self._find_cost = find_cost

    def cost(self, agent: str, model: str, usage: Mapping[str, Any]) -> float | None:
        """Return the cost of an agent's usage of a model in dollars, or None if no price is known."""
        price = self._prices.of(model)
        if price is not None:
            return price.cost(usage)
        return self._find_cost(agent, model, usage) if self._find_cost is not None else None

    async def open_days(self, agent: str) -> tuple[str, ...]:
        """Return the ids of today's accounts that apply to an agent. They exist when this method returns."""
        return await self._days.open(agent) if self._days is not None else ()

    def find_day_end(self) -> int:
        """Return the time when the next day begins."""
        assert self._days is not None
        return self._days.find_end()


class Days:
    """The budgets of the desk and of its agents for each day. A day begins at midnight in the host's time zone."""

    def __init__(
        self, store: AccountStore, clock: Clock, zone: str, desk: Budget, agents: Mapping[str, Budget]
    ) -> None:
        self._store = store
        self._clock = clock
        self._zone = ZoneInfo(zone)
        budgets: dict[str | None, Budget] = {None: desk} | dict(agents)
        self._limits = {whose: limits for whose, budget in budgets.items() if (limits := budget.data())}
        self._until = 0
        self._date = ""

    async def open(self, agent: str) -> tuple[str, ...]:
        """Return the ids of today's accounts of the desk and of the agent. The first call of a day creates them."""
        if (now := self._clock.now()) >= self._until:
            since, until = day_of(now, self._zone)
            date = datetime.fromtimestamp(now / SECOND, self._zone).date().isoformat()
            query = UsageQuery(since=since, until=until, by=("agent",))
            days = [Day(_name(date, whose), limits, query, whose) for whose, limits in self._limits.items()]
            await self._store.open_days(days, now)
            self._date, self._until = date, until
        return tuple(_name(self._date, whose) for whose in (None, agent) if whose in self._limits)

    def find_end(self) -> int:
        """Return the time when the next day begins."""
        return day_of(self._clock.now(), self._zone)[1]


def _name(date: str, agent: str | None) -> str:
    return f"{DAY}{date}" if agent is None else f"{DAY}{date}:{agent}"


def day_of(now: int, zone: ZoneInfo) -> tuple[int, int]:
    """Return the times when the day of `now` begins and ends in a time zone."""
    date = datetime.fromtimestamp(now / SECOND, zone).date()
    begins, ends = (datetime.combine(date + timedelta(days=n), time.min, zone) for n in (0, 1))
    return int(begins.timestamp()) * SECOND, int(ends.timestamp()) * SECOND
