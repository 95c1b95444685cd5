"""Show a running task: the agent's text on standard output, its actions on standard error."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from midwatch.base.errors import Conflict
from midwatch.cli.budgets import find_retry_command
from midwatch.cli.output import clean, emit, format_changes, format_duration, format_time, note, paint, say, shorten
from midwatch.cli.questions import Questions, can_answer, forget_typed

if TYPE_CHECKING:
    from midwatch.cli.connection import Desk
    from midwatch.wire.events import EventInfo
    from midwatch.wire.tasks import TaskInfo

INTERRUPTED = 130
PATIENCE = 2.0
"""If the task has not started after this many seconds, the command prints why."""
STOP_SECONDS = 20.0
"""After Ctrl-C, the command waits up to this many seconds until the agent in this process has ended."""
ARGUMENTS_LENGTH = 80
MAIN_ARGUMENTS = ("command", "cmd", "file_path", "filePath", "path", "pattern", "query", "url")
"""Names of tool arguments that describe a call best, the most important first."""


class Watch:
    """A display of the events of one task. If standard output is not a terminal, only the result is printed there."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._streams = sys.stdout.isatty() and not quiet
        self._written: dict[str, str] = {}
        self._last = ""
        self._mid_line = False

    def show(self, event: EventInfo) -> None:
        """Print one event if it is useful for a person."""
        if self._quiet:
            return
        payload = event["payload"]
        if event["kind"] == "message_delta":
            self._show_delta(payload)
        elif event["kind"] == "message_update" and payload["role"] != "notice":
            self._show_message(payload)
        elif text := describe_event(event["kind"], payload, event):
            self.tell(paint(clean(text), "dim", sys.stderr))

    def tell(self, text: str) -> None:
        """Print a line for the person."""
        if not self._quiet:
            self._end_line()
            note(text)

    def end(self, task: TaskInfo, retry_command: str | None = None, *, chatting: bool = False) -> None:
        """Print the result of a task, unless it was printed before, and the status. A chat skips the status `done`.

        `retry_command` is the command that tries the task again, if it is known.
        """
        self._end_line()
        if self._quiet:
            return
        result = task["result"] or ""
        done = task["status"] == "done"
        if done and result.strip() != self._last.strip():
            say(clean(result) if self._streams else result)
            sys.stdout.flush()
        if not (done and chatting):
            note(paint(describe_end(task, retry_command), "green" if done else "red", sys.stderr))

    def _show_delta(self, delta: dict[str, Any]) -> None:
        if not self._streams:
            return
        so_far = self._written.get(delta["message_id"], "")
        if delta["offset"] != len(so_far):
            return  # a delta was lost; the whole message follows
        self._written[delta["message_id"]] = self._last = so_far + delta["text"]
        self._write(delta["text"])

    def _show_message(self, message: dict[str, Any]) -> None:
        if not self._streams or message["role"] == "user":
            return
        written = self._written.get(message["message_id"], "")
        whole = message["message"]
        if whole.strip() == (written or self._last).strip():
            pass  # printed already: with its own id, or as the last text of the turn
        elif whole.startswith(written):
            self._write(whole[len(written) :])
        else:
            self._end_line()
            self._write(whole)
        self._written[message["message_id"]] = self._last = whole
        self._end_line()

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(clean(text))
            sys.stdout.flush()
            self._mid_line = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._mid_line:
            self._write("\n")


def describe_event(kind: str, payload: dict[str, Any], event: EventInfo) -> str | None:
    """Return an event as text, or None if the event is not useful for a person."""
    match kind:
        case "message_update":
            return str(payload["message"])
        case "task_submitted":
            return f"{event['task_id']} submitted to {payload['agent']}"
        case "task_started":
            again = f" (attempt {event['attempt']})" if (event.get("attempt") or 1) > 1 else ""
            return f"started{again}"
        case "task_progress":
            percent = f" ({payload['percent']:.0f} %)" if payload.get("percent") is not None else ""
            return f"· {shorten(payload['text'], ARGUMENTS_LENGTH)}{percent}"
        case "task_waiting" if payload["wait"] != "approval":
            until = f" until {format_time(payload['until'])}" if payload.get("until") else ""
            return f"waits: {payload.get('reason') or payload['wait']}{until}"
        case "task_interrupted" | "task_rescued":
            return f"{kind.removeprefix('task_')}: {payload.get('reason') or payload.get('action')}"
        case "tool_exec_start":
            return f"→ {payload['tool']} {shorten(describe_call(payload), ARGUMENTS_LENGTH)}".rstrip()
        case "tool_exec_skipped" if payload.get("rule"):
            return f"! {payload['tool']} was not run: {payload['rule']}"
        case "tool_exec_end":
            how = "failed" if payload.get("is_error") else "ok"
            took = f" in {format_duration(payload['duration'])}" if payload.get("duration") is not None else ""
            return f"← {payload['tool']} {how}{took}"
        case "probe_end" if not payload["passed"]:
            status = payload["exit_status"]
            how = payload["error"] if status is None else f"exit status {status}"
            return f"! {payload['probe']}: {how}"
        case "hook_decided":
            about = f" {payload['tool']}" if payload.get("tool") else ""
            why = f": {shorten(payload['reason'], ARGUMENTS_LENGTH)}" if payload.get("reason") else ""
            return (
                f"! hook {payload['hook']} {'failed, ' if payload['failed'] else ''}{payload['decision']}{about}{why}"
            )
        case "approval_requested" if payload["rule"] is None:
            answers = f"midwatch approve {payload['approval_id']} or midwatch deny {payload['approval_id']}"
            once = "/".join(choice["name"] for choice in payload["choices"] if choice["kind"].endswith("once"))
            return f"? {payload['question']} [{once}]\n  Answer from another terminal: {answers}"
        case "approval_resolved":
            answer = payload.get("answer") or payload["status"]
            by = f" ({payload['rule']})" if payload.get("rule") not in (None, answer) else ""
            return f"  answered: {answer}{by}"
        case "error":
            return f"! {payload['message']}"
    return None


def describe_call(call: dict[str, Any]) -> str:
    """Return a tool call as text: the most important argument, else the title, else all arguments."""
    arguments = call.get("arguments")
    main = (arguments.get(name) for name in MAIN_ARGUMENTS) if isinstance(arguments, dict) else ()
    title = call.get("title") if call.get("title") != call["tool"] else None
    return next((value for value in main if isinstance(value, str) and value), None) or title or str(arguments or "")


def describe_end(task: TaskInfo, retry_command: str | None = None) -> str:
    """Return the last line that is printed about a task: its status, and what to do next.

    `retry_command` is the command that tries the task again, if it is known.
    """
    if task["outcome"] == "skipped":
        return f"{task['id']} skipped"
    if task["status"] == "done":
        tokens = f", {task['tokens_used']} tokens" if task["tokens_used"] is not None else ""
        tree = task.get("worktree")
        changes = f", {tree['branch']} {format_changes(tree['files'], tree['added'], tree['removed'])}" if tree else ""
        return f"{task['id']} done{tokens}{changes}"
    reason = shorten(task["error"] or task["outcome"] or "", 300).rstrip(".")
    end = f"{task['id']} {task['status']}" + ("" if reason in ("", task["status"]) else f": {reason}")
    if task["status"] not in ("failed", "cancelled"):
        return end
    from midwatch.domain.budget import suggest_retry  # only after a failure, because the import is slow

    command = retry_command or suggest_retry(task["id"], task.get("outcome"), task.get("error"))
    return f"{end}; try again with `{command}`"


async def follow_task(desk: Desk, task_id: str, as_json: bool) -> int:
    """Show a task until it ends. With `as_json`, print only the ended task. Return the exit status: 0 if it is done."""
    status = await watch_task(desk, task_id, quiet=as_json)
    task = await desk.client.get(task_id)
    while task["transferred_to"]:
        task = await desk.client.get(task["transferred_to"])
    if as_json:
        emit({**task, "try_again": await find_retry_command(desk, task)})
    return status if status is not None else 0 if task["status"] == "done" else 1


async def watch_task(desk: Desk, task_id: str, *, quiet: bool) -> int | None:
    """Show a task until it ends, and return None. If the user interrupts the command before, return an exit status."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    watch = Watch(quiet=quiet)
    questions = Questions(desk.client, watch.tell) if can_answer() and not quiet else None
    work = [show_events(desk, task_id, watch, questions), interrupted.wait()]
    async with start_tasks(*work, *([questions.read_answers()] if questions else [])) as (following, stopped, *_):
        done, _ = await asyncio.wait({following, stopped}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            if not quiet:
                await explain_wait(desk, task_id)
            await asyncio.wait({following, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
            return None
        if desk.runtime is None:
            note(f"\nThe task continues; see `midwatch show {task_id}`, or stop it with `midwatch cancel {task_id}`.")
            return INTERRUPTED
        note("\nStopping the task ...")
        try:
            await desk.client.cancel(task_id)
        except Conflict:
            return None  # it has ended meanwhile
        await asyncio.wait({following}, timeout=STOP_SECONDS)
        return INTERRUPTED


@asynccontextmanager
async def start_tasks(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Start asyncio tasks. At the end of the `with` block, cancel those that still run."""
    tasks = [asyncio.create_task(part) for part in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def explain_wait(desk: Desk, task_id: str) -> None:
    """Print why a task has not started."""
    task = await desk.client.get(task_id)
    if task["status"] == "pending":
        hint = " (with --worktree a task does not wait for others)" if task["wait"] == "directory" else ""
        note(f"{task['status_text']}{hint}")


async def show_events(desk: Desk, task_id: str, watch: Watch, questions: Questions | None) -> None:
    """Show the events of a task until the task has ended. If another task continues the work, show its events, too.

    Without `questions`, show where to answer a question of the agent.
    """
    following: str | None = task_id
    while following is not None:
        task_id = following
        async with aclosing(desk.follow(0, task_id=task_id, live=True)) as events:
            async for event in events:
                payload = event["payload"]
                if questions is not None and event["kind"] == "approval_requested" and payload["rule"] is None:
                    forget_typed()
                    await questions.ask(payload["approval_id"], payload)
                else:
                    watch.show(event)
                if questions is not None and event["kind"] == "approval_resolved":
                    questions.forget(payload["approval_id"])
                if event["kind"] == "task_finished":
                    following = event["payload"].get("transferred_to")
                    break
            else:
                following = None
    task = await desk.client.get(task_id)
    watch.end(task, await find_retry_command(desk, task))
