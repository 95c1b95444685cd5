"""Commands of tokens: create, list, revoke."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.output import format_age, note, say, table, values
from midwatch.cli.parameters import Argument, Option

if TYPE_CHECKING:
    from midwatch.wire.identity import NewToken

TokenRole = Literal["viewer", "operator", "owner"]
HEADERS = ("ID", "NAME", "KIND", "ACTOR", "ROLE", "AGE", "USED", "STATE")

app = Group("Create, list and revoke access tokens.")


@command(app)
async def create(
    desk: Desk,
    name: Annotated[str, Option("--name", help="Name of the token, such as ci.")],
    role: Annotated[TokenRole, Option("--role", help="viewer (read), operator (run tasks) or owner (everything).")],
    actor: Annotated[str | None, Option("--actor", help="Actor of the token's requests. Default: its name.")] = None,
) -> Reply:
    """Create a token. The secret is printed only once and is not stored."""
    token = await desk.client.create_token(name, role, actor)
    return Reply(token, lambda: print_token(token))


def print_token(token: NewToken) -> None:
    """Print the secret of a new token, and on standard error how to use it."""
    note(f"Token {token['name']} ({token['id']}) for {token['actor']}, role {token['role']}. It is shown only once:")
    say(token["secret"])
    note("Use it: `Authorization: Bearer TOKEN`, or MIDWATCH_URL and MIDWATCH_TOKEN in the environment of a client.")


@command(app, "list")
async def list_tokens(desk: Desk) -> Reply:
    """List tokens of programs and browsers. Revoked and expired tokens are listed for a week."""
    tokens = await desk.client.tokens()
    rows = [
        (
            *values(token, "id", "name", "kind", "actor", "role"),
            format_age(token["created_at"]),
            format_age(token["last_used_at"]),
            "revoked" if token["revoked_at"] else "-",
        )
        for token in tokens
    ]
    empty = "No tokens except the owner's own; create one with `midwatch token create`."
    return Reply({"tokens": tokens}, table(HEADERS, rows, empty))


@command(app)
async def revoke(
    desk: Desk, key: Annotated[str, Argument(metavar="NAME|ID", help="Name or id of the token.")]
) -> Reply:
    """Revoke a token, and sign out all browsers that signed in with it."""
    token = await desk.client.revoke_token(key)
    return Reply(token, f"Revoked {token['name']} ({token['id']}).")
