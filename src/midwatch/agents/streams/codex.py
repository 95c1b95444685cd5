"""Codex: `codex exec --json`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from midwatch.agents.streams import steps
from midwatch.agents.streams.base import Line, Parser, Profile
from midwatch.agents.streams.drift import Versions, Words
from midwatch.agents.streams.reading import get_dict, get_dicts, get_text, join_text, read_tokens, unwrap_command

SANDBOX_WORDS = ("Read-only file system", "blocked by read-only sandbox", "rejected by user approval settings")
LOGGED_REFUSAL = re.compile(r"(?>.*?codex_core::tools::router: error=)(.*(?:reject|approval policy|sandbox).*)")
TOOLS = ("command_execution", "file_change", "mcp_tool_call", "web_search", "collab_tool_call")


WORDS = Words.of(
    "aggregated_output changes command completed error exit_code id item items kind message path query server status "
    "text thread_id tool",
    "agent_message command_execution error item.completed item.started item.updated reasoning thread.started "
    "todo_list turn.completed turn.failed turn.started " + " ".join(TOOLS),
    free="action arguments result usage agents_states",
)


class CodexStream(Parser):
    """Parses items, each of which begins, changes and ends, and the result of the turn."""

    words = WORDS

    def __init__(self) -> None:
        super().__init__()
        self._open: set[str] = set()

    def read(self, line: Line) -> Iterator[steps.Step]:
        match line.get("type"):
            case "thread.started" if thread := get_text(line, "thread_id"):
                yield steps.Thread(thread)
            case "item.started" | "item.updated" | "item.completed" as kind:
                yield from self._item(self.drift.need(line, "item", kind=dict), kind.removeprefix("item."))
            case "error":
                message = get_text(line, "message")
                if message.startswith("Reconnecting"):
                    yield steps.Retry(message=f"codex tries again: {message}", fault=self.fault(message))
            case "turn.failed":
                yield self.fail(self.drift.need_text(line, "error", "message"))
            case "turn.completed":
                yield steps.Spent(**read_tokens(get_dict(line, "usage")), of_thread=True)
                yield steps.Done()

    def read_error(self, line: str) -> Iterator[steps.Step]:
        """Yield a step for a denied tool call. The program reports some of them only on standard error."""
        if match := LOGGED_REFUSAL.match(line):
            yield steps.Denied("file_change" if "patch" in match[1] else "shell")

    def _item(self, item: Any, phase: str) -> Iterator[steps.Step]:
        kind = self.drift.need_text(item, "type")
        if kind in TOOLS or (kind not in WORDS.types and get_text(item, "status")):  # perhaps a new tool
            yield from self._tool(item, kind, phase)
        elif kind == "todo_list":
            yield self.plan(item.get("items"))
        elif phase == "completed" and kind == "agent_message":
            yield steps.Text(self.drift.need_text(item, "text"))
        elif phase == "completed" and kind == "reasoning":
            yield steps.Thought(get_text(item, "text"))
        elif phase == "completed" and kind == "error":
            yield steps.Note(get_text(item, "message"))

    def _tool(self, item: Line, kind: str, phase: str) -> Iterator[steps.Step]:
        number = get_text(item, "id")
        name, arguments, paths = _describe_tool(item, kind)
        if number not in self._open:
            self._open.add(number)
            yield steps.ToolStart(id=number, name=name, arguments=arguments, locations=paths)
        if phase != "completed":
            return
        self._open.discard(number)
        result = get_text(item, "aggregated_output") or join_text(get_dict(item, "result").get("content"))
        result = result or get_text(item, "error", "message")
        code, status = item.get("exit_code"), item.get("status")
        if kind == "command_execution":
            self.drift.need_text(item, "aggregated_output")
            self.drift.need_text(item, "status")
        yield steps.ToolEnd(
            id=number, result=result, is_error=status in ("failed", "declined") or code not in (None, 0)
        )
        if status == "declined" or any(word in result for word in SANDBOX_WORDS):
            yield steps.Denied(name)


def _describe_tool(item: Line, kind: str) -> tuple[str, Any, tuple[str, ...]]:
    """Return the name, the arguments and the files of a tool call."""
    if kind == "command_execution":
        return "shell", {"command": unwrap_command(get_text(item, "command"))}, ()
    if kind == "file_change":
        changes = get_dicts(item, "changes")
        return kind, {"changes": changes}, tuple(get_text(change, "path") for change in changes if change.get("path"))
    if kind == "mcp_tool_call":
        return f"{get_text(item, 'server')}.{get_text(item, 'tool')}", item.get("arguments"), ()
    return kind, {"query": item.get("query")} if kind == "web_search" else None, ()


HEAD = ("--json", "--skip-git-repo-check", "{options}")
PROFILE = Profile(
    name="codex",
    start=("exec", *HEAD, "-"),
    resume=("exec", "resume", *HEAD, "{thread}", "-"),
    parser=CodexStream,
    versions=Versions("0.166.0", "0.166.0"),
    permissions={  # `exec resume` has no --sandbox
        "read": ("-c", 'sandbox_mode="read-only"'),
        "edit": ("-c", 'sandbox_mode="workspace-write"'),
        "all": ("--dangerously-bypass-approvals-and-sandbox",),
    },
    leaves_daemon=True,
)
