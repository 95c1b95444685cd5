"""Budgets: the limits of tokens, money, steps and time that work may spend, and the amounts that it has spent.

A step is an answer of a model or the use of a tool. Money needs a price: if the price of a model is not known, only the
other limits apply.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from midwatch.base.clock import SECOND
from midwatch.base.durations import duration, seconds
from midwatch.base.errors import InvalidInput

if TYPE_CHECKING:
    from midwatch.domain.event import Event

Name = Literal["tokens", "usd", "steps", "seconds"]
Scope = Literal["task", "goal", "automation", "day", "tree"]

NAMES: tuple[Name, ...] = ("tokens", "usd", "steps", "seconds")
WHOLE = frozenset({"tokens", "steps"})
MOST = 1e15
UNANSWERED = frozenset({"error", "interrupted", "cut_off"})
"""The finish reasons of calls of a model that returned no answer."""
CACHED = ("cache_read_tokens", "cached_tokens", "cached_input_tokens")
MILLION = 1e6
EDITION = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
"""The last part of a model's name if it names the edition, such as a date."""


class Spending(NamedTuple):
    """The amounts that were spent. Tokens and steps are whole numbers."""

    tokens: float = 0
    usd: float = 0.0
    steps: float = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, usage: Mapping[str, Any] | None) -> Spending:
        """Return the spending that a usage reports."""
        if not usage:
            return NOTHING
        tokens = _figure(usage.get("input_tokens")) + _figure(usage.get("output_tokens"))
        usd = _figure(usage.get("cost_usd")) or _figure(usage.get("usd"))
        steps, seconds = int(_figure(usage.get("steps"))), _figure(usage.get("seconds"))
        return cls(int(tokens or _figure(usage.get("tokens"))), usd, steps, seconds)

    def plus(self, other: Spending) -> Spending:
        """Return the sum of this spending and `other`."""
        return Spending(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def minus(self, other: Spending) -> Spending:
        """Return this spending without `other`."""
        return Spending(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


NOTHING = Spending()
WHOSE: Mapping[Scope, str] = {
    "task": "its budget", "goal": "its goal's budget", "automation": "its run's budget", "day": "the day's budget",
    "tree": "the shared budget",
}  # fmt: skip


class Over(NamedTuple):
    """A budget that is spent."""

    budget: Name
    limit: float
    spent: float
    scope: Scope

    @property
    def words(self) -> str:
        """Return the spent budget in words."""
        return f"{self._whose} is spent: {format_amount(self.budget, self.spent)}"

    @property
    def warning(self) -> str:
        """Return the text of a warning: how much of the budget is spent, before or after its limit is reached."""
        part = int(100 * self.spent / self.limit)
        return self.words if part >= 100 else f"{part} % of {self.words}"

    @property
    def raised(self) -> str:
        """Return a limit that is above what is spent, as text for the option --budget."""
        spent = Spending(**{self.budget: self.spent})
        return Budget(**{self.budget: self.limit}).grow_beyond(spent).text()

    @property
    def _whose(self) -> str:
        return f"{WHOSE[self.scope]} of {format_amount(self.budget, self.limit)}"


class Budget(NamedTuple):
    """The largest amounts that may be spent; None means that an amount has no limit.

    Tokens and steps are whole numbers.
    """

    tokens: float | None = None
    usd: float | None = None
    steps: float | None = None
    seconds: float | None = None

    @classmethod
    def from_data(cls, data: object, field: str = "budget") -> Budget:
        """Read the budget from a request, or raise InvalidInput. The value of `seconds` may be text such as 10m."""
        if data is None:
            return NO_LIMITS
        if not isinstance(data, Mapping):
            raise InvalidInput("a budget must be an object such as {'tokens': 200000, 'usd': 1.5}.", field=field)
        if unknown := sorted(str(name) for name in set(data) - set(NAMES)):
            raise InvalidInput(f"a budget has no {unknown[0]}; its fields are {', '.join(NAMES)}.", field=field)
        limits = {name: _limit(name, value, field) for name, value in data.items() if value is not None}
        return cls(**limits)

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read a budget from a text such as `tokens=200000,usd=1.5,steps=30,seconds=10m`."""
        limits: dict[str, Any] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = (word.strip() for word in part.partition("="))
            if not equals or name in limits:
                raise InvalidInput("write a budget as tokens=200000,usd=1.5,steps=30,seconds=10m.", field="budget")
            limits[name] = value
        if not limits:
            raise InvalidInput("the budget is empty; write it as tokens=200000,usd=1.5.", field="budget")
        return cls.from_data(limits)

    @classmethod
    def from_record(cls, data: Mapping[str, Any] | None) -> Budget:
        """Read the budget from a record; a value that is not valid counts as no limit."""
        if not data:
            return NO_LIMITS
        figures = {name: _figure(data.get(name)) for name in NAMES}
        return cls(**{name: int(most) if name in WHOLE else most for name, most in figures.items() if most > 0})

    def data(self) -> dict[str, Any] | None:
        """Return the limits as JSON, or None if the budget has no limits."""
        return dict(self._limits()) or None if self is not NO_LIMITS else None

    def text(self) -> str:
        """Return the limits as text, in the form that `parse` reads."""
        return ",".join(f"{name}={most:.15g}" for name, most in self._limits())

    def over(self, spent: Spending, scope: Scope) -> Over | None:
        """Return the first limit that `spent` reaches, or None."""
        for name, most in self._limits():
            if is_reached(most, getattr(spent, name)):
                return Over(name, most, getattr(spent, name), scope)
        return None

    def override_with(self, other: Budget) -> Budget:
        """Return the limits of `other`, and the limits of this budget for amounts that `other` does not limit."""
        if other is NO_LIMITS:
            return self
        return Budget(*(mine if theirs is None else theirs for mine, theirs in zip(self, other, strict=True)))

    def within(self, other: Budget) -> Budget:
        """Return, for each amount, the lower limit of this budget and `other`."""
        pairs = zip(self, other, strict=True)
        return Budget(*(min((n for n in pair if n is not None), default=None) for pair in pairs))

    def keep_only(self, other: Budget) -> Budget:
        """Return the limits of this budget for the amounts that `other` limits, too."""
        pairs = zip(self, other, strict=True)
        return Budget(*(mine if theirs is not None else None for mine, theirs in pairs))

    def grow_beyond(self, spent: Spending) -> Budget:
        """Return the budget with each reached limit doubled until it is above `spent`."""
        raised: dict[str, float] = {
            name: min(2 * most, MOST) for name, most in self._limits() if is_reached(most, getattr(spent, name))
        }
        while (more := self._replace(**raised)).over(spent, "task") and min(raised.values()) < MOST:
            raised = {name: min(2 * most, MOST) for name, most in raised.items()}
        return more

    def _limits(self) -> list[tuple[Name, float]]:
        return [(name, most) for name, most in zip(NAMES, self, strict=True) if most is not None]


NO_LIMITS = Budget()


def is_reached(most: float, spent: float) -> bool:
    """Return whether a limit is reached. A small tolerance is for rounding: the sum of ten times 0.1 is below 1."""
    return spent >= most * (1 - 1e-9)


def _limit(name: str, value: Any, field: str) -> Any:
    """Return one limit of a request's budget as a number, or raise InvalidInput."""
    try:
        if isinstance(value, str) and not value.isascii():  # float also reads the digits of other scripts
            raise ValueError
        read = seconds(value) if name == "seconds" and isinstance(value, str) else float(value)
    except OverflowError:
        read = math.inf
    except (ValueError, TypeError, InvalidInput):
        read = math.nan
    if read > MOST and not isinstance(value, bool):
        raise InvalidInput(f"the budget's {name} must be at most {MOST:.0f}.", field=f"{field}.{name}")
    if isinstance(value, bool) or not read > 0 or (name in WHOLE and read != int(read)):
        kind = "whole number" if name in WHOLE else "number"
        more = ", or a duration such as 10m" if name == "seconds" else ""
        raise InvalidInput(f"the budget's {name} must be a {kind} above 0{more}.", field=f"{field}.{name}")
    return int(read) if name in WHOLE else read


def _figure(value: Any) -> float:
    """Return `value` if it is a positive number that is not too large, or else 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST:
        return 0
    return value


def suggest_retry(task_id: str, outcome: str | None, error: str | None, more: str = "MORE") -> str:
    """Return the command that retries a task, with a larger budget if its budget is spent.

    `more` are the larger limits.
    """
    raises = outcome == "budget" and not (error or "").startswith(WHOSE["day"])
    return f"midwatch retry {task_id}{f' --budget {more}' if raises else ''}"


def format_amount(name: Name, amount: float) -> str:
    """Return an amount of tokens, dollars, steps or seconds as text for people."""
    if name == "usd":
        return f"${amount:.2f}" if amount >= 0.01 else f"${amount:.6f}".rstrip("0").rstrip(".")
    if name == "seconds":
        return f"{duration(amount)} of work"
    return f"{amount:.0f} {name[:-1] if amount == 1 else name}"


# -- prices ----------------------------------------------------------------------------------------------------------


class Price(NamedTuple):
    """The price of a million tokens of a model, in dollars.

    If `cached` is None, cached input costs as much as other input.
    """

    input: float
    output: float
    cached: float | None = None

    def cost(self, usage: Mapping[str, Any]) -> float:
        """Return what a usage costs, in dollars. The input tokens of the usage include the cached tokens."""
        sent, received = _figure(usage.get("input_tokens")), _figure(usage.get("output_tokens"))
        cached = min(sent, max(_figure(usage.get(name)) for name in CACHED))
        less = self.input if self.cached is None else self.cached
        return round(((sent - cached) * self.input + cached * less + received * self.output) / MILLION, 9)


class Prices:
    """Prices by model. The key is `provider:model`, or the name of the model alone."""

    def __init__(self, table: Mapping[str, Price] | None = None) -> None:
        self._table = dict(table or {})

    def of(self, model: str) -> Price | None:
        """Return the price of a model, or None.

        A price whose key has no provider or no edition is for all providers or all editions.
        """
        bare = model.rpartition(":")[2].rpartition("/")[2]
        for name in (model, bare, EDITION.sub("", model), EDITION.sub("", bare)):
            if name in self._table:
                return self._table[name]
        return None


# -- counting --------------------------------------------------------------------------------------------------------


class Meter:
    """Adds up the spending of one attempt."""

    def __init__(self, worked: Callable[[], float] = lambda: 0.0) -> None:
        """Begin to count. `worked` returns for how many seconds this attempt has worked."""
        self._worked = worked
        self._reported: dict[str, Any] = {}
        self._steps = 0
        self._settled = NOTHING

    def count_start(self) -> None:
        """Count a step that starts: a call of a model, or the use of a tool."""
        self._steps += 1

    def give_back(self) -> None:
        """Give a step back that was reserved but did not start, or a call of a model that returned nothing."""
        self._steps -= 1

    def skip_step(self) -> None:
        """Note that the last step is settled already, because the store counted it when it was reserved."""
        self._settled = self._settled._replace(steps=self._settled.steps + 1)

    def count_answer(self, usage: Mapping[str, Any] | None, model: str | None = None) -> None:
        """Count the usage of an answer of a model, if it is known."""
        figures = usage or {}
        for name in ("input_tokens", "output_tokens", "cost_usd"):
            if isinstance(figures.get(name), int | float) and math.isfinite(figures[name]):
                self._reported[name] = min(MOST, self._reported.get(name, 0) + _figure(figures[name]))
        if model is not None and figures:
            self._reported["model"] = model

    @property
    def own(self) -> Spending:
        """Return the spending of this attempt."""
        return Spending.of(self._reported)._replace(steps=self._steps, seconds=self._worked())

    def settle(self, usage: Mapping[str, Any] | None = None) -> Spending:
        """Return what was spent since the last call of this method.

        `usage` is the final usage of the attempt. Of tokens and dollars, the larger of the counted and the reported
        amount counts: what was charged once is never given back.
        """
        own, reported, charged = self.own, Spending.of(usage), self._settled
        tokens, usd = max(own.tokens, reported.tokens, charged.tokens), max(own.usd, reported.usd, charged.usd)
        spent = own._replace(tokens=tokens, usd=usd)
        news, self._settled = spent.minus(self._settled), spent
        return news

    def usage(self, reported: Mapping[str, Any] | None = None, *, limited: bool = False) -> dict[str, Any] | None:
        """Return the usage of this attempt.

        A figure that the agent reported replaces the counted figure. Steps and time are included only if they are
        `limited` by a budget.
        """
        figures: dict[str, Any] = {**self._reported, **(reported or {})}
        if "cost_usd" in self._reported and "cost_usd" not in (reported or {}):
            figures["cost_usd"] = round(self._reported["cost_usd"], 9)
        if limited:
            figures |= {"steps": self._steps, "seconds": round(self._worked(), 3)}
        return figures or None


def is_unanswered(usage: Mapping[str, Any] | None, finish: str | None) -> bool:
    """Return whether a call of a model returned nothing, so that it does not count as a step."""
    return finish in UNANSWERED and not usage


COUNTED_KINDS = ("turn_start", "llm_request", "llm_response", "tool_exec_start", "tool_exec_end", "approval_requested",
           "approval_resolved", "turn_end")  # fmt: skip


def count_usage(events: Iterable[Event], *, limited: bool) -> dict[str, Any] | None:
    """Return the usage of an attempt whose process died, computed from the events of the attempt.

    Steps count when they start. The time is that until the last event, without the time of waiting for answers. If the
    attempt is not `limited` by a budget, steps and time are left out.
    """
    worked = 0.0
    last: Event | None = None
    started: set[str] = set()
    meter = Meter(worked=lambda: worked)
    for event in events:
        if last is not None and last.kind != "approval_requested":
            worked += (event.time - last.time) / SECOND
        last, payload = event, event.payload
        call = event.kind[:4] + str(payload.get("request_id") or payload.get("tool_call_id") or payload.get("tool"))
        if event.kind in ("llm_request", "tool_exec_start"):
            meter.count_start()
            started.add(call)
        elif event.kind in ("llm_response", "tool_exec_end"):
            if call not in started:
                meter.count_start()
            started.discard(call)
        if event.kind == "llm_response":
            meter.count_answer(payload.get("usage"), payload.get("model"))
            if is_unanswered(payload.get("usage"), payload.get("finish_reason")):
                meter.give_back()
    return meter.usage(limited=limited)
