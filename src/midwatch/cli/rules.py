"""Commands of rules: list and revoke rules that were created by answers."""

from __future__ import annotations

from typing import Annotated

from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.output import format_age, shorten, table
from midwatch.cli.parameters import Argument, Option

RULE_LENGTH = 100
HEADERS = ("ID", "EFFECT", "AGENT", "AGE", "BY", "RULE")

app = Group("List and revoke rules that answer agents' questions.")


@command(app, default=True)
async def rules(desk: Desk, revoked: Annotated[bool, Option("--all", help="Include revoked rules.")] = False) -> Reply:
    """List the rules created by answers with --always. Rules of the settings are in midwatch.toml."""
    found = await desk.client.rules(all=revoked)
    rows = [
        (
            rule["id"],
            rule["effect"] if rule["revoked_at"] is None else f"was {rule['effect']}",
            rule["agent"],
            format_age(rule["created_at"]),
            rule["created_by"],
            shorten(rule["text"], RULE_LENGTH),
        )
        for rule in found
    ]
    empty = "No rules. Create one by answering a question: midwatch approve ID --always"
    return Reply({"rules": found}, table(HEADERS, rows, empty))


@command(app)
async def revoke(desk: Desk, rule_id: Annotated[str, Argument(metavar="ID", help="Id of the rule.")]) -> Reply:
    """Revoke a rule. Agents will ask a person again instead."""
    rule = await desk.client.revoke_rule(rule_id)
    return Reply(rule, f"{rule['id']} revoked: {rule['text']}")
