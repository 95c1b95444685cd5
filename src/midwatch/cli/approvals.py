"""Commands of approvals: approvals, approval, approve, deny."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from midwatch.cli import output as out
from midwatch.cli.command import Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.options import ApprovalId, ApprovalStatus
from midwatch.cli.parameters import Option

if TYPE_CHECKING:
    from midwatch.wire.approvals import ApprovalInfo

SUBJECT_LENGTH = 70
HEADERS = ("ID", "STATUS", "AGENT", "KIND", "RISK", "AGE", "EXPIRES", "ASKED")
Why = Annotated[str | None, Option("--why", help="Reason, which the agent gets.")]
Always = Annotated[bool, Option("--always", help="Create a rule from the answer; see `midwatch rules`.")]


@command()
async def approvals(
    desk: Desk, status: Annotated[ApprovalStatus, Option("--status", "-s", help="Status of the questions.")] = "pending"
) -> Reply:
    """List questions of agents. Default: the questions that wait for an answer."""
    questions = await desk.client.approvals(status, limit=500)
    hint = "Details: midwatch approval ID. Answer: midwatch approve ID or midwatch deny ID" if questions else None
    return Reply(
        {"approvals": questions},
        lambda: out.join(out.table(HEADERS, [*map(make_row, questions)], "No questions."), hint),
    )


def make_row(question: ApprovalInfo) -> tuple[object, ...]:
    """Return a question as a row of a table."""
    expires = "-"
    if question["status"] == "pending":
        seconds_left = (datetime.fromisoformat(question["expires_at"]) - datetime.now(UTC)).total_seconds()
        expires = f"in {out.format_duration(max(0.0, seconds_left))}"
    subject = question["command"] or ", ".join(question["paths"]) or question["question"]
    cells = out.values(question, "id", "status", "agent", "kind", "risk")
    return (*cells, out.format_age(question["created_at"]), expires, out.shorten(subject, SUBJECT_LENGTH))


@command()
async def approval(desk: Desk, approval_id: ApprovalId) -> Reply:
    """Show all details of a question."""
    question = await desk.client.approval(approval_id)
    return Reply(question, lambda: describe_question(question))


def describe_question(question: ApprovalInfo) -> str:
    """Return all details of a question and its diff as text."""
    left_out = question["diff_left_out"]
    return out.join(
        out.fields(
            [
                *out.pick(question, "id", "status", "question", "kind", "tool", "command"),
                ("paths", "\n".join(question["paths"])),
                *out.pick(question, "risk", "agent", task="task_id", session="session_key"),
                ("for", question["creator"]),
                ("choices", "\n".join(f"{choice['name']} ({choice['kind']})" for choice in question["choices"])),
                *out.pick(question, asked="created_at", expires="expires_at", answer="answer", why="why"),
                *out.pick(question, "answered_by", "rule"),
            ]
        ),
        f"\n{out.clean(question['diff'])}".rstrip() if question["diff"] else None,
        f"({left_out} bytes of the diff were left out.)" if left_out else None,
    )


@command()
async def approve(
    desk: Desk,
    approval_id: ApprovalId,
    choice: Annotated[str | None, Option("--choice", help="Answer with this choice instead of yes.")] = None,
    always: Always = False,
    why: Why = None,
) -> Reply:
    """Answer a question with yes."""
    return describe_answer(await desk.client.approve(approval_id, choice, why, always=always))


@command()
async def deny(desk: Desk, approval_id: ApprovalId, always: Always = False, why: Why = None) -> Reply:
    """Answer a question with no."""
    return describe_answer(await desk.client.deny(approval_id, why, always=always))


def describe_answer(question: ApprovalInfo) -> Reply:
    """Return the reply of the command after a question was answered."""
    return Reply(question, f"{question['id']} {question['status']}: {out.clean(question['answer'] or '')}")
