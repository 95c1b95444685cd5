"""What a tool call would run and use, read from all fields of the agent's permission request.

Agents write the same facts in different fields. Everything that midwatch does not understand stays a text that rules
search, or makes the facts uncertain, so that a person is asked.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from midwatch.agents.acp.updates import Json, Tool
from midwatch.agents.streams.reading import find_paths, get_dict, get_text
from midwatch.agents.tool_question import LONGEST_COMMAND, make_absolute
from midwatch.domain.rule import TARGETED
from midwatch.domain.tool_call import DEEPEST, collect_texts
from midwatch.domain.tool_name import guess_kind

LONGEST_TITLE = 500
LONGEST_PATH = 4096
DIRECTORY_FIELDS = ("cwd", "workdir", "working_directory", "workingDirectory", "working_dir", "directory", "dir_path")
CONTENT_FIELDS = frozenset({
    "content", "contents", "file_text", "new_string", "newString", "new_str", "newText", "new_content", "old_string",
    "oldString", "old_str", "oldText", "old_content", "before", "after", "text", "insert_text", "unified_diff",
})  # fmt: skip
"""Fields of a tool that works on files which hold the content of files."""
NOTE_FIELDS = frozenset({
    "description", "explanation", "reason", "justification", "summary", "call_id", "turn_id", "process_id", "parsed_cmd"
})  # fmt: skip
"""Fields that describe a call, and do not change what it does."""
PATH_FIELD = re.compile(
    r"path|file|uri|dest|source|src|dst|target|dir|folder|location|cwd|\A(?:from|to|old|new)\Z", re.I
)
"""Names of fields that hold a path."""
RUN_FIELD = re.compile(r"cmd|command|script|code|shell|exec|arg|input|stdin|program|run", re.I)
"""Names of fields that may hold what is run."""
CHANGING_KINDS = frozenset({"edit", "delete", "move", "execute"})
TITLE_VERB = re.compile(r"^(?:Edit|Write|Read|Delete|Move|Fetch|Search) +(?=\S)")
QUOTES = "`'\"()[]{}<>,;"


class CallFacts(NamedTuple):
    """What a tool call would run and use; the fields are those of a `Question`."""

    kind: str
    tool: str | None
    command: str | None
    paths: tuple[str, ...]
    texts: tuple[str, ...]
    unread: bool
    certain: bool


def read_facts(tool: Tool, call: Json, root: str) -> CallFacts:
    """Return the facts about a tool call, from its permission request `call` and from earlier updates."""
    raw = call.get("rawInput") or tool.raw or tool.arguments
    command = find_command(tool, call)
    name, kind = find_name(tool, raw, command), _judge_kind(tool)
    if kind == "other" and name and not re.match(r"mcp__|.*/", name):
        kind = guess_kind(name)
    places = [*tool.places, *tool.locations, *tool.diffs]
    if kind in TARGETED:
        places += _find_places(raw)
    elif not tool.locations:
        places += find_paths(raw)
    bases = (root, *(make_absolute(name, root) for name in _find_directories(raw) if command is None))
    paths = tuple(dict.fromkeys(make_absolute(_read_place(place), base) for place in places for base in bases))
    rest, certain = _find_rest(kind, raw, command, known=bool(paths))
    found = collect_texts(rest)
    texts = found.get("texts", ())
    if command is None or command != tool.title:
        texts += tuple(text for text in _read_title(tool.title) if text not in texts)
    if command is None and not paths and not rest:
        certain = False  # nothing tells what the tool would do, except perhaps its title
    if kind == "other" and re.fullmatch(r"[A-Z]?[a-z]*", name or ""):
        certain = False  # a plain word may be a title and no name
    if command is not None and not raw and re.match(r"[A-Z][a-z]", command):
        certain = False  # a title that is a sentence
    unread = found.get("unread", False) or (tool.unread and not call.get("rawInput"))
    if command is not None:
        command = "".join((*_shell_prefix(raw, root), command))
    return CallFacts(kind, name, command, paths, texts, unread, certain)


def find_name(tool: Tool, raw: Any, command: str | None) -> str | None:
    """Return the name of the tool; None if no field has it, and the title is not like `mcp__github__push`."""
    server, called = get_text(raw, "server"), get_text(raw, "tool") or get_text(raw, "tool_name")
    if server and called:
        return f"{server}/{called}"
    title = tool.title.strip()
    if tool.name or title == command or re.search(r"[./]\w{1,5}$", title):
        return tool.name or None  # the title is a command, or a path such as src/a.py
    return title if re.fullmatch(r"(?:mcp__)?[A-Za-z0-9]\w*(?:[./:-]\w+)*", title) else None


def find_command(tool: Tool, call: Json) -> str | None:
    """Return the command that a tool call wants to run, as the agent wrote it, or None.

    The command may come from the title, but only if the agent cannot have shortened the title: rules are checked
    against the command. Fields that `call` does not have are taken from `tool`, which holds earlier updates.
    """
    if tool.unread and not call.get("rawInput"):
        return None  # only the beginning of the command was kept
    raw = get_dict(call.get("rawInput") or tool.raw or tool.arguments)
    command, more = raw.get("command") or raw.get("cmd"), raw.get("args")
    if _judge_kind(tool) in TARGETED and re.fullmatch(r"[a-z_]+", str(command)) and any(_find_places(raw)):
        return None  # the command of an editor, such as `create`
    if isinstance(command, str) and command.strip() and more:
        command = [command, *(more if isinstance(more, list) else [more])]
    if isinstance(command, list) and command:
        words = [str(word) for word in command]
        shell = len(words) == 3 and re.fullmatch(r"(.*/)?(ba|z|da|k)?sh", words[0]) and re.fullmatch(r"-l?c", words[1])
        command = words[2] if shell else shlex.join(words)
    if isinstance(command, str) and command.strip():
        return command.strip() if len(command) <= LONGEST_COMMAND else None
    title = call.get("title")
    if tool.kind == "execute" and isinstance(title, str) and title.strip() and not re.search(r"…|\.\.\.", title):
        return title.strip().strip("`") if len(title) < LONGEST_TITLE else None
    return None


def _judge_kind(tool: Tool) -> str:
    """Return the kind of a tool call; the strictest of what its kind, its name and its content tell."""
    if tool.kind in CHANGING_KINDS:
        return tool.kind
    return "edit" if tool.diffs or (tool.name and guess_kind(tool.name) == "edit") else tool.kind


def _find_rest(kind: str, raw: Any, command: str | None, *, known: bool) -> tuple[Any, bool]:
    """Return the arguments that rules must search as texts, and whether it is certain what the call does.

    `known` is whether the files are known.
    """
    if command is None:
        if kind in TARGETED and known:
            return [*_find_texts(raw, CONTENT_FIELDS | NOTE_FIELDS)], True
        return raw, True
    if not isinstance(raw, Mapping):
        return raw, not raw
    read = {*DIRECTORY_FIELDS, "env", *NOTE_FIELDS}
    name = "command" if raw.get("command") else "cmd"
    if raw.get(name):  # else the command comes from the title
        read |= {name, "args"}
    rest = {
        key: [text for text in _find_texts(raw[key], NOTE_FIELDS) if not isinstance(text, str) or text not in command]
        for key in raw.keys() - read
    }
    return [*rest.values()], not any(texts and RUN_FIELD.search(key) for key, texts in rest.items())


def _find_texts(value: Any, left_out: Iterable[str], depth: int = DEEPEST) -> Iterator[Any]:
    """Yield the texts in nested data, also the names of fields that look like paths, without some fields.

    Data that is too deep is yielded as it is.
    """
    if isinstance(value, str) or (not depth and isinstance(value, Mapping | list)):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name not in left_out:
                if "/" in str(name):
                    yield str(name)
                yield from _find_texts(item, left_out, depth - 1)
    elif isinstance(value, list):
        for item in value:
            yield from _find_texts(item, left_out, depth - 1)


def _find_places(raw: Any, name: str = "", depth: int = DEEPEST) -> Iterator[str]:
    """Yield the texts in the arguments of a tool that works on files which may be paths."""
    if isinstance(raw, str):
        whole = len(raw) <= LONGEST_PATH and "\n" not in raw and ("://" not in raw or raw.lower().startswith("file:"))
        if raw and whole and (PATH_FIELD.search(name) or "/" in raw):
            yield raw
    elif isinstance(raw, Mapping) and depth:
        for key, item in raw.items():
            if key in CONTENT_FIELDS or key in NOTE_FIELDS or key in DIRECTORY_FIELDS:
                continue
            if "/" in str(key):
                yield str(key)
            yield from _find_places(item, str(key), depth - 1)
    elif isinstance(raw, list) and depth:
        for item in raw:
            yield from _find_places(item, name, depth - 1)


def _read_place(place: str) -> str:
    """Return the path that a text means: the path of a file's address, and without the number of a line."""
    if place.lower().startswith("file:"):
        place = unquote(urlsplit(place).path) or place
    return re.sub(r"(?:#L\d+(?:-L?\d+)?|(?::\d+){1,2})$", "", place) or place


def _read_title(title: str) -> Iterator[str]:
    """Yield the texts in a title which may be paths or addresses."""
    words = (word.strip(QUOTES) for word in title.split())
    yield from dict.fromkeys(word for word in words if "/" in word)
    if TITLE_VERB.match(title):
        yield TITLE_VERB.sub("", title).strip(f"{QUOTES} ")


def _find_directories(raw: Any) -> Iterator[str]:
    return filter(None, (get_text(raw, name) for name in DIRECTORY_FIELDS))


def _shell_prefix(raw: Any, root: str) -> Iterator[str]:
    """Yield the shell text to put before the command: `cd` to another directory, then the variables."""
    for directory in _find_directories(raw):
        if os.path.realpath(os.path.join(root, directory)) != root:  # noqa: PTH118
            yield f"cd {shlex.quote(directory)} && "
    for name, value in get_dict(raw, "env").items():
        yield f"{name}={shlex.quote(str(value))} "
