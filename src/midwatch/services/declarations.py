"""The service of declarations: make automations, goals and rules match a file, and export them as a file.

The plan is `midwatch.domain.declaration`. All changes of one file are written in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

from midwatch.base.clock import Clock
from midwatch.base.errors import InvalidInput, NotFound
from midwatch.base.ids import new_id
from midwatch.base.schedule import parse_moment
from midwatch.domain import automation_step
from midwatch.domain.automation import BY_PERSON, OVER, SPENT, Automation
from midwatch.domain.changes import Changes, Removal, Update
from midwatch.domain.declaration import (
    MOMENTS,
    TIMES,
    UNDECLARED,
    FieldChange,
    PlanStep,
    Present,
    Terms,
    Wanted,
    declared_fields,
    export,
    export_rules,
    fixed_fields,
    keep_moments,
    make_name,
    plan,
    values_of,
    values_of_rule,
)
from midwatch.domain.event import RuleAdded, RuleRevoked, event
from midwatch.domain.goal import OPEN, Goal
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.requests import is_plain, refuse_first
from midwatch.domain.rule import Pattern, Rule, StoredEffect
from midwatch.domain.run_env import replace_env, restore_env
from midwatch.domain.store import Store
from midwatch.services.authorization import authorize, own_record
from midwatch.services.automations import Automations
from midwatch.services.chain_links import check_links
from midwatch.services.goals import Goals
from midwatch.services.records import apply_with_retry
from midwatch.services.tasks import Tasks

MOST_EXPORTED = 100_000
MOST_RULES = 200
SIGNED_WITH = "triggers.secret"
Tables = Mapping[str, Mapping[str, Any]]


class Declared(NamedTuple):
    """The content of a file: for each noun the tables by name. A table of a rule has its `effect`, too."""

    automations: Tables
    goals: Tables
    rules: Tables


class Draft(NamedTuple):
    """A record that a file declares, as it would be created, with what creates it."""

    record: Any
    wanted: Wanted
    creation: Changes


class Declarations:
    """Service: applies and exports files that declare automations, goals and rules."""

    def __init__(self, store: Store, clock: Clock, tasks: Tasks, automations: Automations, goals: Goals) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._automations = automations
        self._goals = goals

    async def apply(
        self, declared: Declared, terms: Terms, *, dry_run: bool = False, actor: AnyActor = None
    ) -> list[PlanStep]:
        """Make the desk match a file, and return what was done. With `dry_run` nothing is written.

        Either everything is written or, if anything is invalid, nothing. A second call with the same file writes
        nothing.
        """
        authorize(actor, "operate")

        async def compute() -> tuple[list[PlanStep], Changes]:
            steps, changes = list[PlanStep](), Changes()
            for part in (self._automations_of, self._goals_of, self._rules_of):
                planned, step = await part(declared, terms, actor)
                steps += planned
                changes = changes.plus(step)
            return steps, changes

        if dry_run:
            return (await compute())[0]
        steps = await apply_with_retry(self._store, f"a record of the set {terms.set}", compute)
        for step in steps:
            if step.noun == "goal" and step.what == "remove":
                await self._goals.end_work(str(step.id), actor)
        return steps

    # -- automations ---------------------------------------------------------------------------------------------------

    async def _automations_of(
        self, declared: Declared, terms: Terms, actor: AnyActor
    ) -> tuple[list[PlanStep], Changes]:
        now, name = self._clock.now(), actor_name(actor)
        mine = {record.id: record for record in await self._store.list_declared_automations(terms.set)}
        found: dict[str, Automation] = {}
        drafts: dict[str, Draft] = {}
        for key in declared.automations:
            if named := [record for record in await self._store.find_automations(key) if record.name == key]:
                found[key] = named[0]
        ids = {key: found[key].id if key in found else new_id("am", now) for key in declared.automations}
        for key, table in declared.automations.items():
            with _naming("automations", key):
                drafts[key] = await self._draft_automation(key, table, found.get(key), terms, actor, now, ids)
        links = {ids[key]: draft.record.triggers for key, draft in drafts.items()}
        await check_links(self._store, links, {known: key for key, known in ids.items()})
        present = {key: _present(record, drafts[key].wanted.table) for key, record in found.items()}
        wanted = {key: draft.wanted for key, draft in drafts.items()}
        steps = plan("automation", wanted, present, [_present(record, {}) for record in mine.values()], terms)
        steps = [_add_secrets(step, found.get(step.name), wanted.get(step.name)) for step in steps]
        changes = Changes()
        for step in steps:
            with _naming("automations", step.name):
                if step.what == "create":
                    changes = changes.plus(drafts[step.name].creation)
                elif step.what == "change":
                    changes = changes.plus(self._change(step, found[step.name], drafts[step.name], terms, now, actor))
                elif step.what == "remove":
                    authorize(actor, "manage", own_record(mine[str(step.id)]))
                    changes = changes.plus(await self._automations.compute_removal(mine[str(step.id)], now, name))
        return steps, changes

    async def _draft_automation(
        self, key: str, table: Mapping[str, Any], current: Automation | None, terms: Terms, actor: AnyActor, now: int,
        ids: Mapping[str, str],
    ) -> Draft:  # fmt: skip
        _check_table(table)
        wish, since = dict(table), (current.declaration or {}).get("table", {}) if current else {}
        same_moment = "at" in table and since.get("at") == table["at"]
        if same_moment:  # it may have passed
            wish = {**{name: value for name, value in wish.items() if name != "at"}, "every": 86400.0}
        if current and isinstance(env := wish.get("env"), Mapping):
            wish["env"] = restore_env(current.env, env)
        prompt = str(wish.pop("prompt", ""))
        record, changes = await self._automations.draft(
            prompt, actor=actor, name=key, declared={"declared_by": terms.set}, known=ids, **wish
        )
        _check_fixed(record, current, table)
        values = values_of(record, table)
        if same_moment:
            values = {name: value for name, value in values.items() if name != "every"} | {"at": None}
        wanted = Wanted(table=_as_json(table), values=values)
        wanted = keep_moments(wanted, _present(current, table) if current else None, now)
        return Draft(record, wanted, _declare(changes, record, wanted))

    def _change(
        self, step: PlanStep, current: Automation, draft: Draft, terms: Terms, now: int, actor: AnyActor
    ) -> Changes:
        authorize(actor, "manage", own_record(current))
        values, changed = draft.wanted.values, {change.field for change in step.fields}
        patch = _patch_of(draft, changed)
        if "env" in changed:
            patch["env"] = replace_env(current.env, draft.record.env)
        if changed & {"triggers", SIGNED_WITH}:
            secrets = _secrets_of(draft.wanted.table)
            patch["triggers"] = [
                {**trigger, "secret": secret} for trigger, secret in zip(draft.record.triggers, secrets, strict=True)
            ]
        if changed & set(TIMES):
            patch |= {name: values[name] for name in TIMES if values.get(name) is not None}
            if "at" in patch:
                patch["at"] = parse_moment(patch["at"], now, "UTC")
        declared = {"declared_by": terms.set, "declaration": draft.wanted.declaration()}
        after, changes = self._automations.compute_patch(current, patch, now, actor, declared)
        if changed & set(TIMES) and current.paused_why in (SPENT, OVER):
            return changes.plus(automation_step.resume_automation(after, now, actor_name(actor)))
        if "enabled" in changed:
            by = actor_name(actor)
            if values["enabled"]:
                return changes.plus(automation_step.resume_automation(after, now, by))
            return changes.plus(automation_step.pause_automation(after, now, BY_PERSON, by))
        return changes

    # -- goals -----------------------------------------------------------------------------------------------------

    async def _goals_of(self, declared: Declared, terms: Terms, actor: AnyActor) -> tuple[list[PlanStep], Changes]:
        now = self._clock.now()
        mine = {goal.id: goal for goal in reversed(await self._store.list_declared_goals(terms.set))}
        last = {goal.name: goal for goal in mine.values()}
        found: dict[str, Goal] = {}
        drafts: dict[str, Draft] = {}
        for key, table in declared.goals.items():
            with _naming("goals", key):
                drafts[key] = await self._draft_goal(key, table, last.get(key), terms, actor, now)
            scope = (drafts[key].record.scope_kind, drafts[key].record.scope_id)
            named = [goal for goal in await self._store.list_named_goals(key) if goal.open]
            current = next((goal for goal in named if (goal.scope_kind, goal.scope_id) == scope), None)
            if (goal := current or last.get(key)) is not None:
                found[key] = goal
                if goal != last.get(key):
                    drafts[key] = await self._draft_goal(key, table, goal, terms, actor, now)
        present = {key: _present(goal, drafts[key].wanted.table) for key, goal in found.items()}
        wanted = {key: draft.wanted for key, draft in drafts.items()}
        steps = plan("goal", wanted, present, [_present(goal, {}) for goal in last.values()], terms)
        changes = Changes()
        for step in steps:
            with _naming("goals", step.name):
                if step.what == "create":
                    changes = changes.plus(drafts[step.name].creation)
                elif step.what == "change":
                    changes = changes.plus(
                        await self._edit(step, found[step.name], drafts[step.name], terms, now, actor)
                    )
                elif step.what == "remove":
                    changes = changes.plus(await self._remove_goal(mine[str(step.id)], now, actor))
        return steps, changes

    async def _draft_goal(
        self, key: str, table: Mapping[str, Any], current: Goal | None, terms: Terms, actor: AnyActor, now: int
    ) -> Draft:
        _check_table(table)
        wish = dict(table)
        if current is not None and (current.declaration or {}).get("table", {}).get("deadline") == table.get(
            "deadline"
        ):
            wish.pop("deadline", None)  # it may have passed
        objective = str(wish.pop("objective", ""))
        record, changes = await self._goals.draft(
            objective, actor=actor, name=key, declared={"declared_by": terms.set}, **wish
        )
        if current is not None and current.open:
            _check_fixed(record, current, table)
        wanted = Wanted(table=_as_json(table), values=values_of(record, table))
        wanted = keep_moments(wanted, _present(current, table) if current else None, now)
        return Draft(record, wanted, _declare(changes, record, wanted))

    async def _edit(
        self, step: PlanStep, current: Goal, draft: Draft, terms: Terms, now: int, actor: AnyActor
    ) -> Changes:
        authorize(actor, "manage", own_record(current))
        patch = _patch_of(draft, {change.field for change in step.fields})
        if any(change.field == "deadline" for change in step.fields):
            patch["deadline_at"] = parse_moment(draft.wanted.values["deadline"], now, "UTC")
        declared = {"declared_by": terms.set, "declaration": draft.wanted.declaration()}
        return await self._goals.compute_edit(current, patch, now, actor, declared)

    async def _remove_goal(self, goal: Goal, now: int, actor: AnyActor) -> Changes:
        authorize(actor, "manage", own_record(goal))
        changes = await self._goals.compute_removal(goal, now, actor_name(actor))
        return changes.plus(Changes(removals=(Removal(goal.id, goal.revision),)))

    # -- rules -----------------------------------------------------------------------------------------------------

    async def _rules_of(self, declared: Declared, terms: Terms, actor: AnyActor) -> tuple[list[PlanStep], Changes]:
        now, name = self._clock.now(), actor_name(actor)
        mine = {str(rule.name): rule for rule in await self._store.list_declared_rules(terms.set)}
        drafts = {}
        for key, table in declared.rules.items():
            with _naming("rules", key):
                drafts[key] = await self._draft_rule(key, table, terms, name, now)
        present = {key: _present_rule(rule) for key, rule in mine.items()}
        wanted = {key: Wanted(table=declared.rules[key], values=values_of_rule(rule)) for key, rule in drafts.items()}
        steps = plan("rule", wanted, present, list(present.values()), terms)
        changes = Changes()
        for step in steps:
            if step.what in ("create", "change", "remove"):
                authorize(actor, "administer")
            if step.what in ("change", "remove"):
                changes = changes.plus(_revoke(mine[step.name], now, name))
            if step.what in ("create", "change"):
                changes = changes.plus(_add(drafts[step.name], now, name))
        return steps, changes

    async def _draft_rule(self, key: str, table: Mapping[str, Any], terms: Terms, name: str | None, now: int) -> Rule:
        effect, root = cast(StoredEffect, table["effect"]), table.get("root")
        given = {field: table[field] for field in ("kind", "command", "path", "tool") if table.get(field) is not None}
        Pattern.from_data(given, effect)
        refuse_first(
            (
                "agent",
                not table.get("agent"),
                "name the agent that the rule is for; rules for all are in midwatch.toml.",
            ),
            (
                "root",
                root is not None and not (root.startswith("/") and is_plain(root)),
                "`root` must be absolute, such as /srv/app.",
            ),
        )
        return Rule(
            id=new_id("r", now), agent=await self._tasks.check_agent(table["agent"]), effect=effect, root=root,
            name=key, declared_by=terms.set, created_at=now, created_by=name, **given,
        )  # fmt: skip

    # -- export ----------------------------------------------------------------------------------------------------

    async def export(
        self, names: Sequence[str] = (), tags: Sequence[str] = (), *, actor: AnyActor = None
    ) -> dict[str, Any]:
        """Return automations, open goals and declared rules in the form of a file, and what was left out.

        With `names`, only records with these names or ids are returned; with `tags`, only records with all of them.
        """
        authorize(actor, "oversee")
        automations = await self._store.list_automations(None, ("active", "paused"), MOST_EXPORTED, tuple(tags))
        goals = await self._store.list_goals(tuple(OPEN), MOST_EXPORTED, None, tuple(tags))
        rules = [] if tags else [rule for rule in await self._store.list_rules(limit=MOST_EXPORTED) if rule.declared_by]
        every: list[Automation | Goal | Rule] = [*automations, *goals, *rules]
        if unknown := [name for name in names if all(name not in (record.id, record.name) for record in every)]:
            raise NotFound("automation, goal or declared rule", unknown[0])
        chosen = [record for record in every if not names or record.id in names or record.name in names]
        left_out: list[str] = []
        content = {
            "automations": _export_tables((record for record in chosen if isinstance(record, Automation)), left_out),
            "goals": _export_tables((record for record in chosen if isinstance(record, Goal)), left_out),
            "rules": export_rules(record for record in chosen if isinstance(record, Rule)),
        }
        sets = {record.declared_by for record in chosen}
        if len(sets) > 1:
            left_out.append("set: the records belong to different sets or to none; --adopt makes them one set")
        return {"set": sets.pop() if len(sets) == 1 else None, **content, "left_out": left_out}


def _export_tables(records: Iterable[Automation] | Iterable[Goal], left_out: list[str]) -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = {}
    keys: dict[str, str] = {}
    for record in records:
        exported = export(record)
        key = record.name
        if key is None or key in tables:
            text = record.title or record.prompt if isinstance(record, Automation) else record.objective
            key = make_name(text, tables)
            left_out.append(
                f"{record.noun}s.{key}: {record.id} has no name of its own; applying the file creates a copy"
            )
        tables[key] = exported.table
        keys[record.id] = key
        left_out += [f"{record.noun}s.{key}: {note}" for note in exported.left_out]
    for table in tables.values():
        for trigger in table.get("triggers", ()):
            if "automations" in trigger:
                trigger["automations"] = [keys.get(key, key) for key in trigger["automations"]]
    return tables


# -- parts of a plan ---------------------------------------------------------------------------------------------------


@contextmanager
def _naming(part: str, name: str) -> Iterator[None]:
    """Name the table in errors about its values."""
    try:
        yield
    except InvalidInput as problem:
        problem.args = (f"{part}.{name}: {problem}",)
        problem.field = f"{part}.{name}.{problem.field}" if problem.field else f"{part}.{name}"
        raise


def _check_table(table: Mapping[str, Any]) -> None:
    if refused := sorted(UNDECLARED & table.keys()):
        raise InvalidInput(f"`{refused[0]}` cannot be declared; leave it out.", field=refused[0])


def _check_fixed(draft: Automation | Goal, current: Automation | Goal | None, table: Mapping[str, Any]) -> None:
    """Raise InvalidInput if a table changes a field that can be set only when a record is created."""
    if current is None:
        return
    wanted, present = values_of(draft, table), values_of(current, table)
    for name in sorted(fixed_fields(type(draft)) & table.keys()):
        if wanted[name] != present[name]:
            raise InvalidInput(
                f"`{name}` cannot be changed from {present[name]!r}; it is set at creation. Choose another name for "
                "the table, or remove the record first.",
                field=name,
            )


def _present(record: Automation | Goal, table: Mapping[str, Any]) -> Present:
    ended = None if isinstance(record, Automation) or record.open else record.status
    return Present(
        id=record.id, name=record.name or record.id, declared_by=record.declared_by, values=values_of(record, table),
        declared=record.declaration, ended=ended, paused=record.paused_why if record.status == "paused" else None,
    )  # fmt: skip


def _present_rule(rule: Rule) -> Present:
    return Present(
        id=rule.id, name=str(rule.name), declared_by=rule.declared_by, values=values_of_rule(rule),
    )  # fmt: skip


def _patch_of(draft: Draft, changed: set[str]) -> dict[str, Any]:
    """Return the new values of the changed fields under the names of the record's fields, without times."""
    return {
        field.name: getattr(draft.record, field.name)
        for field, given in declared_fields(type(draft.record))
        if field.request_name in changed and field.request_name not in MOMENTS and not given.once
    }


def _secrets_of(table: Mapping[str, Any]) -> list[str | None]:
    """Return the secret of each trigger in a table, or None if the table does not set it."""
    return [trigger.get("secret") for trigger in table.get("triggers", ())]


def _add_secrets(step: PlanStep, current: Automation | None, wanted: Wanted | None) -> PlanStep:
    """Return the step that also changes the secrets of webhooks, if the file sets other ones than last time."""
    if current is None or wanted is None or not any(secrets := _secrets_of(wanted.table)):
        return step
    if secrets == _secrets_of((current.declaration or {}).get("table", {})):
        return step
    return replace(step, what="change", fields=(*step.fields, FieldChange(SIGNED_WITH, "***", "***")))


def _declare(changes: Changes, record: Automation | Goal, wanted: Wanted) -> Changes:
    """Return the changes that create a record, with what the file says about it."""
    declared = replace(record, declaration=wanted.declaration())
    return changes._replace(records=tuple(declared if each is record else each for each in changes.records))


def _as_json(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in table.items()}


def _revoke(rule: Rule, now: int, name: str | None) -> Changes:
    revoked = RuleRevoked(rule_id=rule.id, effect=rule.effect, for_agent=rule.agent)
    update = Update("rule", rule.id, {"revoked_at": now, "revoked_by": name}, {"revoked_at": None})
    return Changes(updates=(update,), events=(event(revoked, now, actor=name),))


def _add(rule: Rule, now: int, name: str | None) -> Changes:
    added = RuleAdded(rule_id=rule.id, effect=rule.effect, for_agent=rule.agent)
    return Changes(records=(rule,), events=(event(added, now, actor=name),))


def read_rules(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the rules of a file by name. Raise InvalidInput if there are too many, or if two have the same name."""
    rules: dict[str, dict[str, Any]] = {}
    for effect, listed in tables.items():
        for table in listed:
            if table["name"] in rules:
                raise InvalidInput(
                    f"rules.{effect}: two rules are called {table['name']!r}; rename one of them.",
                    field=f"rules.{effect}.name",
                )
            rules[table["name"]] = {**table, "effect": effect}
    if len(rules) > MOST_RULES:
        raise InvalidInput(f"there are more than {MOST_RULES} rules; declare fewer.", field="rules")
    return rules
