"""Names of tools: the forms in which agents write one name, and globs for names.

A tool of an MCP server is written `server/tool`. Agents and models also write `mcp__server__tool` or `server.tool`, or
put a namespace in front, such as `functions.read_file`. For rules that deny, all forms that a name may have count.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

NAMESPACES = frozenset({
    "functions", "function", "tools", "tool", "default_api", "default", "api", "multi_tool_use", "namespace", "builtin",
    "builtins", "midwatch", "mcp", "mcp_tool", "native", "local",
})  # fmt: skip
"""Words that models and agents put in front of names, and that name no MCP server."""
APART = re.compile(r"__+|[/.:#|>\\\u2044\u2215\u2192\u00b7@=]+")
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
INVISIBLE_CATEGORIES = frozenset({"Cf", "Mn", "Me", "Cc"})
"""Categories of characters that change how a letter looks, or that nobody sees."""
LONGEST_NAME = 500
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
"""Parts of a tool's name that show the kind of the tool. The first match counts."""
OWN_KINDS = {
    "read_file": "read", "list_files": "search", "run_command": "execute", "fetch_url": "fetch",
    "submit_task": "other", "schedule_task": "other", "list_tasks": "search", "get_task": "search",
    "goal_complete": "other", "goal_delay": "other",
}  # fmt: skip
"""The kinds of midwatch's own tools."""
HANDOFF_KINDS = {"transfer_to_": "switch_mode", "delegate_to_": "other"}
"""The kinds of the tools that hand over work, by the beginning of their names."""


def find_own_kind(name: str) -> str | None:
    """Return the kind of one of midwatch's own tools, or None for any other name."""
    lower = name.lower()
    handoff = next((kind for start, kind in HANDOFF_KINDS.items() if lower.startswith(start)), None)
    return OWN_KINDS.get(lower, handoff)


def guess_kind(name: str) -> str:
    """Guess the kind of a tool from its name."""
    lower = name.lower()
    if "web" in lower:
        return "fetch"
    return next((kind for kind, words in KIND_WORDS.items() if any(word in lower for word in words)), "other")


@lru_cache(1000)
def forms_of(name: str) -> frozenset[str]:
    """Return every form of a tool's name that a rule is compared with, in lower case.

    `mcp__github__push` gives `github/push` and `push`; `functions.readFile` gives `read_file` and `readfile`, too.
    """
    forms = {canonical(name)}
    named = _split(name)
    for start in range(len(named)):
        forms.add("/".join(named[start:]))
        forms.add("_".join(named[start:]))
    if len(named) == 1 and _fold(name).startswith("mcp_"):  # `mcp_server_tool`; where the server ends is not known
        words = named[0].split("_")
        for at in range(1, len(words)):
            forms |= {"_".join(words[at:]), f"{'_'.join(words[:at])}/{'_'.join(words[at:])}"}
    if len(named) > 1:
        forms |= {f"{named[0]}/{named[-1]}", f"{named[0]}/{'_'.join(named[1:])}"}
    forms |= {form.replace("_", "") for form in forms}
    return frozenset(form for form in forms if form)


def is_clear_name(name: str) -> bool:
    """Return whether a name has only letters that do not look like others, so that its forms are certain."""
    return all(step.isascii() for step in _split(name))


def canonical(name: str) -> str:
    """Return the one form of a name that a rule which allows is compared with: `tool`, or `server/tool` for MCP."""
    plain = name.strip()
    plain = plain.casefold() if plain.isascii() else plain  # other letters could become ASCII ones
    match = re.fullmatch(r"mcp__(.+?)__(.+)", plain)
    return f"{match[1]}/{match[2]}" if match else plain


@lru_cache(1000)
def globs_of(glob: str) -> frozenset[str]:
    """Return the forms of a rule's glob that the forms of a name are compared with."""
    named = "/".join(_split(glob, "*?"))
    return frozenset({canonical(glob), named, named.replace("/", "_"), named.replace("_", "")})


def _split(name: str, signs: str = "") -> list[str]:
    """Return the server and the name of a tool, or only the name, without namespaces. Keep some `signs`."""
    whole = unicodedata.normalize("NFKD", name[:LONGEST_NAME])
    whole = "".join(letter for letter in whole if unicodedata.category(letter) not in INVISIBLE_CATEGORIES)
    steps = [folded for step in APART.split(whole) if (folded := _fold(step, signs))]
    while len(steps) > 1 and steps[-1].isdigit():  # `functions.read_file:0`
        steps.pop()
    return [step.removeprefix("mcp_") for step in steps if step not in NAMESPACES] or steps


def _fold(step: str, signs: str = "") -> str:
    """Return a part of a name in lower case, with `_` between its words: `readFile` and `read-file` are `read_file`."""
    words = CAMEL.sub("_", step.strip())
    return re.sub(rf"[^\w{re.escape(signs)}]+|_+", "_", words).strip("_").casefold()
