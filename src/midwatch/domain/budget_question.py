"""Budget questions: warn people before a budget is spent, ask them when it is spent, and apply their answer.

An account has one open question at a time, even if several turns reach its limit. The others wait for the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from midwatch.base.clock import SECOND
from midwatch.base.durations import duration
from midwatch.base.text import cut
from midwatch.domain.account import SMALLEST_RAISE, Account, list_unwarned, raise_limits, scope_of, set_limits
from midwatch.domain.agent import Choice, Question
from midwatch.domain.approval import Approval, ask
from midwatch.domain.budget import NAMES, Budget, Name, Over, Spending, format_amount
from midwatch.domain.changes import Changes, Fence, Update
from midwatch.domain.event import BudgetWarned, event
from midwatch.domain.notice import make_notices, title_of
from midwatch.domain.requests import AccountMode
from midwatch.domain.rule import Ruling
from midwatch.domain.task import Task, in_turn

RAISES: Mapping[str, float] = {"raise by 25 %": SMALLEST_RAISE, "raise by 50 %": 1.5, "raise by 100 %": 2.0}
"""The answers that raise a spent limit, each with its factor."""
WIND_UP, STOP = "wind up", "stop"
CHOICES = (
    *(Choice(name, "allow_once") for name in RAISES), Choice(WIND_UP, "allow_once"), Choice(STOP, "reject_once"),
)  # fmt: skip
BUDGET_QUESTION = Question(text="May the work spend more?", choices=CHOICES)
"""A question for which the settings say how long people have time to answer."""
AT_LIMIT: Mapping[AccountMode, str] = {
    "ask": "At the limit, people are asked whether the work may go on.",
    "stop": "At the limit, the work stops.",
    "wind_up": "At the limit, the work ends with one last answer.",
}
"""What happens when a budget is spent, for people who are warned."""
AT_LIMIT_OF_DAY = "At the limit, running tasks stop, and new tasks wait until midnight."
PROMPT_SHOWN = 80
SMALLEST: Mapping[Name, float] = {"tokens": 1, "usd": 1e-9, "steps": 1, "seconds": 0.5}
"""The smallest amounts that a question names as spent."""
UNANSWERED = "nobody answered in time"
"""Why a question expired, if nobody answered it. Any other reason means that its turn ended."""


def warn(task: Task, account: Account, spent: Spending, now: int) -> Changes:
    """Return the step that warns people once of each limit that is nearly reached; its guard fails if others did."""
    names = list_unwarned(account, spent)
    warned = ",".join(filter(None, (account.warned, *names)))
    overs = [Over(name, getattr(account.budget, name), getattr(spent, name), scope_of(account, task)) for name in names]
    at_limit = AT_LIMIT_OF_DAY if account.scope == "day" else AT_LIMIT[account.on_budget]
    texts = [
        f"{task.agent}: {over.warning}.\nWork: {_shorten(task)}\n{at_limit} See `midwatch budget {account.id}`."
        for over in overs
    ]
    return Changes(
        fence=Fence(task.id, task.attempt),
        updates=(Update("account", account.id, {"warned": warned}, {"warned": account.warned}),),
        deliveries=tuple(
            delivery
            for over, text in zip(overs, texts, strict=True)
            for delivery in make_notices(task, f"budget:{account.id}:{over.budget}:{over.limit:.15g}", text, now)
        ),
        events=tuple(
            event(BudgetWarned(account_id=account.id, **over._asdict()), now, **in_turn(task)) for over in overs
        ),
    )


def ask_for_more(
    task: Task, account: Account, over: Over, spent: Spending, ruling: Ruling, seconds: float, now: int
) -> tuple[Approval, Changes]:
    """Return the question whether an account may spend more, and the step that stores it.

    `spent` is what the account has spent. Of the `ruling` only the time for the answer counts; without it, `seconds`
    count. The step fails if another turn has asked meanwhile.
    """
    seconds = ruling.expires or seconds
    if ruling.until is not None:
        seconds = min(seconds, max(0, ruling.until - now) / SECOND)
    text = word_question(task, account, over, spent, seconds)
    approval, step = ask(task, Question(text=text, choices=CHOICES), seconds, now)
    asked = Update("account", account.id, {"approval_id": approval.id}, {"approval_id": account.approval_id})
    return approval, step._replace(updates=(*step.updates, asked))


def word_question(task: Task, account: Account, over: Over, spent: Spending, seconds: float) -> str:
    """Return the text of the question: what is spent on what, what each answer does, and what happens without one."""
    limits = account.budget
    known = [name for name in NAMES if getattr(spent, name) >= SMALLEST[name]]  # no cost if nobody reported one
    raises = [
        f"{name.removeprefix('raise ')} to {_list_changes(limits, raise_limits(limits, spent, factor))}"
        for name, factor in RAISES.items()
    ]
    so_far = ", ".join(format_amount(name, getattr(spent, name)) for name in known)
    return "\n".join(
        (
            f"{over.words[0].upper()}{over.words[1:]}. May the work go on?",
            f"Work: {_shorten(task)}",
            f"Spent so far: {so_far}.",
            f"Raise {', '.join(raises)}.",
            f"{WIND_UP.capitalize()}: one last answer without tools. {STOP.capitalize()}: finished work is kept.",
            f"No answer within {duration(seconds)}: the work stops.",
        )
    )


def _shorten(task: Task) -> str:
    """Return the title of the task's work, cut."""
    return cut(title_of(task), PROMPT_SHOWN)


def _list_changes(limits: Budget, raised: Budget) -> str:
    """Return the limits that are raised, as text."""
    changed = [name for name in NAMES if getattr(raised, name) != getattr(limits, name)]
    return " and ".join(format_amount(name, getattr(raised, name)) for name in changed)


def answer_question(account: Account, answer: str | None) -> tuple[Budget, Update]:
    """Return the limits after an answer to the question of an account, and the update that writes it."""
    limits = account.budget
    if answer is not None and answer in RAISES:
        limits = raise_limits(limits, account.spent, RAISES[answer])
        return limits, set_limits(account, limits)
    fields = {"on_budget": "wind_up" if answer == WIND_UP else "stop", "approval_id": None}
    return limits, Update("account", account.id, fields, {"approval_id": account.approval_id})
