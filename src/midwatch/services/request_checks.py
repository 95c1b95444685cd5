"""Checks of requests: a wrong value raises InvalidInput, which names the field and says what to do."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from midwatch.base.directories import directory_of, is_directory, real_directory
from midwatch.base.errors import InvalidInput
from midwatch.domain.budget import Budget
from midwatch.domain.notice import CheckRoute, PlanNotices, check_notices, keep_policy, limit_to_questions
from midwatch.domain.requests import CAUSES, PRIORITY, YEAR, Submission, is_plain


class Routes:
    """Chooses where the notices of a new task go, and which are sent."""

    def __init__(self, check_route: CheckRoute, default_route: str | None, plan: PlanNotices | None = None) -> None:
        self._check_route = check_route
        self._default_route = default_route
        self._plan = plan or keep_policy

    def choose(self, wish: Submission) -> tuple[str | None, str | None]:
        """Return the route and the field `notices` of a new task.

        Without a route the task gets the channel that it came from, if there is one, else the default route. The
        default route gets no results of chat messages: whoever writes them reads the answers in the chat.
        """
        policy = check_notices(wish.get("notices"))
        if wanted := wish.get("route"):
            route = self._check_route(wanted)
            return route, self._plan(route, policy)
        if origin := wish.get("origin_channel"):
            with suppress(InvalidInput):
                route = self._check_route([origin])
                return route, self._plan(route, policy)
        if not self._default_route:
            return None, None
        route = self._check_route(self._default_route)
        plan = self._plan(route, policy)
        if policy is None and wish.get("cause") == "message":
            plan = limit_to_questions(plan)
        return route, plan


def check(prompt: str, wish: Submission, max_prompt: int) -> None:
    """Raise InvalidInput if the prompt or another value of a submission is wrong."""
    for field, value in (("prompt", prompt), *wish.items()):
        if not all(is_plain(text) for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)):
            raise InvalidInput(f"`{field}` has a NUL or an incomplete character; send plain UTF-8 text.", field=field)
    if not prompt.strip():
        raise InvalidInput("the prompt is empty; write what the agent should do.", field="prompt")
    if len(prompt) > max_prompt:
        raise InvalidInput(f"the prompt has {len(prompt)} characters; use at most {max_prompt}.", field="prompt")
    check_workdir(wish.get("workdir"))
    timeout = wish.get("timeout")
    if timeout is not None and not 0 < timeout <= YEAR:
        raise InvalidInput("the timeout must be more than 0 seconds and at most a year.", field="timeout")
    if not -PRIORITY <= (wish.get("priority") or 0) <= PRIORITY:
        raise InvalidInput(f"the priority must be from -{PRIORITY} to {PRIORITY}.", field="priority")
    if not 0 <= (wish.get("delay") or 0) <= YEAR:
        raise InvalidInput("the delay must be from 0 seconds to a year.", field="delay")
    attempts = wish.get("max_attempts")
    if attempts is not None and not 1 <= attempts <= 100:
        raise InvalidInput("`max_attempts` must be from 1 to 100.", field="max_attempts")
    if wish.get("on_crash") not in (None, "resume", "rerun", "fail"):
        raise InvalidInput("`on_crash` must be `resume`, `rerun` or `fail`.", field="on_crash")
    if wish.get("cause") not in (None, *CAUSES):
        raise InvalidInput(f"the cause must be one of: {', '.join(CAUSES)}.", field="cause")
    Budget.from_data(wish.get("budget"))
    key = wish.get("idempotency_key")
    if key is not None and not (0 < len(key) <= 200 and key.isprintable()):
        raise InvalidInput("an idempotency key must have 1 to 200 printable characters.", field="idempotency_key")


def check_workdir(workdir: str | None) -> None:
    """Raise InvalidInput unless the directory is None, or an absolute path of an existing directory."""
    if workdir is not None and not Path(workdir).is_absolute():
        raise InvalidInput(f"the working directory {workdir!r} must be an absolute path.", field="workdir")
    if workdir is not None and not is_directory(workdir):
        raise InvalidInput(
            f"the working directory {workdir!r} does not exist or is not a directory; create it, or name another one.",
            field="workdir",
        )


def resolve_workdir(workdir: str | None, stored: str | None = None) -> str | None:
    """Check the working directory that a request names, and return its path without symbolic links.

    The path `stored` of a record is returned unchanged: it had no link when it was stored, so a link there is new.
    """
    if workdir is None or workdir == stored:
        return workdir
    check_workdir(workdir)
    return real_directory(workdir)


def check_repository(workdir: str | None) -> None:
    """Raise InvalidInput unless the directory is in a git repository. Further checks follow when the task starts."""
    if workdir is None:
        raise InvalidInput("for a worktree, `workdir` must name a directory in a git repository.", field="workdir")
    if not (Path(directory_of(workdir)) / ".git").exists():
        raise InvalidInput(
            f"{workdir!r} is not in the checkout of a git repository, so no worktree can be made from it; leave out "
            "`worktree`, name a checkout, or create a repository with `git init` and a first commit.",
            field="worktree",
        )
