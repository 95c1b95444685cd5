"""The day budget: computes the cost of turns, and checks whether the budget of the day is spent.

The spending of a day is the sum of two parts: the spending of the tasks that ended since midnight, which is read from
the store every few seconds, and the spending of the turns that run in this process now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, time, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from midwatch.base.clock import SECOND, Clock
from midwatch.base.errors import StoreUnavailable
from midwatch.domain.budget import Budget, Meter, Over, Prices, Spending
from midwatch.domain.usage import UsageQuery, UsageStore

FRESH_SECONDS = 5.0
"""For how many seconds the spending of the day is used until it is read from the store again."""

FindCost = Callable[[str, str, Mapping[str, Any]], float | None]
"""A function of agent, model and usage that returns the cost in dollars, or None if no price is known."""


class DaySpent(NamedTuple):
    """A day budget that is spent, and the time `until` when the next day begins."""

    over: Over
    until: int


class Budgets:
    """The prices and the day budget for the turns of this process."""

    def __init__(
        self, prices: Prices | None = None, day: DayBudget | None = None, find_cost: FindCost | None = None
    ) -> None:
        """Build the budgets. For a model that is not in `prices`, `find_cost` is called."""
        self._prices = prices or Prices()
        self._day = day
        self._find_cost = find_cost

    def close(self, meter: Meter, usage: Mapping[str, Any] | None) -> None:
        """Close the meter of a turn, if it is open, because the end of the turn was written.

        `usage` is the usage of the turn's task.
        """
        if self._day is not None:
            self._day.close(meter, Spending.of(usage))

    def cost(self, agent: str, model: str, usage: Mapping[str, Any]) -> float | None:
        """Return the cost of an agent's usage of a model in dollars, or None if no price is known."""
        price = self._prices.of(model)
        if price is not None:
            return price.cost(usage)
        return self._find_cost(agent, model, usage) if self._find_cost is not None else None

    def counts_money(self, agent: str, meter: Meter) -> bool:
        """Return whether the turn of this meter has a budget in dollars, of its own or of the day."""
        return meter.budget.usd is not None or (self._day is not None and self._day.counts_money(agent))

    def find_over(self, agent: str, meter: Meter) -> Over | None:
        """Return the budget of the turn or of the day that is spent, or None.

        The spending of the day may be a few seconds old; see `refresh`.
        """
        return meter.over() or (self._day.find_over(agent) if self._day is not None else None)

    async def refresh(self) -> None:
        """Read the spending of the day from the store, unless it was read a few seconds ago."""
        if self._day is not None:
            await self._day.refresh()

    async def open(self, agent: str, meter: Meter) -> DaySpent | None:
        """Open the meter of a turn that begins, so that its spending counts for the day, and return None.

        If the budget of the day is spent, return that budget, and do not open the meter.
        """
        if self._day is None:
            return None
        await self._day.refresh()
        if over := self._day.find_over(agent):
            return DaySpent(over, self._day.find_end())
        self._day.running[meter] = agent
        return None


class DayBudget:
    """The budgets of the desk and of its agents for each day. A day begins at midnight in the host's time zone."""

    def __init__(self, store: UsageStore, clock: Clock, zone: str, desk: Budget, agents: Mapping[str, Budget]) -> None:
        self._store = store
        self._clock = clock
        self._zone = ZoneInfo(zone)
        self._budgets: dict[str | None, Budget] = {None: desk} | dict(agents)
        self._until = 0
        self._reading = asyncio.Lock()
        self._read_at: float | None = None
        self._spent: dict[str, Spending] = {}
        self._since: list[tuple[float, str, Spending]] = []
        """The turns that ended in this process after the spending was read, each as end time, agent and spending."""
        self.running: dict[Meter, str] = {}

    def find_over(self, agent: str) -> Over | None:
        """Return the day budget of the desk or of the agent if it is spent, or None."""
        for whose in (None, agent):
            budget = self._budgets.get(whose)
            if budget is not None and (over := budget.over(self.sum_spending(whose), "day")):
                return over
        return None

    def counts_money(self, agent: str) -> bool:
        """Return whether the desk or the agent has a day budget in dollars."""
        return any(self._budgets[whose].usd is not None for whose in (None, agent) if whose in self._budgets)

    def sum_spending(self, whose: str | None) -> Spending:
        """Return today's spending of the agent `whose`, as far as it is known. With None, return that of the desk."""
        total = Spending()
        figures = [*self._spent.items(), *((agent, spending) for _, agent, spending in self._since)]
        figures += [(agent, meter.task) for meter, agent in self.running.items()]
        for agent, spending in figures:
            if whose in (None, agent):
                total = total.plus(spending)
        return total

    def find_end(self) -> int:
        """Return the time when the next day begins."""
        return day_of(self._clock.now(), self._zone)[1]

    def close(self, meter: Meter, spent: Spending) -> None:
        """Close the meter of a turn and add its spending to that of the day, because the turn's end was written."""
        agent = self.running.pop(meter, None)
        if agent is not None:
            self._since.append((self._clock.monotonic(), agent, spent))

    async def refresh(self) -> None:
        """Read the spending of the day from the store, unless it was read a few seconds ago."""
        async with self._reading:
            read_at, now = self._clock.monotonic(), self._clock.now()
            if self._read_at is not None and read_at - self._read_at < FRESH_SECONDS and now < self._until:
                return
            since, until = day_of(now, self._zone)
            try:
                rows = await self._store.sum_usage(UsageQuery(since=since, until=until, by=("agent",)))
            except StoreUnavailable:
                return  # use the last figures for now
            self._read_at, self._until = read_at, until
            self._spent = {row.agent or "": Spending.of(row._asdict()) for row in rows}
            self._since = [turn for turn in self._since if turn[0] >= read_at]


def day_of(now: int, zone: ZoneInfo) -> tuple[int, int]:
    """Return the times when the day of `now` begins and ends in a time zone."""
    date = datetime.fromtimestamp(now / SECOND, zone).date()
    begins, ends = (datetime.combine(date + timedelta(days=n), time.min, zone) for n in (0, 1))
    return int(begins.timestamp()) * SECOND, int(ends.timestamp()) * SECOND
