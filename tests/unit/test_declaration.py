"""Test the plan of declarations as a pure function, and files in TOML."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from midwatch.base.errors import Conflict
from midwatch.cli.toml_text import find_line, write_table
from midwatch.domain.declaration import FieldChange, Present, Terms, Wanted, make_name, plan

TABLE = {"cron": "@daily", "prompt": "x"}
WANTED = Wanted(table=TABLE, values=TABLE)


def present(
    declared_by: str | None = "s", ended: str | None = None, paused: str | None = None, **values: Any
) -> Present:
    return Present(
        id="am_1", name="a", declared_by=declared_by, values={**TABLE, **values}, declared=WANTED.declaration(),
        ended=ended, paused=paused,
    )  # fmt: skip


CASES: dict[str, tuple[Present | None, Terms, str, tuple[FieldChange, ...], str | None]] = {
    "new": (
        None,
        Terms(set="s"),
        "create",
        (FieldChange("cron", None, "@daily"), FieldChange("prompt", None, "x")),
        None,
    ),
    "same": (present(), Terms(set="s"), "unchanged", (), None),
    "by hand": (
        present(cron="@hourly"),
        Terms(set="s"),
        "change",
        (FieldChange("cron", "@hourly", "@daily", True),),
        None,
    ),
    "default again": (present(quiet="OK"), Terms(set="s"), "change", (FieldChange("quiet", "OK", None),), None),
    "paused": (present(paused="by a person"), Terms(set="s"), "unchanged", (), "stays paused: by a person"),
    "ended": (present(ended="complete"), Terms(set="s"), "unchanged", (), "it is complete"),
    "adopted": (present(None), Terms(set="s", adopt=True), "change", (), "adopted from a person"),
    "from another": (present("t"), Terms(set="s", adopt=True), "change", (), "adopted from t"),
    "target of a route": (
        present(route="hook:x"),
        Terms(set="s"),
        "change",
        (FieldChange("route", "hook:x", None),),
        None,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_plan_for_one_record(case: Any) -> None:
    there, terms, what, fields, note = case
    (step,) = plan("automation", {"a": WANTED}, {"a": there} if there else {}, [], terms)
    assert (step.what, step.fields, step.note) == (what, fields, note)


def test_a_record_of_others_is_refused_and_only_own_records_are_removed() -> None:
    for owner in (None, "t"):
        with pytest.raises(Conflict, match=r"automations\.a: am_1 has this name already"):
            plan("automation", {"a": WANTED}, {"a": present(owner)}, [], Terms(set="s"))
    ended = present(ended="complete")
    assert [step.what for step in plan("goal", {}, {}, [present(), ended], Terms(set="s"))] == ["left"]
    assert [step.what for step in plan("goal", {}, {}, [present(), ended], Terms(set="s", prune=True))] == ["remove"]


def test_written_tables_are_read_back_and_lines_are_found() -> None:
    table = {
        "prompt": 'two\n"""lines\\n"', "quiet": "\x07\x7f é\\", "tags": ["a b", '"'], "max": 3, "every": 90.5,
        "fresh": True, "budget": {"usd": 0.5, "a b": [1, {"x": "multi\nline"}]},
    }  # fmt: skip
    text = write_table(("automations", "a b"), table) + write_table(("rules", "deny"), {"name": "r"}, listed=True)
    assert tomllib.loads(text) == {"automations": {"a b": table}, "rules": {"deny": [{"name": "r"}]}}
    text = 'set = "x"\n[goals.a]\nobjective = "y"\n["goals".b]\n[[rules.deny]]\nname = "r"\n'
    lines = {
        "set": 1,
        "goals.a": 2,
        "goals.a.objective": 3,
        "goals.a.agent": 2,
        "goals.b": 4,
        "rules.r.path": 6,
        "z": None,
    }
    assert {field: find_line(text, field) for field in lines} == lines
    assert make_name("Über: a  B!", ["ber-a-b"]) == "ber-a-b-2"
