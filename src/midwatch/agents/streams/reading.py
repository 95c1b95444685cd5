"""Reading what agents write, which may be anything: parts of it, tools, plans, changes of files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from midwatch.agents.patch import LONGEST, patch

TITLE_LIMIT = 120

KIND_WORDS = {
    "think": ("think", "todo", "plan", "task", "goal"),
    "execute": ("bash", "shell", "exec", "command", "terminal", "powershell"),
    "edit": ("write", "edit", "create", "replace", "patch", "file_change", "insert"),
    "search": ("grep", "glob", "search", "find", "list", "ls"),
    "fetch": ("fetch", "web", "http", "browse"),
    "read": ("read", "view", "cat", "open"),
    "delete": ("delete", "remove"),
    "move": ("move", "rename"),
}
"""Parts of tools' names that tell what they do; the first that fits counts."""
PLACES = ("file_path", "filePath", "path", "absolute_path", "notebook_path", "filename")
TITLES = ("command", "cmd", *PLACES, "pattern", "query", "url", "prompt", "description", "subject")


def tool_kind(name: str) -> str:
    """What a tool of this name does."""
    plain = name.lower()
    if "web" in plain:
        return "fetch"
    return next((kind for kind, words in KIND_WORDS.items() if any(word in plain for word in words)), "other")


def shown_command(command: str) -> str:
    """A command without the shell it is wrapped in."""
    try:
        parts = shlex.split(command)
    except ValueError:
        return command
    wrapped = len(parts) == 3 and parts[0].rpartition("/")[2] in ("bash", "sh", "zsh") and parts[1] in ("-c", "-lc")
    return parts[2] if wrapped else command


def title_of(name: str, arguments: Any) -> str:
    """What a tool is used for, in one line."""
    given = arguments if isinstance(arguments, Mapping) else {}
    said = next((given[key] for key in TITLES if isinstance(given.get(key), str) and given[key].strip()), "")
    first = said.strip().splitlines()[0] if said else ""
    whole = f"{name}: {first}" if first else name
    return whole if len(whole) <= TITLE_LIMIT else whole[: TITLE_LIMIT - 1] + "…"


def locations_of(arguments: Any) -> tuple[str, ...]:
    """The files a tool's arguments name."""
    given = arguments if isinstance(arguments, Mapping) else {}
    return tuple(dict.fromkeys(given[key] for key in PLACES if isinstance(given.get(key), str)))


STATES = {"in_progress": "in_progress", "inprogress": "in_progress", "completed": "completed", "done": "completed"}


def plan_of(todos: Any) -> tuple[Mapping[str, Any], ...]:
    """A plan, of a list of things to do as agents write it."""
    made = []
    for todo in todos if isinstance(todos, list) else ():
        if isinstance(todo, Mapping) and (text := _first(todo, "content", "text", "description", "subject", "title")):
            status = "completed" if todo.get("completed") is True else STATES.get(str(todo.get("status")), "pending")
            made.append({"content": text, "status": status, "priority": todo.get("priority") or "medium"})
    return tuple(made)


def _first(data: Mapping[str, Any], *names: str) -> str | None:
    return next((data[name] for name in names if isinstance(data.get(name), str)), None)


def patch_of(path: str, text: str) -> dict[str, Any]:
    """A change of a file whose patch an agent has made: cut when long, and what it counts."""
    lines = text.splitlines()
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    cut = len(text) > LONGEST
    return {"path": path, "patch": text[:LONGEST], "added": added, "removed": removed, "cut": cut}


def change_by(arguments: Any) -> tuple[Mapping[str, Any], ...]:
    """The change a tool for writing or replacing makes, as its arguments tell it."""
    given = arguments if isinstance(arguments, Mapping) else {}
    places = locations_of(given)
    new = _first(given, "content", "file_text", "new_string", "newString", "new_str", "after")
    if not places or new is None:
        return ()
    return (patch(places[0], _first(given, "old_string", "oldString", "old_str", "before"), new),)


def text_of(content: Any) -> str:
    """The text of a message's or a result's content, which is a text or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "\n".join(part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str))


def whole_number(value: Any) -> int | None:
    """A count of something, if it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def total(*values: Any) -> int | None:
    """The sum of what is known, or None when nothing is."""
    known = [number for number in map(whole_number, values) if number is not None]
    return sum(known) if known else None


def part(data: Any, *path: str) -> Mapping[str, Any]:
    """A mapping inside a mapping; an empty one where there is none. Agents write anything."""
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else {}


def parts(data: Any) -> Iterator[Mapping[str, Any]]:
    """The mappings of a list."""
    yield from (one for one in data if isinstance(one, Mapping)) if isinstance(data, list) else ()


def words(value: Any) -> str:
    """A text, if it is one."""
    return value if isinstance(value, str) else ""
