"""Commands of tasks: run, submit, tasks, show, result, cancel, retry."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Annotated, Any, cast

from midwatch.base.errors import InvalidInput
from midwatch.cli import options as opt
from midwatch.cli import output as out
from midwatch.cli.budgets import describe_budget, describe_tree, describe_usage, find_retry_command
from midwatch.cli.command import Reply, command
from midwatch.cli.connection import Desk, connect
from midwatch.cli.inputs import absolute_path, parse_budget
from midwatch.cli.parameters import Option

if TYPE_CHECKING:
    from midwatch.domain.requests import Submission
    from midwatch.wire.approvals import ApprovalInfo
    from midwatch.wire.budgets import BudgetInfo
    from midwatch.wire.tasks import TaskInfo
    from midwatch.wire.worktrees import WorktreeNote

PROMPT_LENGTH = 50
NOT_RUN = "nothing runs this task yet"


def submission_fields() -> tuple[type, ...]:
    """Return the record whose fields a submission may set."""
    from midwatch.domain.requests import Submission

    return (Submission,)


SUBMISSION = opt.FieldOptions(
    submission_fields, workdir=opt.Flag(help="Directory to work in.", read=absolute_path, default=".")
)


@command(work=True, options=SUBMISSION)
async def run(desk: Desk, prompt: opt.Prompt, as_json: opt.AsJson = False, **request: Any) -> int:
    """Submit a task and show it until it ends. The exit status is 0 only if the task is done.

    Without a server the task runs in this process.
    """
    from midwatch.cli.watch import follow_task

    task = await desk.client.submit(prompt, cast("Submission", request))
    return await follow_task(desk, task["id"], as_json)


@command(options=SUBMISSION)
async def submit(desk: Desk, prompt: opt.Prompt, **request: Any) -> Reply:
    """Submit a task and return at once."""
    task = await desk.client.submit(prompt, cast("Submission", request))
    notice = await desk.warn_without_worker(NOT_RUN) if task["status"] == "pending" else None
    return Reply(task, f"{task['id']} submitted to {task['agent']}", notice)


@command()
async def tasks(
    status: opt.TaskStatuses = None,
    agent: opt.OfAgent = None,
    session: Annotated[str | None, Option("--session", help="Only tasks of this session.")] = None,
    creator: Annotated[str | None, Option("--creator", help="Only tasks that this actor submitted.")] = None,
    before: Annotated[str | None, Option("--before", metavar="ID", help="Only submitted before this task.")] = None,
    limit: opt.Limit = 20,
) -> Reply:
    """List tasks, newest first."""
    if before is not None and not re.fullmatch(r"t_[0-9a-f]+", before):
        raise InvalidInput(
            f"--before must be the id of a task, such as the last task of a list; got {before!r}.", field="before"
        )
    async with connect() as desk:
        while True:
            page = await desk.client.list(
                status=status or (), agent=agent, session_key=session, creator=creator, before=before, limit=limit
            )
            before = page["next"]
            if page["tasks"] or before is None:  # a page of a rare filter may be empty although others follow
                break
    rows = [
        (
            task["id"],
            task["status"],
            task["agent"],
            out.format_age(task["created_at"]),
            out.shorten(task["prompt"], PROMPT_LENGTH),
        )
        for task in page["tasks"]
    ]
    empty = "No tasks. Submit one with `midwatch submit PROMPT`."
    more = f"More: midwatch tasks --before {page['next']}" if page["next"] else None
    return Reply(page, out.join(out.table(("ID", "STATUS", "AGENT", "AGE", "PROMPT"), rows, empty), more))


@command()
async def show(desk: Desk, task_id: opt.TaskId) -> Reply:
    """Show all details of a task."""
    task = await desk.client.get(task_id)
    account = await desk.client.budget(task["account_id"])
    retry_command = await find_retry_command(desk, task, account)
    hints = [f"Try again: {retry_command}"] if retry_command else await suggest_next(desk, task)
    content = {**task, "account": account, "try_again": retry_command}
    return Reply(content, lambda: out.join(out.fields(describe_task(task, account)), *hints))


def describe_task(task: TaskInfo, account: BudgetInfo | None = None) -> list[out.Field]:
    """Return the details of a task as names and values, for people; `account` is the account of its tree."""
    used = f"this task: {describe_usage(task)}" if task["started_at"] else None
    tree = describe_tree(account, task["id"]) if account else None
    return [
        ("id", task["id"]),
        ("status", task["status_text"]),
        *out.pick(task, "outcome", "agent", "prompt", "result", "error", session="session_key"),
        ("origin", " ".join(filter(None, (task["origin_channel"], task["origin_session"])))),
        *out.pick(task, "route", "notices", "workdir"),
        ("worktree", describe_worktree(task["worktree"])),
        ("attempt", task["attempt"]),
        ("timeout", out.format_duration(task["timeout_seconds"])),
        *out.pick(task, "on_crash", "retry_of", "source", caused_by="parent_turn_id"),
        ("handoff", task["cause_id"] if task["cause"] == "handoff" else None),
        *out.pick(task, went_on_as="transferred_to", created="created_at"),
        ("started", out.format_time(task["started_at"])),
        ("completed", out.format_time(task["completed_at"])),
        ("used", "\n".join(filter(None, (used, tree)))),
        ("budget", describe_budget(account) if account else None),
    ]


def describe_worktree(worktree: WorktreeNote | None) -> str | None:
    """Return a task's worktree as one line: its branch and its changes."""
    if worktree is None:
        return None
    text = f"{worktree['id']} {worktree['status']}"
    if worktree["branch"] is None:
        return text
    text += f", {worktree['branch']}"
    if worktree["files"] is None:
        return text
    return f"{text}, {out.format_changes(worktree['files'], worktree['added'], worktree['removed'])}"


def suggest_answers(question: ApprovalInfo) -> str:
    """Return a question and the commands that answer it."""
    approve = f"midwatch approve {question['id']}"
    text = f"The agent asks: {out.clean(question['question'])}\nAnswer: {approve} or midwatch deny {question['id']}"
    names = [out.clean(choice["name"]) for choice in question["choices"] if choice["kind"].endswith("once")]
    if len(names) > 2:  # not only yes and no
        text += f"\nAll answers: {', '.join(names)}. For example: {approve} --choice {shlex.quote(names[1])}"
    return text


async def suggest_next(desk: Desk, task: TaskInfo) -> list[str]:
    """Return the next commands that may be useful for a task that has not failed."""
    if task["worktree"] is not None and task["worktree"]["status"] == "kept" and task["status"] == "done":
        return [out.suggest_merge(task["worktree"]["id"])]
    if task["wait"] == "approval":
        questions = await desk.client.approvals()
        return [suggest_answers(question) for question in questions if question["task_id"] == task["id"]]
    if task["status"] == "pending" and not await desk.has_worker():
        return ["No server is running; start one with `midwatch up`."]
    return []


@command()
async def result(desk: Desk, task_id: opt.TaskId) -> Reply:
    """Print the full result of a task that is done."""
    text = await desk.client.result(task_id)
    return Reply({"id": task_id, "result": text}, out.clean_for_terminal(text))


@command()
async def cancel(desk: Desk, task_id: opt.TaskId) -> Reply:
    """Cancel a task. A running task ends when its agent has stopped."""
    task = await desk.client.cancel(task_id)
    goal = task["cause_id"] if task["cause"] == "goal" else None
    text = out.join(
        f"{task['id']} {'cancelled' if task['status'] == 'cancelled' else 'is being stopped'}",
        f"Its goal is paused; resume it with: midwatch goal resume {goal}" if goal else None,
    )
    return Reply(task, text)


@command()
async def retry(task_id: opt.TaskId, budget: opt.BudgetText = None) -> Reply:
    """Retry a failed or cancelled task as a new task that continues its work.

    The usage of earlier tries counts, too. If the budget is used up, set a larger budget with --budget.
    """
    more = parse_budget(budget)
    async with connect() as desk:
        task = await desk.client.retry(task_id, budget=more)
        notice = await desk.warn_without_worker(NOT_RUN)
    return Reply(task, f"{task['id']} submitted to {task['agent']}, as a retry of {task['retry_of']}", notice)
