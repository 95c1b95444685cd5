"""Commands of declarations: apply a file that declares automations, goals and rules, and export such a file."""

from __future__ import annotations

import os.path
import tomllib
from collections.abc import Mapping
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from midwatch.base.errors import Conflict, InvalidInput, MidwatchError
from midwatch.cli import output as out
from midwatch.cli.command import Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.inputs import read_file
from midwatch.cli.parameters import Argument, Option
from midwatch.cli.toml_text import find_line, write_table, write_text

if TYPE_CHECKING:
    from midwatch.wire.declarations import DeclarationInfo, PlanInfo

PARTS = ("automations", "goals", "rules")
SIGNS = {"create": "+", "change": "~", "unchanged": "=", "remove": "-", "left": "?"}
COLOURS = {"create": "green", "change": "yellow", "remove": "red", "unchanged": "dim", "left": "dim"}
VALUE_LENGTH = 60
Problem = TypeVar("Problem", bound=MidwatchError)
DryRun = Annotated[bool, Option("--dry-run", help="Only print the plan.")]


@command()
async def apply(
    desk: Desk,
    file: Annotated[str, Argument(metavar="FILE", help="File in TOML; - reads standard input.")],
    dry_run: DryRun = False,
    prune: Annotated[bool, Option("--prune", help="Remove what the set declared before and does not now.")] = False,
    adopt: Annotated[bool, Option("--adopt", help="Take over records that have the same names already.")] = False,
) -> Reply:
    """Make automations, goals and rules match a file. Prints what changes; an error changes nothing."""
    text, content = read_declarations(file)
    try:
        done = await desk.client.apply(content, dry_run=dry_run, prune=prune, adopt=adopt)
    except (InvalidInput, Conflict) as problem:
        raise place_error(problem, file, text) from None
    return Reply(done, describe_plan(done))


@command()
async def export(
    desk: Desk,
    names: Annotated[
        list[str] | None,
        Argument(metavar="[NAME]...", help="Names or ids. Default: all that are not deleted or ended."),
    ] = None,
    tag: Annotated[list[str] | None, Option("--tag", help="Only records with this tag. Repeatable.")] = None,
) -> Reply:
    """Print automations, open goals and declared rules as a file for `midwatch apply`.

    Secrets are left out.
    """
    content = await desk.client.export_declarations(names or (), tag or ())
    return Reply(content, lambda: write_file(content))


# -- reading -----------------------------------------------------------------------------------------------------------


def read_declarations(file: str) -> tuple[str, dict[str, Any]]:
    """Return the text and the content of a file that declares records. Relative directories begin at the file."""
    try:
        text = read_file(file).decode()
        content = tomllib.loads(text)
    except (UnicodeDecodeError, RecursionError):
        raise InvalidInput(f"{file} is not a text in UTF-8; save it as one.", field="file") from None
    except tomllib.TOMLDecodeError as problem:
        raise InvalidInput(f"{file} is not valid TOML: {problem}.", field="file") from None
    if unknown := [name for name in content if name not in ("set", *PARTS)]:
        message = f"there is no table {unknown[0]!r}; a file has `set`, {', '.join(PARTS)}."
        raise place_error(InvalidInput(message, field=unknown[0]), file, text)
    if "set" not in content and file == "-":
        raise InvalidInput('the name of the set is missing; begin with a line such as set = "team-a".', field="set")
    base = Path.cwd() if file == "-" else Path(file).absolute().parent
    content = {"set": "" if file == "-" else Path(file).stem, **to_json(content)}
    for part in ("automations", "goals"):
        tables = content.get(part)
        for table in tables.values() if isinstance(tables, dict) else ():
            if isinstance(table, dict) and isinstance(table.get("workdir"), str):
                table["workdir"] = os.path.normpath(base / Path(table["workdir"]).expanduser())
    return text, content


def to_json(value: Any) -> Any:
    """Return a value of TOML as JSON has it: a date and a time become texts."""
    if isinstance(value, dict):
        return {name: to_json(part) for name, part in value.items()}
    if isinstance(value, list):
        return [to_json(part) for part in value]
    return value.isoformat() if isinstance(value, date | time) else value


def place_error(problem: Problem, file: str, text: str) -> Problem:
    """Return the error with the file and, if it can be found, the line that it is about."""
    field = getattr(problem, "field", None) or str(problem).partition(": ")[0]
    line = find_line(text, field)
    problem.args = (f"{file}{f':{line}' if line else ''}: {problem}",)
    return problem


# -- showing -----------------------------------------------------------------------------------------------------------


def describe_plan(plan: PlanInfo) -> str:
    """Return a plan as lines for people."""
    lines = []
    for step in plan["steps"]:
        note = f" ({step['note']})" if step["note"] else ""
        text = f"{SIGNS[step['what']]} {step['noun']} {step['name']}: {step['what']}{note}"
        lines.append(out.paint(text, COLOURS[step["what"]]))
        if step["what"] == "create" and any(map(has_webhook, step["fields"])) and not plan["dry_run"]:
            lines.append(f"    address of its webhook: midwatch automation show {step['name']}")
        if step["what"] == "change":
            lines += [f"    {line}" for change in step["fields"] for line in describe_change(change)]
    counts = {what: sum(step["what"] == what for step in plan["steps"]) for what in SIGNS}
    words = {"create": "created", "change": "changed", "remove": "removed", "unchanged": "unchanged"}
    total = ", ".join(f"{counts[what]} {word}" for what, word in words.items() if counts[what]) or "nothing declared"
    return "\n".join(
        [*lines, f"set {plan['set']}: {total}{' (dry run: nothing is written)' if plan['dry_run'] else ''}"]
    )


def has_webhook(change: Mapping[str, Any]) -> bool:
    """Return whether a change sets a webhook."""
    return change["field"] == "triggers" and any(trigger["kind"] == "webhook" for trigger in change["new"] or ())


def describe_change(change: Mapping[str, Any]) -> list[str]:
    """Return the change of a field as lines for people: a line for each trigger that goes or comes."""
    field, old, new = change["field"], change["old"], change["new"]
    by_hand = " (was changed by hand)" if change["by_hand"] else ""
    if field == "triggers":
        old, new = old or (), new or ()
        gone = [
            f"triggers: - {out.format_json(trigger)}{by_hand}" for trigger in old or () if trigger not in (new or ())
        ]
        come = [f"triggers: + {out.format_json(trigger)}" for trigger in new if trigger not in old]
        return gone + come or [f"triggers: another order{by_hand}"]
    if old == new:
        return [f"{field}: another value, which is not shown{by_hand}"]
    before, after = (out.shorten(out.format_json(value), VALUE_LENGTH) for value in (old, new))
    return [f"{field}: {before} -> {after}{by_hand}"]


def write_file(content: DeclarationInfo) -> str:
    """Return exported records as the text of a file."""
    parts = [f"# left out: {note}" for note in content["left_out"]]
    if content["set"]:
        parts.append(f"set = {write_text(content['set'])}")
    head = ["\n".join(parts) + "\n"] if parts else []
    tables = [
        write_table((part, name), table)
        for part, records in (("automations", content["automations"]), ("goals", content["goals"]))
        for name, table in records.items()
    ]
    rules = [
        write_table(("rules", effect), rule, listed=True)
        for effect, listed in content["rules"].items()
        for rule in listed
    ]
    return "\n".join([*head, *tables, *rules]).rstrip("\n")
