"""Commands of approvals: the inbox, one question, yes and no."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from midwatch.cli.connection import connect, run
from midwatch.cli.options import ApprovalId, ApprovalStatus, AsJson
from midwatch.cli.output import age, clean, emit, fields, line, local, say, span, table

if TYPE_CHECKING:
    from midwatch.wire.approvals import ApprovalInfo

ASKED_SHOWN = 70
Why = Annotated[str | None, typer.Option("--why", help="What the agent is told beside the answer.")]
Always = Annotated[bool, typer.Option("--always", help="Make a rule of it; see `midwatch rules`.")]


def approvals(
    status: Annotated[ApprovalStatus, typer.Option("--status", "-s", help="Which ones.")] = "pending",
    as_json: AsJson = False,
) -> None:
    """List questions that agents ask and nobody has answered."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.approvals(status, limit=500)
        if as_json:
            emit({"approvals": found})
        elif not found:
            say("No questions.")
        else:
            rows = [
                (a["id"], a["status"], a["agent"], a["kind"], a["risk"], age(a["created_at"]), _left(a), _asked(a))
                for a in found
            ]
            table(("ID", "STATUS", "AGENT", "KIND", "RISK", "AGE", "EXPIRES", "ASKED"), rows)
            say("Look: midwatch approval ID. Answer: midwatch approve ID | midwatch deny ID")

    run(act())


def _left(asked: ApprovalInfo) -> str:
    """How long it still waits."""
    if asked["status"] != "pending":
        return "-"
    left = (datetime.fromisoformat(asked["expires_at"]) - datetime.now(UTC)).total_seconds()
    return f"in {span(max(0.0, left))}"


def _asked(asked: ApprovalInfo) -> str:
    """What is asked for, in one line."""
    what = asked["command"] or ", ".join(asked["paths"]) or asked["question"]
    return line(what, ASKED_SHOWN)


def approval(approval_id: ApprovalId, as_json: AsJson = False) -> None:
    """Show a question with all that is known of it."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.approval(approval_id)
        if as_json:
            emit(found)
            return
        fields(
            (
                ("id", found["id"]), ("status", found["status"]), ("question", found["question"]),
                ("kind", found["kind"]), ("tool", found["tool"]), ("command", found["command"]),
                ("paths", "\n".join(found["paths"])), ("risk", found["risk"]), ("agent", found["agent"]),
                ("task", found["task_id"]), ("session", found["session_key"]), ("for", found["creator"]),
                ("choices", "\n".join(f"{one['name']} ({one['kind']})" for one in found["choices"])),
                ("asked", local(found["created_at"])), ("expires", local(found["expires_at"])),
                ("answer", found["answer"]), ("why", found["why"]), ("answered by", found["answered_by"]),
                ("rule", found["rule"]),
            )
        )  # fmt: skip
        if found["diff"]:
            say(f"\n{clean(found['diff'])}".rstrip())
        if found["diff_left_out"]:
            say(f"({found['diff_left_out']} bytes of the diff were left out.)")

    run(act())


def approve(
    approval_id: ApprovalId,
    choice: Annotated[str | None, typer.Option("--choice", help="Answer with this choice instead of yes.")] = None,
    always: Always = False,
    why: Why = None,
    as_json: AsJson = False,
) -> None:
    """Say yes to a question."""

    async def act() -> None:
        async with connect() as desk:
            _answered(await desk.client.approve(approval_id, choice, why, always=always), as_json)

    run(act())


def deny(approval_id: ApprovalId, always: Always = False, why: Why = None, as_json: AsJson = False) -> None:
    """Say no to a question."""

    async def act() -> None:
        async with connect() as desk:
            _answered(await desk.client.deny(approval_id, why, always=always), as_json)

    run(act())


def _answered(answered: ApprovalInfo, as_json: bool) -> None:
    if as_json:
        emit(answered)
    else:
        say(f"{answered['id']} {answered['status']}: {clean(answered['answer'] or '')}")
