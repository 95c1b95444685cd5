"""Requests: the options of a new task, and checks that all requests share."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypedDict, get_args

from midwatch.base.errors import InvalidInput
from midwatch.domain.fields import Input

OnCrash = Literal["resume", "rerun", "fail"]
Cause = Literal["submit", "message", "automation", "goal", "handoff", "result"]

OnBudget = Literal["stop", "ask"]
"""What happens when a budget is spent: the work stops, or people are asked for more."""
AccountMode = Literal["stop", "ask", "wind_up"]
"""The same for an account. After the answer "wind up", each task of the account ends with one last answer."""

CAUSES = get_args(Cause)
PRIORITY = 100
MAX_PROMPT = 1_000_000
YEAR = 366 * 86400.0
MAX_TAGS, LONGEST_TAG = 20, 50
NO_NAMES = frozenset({"export", "import", "new"})
"""Texts that cannot be names of automations and goals, because they are parts of addresses."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}", re.ASCII)


NOTICES_HELP = "Notices: all, result, changes, failures, questions, digest:hourly, digest:daily, off."


class Submission(TypedDict, total=False):
    """The options of a new task; all of them are optional."""

    agent: Annotated[
        str | None, Input("Agent to use. Default: the setting default_agent.", agents=True, example="demo")
    ]
    origin_channel: Annotated[str | None, Input("Channel that the request came from.")]
    origin_session: Annotated[str | None, Input("Session that the request came from; it gets the result as a message.")]
    session_key: Annotated[str | None, Input("Session to run in. Default: a new one (`bg:<id>`).")]
    """Tasks of one session run one at a time."""
    route: Annotated[str | list[str] | None, Input("Where to send notices: channel or channel:target. Repeatable.")]
    notices: Annotated[str | None, Input(NOTICES_HELP, longest=100)]
    workdir: Annotated[str | None, Input("Directory to work in.", agents=True)]
    share_workdir: Annotated[bool, Input("Run beside other tasks in the same directory.", strict=True)]
    worktree: Annotated[
        bool,
        Input("Work in a new git worktree and branch, made from HEAD.", strict=True, agents=True),
    ]
    timeout: Annotated[float | None, Input("Time limit: 90s, 10m, 1h30m.", seconds=True, agents=True, example="10m")]
    priority: Annotated[
        int, Input("From -100 to 100; higher runs first. Default: 0.", least=-PRIORITY, most=PRIORITY, strict=True)
    ]
    delay: Annotated[float, Input("Wait this long before starting: 90s, 10m.", seconds=True, agents=True)]
    idempotency_key: Annotated[
        str | None, Input("Idempotency key: the same key and options create one task.", agents=True)
    ]
    on_crash: Annotated[OnCrash | None, Input("After a crash: resume, rerun or fail. Default: the agent's.")]
    max_attempts: Annotated[
        int | None, Input("Tries at most, if it fails for a reason that may go away.", least=1, most=100, strict=True)
    ]
    approvals: Annotated[
        Mapping[str, Any] | None, Input("Rules on the use of tools: default, allow, ask, deny, expires.")
    ]
    tags: Annotated[tuple[str, ...], Input("Words to find it by.", longest=100, agents=True, example=["daily"])]
    wake: Annotated[
        bool,
        Input("For agents: begin a turn of the agent that submits it, with the result.", strict=True, agents=True),
    ]
    cause: Cause
    budget: Annotated[Mapping[str, Any] | None, Input("What it may spend: tokens, usd, steps, seconds.")]
    on_budget: Annotated[
        OnBudget | None, Input("When the budget is spent: stop, or ask. Default: ask if somebody can be asked.")
    ]


def refuse_first(*problems: tuple[str, bool, str]) -> None:
    """Raise InvalidInput for the first wrong field.

    Each problem has three parts: the name of a field, whether the field is wrong, and the error message.
    """
    for field, wrong, message in problems:
        if wrong:
            raise InvalidInput(message, field=field)


def refuse_unknown(wish: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise InvalidInput for an unknown option, so that a misspelt option is not ignored."""
    if unknown := sorted(set(wish) - known):
        raise InvalidInput(f"{unknown[0]} cannot be set here; allowed: {', '.join(sorted(known))}.", field=unknown[0])


def is_plain(text: str) -> bool:
    """Return whether a text has no NUL character and can be written as UTF-8, so that every store can hold it."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def body_hash(prompt: str, wish: Submission) -> str:
    """Return the hash of a submission.

    If a second submission has the same idempotency key and the same hash, it creates no task.
    """
    options = {
        name: float(value) if isinstance(value, int) else value
        for name, value in wish.items()
        if value not in (None, 0, "") and name != "idempotency_key"
    }
    return hashlib.sha256(json.dumps([prompt, options], sort_keys=True, default=str).encode()).hexdigest()


def is_name(text: str, prefix: str) -> bool:
    """Return whether a text can be the name of an automation or a goal. `prefix` begins the ids of these records."""
    return _NAME.fullmatch(text) is not None and not text.startswith(prefix) and text not in NO_NAMES


def check_name(name: str | None, prefix: str) -> tuple[str, bool, str]:
    """Return the possible problem of the name of an automation or a goal, as `refuse_first` takes it."""
    form = (
        "the name must have 1 to 60 lower-case letters, digits, `-` or `_`, such as morning-brief; "
        f"it cannot begin with `{prefix}` or be one of: {', '.join(sorted(NO_NAMES))}."
    )
    return "name", name is not None and not is_name(name, prefix), form


def clean_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return tags without blanks around them, each once. Raise InvalidInput if one is not valid."""
    cleaned = tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    check_tags(cleaned)
    return cleaned


def check_tags(tags: tuple[str, ...]) -> None:
    """Raise InvalidInput if there are too many tags, or if one is too long or not printable."""
    if len(tags) > MAX_TAGS:
        raise InvalidInput(f"there are too many tags; use at most {MAX_TAGS}.", field="tags")
    if any(not tag.isprintable() or len(tag) > LONGEST_TAG for tag in tags):
        raise InvalidInput(f"a tag must have 1 to {LONGEST_TAG} printable characters.", field="tags")
