"""Declarations: automations, goals and rules that a file declares, and the plan that makes the desk match the file.

A file declares a set of records. Each record has a name, which is unique, and knows its set. A record of another set,
or one that a person has created, is never changed unless the caller adopts it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from midwatch.base.clock import iso
from midwatch.base.errors import Conflict
from midwatch.domain.automation import OVER, SPENT, Automation
from midwatch.domain.channel import hide_target, read_routes
from midwatch.domain.fields import Example, Field, Input, inputs
from midwatch.domain.goal import Goal
from midwatch.domain.requests import NO_NAMES
from midwatch.domain.rule import Rule
from midwatch.domain.run_env import MASK, is_secret, show_env

Noun = Literal["automation", "goal", "rule"]
What = Literal["create", "change", "unchanged", "remove", "left"]
"""`left` is a record that the set has declared before and does not declare any more; `prune` removes it."""

UNDECLARED = frozenset({"name", "idempotency_key", "next_run_at", "resume_thread_id", "source_message_id"})
"""Fields that a file cannot declare. The name is the key of the table."""
TIMES = ("at", "every", "cron", "zone")
MOMENTS = frozenset({"at", "deadline"})
"""Fields whose value may depend on the moment when it is read, such as `in 2d`."""
RULE_FIELDS = ("agent", "kind", "command", "path", "root", "tool")
SECRET = re.compile(r"token|secret|passw|credential|(^|_)key", re.IGNORECASE)

HIDE: Mapping[str, Callable[[Any], Any]] = {"env": show_env, "route": hide_target}
"""How a plan shows the values of fields that can contain secrets."""


class FieldChange(NamedTuple):
    """One field that a plan changes. `by_hand` says whether a person has changed it since the file was applied."""

    field: Annotated[str, Example("cron")]
    old: Any
    new: Any
    by_hand: Annotated[bool, Example(False)] = False

    def snapshot(self) -> dict[str, Any]:
        """Return the change as JSON shows it, without values of secret variables and targets of routes."""
        hide = HIDE.get(self.field)
        return {**self._asdict(), **({"old": hide(self.old), "new": hide(self.new)} if hide else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """What a plan does with one record. `note` is more to know about it, for people."""

    noun: Annotated[Noun, Example("automation")]
    name: Annotated[str, Example("morning-brief")]
    what: Annotated[What, Example("change")]
    id: Annotated[str | None, Example("am_06f2m8yq3kq5r0v9x1w2")] = None
    fields: tuple[FieldChange, ...] = ()
    note: str | None = None

    def snapshot(self) -> dict[str, Any]:
        """Return the step as JSON shows it."""
        fields = [change.snapshot() for change in self.fields]
        names = ("noun", "name", "what", "id", "note")
        return {**{name: getattr(self, name) for name in names}, "fields": fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A record as a file declares it: the table of the file, and the values that its fields get."""

    table: Mapping[str, Any]
    values: Mapping[str, Any]

    def declaration(self) -> dict[str, Any]:
        """Return what the record remembers of the file."""
        return {"table": dict(self.table), "values": dict(self.values)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A record of the desk, with the values of its fields. `declared` is what the file said last time."""

    id: str
    name: str
    declared_by: str | None
    values: Mapping[str, Any]
    declared: Mapping[str, Any] | None = None
    ended: str | None = None
    """The status of a goal that has ended."""
    paused: str | None = None
    """Why it is paused, if it is paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of a plan: the name of the set, and whether records are removed or adopted."""

    set: str
    prune: bool = False
    adopt: bool = False


def plan(
    noun: Noun, wanted: Mapping[str, Wanted], present: Mapping[str, Present], mine: Sequence[Present], terms: Terms
) -> list[PlanStep]:
    """Return the steps that make the records of one noun match a file.

    `present` has the records with the wanted names. `mine` are all records that the set has declared. Raise Conflict
    if a wanted record exists, but another file or a person has created it.
    """
    steps = [_plan_one(noun, name, each, present.get(name), terms) for name, each in wanted.items()]
    for old in mine:
        if old.name not in wanted and old.ended is None:
            note = None if terms.prune else "no longer in the file; --prune removes it"
            steps.append(
                PlanStep(noun=noun, name=old.name, what="remove" if terms.prune else "left", id=old.id, note=note)
            )
    return steps


def _plan_one(noun: Noun, name: str, wanted: Wanted, present: Present | None, terms: Terms) -> PlanStep:
    if present is None:
        note = _tell_unset(wanted.table.get("env"))
        return PlanStep(noun=noun, name=name, what="create", fields=compare({}, wanted.values), note=note)
    if present.ended:
        if (present.declared or {}).get("table") == wanted.table:
            return PlanStep(noun=noun, name=name, what="unchanged", id=present.id, note=f"it is {present.ended}")
        return PlanStep(
            noun=noun,
            name=name,
            what="create",
            fields=compare({}, wanted.values),
            note=f"the last one is {present.ended}",
        )
    adopted = present.declared_by != terms.set
    if adopted and not terms.adopt:
        owner = f"set {present.declared_by} declares it" if present.declared_by else "no file declares it"
        raise Conflict(
            f"{noun}s.{name}: {present.id} has this name already and {owner}; take it over with --adopt, or choose "
            "another name."
        )
    fields = compare(present.values, wanted.values, (present.declared or {}).get("values"))
    note = f"adopted from {present.declared_by or 'a person'}" if adopted else None
    if present.paused and "enabled" not in wanted.table:
        note = "; ".join(part for part in (note, f"stays paused: {present.paused}") if part)
    what: What = "change" if fields or adopted else "unchanged"
    return PlanStep(noun=noun, name=name, what=what, id=present.id, fields=fields, note=note)


def compare(
    old: Mapping[str, Any], new: Mapping[str, Any], declared: Mapping[str, Any] | None = None
) -> tuple[FieldChange, ...]:
    """Return the fields that differ. A field that is missing is None, or empty."""
    changes = []
    for field in dict.fromkeys((*new, *old)):
        before, after = old.get(field), new.get(field)
        if before == after or (not old and not after) or (field == "route" and _names_the_same(before, after)):
            continue
        by_hand = declared is not None and field in declared and declared[field] != before
        changes.append(FieldChange(field, before, after, by_hand))
    return tuple(changes)


def _names_the_same(before: str | None, after: str | None) -> bool:
    """Return whether routes without targets name the channels of the present ones, which then keep their targets."""
    if not after or any(route.target for route in read_routes(after)):
        return False
    return hide_target(after) == hide_target(before)


def _tell_unset(env: Any) -> str | None:
    """Return a note about the secret variables whose values a file does not have."""
    unset = [name for name, value in env.items() if value == MASK and is_secret(name)] if env else []
    return f"without {', '.join(unset)}: set it with `midwatch automation edit --env`" if unset else None


def keep_moments(wanted: Wanted, present: Present | None, now: int) -> Wanted:
    """Return what is wanted, with moments as they were read when the file said the same before.

    A moment that has passed meanwhile is not set again.
    """
    if present is None:
        return wanted
    declared, values = present.declared or {"table": {}, "values": {}}, dict(wanted.values)
    for field in MOMENTS & values.keys():
        if declared["table"].get(field) == wanted.table.get(field):
            first = declared["values"].get(field)
            passed = not first or first <= (iso(now) or "")
            kept = ({name: present.values.get(name) for name in TIMES} if field == "at" else {}) | {
                field: present.values.get(field)
            }
            values |= kept if passed else {field: first}
    return Wanted(table=wanted.table, values=values)


# -- the values of records -----------------------------------------------------------------------------------------


def declared_fields(definition: type) -> list[tuple[Field, Input]]:
    """Return the fields of a record that a file can declare."""
    return [(field, given) for field, given in inputs(definition) if field.request_name not in UNDECLARED]


def values_of(record: Automation | Goal, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a record that are compared, by the names that a file uses.

    A field that is set only at creation is compared only if the file names it.
    """
    values: dict[str, Any] = {}
    if isinstance(record, Automation):
        values |= {name: record.schedule[name] for name in TIMES if record.schedule.get(name) is not None}
        if "enabled" in table:
            values["enabled"] = record.status == "active" or record.paused_why in (SPENT, OVER)
    for field, given in declared_fields(type(record)):
        if not given.once or field.request_name in table:
            values[field.request_name] = _plain(field, getattr(record, field.name))
    return values


def _plain(field: Field, value: Any) -> Any:
    if field.is_time:
        return iso(value)
    if field.name == "triggers":
        return [{name: part for name, part in trigger.items() if name != "id"} for trigger in value]
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def values_of_rule(rule: Rule) -> dict[str, Any]:
    """Return the values of a rule, by the names that a file uses."""
    return {"effect": rule.effect, **{name: getattr(rule, name) for name in RULE_FIELDS}}


def fixed_fields(definition: type) -> frozenset[str]:
    """Return the names of fields that a file can set only when the record is created."""
    return frozenset(field.request_name for field, given in declared_fields(definition) if given.once)


# -- export ----------------------------------------------------------------------------------------------------------


class Exported(NamedTuple):
    """A record as a table of a file, and what was left out of it, for people."""

    table: dict[str, Any]
    left_out: tuple[str, ...] = ()


def export(record: Automation | Goal) -> Exported:
    """Return a record as a file declares it: only values that are not the defaults, and no secrets."""
    table: dict[str, Any] = {}
    notes: list[str] = []
    own_keys = (f"auto:{record.id}", f"goal:{record.id}")
    defaults = {"session_key": own_keys, "scope_id": (record.creator or "owner",)}
    for field, _ in declared_fields(type(record)):
        name, value = field.request_name, _plain(field, getattr(record, field.name))
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        if value is None or value == default or value in defaults.get(name, ()):
            continue
        if name == "approvals" and "above" in value:
            value = {part: each for part, each in value.items() if part != "above"}
            notes.append("approvals: the rules of the work that it grew out of")
        if name == "route":
            notes += ["route: the target"] if any(route.target for route in read_routes(value)) else []
            value = hide_target(value)
        if name == "env":
            notes += [f"env: the value of {part}" for part in value if is_secret(part)]
            value = show_env(value)
        elif isinstance(value, Mapping):
            value, hidden = _drop_secrets(value)
            notes += [f"{name}: the value of {part}" for part in hidden]
        if value != {}:
            table[name] = value
    if isinstance(record, Automation):
        times = {name: record.schedule[name] for name in TIMES if record.schedule.get(name) is not None}
        table |= times
        if record.status == "paused" and record.paused_why not in (SPENT, OVER):
            table["enabled"] = False
    return Exported(table, tuple(notes))


def _drop_secrets(value: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a table without texts whose names say that they are secrets, and these names."""
    hidden = [name for name, part in value.items() if isinstance(part, str) and SECRET.search(name)]
    return {name: part for name, part in value.items() if name not in hidden}, hidden


def export_rules(rules: Iterable[Rule]) -> dict[str, list[dict[str, Any]]]:
    """Return declared rules as the table `rules` of a file."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for rule in rules:
        fields = {name: getattr(rule, name) for name in ("name", *RULE_FIELDS) if getattr(rule, name) is not None}
        tables.setdefault(rule.effect, []).append(fields)
    return tables


def make_name(text: str, taken: Iterable[str]) -> str:
    """Return a name for a record without one, made from a text for people."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    base = "-".join(words)[:40].strip("-") or "unnamed"
    known, name, number = {*taken, *NO_NAMES}, base, 2
    while name in known:
        name, number = f"{base}-{number}", number + 1
    return name
