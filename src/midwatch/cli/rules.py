"""Commands of rules: list the rules of all levels, test what they decide, revoke rules that answers created."""

from __future__ import annotations

from typing import Annotated, Any

from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.inputs import absolute_path
from midwatch.cli.options import FieldOptions
from midwatch.cli.output import format_age, join, shorten, table
from midwatch.cli.parameters import Argument, Option

RULE_LENGTH = 100
HEADERS = ("ID", "EFFECT", "LEVEL", "AGE", "BY", "RULE")

app = Group("List, test and revoke rules on the use of tools.")


def test_fields() -> tuple[type, ...]:
    """Return the class whose fields are the options of `rules test`."""
    from midwatch.domain.rule import RuleTest

    return (RuleTest,)


@command(app, default=True)
async def rules(desk: Desk, revoked: Annotated[bool, Option("--all", help="Include revoked rules.")] = False) -> Reply:
    """List the rules of the settings, and those created by answers with --always. Only these have an id."""
    found = await desk.client.rules(all=revoked)
    rows: list[tuple[Any, ...]] = [
        ("", rule["effect"], _name_level(rule), "", "settings", shorten(rule["text"], RULE_LENGTH))
        for rule in found["written"]
    ]
    rows += [
        (
            rule["id"],
            rule["effect"] if rule["revoked_at"] is None else f"was {rule['effect']}",
            f"agent {rule['agent']}",
            format_age(rule["created_at"]),
            rule["created_by"],
            shorten(rule["text"], RULE_LENGTH),
        )
        for rule in found["rules"]
    ]
    empty = "No rules. Write them in midwatch.toml, or answer a question: midwatch approve ID --always"
    return Reply(found, table(HEADERS, rows, empty))


def _name_level(rule: dict[str, Any]) -> str:
    return f"agent {rule['of']}" if rule["of"] else str(rule["source"])


@command(app, options=FieldOptions(test_fields))
async def test(desk: Desk, **use: Any) -> Reply:
    """Tell what the rules would decide on the use of a tool, and which rule decides. Nothing is used or asked."""
    if not use.get("workdir") and not use.get("task"):
        use["workdir"] = absolute_path(".")
    trial = await desk.client.test_rules(**use)
    rows = [(level["source"], level["name"] or "", level["effect"], level["rule"]) for level in trial["levels"]]
    levels = table(("LEVEL", "OF", "SAYS", "RULE"), rows, "") if len(rows) > 1 else None
    return Reply(trial, join(trial["text"], levels))


@command(app)
async def revoke(desk: Desk, rule_id: Annotated[str, Argument(metavar="ID", help="Id of the rule.")]) -> Reply:
    """Revoke a rule. Agents will ask a person again instead."""
    rule = await desk.client.revoke_rule(rule_id)
    return Reply(rule, f"{rule['id']} revoked: {rule['text']}")
