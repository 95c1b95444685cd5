"""Commands of rules: what answers for always have made."""

from __future__ import annotations

from typing import Annotated

import typer

from midwatch.cli.connection import connect, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import age, emit, line, say, table

TEXT_SHOWN = 100

app = typer.Typer(help="List and revoke rules that answer agents' questions.", invoke_without_command=True)


@app.callback()
def rules(
    ctx: typer.Context,
    revoked: Annotated[bool, typer.Option("--all", help="Also those that were revoked.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the rules that answers with --always have made. Those of the settings are in midwatch.toml."""
    if ctx.invoked_subcommand is not None:
        return

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.rules(all=revoked)
        if as_json:
            emit({"rules": found})
        elif not found:
            say("No rules. Make one by answering a question: midwatch approve ID --always")
        else:
            rows = [
                (
                    r["id"],
                    r["effect"] if r["revoked_at"] is None else f"was {r['effect']}",
                    r["agent"],
                    age(r["created_at"]),
                    r["created_by"],
                    line(r["text"], TEXT_SHOWN),
                )
                for r in found
            ]
            table(("ID", "EFFECT", "AGENT", "AGE", "BY", "RULE"), rows)

    run(act())


@app.command()
def revoke(
    rule_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the rule.")], as_json: AsJson = False
) -> None:
    """Have a rule hold no more; the question is asked again."""

    async def act() -> None:
        async with connect() as desk:
            gone = await desk.client.revoke_rule(rule_id)
        if as_json:
            emit(gone)
        else:
            say(f"{gone['id']} revoked: {gone['text']}")

    run(act())
