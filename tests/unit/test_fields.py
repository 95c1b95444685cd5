"""Test the definition of fields: replies, bodies and changeable fields all follow from the record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_type_hints

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from midwatch.api.describe import example_of
from midwatch.domain.approval import Approval
from midwatch.domain.automation import Automation, Times
from midwatch.domain.channel import Delivery
from midwatch.domain.fields import (
    REQUIRED,
    Example,
    Hidden,
    Input,
    Show,
    changeable,
    clearable,
    fields_of,
    list_shown_fields,
    name_as_record,
    open_to_agents,
    settable,
    to_json,
)
from midwatch.domain.goal import Goal
from midwatch.domain.handoff import Handoff
from midwatch.domain.identity import Token
from midwatch.domain.instance import Instance
from midwatch.domain.rule import Rule
from midwatch.domain.session import Message, Session
from midwatch.domain.steering import Steer
from midwatch.domain.task import Task
from midwatch.domain.worktree import Worktree
from midwatch.wire.bodies import body_of, copy_of
from midwatch.wire.shapes import shape_of

RECORDS = (
    Approval, Automation, Delivery, Goal, Handoff, Instance, Message, Rule, Session, Steer, Task, Token, Worktree,
)  # fmt: skip
SECRET = ("hash", "lease", "pgid", "live_owner", "internal")
"""Parts of the names of internal fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kettle:
    """A record with a field of each kind."""

    id: Annotated[str, Example("k_1")]
    label: Annotated[str, Input("What is on it.", longest=5, example="tea")]
    owner: Annotated[str, Input("Whose it is.", takes=str | None, once=True)] = "me"
    litres: Annotated[float, Input("How much is in it.", least=0, most=2, agents=True)] = 1.0
    boil_seconds: Annotated[float | None, Input("How long it boils.", name="boil", seconds=True)] = None
    mode: Annotated[Literal["on", "off"], Input("Whether it is on.")] = "off"
    dry: Annotated[bool, Input("Whether it may be dry.", strict=True)] = False
    marks: Annotated[tuple[str, ...], Input("Words on it.", longest=2)] = ()
    stuff: Annotated[Mapping[str, Any] | None, Input("What else.")] = None
    made_at: int = 0
    used_at: int | None = None
    code: Hidden[str] = "1234"
    colour: Annotated[str, Show(str.upper, "paint")] = "red"


class Heat(TypedDict, total=False):
    """What a request may say beside the record."""

    degrees: Annotated[int | None, Input("How hot.", least=0, most=100, agents=True)]
    gently: Annotated[bool, Input("Whether slowly.")]


@shape_of(Kettle, hot=Annotated[bool, Example(True)])
class KettleInfo(dict[str, Any]):
    """A kettle as JSON."""


@body_of(Kettle, Heat)
class KettleBody(BaseModel):
    """A kettle to make."""

    label: str


@body_of(Kettle, Heat, changes=True)
class KettlePatch(BaseModel):
    """What to change of it."""


@copy_of(Kettle, frozenset({"id", "label", "boil_seconds", "owner"}))
class KettleCopy(BaseModel):
    """A kettle as it was written out."""


KETTLE = Kettle(id="k_7", label="tea", marks=("a", "b"), made_at=1_000_000)


def test_a_record_is_shown_with_times_as_text_and_without_hidden_fields() -> None:
    assert to_json(KETTLE) == {
        "id": "k_7", "label": "tea", "owner": "me", "litres": 1.0, "boil_seconds": None, "mode": "off", "dry": False,
        "marks": ["a", "b"], "stuff": None, "made_at": "1970-01-01T00:00:01.000000Z", "used_at": None, "paint": "RED",
    }  # fmt: skip


def test_the_schema_of_a_reply_matches_the_shown_record() -> None:
    assert set(get_type_hints(KettleInfo)) == {*to_json(KETTLE), "hot"}
    schema = TypeAdapter(KettleInfo).json_schema()
    assert sorted(schema["required"]) == sorted(schema["properties"])
    assert schema["description"] == "A kettle as JSON."
    types = {
        name: part.get("type") or [variant["type"] for variant in part["anyOf"]]
        for name, part in schema["properties"].items()
    }
    assert types == {
        "id": "string", "label": "string", "owner": "string", "litres": "number", "boil_seconds": ["number", "null"],
        "mode": "string", "dry": "boolean", "marks": "array", "stuff": ["object", "null"], "made_at": "string",
        "used_at": ["string", "null"], "paint": "string", "hot": "boolean",
    }  # fmt: skip


def test_an_example_is_built_from_the_fields() -> None:
    shown = example_of(TypeAdapter(KettleInfo).json_schema(), {})
    assert shown == {
        "id": "k_1", "label": "tea", "owner": "me", "litres": 1.0, "boil_seconds": None, "mode": "off", "dry": False,
        "marks": [], "stuff": None, "made_at": "2026-01-02T03:04:05.000000Z", "used_at": None, "paint": "red",
        "hot": True,
    }  # fmt: skip
    assert example_of(KettleBody.model_json_schema(), {}) == {"label": "tea"}


def test_a_body_accepts_fields_under_their_request_names() -> None:
    body = KettleBody.model_validate({"label": "tea", "boil": "2m", "degrees": 90, "marks": ["x"]})
    assert body.model_dump(exclude_unset=True) == {"label": "tea", "boil": 120.0, "degrees": 90, "marks": ["x"]}
    assert body.model_dump() == {
        "label": "tea", "owner": None, "litres": 1.0, "boil": 120.0, "mode": "off", "dry": False, "marks": ["x"],
        "stuff": None, "degrees": 90, "gently": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"label": "coffee"}, {"label": None}, {"label": "tea", "litres": 3}, {"label": "tea", "litres": -1},
        {"label": "tea", "mode": "half"}, {"label": "tea", "dry": "yes"}, {"label": "tea", "marks": ["a", "b", "c"]},
        {"label": "tea", "degrees": 101}, {"label": "tea", "boil": "long"}, {"label": "tea", "mode": None},
    ],
)  # fmt: skip
def test_a_body_refuses_values_the_definition_forbids(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        KettleBody.model_validate(wrong)


def test_a_body_describes_its_fields() -> None:
    parts = KettleBody.model_json_schema()["properties"]
    assert {name: part["description"] for name, part in parts.items()} == {
        "label": "What is on it.", "owner": "Whose it is.", "litres": "How much is in it.",
        "boil": "How long it boils.", "mode": "Whether it is on.", "dry": "Whether it may be dry.",
        "marks": "Words on it.", "stuff": "What else.", "degrees": "How hot.", "gently": "Whether slowly.",
    }  # fmt: skip
    assert parts["litres"]["default"] == 1.0 and parts["litres"]["maximum"] == 2 and parts["label"]["maxLength"] == 5


def test_a_change_requires_nothing_and_omits_immutable_fields() -> None:
    assert KettlePatch.model_validate({}).model_dump(exclude_unset=True) == {}
    assert set(KettlePatch.model_fields) == set(KettleBody.model_fields) - {"owner"}


def test_a_copy_has_the_names_and_types_of_the_record() -> None:
    copy = KettleCopy.model_validate({"id": "k_7", "label": "tea", "boil_seconds": 5})
    assert copy.model_dump() == {"id": "k_7", "label": "tea", "boil_seconds": 5.0, "owner": "me"}
    with pytest.raises(ValidationError):
        KettleCopy.model_validate({"id": "k_7", "label": "tea", "owner": None})


def test_settable_changeable_and_clearable_fields_are_listed() -> None:
    named = {"label", "litres", "boil_seconds", "mode", "dry", "marks", "stuff"}
    assert settable(Kettle) == {*named, "owner"}
    assert changeable(Kettle) == named
    assert clearable(Kettle, Heat) == {"boil_seconds", "stuff", "degrees"}
    assert open_to_agents(Kettle, Heat) == {"litres", "degrees"}
    assert name_as_record(Kettle, {"boil": 2.0, "marks": ["a"], "x": 1}) == {
        "boil_seconds": 2.0,
        "marks": ("a",),
        "x": 1,
    }


def test_defaults_are_those_of_the_definition() -> None:
    class Pair(NamedTuple):
        first: int
        second: str = "b"

    assert [field.default for field in fields_of(Pair).values()] == [REQUIRED, "b"]
    assert [field.default for field in fields_of(Heat).values()] == [None, False]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_no_record_shows_internal_fields(record: type) -> None:
    shown = {field.name for field in list_shown_fields(record)}
    assert not [name for name in shown if any(part in name for part in SECRET)]
    assert "target" not in shown or record is Worktree  # a branch here; in a delivery perhaps a secret


def test_an_agent_cannot_grant_more_than_it_has() -> None:
    assert open_to_agents(Automation, Times).isdisjoint({"route", "budget", "approvals", "on_crash", "manage_mode"})
    known = {field.name for field in fields(Automation)} | set(get_type_hints(Times))
    assert settable(Automation, Times) <= known
