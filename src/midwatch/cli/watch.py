"""How a running task is shown to a person: its words on standard output, what it does on standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from midwatch.cli.output import changes, clean, line, note, paint, say, span

if TYPE_CHECKING:
    from midwatch.wire.events import EventInfo
    from midwatch.wire.tasks import TaskInfo

ARGUMENTS_SHOWN = 80
TELLING = ("command", "cmd", "file_path", "filePath", "path", "pattern", "query", "url")
"""Arguments that say what a tool does, the most telling first."""


class Watch:
    """Shows the events of one task. When standard output is not a terminal only the result goes there."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._streams = sys.stdout.isatty() and not quiet
        self._written: dict[str, str] = {}
        self._last = ""
        self._mid_line = False

    def show(self, event: EventInfo) -> None:
        """Show one event, if it is worth a person's while."""
        if self._quiet:
            return
        told = event["payload"]
        if event["kind"] == "message_delta":
            self._delta(told)
        elif event["kind"] == "message_update":
            self._message(told)
        elif text := describe(event["kind"], told, event):
            self._break()
            note(paint(clean(text), "dim", sys.stderr))

    def end(self, task: TaskInfo, *, chatting: bool = False) -> None:
        """Show how it ended: the result on standard output unless it was just written there. To somebody who chats an
        answer needs no other end."""
        self._break()
        if self._quiet:
            return
        result = task["result"] or ""
        if task["status"] == "done" and result.strip() != self._last.strip():
            say(clean(result) if self._streams else result)
            sys.stdout.flush()
        if task["status"] == "done" and chatting:
            return
        colour = "green" if task["status"] == "done" else "red"
        note(paint(ending(task), colour, sys.stderr))

    def _delta(self, told: dict[str, Any]) -> None:
        if not self._streams:
            return
        so_far = self._written.get(told["message_id"], "")
        if told["offset"] != len(so_far):
            return  # something was missed; the whole message follows
        self._written[told["message_id"]] = self._last = so_far + told["text"]
        self._write(told["text"])

    def _message(self, told: dict[str, Any]) -> None:
        if not self._streams or told["role"] == "user":
            return
        written = self._written.get(told["message_id"], "")
        whole = told["message"]
        if whole.strip() == (written or self._last).strip():
            pass  # it was written already: under its own id, or the answer as the last piece of the turn
        elif whole.startswith(written):
            self._write(whole[len(written) :])
        else:
            self._break()
            self._write(whole)
        self._written[told["message_id"]] = self._last = whole
        self._break()

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(clean(text))
            sys.stdout.flush()
            self._mid_line = not text.endswith("\n")

    def _break(self) -> None:
        if self._mid_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._mid_line = False


def describe(kind: str, told: dict[str, Any], event: EventInfo) -> str | None:
    """An event in words, or None for those a person need not see."""
    match kind:
        case "task_submitted":
            return f"{event['task_id']} submitted to {told['agent']}"
        case "task_started":
            again = f" (attempt {event['attempt']})" if (event.get("attempt") or 1) > 1 else ""
            return f"started{again}"
        case "task_progress":
            percent = f" ({told['percent']:.0f} %)" if told.get("percent") is not None else ""
            return f"· {line(told['text'], ARGUMENTS_SHOWN)}{percent}"
        case "task_waiting" if told["wait"] != "approval":
            until = f" until {told['until']}" if told.get("until") else ""
            return f"waits: {told.get('reason') or told['wait']}{until}"
        case "task_interrupted" | "task_rescued":
            return f"{kind.removeprefix('task_')}: {told.get('reason') or told.get('action')}"
        case "tool_exec_start":
            return f"→ {told['tool']} {line(doing(told), ARGUMENTS_SHOWN)}".rstrip()
        case "tool_exec_end":
            how = "failed" if told.get("is_error") else "ok"
            took = f" in {span(told['duration'])}" if told.get("duration") is not None else ""
            return f"← {told['tool']} {how}{took}"
        case "approval_requested" if told["rule"] is None:
            answers = f"midwatch approve {told['approval_id']} | midwatch deny {told['approval_id']}"
            once = "/".join(one["name"] for one in told["choices"] if one["kind"].endswith("once"))
            return f"? {told['question']} [{once}]\n  Answer from another terminal: {answers}"
        case "approval_resolved":
            answer = told.get("answer") or told["status"]
            by = f" ({told['rule']})" if told.get("rule") not in (None, answer) else ""
            return f"  answered: {answer}{by}"
        case "error":
            return f"! {told['message']}"
    return None


def doing(told: dict[str, Any]) -> str:
    """What a tool is about to do: its command or file, or else its title, or else all it was given."""
    given = told.get("arguments")
    main = (given.get(name) for name in TELLING) if isinstance(given, dict) else ()
    title = told.get("title") if told.get("title") != told["tool"] else None
    return next((one for one in main if isinstance(one, str) and one), None) or title or str(given or "")


def ending(task: TaskInfo) -> str:
    """The last line about a task."""
    if task["status"] == "done":
        tokens = f", {task['tokens_used']} tokens" if task["tokens_used"] is not None else ""
        tree = task.get("worktree")
        changed = f", {tree['branch']} {changes(tree['files'], tree['added'], tree['removed'])}" if tree else ""
        return f"{task['id']} done{tokens}{changed}"
    why = line(task["error"] or task["outcome"] or "", 300).rstrip(".")
    told = "" if why in ("", task["status"]) else f": {why}"
    if task["status"] not in ("failed", "cancelled"):
        return f"{task['id']} {task['status']}{told}"
    from midwatch.domain.budget import again  # only where something went wrong: it takes a while

    command = again(task["id"], task.get("budget"), task.get("usage"))
    return f"{task['id']} {task['status']}{told}; try again with `{command}`"
