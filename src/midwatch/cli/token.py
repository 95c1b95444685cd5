"""Commands of tokens: create, list, revoke."""

from __future__ import annotations

from typing import Annotated

import typer

from midwatch.cli.connection import connect, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import age, emit, note, say, table

app = typer.Typer(help="Let programs in: create, list and revoke tokens.", invoke_without_command=True)


@app.callback()
def start(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


@app.command()
def create(
    name: Annotated[str, typer.Option("--name", help="What it is for, such as ci.")],
    role: Annotated[str, typer.Option("--role", help="viewer (looks), operator (works) or owner (everything).")],
    actor: Annotated[str | None, typer.Option("--actor", help="Who acts with it. Default: its name.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token. Its secret is printed once and kept nowhere."""

    async def act() -> None:
        async with connect() as desk:
            made = await desk.client.create_token(name, role, actor)
        if as_json:
            emit(made)
            return
        note(
            f"Token {made['name']} ({made['id']}): whoever has it is {made['actor']}, {made['role']}. It is shown once:"
        )
        say(made["secret"])
        note(
            "Use it: `Authorization: Bearer TOKEN`, or MIDWATCH_URL and MIDWATCH_TOKEN in the environment of a client."
        )

    run(act())


@app.command("list")
def list_tokens(as_json: AsJson = False) -> None:
    """List tokens of programs and browsers; ended ones for a week."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.tokens()
        if as_json:
            emit({"tokens": found})
        elif not found:
            say("No tokens but the owner's own; make one with `midwatch token create`.")
        else:
            rows = [
                (
                    t["id"],
                    t["name"],
                    t["kind"],
                    t["actor"],
                    t["role"],
                    age(t["created_at"]),
                    age(t["last_used_at"]),
                    "revoked" if t["revoked_at"] else "-",
                )
                for t in found
            ]
            table(("ID", "NAME", "KIND", "ACTOR", "ROLE", "AGE", "USED", "STATE"), rows)

    run(act())


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="NAME|ID", help="Name or id of the token.")], as_json: AsJson = False
) -> None:
    """End a token, and the browsers that were signed in with it."""

    async def act() -> None:
        async with connect() as desk:
            ended = await desk.client.revoke_token(key)
        if as_json:
            emit(ended)
        else:
            say(f"Revoked {ended['name']} ({ended['id']}).")

    run(act())
