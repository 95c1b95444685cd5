"""Reads values, tools, plans and file changes from an agent's JSON data. The data may have any form."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from midwatch.agents.patch import LONGEST, patch
from midwatch.domain.host_name import find_hosts
from midwatch.domain.rule import TARGETED
from midwatch.domain.tool_call import ToolCall, collect_texts
from midwatch.domain.tool_name import guess_kind

TITLE_LIMIT = 120

PLACES = ("file_path", "filePath", "path", "absolute_path", "notebook_path", "filename")
TITLES = ("command", "cmd", *PLACES, "pattern", "query", "url", "prompt", "description", "subject")


def unwrap_command(command: str) -> str:
    """Return the command inside a call such as `bash -c COMMAND`. Other commands are returned unchanged."""
    try:
        parts = shlex.split(command)
    except ValueError:
        return command
    wrapped = len(parts) == 3 and parts[0].rpartition("/")[2] in ("bash", "sh", "zsh") and parts[1] in ("-c", "-lc")
    return parts[2] if wrapped else command


def make_title(name: str, arguments: Any) -> str:
    """Return a title of one line for a tool call."""
    text = next((text for key in TITLES if (text := get_text(arguments, key).strip())), "")
    title = f"{name}: {text.splitlines()[0]}" if text else name
    return title if len(title) <= TITLE_LIMIT else title[: TITLE_LIMIT - 1] + "…"


def find_paths(arguments: Any) -> tuple[str, ...]:
    """Return the paths of files in the arguments of a tool call."""
    return tuple(dict.fromkeys(path for key in PLACES if isinstance(path := get(arguments, key), str)))


def describe_call(tool: str, arguments: Mapping[str, Any], call_id: str | None, root: str | None) -> ToolCall:
    """Return a tool call of an agent's program as rules see it. Its arguments may have any form."""
    forms = re.fullmatch(r"mcp__(.+?)__(.+)", tool)
    kind = "other" if forms else guess_kind(tool)
    command, url, paths = get_text(arguments, "command"), get_text(arguments, "url"), find_paths(arguments)
    call = ToolCall(
        tool=forms[2] if forms else tool, arguments=arguments, id=call_id, server=forms[1] if forms else None,
        kind=kind, root=root, text=make_title(tool, arguments),
    )  # fmt: skip
    if kind == "execute" and command:
        return call._replace(command=command)
    if kind in TARGETED and paths:
        return call._replace(paths=paths, texts=paths)  # the other texts are the content of files
    facts = collect_texts(arguments)
    return call._replace(
        hosts=tuple(find_hosts(url)) if kind == "fetch" else (), paths=paths if kind == "search" else (),
        texts=facts.get("texts", ()), unread=facts.get("unread", False),
    )  # fmt: skip


STATES = {"in_progress": "in_progress", "inprogress": "in_progress", "completed": "completed", "done": "completed"}


def read_plan(todos: Any) -> tuple[Mapping[str, Any], ...]:
    """Convert an agent's to-do list to the entries of a plan."""
    entries = []
    for todo in get_dicts(todos):
        if text := _first(todo, "content", "text", "description", "subject", "title"):
            status = "completed" if todo.get("completed") is True else STATES.get(str(todo.get("status")), "pending")
            entries.append({"content": text, "status": status, "priority": todo.get("priority") or "medium"})
    return tuple(entries)


def _first(data: Any, *names: str) -> str | None:
    return next((text for name in names if isinstance(text := get(data, name), str)), None)


def read_patch(path: str, text: str) -> dict[str, Any]:
    """Return a patch that the agent wrote in the form of `patch.patch`. A long patch is cut."""
    lines = text.splitlines()
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    cut = len(text) > LONGEST
    return {"path": path, "patch": text[:LONGEST], "added": added, "removed": removed, "cut": cut}


def read_change(arguments: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the change of a file that a tool call makes, read from its arguments; empty if there is none."""
    paths = find_paths(arguments)
    new = _first(arguments, "content", "file_text", "new_string", "newString", "new_str", "after")
    if not paths or new is None:
        return ()
    return (patch(paths[0], _first(arguments, "old_string", "oldString", "old_str", "before"), new),)


def join_text(content: Any) -> str:
    """Return the content of a message as one text. The content is a text or a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in get_dicts(content) if isinstance(part.get("text"), str))


def get(data: Any, *path: str) -> Any:
    """Return the value at a path in nested data, or None. `path` names the fields, the outermost first."""
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def get_text(data: Any, *path: str) -> str:
    """Return the text at a path in nested data; an empty text if there is none."""
    value = get(data, *path)
    return value if isinstance(value, str) else ""


def get_count(data: Any, *path: str) -> int | None:
    """Return the whole number at a path in nested data; None if there is none or it is negative."""
    value = get(data, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def read_tokens(usage: Any) -> dict[str, Any]:
    """Return the numbers of input and output tokens in `usage`. A number that is missing is None."""
    return {name: get_count(usage, name) for name in ("input_tokens", "output_tokens")}


def add_counts(*values: Any) -> int | None:
    """Return the sum of the values that are whole numbers; None if there are none."""
    counts = [count for count in map(get_count, values) if count is not None]
    return sum(counts) if counts else None


def get_dict(data: Any, *path: str) -> Mapping[str, Any]:
    """Return the mapping at a path in nested data; an empty mapping if there is none."""
    value = get(data, *path)
    return value if isinstance(value, Mapping) else {}


def get_dicts(data: Any, *path: str) -> list[Mapping[str, Any]]:
    """Return the mappings in the list at a path in nested data; an empty list if there is none."""
    value = get(data, *path)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
