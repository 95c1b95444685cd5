"""Spending: reserves the steps of one attempt, charges its accounts, warns and asks people.

A step reserves in the store before it starts, so several processes never spend the same rest. What a step has spent is
charged in the transaction that writes its event. An attempt without accounts reads and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from midwatch.base.errors import AgentError, Conflict
from midwatch.domain.account import DAY, Account, Reservation, charge, extend_limits, find_over, list_ids, list_unwarned
from midwatch.domain.agent import MAY_START, Permit
from midwatch.domain.approval import Approval
from midwatch.domain.budget import Meter, Over, Spending
from midwatch.domain.budget_question import BUDGET_QUESTION, UNANSWERED, ask_for_more, warn
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import BudgetReached, Payload
from midwatch.domain.task import announce_status
from midwatch.running.host import Host
from midwatch.running.run import Run
from midwatch.running.turn_log import TurnLog
from midwatch.services.budgets import DaySpent


class TurnSpending:
    """What one attempt spends, and what its accounts have left."""

    def __init__(self, host: Host, run: Run, log: TurnLog, report: Callable[[Payload], None]) -> None:
        """Build it without accounts; `report` adds an event of midwatch itself to the turn."""
        self.asked = False
        """Whether the turn has asked people for a larger budget."""
        self._host = host
        self._run = run
        self._meter: Meter = run.meter
        self._log = log
        self._report = report
        self._ids: tuple[str, ...] = ()
        """The accounts that exist."""
        self._accounts: tuple[Account, ...] = ()
        """The accounts when they were last read."""
        self._seen = Spending()
        """What this attempt had spent when the accounts were last read."""
        self._held = 0
        """The number of reserved steps that have not started."""
        self._winds_up = False
        self._reserves = False
        task = run.task
        self._tree_account: tuple[str, ...] = (task.account_id,) if task.account_id is not None else ()
        """The account of the tree. It is also charged if it does not exist: a retry may open it at any time."""
        verifies = task.cause == "goal" and "#step:" not in (task.internal_key or "")
        self._extended_account = task.account_id if verifies else None
        """The account whose limits are extended: that of a goal, when the goal is verified or wrapped up."""

    # -- the beginning -------------------------------------------------------------------------------------------

    async def open(self, *, reserves: bool = False) -> DaySpent | None:
        """Read the accounts of the task. If the budget of the day is spent, return it.

        `reserves` is whether the agent reserves each step before it begins, and can wind up.
        """
        self._reserves = reserves
        task = self._run.task
        days = await self._host.budgets.open_days(task.agent)
        if task.budget is None and task.account_id is None and not days:
            return None  # nothing limits this task
        self._ids = list_ids(task, days)
        await self._read()
        for account in self._accounts:
            if account.scope == "day" and (over := find_over(account, account.spent, task)):
                return DaySpent(over, self._host.budgets.find_day_end())
        return None

    async def admit(self) -> Permit:
        """Decide whether the turn may begin; people may be asked first.

        An agent that reserves its steps may begin: it asks with its first step, when its libraries are loaded and its
        tools are ready. So it goes on soon after the answer.
        """
        await self.warn()  # an agent that reports its usage only at its end has no later step to do it
        while not self._reserves and (found := self._find_over()) is not None:
            self._note_reached(*found)
            if (permit := await self._decide(*found)) is not None:
                return permit
        return MAY_START

    async def _read(self) -> None:
        self._note(Reservation(tuple(await self._host.store.read_accounts(self._ids))))

    def _note(self, reservation: Reservation) -> None:
        self._accounts, self._seen = reservation.accounts, self._meter.own
        self._ids = tuple(account.id for account in self._accounts)
        self._run.limited = any(account.scope != "day" for account in self._accounts)

    # -- steps ---------------------------------------------------------------------------------------------------

    async def reserve(self) -> Permit:
        """Reserve the next step; people may be asked first. A second call before the step reserves nothing more."""
        while not self._held:
            if (found := await self._try()) is None:
                self._held += 1
            elif (permit := await self._decide(*found)) is not None:
                return permit
        return MAY_START

    async def start(self) -> bool:
        """Count a step that an agent has started. Return False if it was not reserved and its budget is spent."""
        if self._held:
            self._held -= 1
            return True
        return await self._try() is None

    def count(self, *, unreserved: bool = False, given_back: bool = False) -> None:
        """Charge what was spent, after the event about it was added to the log.

        `unreserved` is for a step of which only the end is known, `given_back` for a model call without an answer.
        """
        if unreserved:
            self._meter.count_start()
        if given_back:
            self._meter.give_back()
        if not self._ids and not self._tree_account:
            return
        self._settle(self._meter.settle())
        if found := self._find_over():
            self._note_reached(*found)

    async def warn(self) -> None:
        """Warn people once of each limit that is nearly reached."""
        for account in self._accounts:
            if not list_unwarned(account, self._estimate(account)):
                continue
            step = warn(self._run.task, account, self._estimate(account), self._host.clock.now())
            with suppress(Conflict):  # another turn did it
                await self._log.write(step)
            await self._refresh()

    async def _try(self) -> tuple[Account, Over] | None:
        """Reserve a step, and return None; or return the limit that is reached, with its account."""
        if not self._ids:
            self._meter.count_start()
            return None
        if self._extended_account is not None and (found := self._find_over()) is not None:
            self._note_reached(*found)  # the store does not know the extended limits
            return found
        await self._renew_days()
        self._settle(self._meter.settle())
        await self._log.drain()
        reservation = await self._host.store.reserve(self._run.fence, self._ids, self._extended_account)
        if reservation.granted:
            self._meter.count_start()
            self._meter.skip_step()
        self._note(reservation)
        await self.warn()
        if reservation.granted:
            return None
        found = self._find_over()
        if found is not None:
            self._note_reached(*found)
        return found

    async def _renew_days(self) -> None:
        """Replace the accounts of the day after midnight."""
        if any(name.startswith(DAY) for name in self._ids):
            days = await self._host.budgets.open_days(self._run.task.agent)
            self._ids = tuple(sorted({*days, *(name for name in self._ids if not name.startswith(DAY))}))

    async def _refresh(self) -> None:
        self._settle(self._meter.settle())
        await self._log.drain()
        await self._read()

    def _settle(self, spent: Spending) -> None:
        self._log.add_charges(charge({*self._ids, *self._tree_account}, spent))

    def finish(self, usage: Mapping[str, Any] | None) -> None:
        """Charge what is not charged yet, at the end of the attempt. `usage` is its whole usage."""
        if not self._ids and not self._tree_account:
            return
        for _ in range(self._held):
            self._meter.give_back()
        self._held = 0
        self._settle(self._meter.settle(usage))

    # -- limits --------------------------------------------------------------------------------------------------

    def _estimate(self, account: Account) -> Spending:
        """Return what an account has spent at least: as it was read, and what this attempt has spent since."""
        return account.spent.plus(self._meter.own.minus(self._seen))

    def _find_over(self) -> tuple[Account, Over] | None:
        if not self._accounts:
            return None
        for account in sorted(self._get_limited(), key=lambda account: account.scope == "day"):
            over = find_over(account, self._estimate(account), self._run.task)
            if over is not None:
                return account, over
        return None

    def _get_limited(self) -> list[Account]:
        """Return the accounts with the limits that apply to this attempt."""
        return [
            extend_limits(account) if account.id == self._extended_account else account for account in self._accounts
        ]

    @property
    def counts_money(self) -> bool:
        """Whether a limit in dollars applies."""
        return any(account.budget.usd is not None for account in self._accounts)

    def remaining_seconds(self) -> float | None:
        """Return the seconds that the task may still work, or None if there is no limit.

        If an agent reserves its steps, limits that are reached already do not count: the next step is not granted.
        """
        if not self._accounts:
            return None
        rests = [
            account.budget.seconds - self._estimate(account).seconds
            for account in self._get_limited()
            if account.budget.seconds is not None
        ]
        return min((max(0.0, rest) for rest in rests if rest > 0 or not self._reserves), default=None)

    def spend_time(self) -> None:
        """Record that the turn has used all seconds of its budget."""
        limited = [account for account in self._get_limited() if account.budget.seconds is not None]
        account = min(limited, key=lambda account: (account.budget.seconds or 0) - self._estimate(account).seconds)
        most = account.budget.seconds or 0.0
        spent = self._estimate(account)._replace(seconds=max(most, self._estimate(account).seconds))
        if over := find_over(account, spent, self._run.task):
            self._note_reached(account, over)
            self._log.flush_soon()

    def _note_reached(self, account: Account, over: Over) -> None:
        """Record that a limit is reached: once for each value of the limit."""
        known = self._run.over
        if self._log.ended or (known is not None and (known.budget, known.limit) == (over.budget, over.limit)):
            return
        self._run.over = over
        self._report(BudgetReached(account_id=account.id, **over._asdict()))

    # -- people --------------------------------------------------------------------------------------------------

    async def ask_after_turn(self) -> bool:
        """Ask people after an agent was interrupted, because its budget is spent. Return whether it may go on."""
        await self._refresh()
        while (found := self._find_over()) is not None:
            if found[0].on_budget == "wind_up" and found[0].id != self._extended_account and self._reserves:
                return not self._winds_up  # the next attempt gives the last answer
            if found[0].on_budget != "ask" or await self._decide(*found) is not None:
                return False
        return True

    async def would_ask(self) -> bool:
        """Return whether people should be asked about the budget that has ended the turn."""
        await self._refresh()
        return (found := self._find_over()) is not None and found[0].on_budget == "ask"

    async def _decide(self, account: Account, over: Over) -> Permit | None:
        """Decide what a turn does whose budget is spent. Return None if it may try to go on."""
        if account.on_budget == "wind_up" and self._has_begun and not self._winds_up:
            self._winds_up = True
            self._held += 1
            self._meter.count_start()
            return Permit("wind_up", over.words)
        if account.on_budget != "ask":
            self._run.over = over
            return Permit("stop", over.words)
        if await self._ask(account, over):
            await self._read()
            return None
        self._run.over = over
        return Permit("stop", over.words)

    @property
    def _has_begun(self) -> bool:
        """Whether the task has spent something or waited for the answer. Work that begins later does not wind up."""
        return self.asked or self._run.task.attempt > 1 or self._meter.own.steps > 0

    async def _ask(self, account: Account, over: Over) -> bool:
        """Wait until people have answered the question of the account. Return False if nobody answered in time."""
        run = self._run
        async with run.pause():
            self.asked = True
            approval = await self._find_question(account) or await self._open_question(account, over)
            if approval is None:
                return True  # another turn has asked meanwhile, or the limits were changed: look again
            resolved = await run.wait_for_answer(approval)
            await self._read()
            run.over = None
        now = self._host.clock.now()
        going_on = Update("task", run.task.id, {"wait": None})
        busy = announce_status(run.task, "busy", now)
        await self._log.write(Changes(fence=run.fence, updates=(going_on,), events=busy))
        if resolved.status == "pending":
            raise AgentError("the budget is spent, and the task is being stopped.")
        if resolved.status != "expired" or resolved.why != UNANSWERED:
            return True
        stops = Update("account", account.id, {"on_budget": "stop"}, {"on_budget": "ask", "approval_id": approval.id})
        with suppress(Conflict):  # another turn that waited did it, or the limits were changed
            await self._log.write(Changes(fence=run.fence, updates=(stops,)))
        return False

    async def _find_question(self, account: Account) -> Approval | None:
        """Return the open question of the account, if another turn has asked it."""
        approval = await self._host.store.get_approval(account.approval_id) if account.approval_id else None
        if approval is None or approval.status != "pending":
            return None
        waits = Update("task", self._run.task.id, {"wait": "approval"})
        await self._log.write(Changes(fence=self._run.fence, updates=(waits,)))
        return approval

    async def _open_question(self, account: Account, over: Over) -> Approval | None:
        host, task = self._host, self._run.task
        ruling = await host.approvals.judge(task, BUDGET_QUESTION)
        approval, step = ask_for_more(
            task, account, over, self._estimate(account), ruling, host.approval_seconds, host.clock.now()
        )
        asking = announce_status(task, "asking", host.clock.now())
        try:
            await self._log.write(step._replace(events=step.events + asking))
        except Conflict:
            return None
        return approval
