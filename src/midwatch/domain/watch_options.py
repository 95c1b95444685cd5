"""The options of triggers that watch something: files, a branch, events, and the end of other work.

Each function checks the options of one kind and returns them as they are stored. `describe_trigger` puts the options of
any trigger into words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from midwatch.base.durations import duration, seconds
from midwatch.base.errors import InvalidInput
from midwatch.domain.event import KINDS, kinds_of
from midwatch.domain.payload_filter import MOST_CONDITIONS, parse_condition

Options = Mapping[str, Any]
Check = Callable[[Options], dict[str, Any]]

MOST_PATHS = 20
MOST_PARTS = 20
"""The most automations and tags whose end one trigger waits for."""
LONGEST_TEXT = 1000
DEBOUNCE = 2.0
LONGEST_DEBOUNCE = 3600.0
GIT_EVERY = 10.0
SHORTEST_EVERY, LONGEST_EVERY = 1.0, 86400.0
OUTCOMES = ("ok", "failed", "cancelled", "skipped", "any")
JOINS = ("all", "any")
BRANCH = re.compile(r"(?!-)[^\s~^:?*\[\\\x00-\x1f\x7f]{1,250}")


def check_file(options: Options) -> dict[str, Any]:
    """Check the options of a trigger that watches files."""
    refuse_others("file", options, ("paths", "debounce", "per_minute"))
    paths = _read_texts("file", options, "paths", MOST_PATHS)
    if not paths:
        raise refuse("file", "paths", "is empty; name a file, a directory or a pattern such as /srv/in/*.csv")
    for path in paths:
        if not path.startswith("/") or "\0" in path or "/../" in f"{path}/":
            raise refuse("file", "paths", "must have absolute paths without `..`, such as /srv/in/*.csv")
        if path.split("/").count("**") > 1:
            raise refuse("file", "paths", "can have `**` once in each path")
    checked = {**options, "paths": paths}
    return _read_seconds("file", checked, "debounce", 0.0, LONGEST_DEBOUNCE)


def check_git(options: Options) -> dict[str, Any]:
    """Check the options of a trigger that watches a branch."""
    if options.get("fetch"):
        raise refuse("git", "fetch", "cannot be used; fetch the branch by other means, and watch the local branch")
    options = {name: value for name, value in options.items() if name != "fetch"}
    refuse_others("git", options, ("repository", "branch", "every", "per_minute"))
    repository, branch = options.get("repository"), options.get("branch")
    if not isinstance(repository, str) or not repository.startswith("/") or "\0" in repository:
        raise refuse("git", "repository", "must be the absolute path of a local repository")
    if branch is not None and (not isinstance(branch, str) or not BRANCH.fullmatch(branch) or ".." in branch):
        raise refuse("git", "branch", "must be the name of a branch, such as main")
    return _read_seconds("git", options, "every", SHORTEST_EVERY, LONGEST_EVERY)


def check_event(options: Options) -> dict[str, Any]:
    """Check the options of a trigger that waits for events."""
    refuse_others("event", options, ("kinds", "filter", "per_minute"))
    kinds = _read_texts("event", options, "kinds", MOST_PARTS)
    if not kinds:
        raise refuse("event", "kinds", "is empty; name a kind of event, such as task_finished or goal_*")
    for kind in kinds:
        if all(KINDS[known].live for known in kinds_of(kind)):  # events of live kinds are never stored
            raise InvalidInput(
                f"no stored kind of event matches {kind[:50]!r}; the page about events lists all kinds.",
                field="triggers",
            )
    return {**read_filter("event", options), "kinds": kinds}


def check_after(options: Options) -> dict[str, Any]:
    """Check the options of a trigger that waits for the end of other work."""
    refuse_others("after", options, ("automations", "tags", "outcomes", "join", "per_minute"))
    automations = _read_texts("after", options, "automations", MOST_PARTS)
    tags = _read_texts("after", options, "tags", MOST_PARTS)
    if not automations and not tags:
        raise refuse("after", "automations", "is empty; name an automation, or a tag with `tags`")
    if len(automations) + len(tags) > MOST_PARTS:
        raise refuse("after", "automations", f"can name at most {MOST_PARTS} automations and tags")
    outcomes = _read_texts("after", options, "outcomes", len(OUTCOMES))
    if not set(outcomes) <= set(OUTCOMES):
        raise refuse("after", "outcomes", f"must be some of {', '.join(OUTCOMES)}")
    if options.get("join", "all") not in JOINS:
        raise refuse("after", "join", "must be all or any")
    given = {"automations": automations, "tags": tags, "outcomes": [] if outcomes == ["ok"] else outcomes}
    rest = {name: value for name, value in options.items() if name not in given}
    if rest.get("join") == "all":
        del rest["join"]
    return {**rest, **{name: value for name, value in given.items() if value}}


WATCH_CHECKS: Mapping[str, Check] = {
    "file": check_file,
    "git": check_git,
    "event": check_event,
    "after": check_after,
}


def refuse(kind: str, option: str, message: str) -> InvalidInput:
    """Return the error for a wrong option of a trigger."""
    return InvalidInput(f"`{option}` of a {kind} trigger {message}.", field="triggers")


def refuse_others(kind: str, options: Options, known: Collection[str]) -> None:
    """Raise InvalidInput if the options of a trigger contain a name that its kind does not have."""
    for name in options:
        if name not in known:
            raise InvalidInput(
                f"a {kind} trigger has no option {str(name)[:50]!r}; use one of {', '.join(known)}.", field="triggers"
            )


def read_filter(kind: str, options: Options) -> dict[str, Any]:
    """Return the options with checked conditions, without `filter` if there are none."""
    checked = [parse_condition(text).text for text in _read_texts(kind, options, "filter", MOST_CONDITIONS)]
    rest = {name: value for name, value in options.items() if name != "filter"}
    return {**rest, "filter": checked} if checked else rest


def _read_texts(kind: str, options: Options, name: str, most: int) -> list[str]:
    """Return the different texts of an option that is a text or a list of texts."""
    value = options.get(name, ())
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or len(items) > most:
        raise refuse(kind, name, f"must be a list of at most {most} texts")
    if not all(isinstance(item, str) and item.strip() and len(item) <= LONGEST_TEXT for item in items):
        raise refuse(kind, name, f"must have texts of 1 to {LONGEST_TEXT} characters")
    return list(dict.fromkeys(item.strip() for item in items))


def _read_seconds(kind: str, options: Options, name: str, least: float, most: float) -> dict[str, Any]:
    """Return the options with a checked number of seconds, if the option is given."""
    if name not in options:
        return dict(options)
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise refuse(kind, name, "must be a number of seconds, or a time such as 90s")
    length = seconds(value)
    if not math.isfinite(length) or not least <= length <= most:
        raise refuse(kind, name, f"must be from {duration(least) if least else '0s'} to {duration(most)}")
    return {**options, name: length}


# -- words -----------------------------------------------------------------------------------------------------------


def describe_trigger(options: Options, names: Mapping[str, str] | None = None) -> str:
    """Return a trigger in one line. `names` are the titles of automations by their ids."""
    names = names or {}
    match options.get("kind"):
        case "file":
            return f"when {_join(options.get('paths', ()), 'or')} changes"
        case "git":
            branch = options.get("branch")
            return f"on a new commit in {options.get('repository')}" + (f" on {branch}" if branch else "")
        case "event":
            where = f" if {_join(options['filter'], 'and')}" if options.get("filter") else ""
            return f"on the event {_join(options.get('kinds', ()), 'or')}{where}"
        case "after":
            parts = [names.get(key, key) for key in options.get("automations", ())]
            parts += [f"a task with the tag {tag}" for tag in options.get("tags", ())]
            outcomes = options.get("outcomes", ["ok"])
            how = "" if outcomes == ["ok"] else f" ({_join(outcomes, 'or')})"
            return f"after {_join(parts, 'or' if options.get('join') == 'any' else 'and')}{how}"
        case "webhook":
            where = f" if {_join(options['filter'], 'and')}" if options.get("filter") else ""
            return f"on a delivery to its webhook ({options.get('sign')}){where}"
    return str(options.get("kind"))


def _join(words: Any, last: str) -> str:
    texts = [str(word) for word in words]
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}" if len(texts) > 1 else "".join(texts)
