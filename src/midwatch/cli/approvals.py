"""Commands of approvals: the inbox, yes and no."""

from __future__ import annotations

from typing import Annotated

import typer

from midwatch.cli.desk import connect, run
from midwatch.cli.options import ApprovalId, ApprovalStatus, AsJson
from midwatch.cli.output import age, emit, line, say, table

QUESTION_SHOWN = 70
Why = Annotated[str | None, typer.Option("--why", help="What the agent is told beside the answer.")]


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
                (
                    a["id"],
                    a["status"],
                    a["agent"],
                    age(a["created_at"]),
                    "/".join(a["choices"]),
                    line(a["question"], QUESTION_SHOWN),
                )
                for a in found
            ]
            table(("ID", "STATUS", "AGENT", "AGE", "CHOICES", "QUESTION"), rows)
            say("Answer: midwatch approve ID | midwatch deny ID")

    run(act())


def approve(
    approval_id: ApprovalId,
    choice: Annotated[str | None, typer.Option("--choice", help="Answer with this choice instead of yes.")] = None,
    why: Why = None,
    as_json: AsJson = False,
) -> None:
    """Say yes to a question."""

    async def act() -> None:
        async with connect() as desk:
            answered = await desk.client.approve(approval_id, choice, why)
        if as_json:
            emit(answered)
        else:
            say(f"{answered['id']} {answered['status']}: {answered['answer']}")

    run(act())


def deny(approval_id: ApprovalId, why: Why = None, as_json: AsJson = False) -> None:
    """Say no to a question."""

    async def act() -> None:
        async with connect() as desk:
            answered = await desk.client.deny(approval_id, why)
        if as_json:
            emit(answered)
        else:
            say(f"{answered['id']} {answered['status']}: {answered['answer']}")

    run(act())
