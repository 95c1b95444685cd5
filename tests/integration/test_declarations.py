"""Test files that declare automations, goals and rules: apply, prune, adopt, export and import of a crontab."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime
from midwatch.base.errors import Conflict, Forbidden, InvalidInput, KeyReused
from midwatch.desk.config import Settings
from midwatch.domain.declaration import PlanStep, Terms
from midwatch.domain.identity import Actor
from midwatch.services.declarations import Declared, read_rules

ANN, BOB = Actor("ann", "operator"), Actor("bob", "operator")
BRIEF = {"prompt": "Brief me", "every": 3600.0, "tags": ["daily"]}
CONTENT: dict[str, Any] = {
    "automations": {"brief": BRIEF, "once": {"prompt": "Once", "at": "in 2h"}},
    "goals": {"green": {"objective": "All is green", "deadline": "in 3d", "max_steps": 30, "tags": ["daily"]}},
    "rules": {"deny": [{"name": "no-push", "agent": "demo", "command": "git push **"}]},
}


def declare(content: dict[str, Any]) -> Declared:
    return Declared(content.get("automations", {}), content.get("goals", {}), read_rules(content.get("rules", {})))


async def apply(
    desk: Runtime, content: dict[str, Any], actor: Actor | None = None, **terms: Any
) -> dict[str, PlanStep]:
    dry_run = terms.pop("dry_run", False)
    chosen = Terms(**{"set": "s", **terms})
    return {
        step.name: step
        for step in await desk.declarations.apply(declare(content), chosen, dry_run=dry_run, actor=actor)
    }


def kinds(steps: dict[str, PlanStep]) -> dict[str, str]:
    return {name: step.what for name, step in steps.items()}


def with_automation(**fields: Any) -> dict[str, Any]:
    return {**CONTENT, "automations": {**CONTENT["automations"], "brief": {**BRIEF, **fields}}}


@pytest.fixture(params=["sqlite", "postgres"])
async def desk(request: pytest.FixtureRequest, home: Path) -> Any:
    url = request.getfixturevalue("database") if request.param == "postgres" else None
    settings = Settings(home=home, detect_agents=False, db=url)
    async with Runtime.open(home, settings=settings, work=False) as opened:
        yield opened


async def test_a_file_is_applied_once_changed_by_hand_changed_back_and_pruned(desk: Runtime) -> None:
    everything = ("brief", "once", "green", "no-push")
    assert kinds(await apply(desk, CONTENT, dry_run=True)) == dict.fromkeys(everything, "create")
    assert await desk.automations.list() == []
    assert kinds(await apply(desk, CONTENT)) == dict.fromkeys(everything, "create")
    before = await desk.automations.get("brief")
    assert kinds(await apply(desk, CONTENT, prune=True)) == dict.fromkeys(everything, "unchanged")
    assert await desk.automations.get("brief") == before
    await desk.automations.patch("brief", {"max_runs": 3, "tags": []})
    await desk.goals.edit("green", {"deadline": "in 9d"})
    await desk.automations.pause("brief")
    steps = await apply(desk, CONTENT)
    assert kinds(steps) == {**dict.fromkeys(everything, "unchanged"), "brief": "change", "green": "change"}
    assert {change.field: change.by_hand for change in steps["brief"].fields} == {"max_runs": True, "tags": True}
    brief = await desk.automations.get("brief")
    assert (brief.max_runs, brief.tags, brief.status) == (0, ("daily",), "paused")
    assert (await apply(desk, with_automation(enabled=True)))["brief"].what == "change"
    assert (await desk.automations.get("brief")).status == "active"
    rule = {"deny": [{"name": "no-push", "agent": "demo", "command": "git push *"}]}
    assert kinds(await apply(desk, {"rules": rule})) == {
        "brief": "left", "once": "left", "green": "left", "no-push": "change",
    }  # fmt: skip
    made = await desk.automations.create("by hand", every=3600)
    removed = await apply(desk, {}, prune=True)
    assert kinds(removed) == dict.fromkeys(everything, "remove")
    assert [automation.id for automation in await desk.automations.list()] == [made.id]
    assert await desk.goals.list() == await desk.rules.list() == []


async def test_an_error_changes_nothing_and_names_the_field(desk: Runtime) -> None:
    await desk.automations.create("by hand", every=3600, name="mine")
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"automations": {"ok": BRIEF, "bad": {"prompt": "x", "cron": "99 * * * *"}}}, InvalidInput, "automations.bad"),
        ({"automations": {"ok": BRIEF, "bad": {**BRIEF, "name": "x"}}}, InvalidInput, "automations.bad"),
        ({"automations": {"ok": BRIEF}, "goals": {"bad": {"objective": " "}}}, InvalidInput, "goals.bad"),
        ({"automations": {"ok": BRIEF, "mine": BRIEF}}, Conflict, "automations.mine"),
        (
            {"automations": {"ok": BRIEF}, "rules": {"deny": [{"name": "r", "agent": "nobody"}]}},
            InvalidInput,
            "rules.r",
        ),
    ]
    for content, error, name in wrong:
        with pytest.raises(error, match=f"^{name}: ") as refused:
            await apply(desk, content)
        assert not isinstance(refused.value, InvalidInput) or str(refused.value.field).startswith(name)
    assert [automation.name for automation in await desk.automations.list()] == ["mine"]
    assert (await apply(desk, {"automations": {"mine": BRIEF}}, adopt=True))["mine"].note == "adopted from a person"
    with pytest.raises(Conflict, match="set s declares it"):
        await apply(desk, {"automations": {"mine": BRIEF}}, set="t")


async def test_rights_are_those_of_single_changes_and_a_race_has_one_winner(desk: Runtime) -> None:
    with pytest.raises(Forbidden):
        await apply(desk, CONTENT, ANN)  # rules need an owner
    work = {"automations": CONTENT["automations"]}
    both = await asyncio.gather(apply(desk, work, ANN), apply(desk, work, ANN))
    assert sorted(steps["brief"].what for steps in both) == ["create", "unchanged"]
    with pytest.raises(Forbidden):
        await apply(desk, {"automations": {"brief": {**BRIEF, "quiet": "OK"}}}, BOB)
    assert (await apply(desk, work, BOB))["brief"].what == "unchanged"


async def test_an_export_is_applied_unchanged_and_has_no_secrets(desk: Runtime) -> None:
    await apply(desk, CONTENT)
    await desk.automations.patch("once", {"approvals": {"deny": [{"command": "git push"}]}})
    exported = await desk.declarations.export()
    assert exported["set"] == "s" and exported["left_out"] == []
    assert exported["automations"]["brief"]["tags"] == ["daily"]
    steps = await apply(desk, exported)
    assert kinds(steps) == {**dict.fromkeys(("brief", "green", "no-push"), "unchanged"), "once": "unchanged"}
    assert list((await desk.declarations.export(tags=["daily"]))["automations"]) == ["brief"]
    assert (await desk.declarations.export(["green"]))["automations"] == {}
    json.dumps(exported)


async def test_variables_match_the_file_and_no_plan_or_export_shows_a_secret(desk: Runtime) -> None:
    env = {"DB_DSN": "postgres://u:pw@h", "COLOUR": "red"}
    work = {"prompt": "x", "every": 3600.0, "env": env, "route": "console:#ops"}
    await apply(desk, {"automations": {"a": work}})
    assert kinds(await apply(desk, exported := await desk.declarations.export())) == {"a": "unchanged"}
    assert exported["automations"]["a"]["env"] == {"DB_DSN": "***", "COLOUR": "red"}
    smaller = {"automations": {"a": {"prompt": "x", "every": 3600.0, "env": {"DB_DSN": "***"}, "enabled": False}}}
    (step,) = (await apply(desk, smaller)).values()
    assert "pw" not in str(step.snapshot()) and "#ops" not in str(step.snapshot())
    automation = await desk.automations.get("a")
    assert (automation.env, automation.status) == ({"DB_DSN": env["DB_DSN"]}, "paused")
    assert kinds(await apply(desk, smaller)) == {"a": "unchanged"}
    assert [alert.kind for alert in await desk.alerts.list()] == [], "the file wants this pause"


async def test_secrets_are_not_shown_and_variables_are_those_of_the_file(desk: Runtime) -> None:
    env = {"APIKEY": "s3cret-key", "A_COOKIE": "s3cret-cookie", "REGION": "eu"}
    brief = {**BRIEF, "env": env, "route": ["console:s3cret-1", "webhook:https://s3cret-2"]}
    steps = [*(await apply(desk, {"automations": {"brief": brief}})).values()]
    steps += (await apply(desk, {"automations": {"brief": {**brief, "env": {**env, "APIKEY": "s3cret-new"}}}})).values()
    exported = await desk.declarations.export()
    assert "s3cret" not in json.dumps([[step.snapshot() for step in steps], exported])
    assert (exported["automations"]["brief"]["route"], len(exported["left_out"])) == ("console webhook", 3)
    before = await desk.automations.get("brief")
    assert before.env == {**env, "APIKEY": "s3cret-new"}
    assert (await apply(desk, exported))["brief"].what == "unchanged"
    assert await desk.automations.get("brief") == before
    less = {"automations": {"brief": {**brief, "env": {"REGION": "us", "APIKEY": "***"}}}}
    assert [(await apply(desk, less))["brief"].what for _ in range(2)] == ["change", "unchanged"]
    assert (await desk.automations.get("brief")).env == {"REGION": "us", "APIKEY": "s3cret-new"}
    assert "APIKEY" in str(
        (await apply(desk, {"automations": {"other": {**BRIEF, "env": {"APIKEY": "***"}}}}))["other"].note
    )


async def test_webhooks_of_a_file_keep_their_address_and_secret(desk: Runtime) -> None:
    def hooks(*triggers: dict[str, Any]) -> dict[str, Any]:
        return {
            "automations": {"hook": {"prompt": "x", "triggers": [{"kind": "webhook", **each} for each in triggers]}}
        }

    async def look() -> list[tuple[str, str]]:
        ids = [trigger["id"] for trigger in (await desk.automations.get("hook")).triggers]
        return [(key, (await desk.triggers.secret(key))["secret"]) for key in ids]

    one, other = {"sign": "github", "filter": ["a = 1"]}, {"sign": "github", "filter": ["b = 1"]}
    mine = {"sign": "hmac", "secret": "chosen by a person"}
    await apply(desk, hooks(one, other, mine))
    first = await look()
    assert first[2][1] == "chosen by a person"
    changed = hooks(other, {"sign": "github", "filter": ["a = 2"]}, {**mine, "per_minute": 5})
    assert [(await apply(desk, changed))["hook"].what for _ in range(2)] == ["change", "unchanged"]
    assert await look() == [first[1], first[0], first[2]]
    rotated = hooks(other, {"sign": "github"}, {"sign": "hmac", "secret": "another one of them"})
    steps = [(await apply(desk, rotated))["hook"] for _ in range(2)]
    assert [step.what for step in steps] == ["change", "unchanged"]
    assert (await look())[2] == (first[2][0], "another one of them")
    assert "another" not in json.dumps(steps[0].snapshot())


async def test_a_circle_in_a_file_is_refused_with_its_names(desk: Runtime) -> None:
    def after(name: str) -> dict[str, Any]:
        return {"prompt": "x", "triggers": [{"kind": "after", "automations": [name]}]}

    with pytest.raises(InvalidInput, match=r"^automations\.one: .*: one -> two -> one; ") as refused:
        await apply(desk, {"automations": {"one": after("two"), "two": after("one")}})
    assert refused.value.field == "automations.one.triggers"


async def test_an_idempotency_key_creates_one_record_for_each_creator(desk: Runtime) -> None:
    first = await desk.automations.create("x", every=3600, idempotency_key="k", actor=ANN)
    assert (await desk.automations.create("x", every=3600, idempotency_key="k", actor=ANN)).id == first.id
    assert (await desk.automations.create("x", every=3600, idempotency_key="k", actor=BOB)).id != first.id
    goal = await desk.goals.create("x", idempotency_key="k", actor=ANN)
    assert (await desk.goals.create("x", idempotency_key="k", actor=ANN)).id == goal.id
    with pytest.raises(KeyReused, match=f"automation {first.id}"):
        await desk.automations.create("y", every=3600, idempotency_key="k", actor=ANN)
    with pytest.raises(KeyReused, match=f"goal {goal.id}"):
        await desk.goals.create("x", max_steps=1, idempotency_key="k", actor=ANN)
