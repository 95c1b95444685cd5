"""The script of a fake model for every provider: commands in double brackets in the newest message of the user.

    [[say TEXT]]            answers TEXT
    [[recall]]              answers with all messages of the user in this conversation
    [[long N]]              N numbered lines
    [[slow N S]]            N words, spread over S seconds
    [[pause S]]             S seconds of silence during the answer
    [[hold NAME]]           silence during the answer until a test releases NAME
    [[shell COMMAND]]       calls the tool that runs commands
    [[escalate COMMAND]]    the same, and asks to leave the agent's sandbox if the tool has an option for it
    [[write PATH TEXT]]     calls the tool that writes files
    [[tool NAME ARGUMENTS]] calls that tool with exactly these arguments
    [[also NAME ARGUMENTS]] the same, and another call follows in the same answer
    [[garble]]              calls a tool whose name and id no provider accepts
    [[halves]]              a character in two pieces, and half of one
    [[think TEXT]]          thinks TEXT, if the provider's format has thoughts
    [[limit S NAME]]        429, the usage limit, until S seconds after the first request with NAME
    [[quota S NAME]]        the same, without the time at which the limit ends
    [[fail STATUS N NAME]]  an error of the provider: to the first N requests with NAME, or always
    [[drop N NAME]]         breaks the connection during the answer: for the first N requests with NAME, or always
    [[cut N NAME]]          the same, but the answer ends as if it were complete
    [[play NAME]]           the script NAME of `SCRIPTS`, so that it does not appear on the agent's screen
    [[window N]]            refuses a request of more than N characters, as too long for the model

Without any command it answers "You said: ...". A tool call ends one answer; the commands after it follow when the
result of the tool has come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

COMMAND = re.compile(r"\[\[(\w+)\s*(.*?)\]\]", re.DOTALL)
PLAY = re.compile(r"\[\[play (\S+)\]\]")
SCRIPTS: dict[str, str] = {}
"""Scripts for `[[play NAME]]`."""
WRAPPED = re.compile(r"<([A-Za-z][\w-]*)(?: [^>]*)?>.*?</\1>", re.DOTALL)
"""Texts that agents put around or between the user's words: reminders, their environment, instructions."""
SIDE_REQUESTS = re.compile(
    r"title|summar|topic|classif|next speaker|branch name|commit message|suggest|categor|compress|complexity", re.I
)
"""Requests of an agent besides its work, such as for a title."""
WITHOUT_TOOLS = re.compile(r"Act as an expert software developer", re.I)
"""The beginning of the instructions of an agent without tools."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of a thought."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A requested tool call. Arguments that are no JSON are a text."""

    id: str
    name: str
    arguments: Json | str

    @property
    def encoded(self) -> str:
        """Return the arguments as a model writes them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


Step = Text | Thought | Call


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request in any provider's format."""

    model: str
    user_texts: tuple[str, ...]
    """The messages of the user, oldest first, without the agent's additions."""
    system: str = ""
    results: tuple[str, ...] = ()
    """The results of tools since the last message of the user."""
    tools: Mapping[str, Json] = field(default_factory=dict)
    """Names and JSON schemas of the tools."""
    schema: Json | None = None
    """The JSON schema of the answer."""
    stream: bool = False
    size: int = 0
    """The number of characters of the request."""

    @property
    def newest(self) -> str:
        """Return the last message of the user."""
        return self.user_texts[-1] if self.user_texts else ""

    @property
    def is_side_request(self) -> bool:
        """Return whether this is a request besides the work, such as for a title: the script does not apply."""
        if self.tools or WITHOUT_TOOLS.search(self.system):
            return False
        return self.schema is not None or bool(SIDE_REQUESTS.search(self.system + " ".join(self.user_texts)))

    @property
    def input_tokens(self) -> int:
        """Return a plausible number of tokens."""
        return self.size // 4 + 1


@dataclass(frozen=True, slots=True)
class Command:
    """One command in double brackets."""

    verb: str
    rest: str

    def words(self, count: int) -> list[str]:
        """Return so many words; the last one contains the rest, and missing ones are empty."""
        parts = self.rest.split(None, count - 1)
        return parts + [""] * (count - len(parts))


TOOL_VERBS = ("shell", "escalate", "write", "tool", "garble")


def clean(text: str) -> str:
    """Return the words of the user without the agent's additions."""
    return WRAPPED.sub("", text).strip()


def script(request: ModelRequest) -> list[Command]:
    """Return the commands of this answer: the part of the script after as many tools as have returned."""
    text = PLAY.sub(lambda match: SCRIPTS.get(match[1], match[0]), request.newest)
    commands = [Command(verb, rest.strip()) for verb, rest in COMMAND.findall(text)]
    parts: list[list[Command]] = [[]]
    for command in commands:
        parts[-1].append(command)
        if command.verb in TOOL_VERBS:
            parts.append([])
    results_left = len(request.results)
    for part in parts[:-1]:
        calls = sum(command.verb in (*TOOL_VERBS, "also") for command in part)
        if results_left < calls:
            return part
        results_left -= calls
    return parts[-1]


def sample(schema: Json) -> Any:
    """Return the smallest value that a JSON schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return sample(schema[name][0])
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = str(kind[0] if isinstance(kind, list) else kind).lower()
    if kind == "object":
        return {name: sample(schema.get("properties", {}).get(name, {})) for name in schema.get("required", ())}
    simple: Json = {"array": [], "integer": 1, "number": 1, "boolean": False, "null": None}
    return simple.get(kind, "fake")


SHELLS = (
    "Bash",
    "bash",
    "run_shell_command",
    "exec_command",
    "shell_command",
    "shell",
    "developer__shell",
    "local_shell",
)
WRITERS = ("Write", "write", "write_file", "create", "developer__write")


def offered(request: ModelRequest, names: tuple[str, ...]) -> str | None:
    """Return the first of these tools that the agent offers."""
    return next((name for name in names if name in request.tools), None)


def tool_call(request: ModelRequest, command: Command) -> Step:
    """Return the tool call for a command, with a tool of the agent."""
    number = f"{len(request.user_texts)}x{len(request.results)}"
    if command.verb in ("tool", "also"):
        name, text = command.words(2)
        try:
            read: Json | str = json.loads(text or "{}")
        except ValueError:
            read = text
        return Call(f"call_{number}_{abs(hash(command.rest)) % 10**8}", name, read)
    if command.verb == "write" and (name := offered(request, WRITERS)):
        path, text = command.words(2)
        values = {"file_path": path, "filePath": path, "path": path, "content": text, "file_text": text}
    elif name := offered(request, SHELLS):
        line = command.rest
        if command.verb == "write":
            path, text = command.words(2)
            line = f"printf %s '{text}' > '{path}'"
        values = {"command": line, "cmd": line, "description": "Runs a command"}
        if command.verb == "escalate":
            values |= {"sandbox_permissions": "require_escalated", "justification": "May I?"}
    else:
        return Text(f"No tool for {command.verb} among: {', '.join(request.tools)}.")
    schema = request.tools[name]
    properties = schema.get("properties", {})
    arguments: Json = sample({**schema, "type": "object"})
    for key, value in values.items():
        if key in properties:
            listed = str(properties[key].get("type", "")).lower() == "array"
            arguments[key] = ["bash", "-lc", value] if listed else value
    return Call(f"call_{number}_{abs(hash(command.rest)) % 10**8}", name, arguments)
