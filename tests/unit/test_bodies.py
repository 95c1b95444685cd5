"""Test that the size of a body, not its form, limits the work to read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from midwatch.api.agentapi.replies import Refusal
from midwatch.api.agentapi.requests import parse_message
from midwatch.api.bodies import AutomationBody, HandoffBody, ImportBody, SubmitBody
from midwatch.api.body_checks import MAX_TEXTS, MAX_VALUES, Strict, check_structure
from midwatch.base.errors import InvalidInput

MANY = MAX_VALUES + 1
EXCESSIVE = {
    "keys": b"{%s}" % b",".join(b'"%d":1' % n for n in range(MANY)),
    "numbers": b'{"a":[%s1]}' % (b"1," * MANY),
    "lists": b'{"a":[%s[]]}' % (b"[]," * MANY),
    "objects": b'{"a":[%s{}]}' % (b"{}," * MANY),
    "nested lists": b"[" * MANY,
    "texts without commas": b'""' * (MAX_TEXTS + 1),
    "digits": b'{"a":%s}' % (b"9" * MANY),
    "UTF-16": '{"a":1}'.encode("utf-16"),
}


@pytest.mark.parametrize("body", EXCESSIVE.values(), ids=EXCESSIVE)
def test_a_body_with_very_many_values_is_refused_before_it_is_parsed(body: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_structure(body)
    assert caught.value.field == "body"
    with pytest.raises(Refusal) as refused:
        parse_message(body, None)
    assert refused.value.status == 422


@pytest.mark.parametrize("text", ['[{",:' * 300_000, '\\"' * 300_000, "\\" * 600_001, '"' * 900_000])
def test_a_long_text_may_contain_any_signs(text: str) -> None:
    check_structure(json.dumps({"prompt": text}).encode())


UNKNOWN = {f"field{n}": n for n in range(5000)}


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (SubmitBody, {"prompt": "x", **UNKNOWN}),
        (SubmitBody, {**UNKNOWN, "prompt": "x"}),
        (HandoffBody, {"task": UNKNOWN}),
        (HandoffBody, {"context": {"messages": [{}] * 5000}}),
        (ImportBody, {"automations": [{}] * 5000}),
        (AutomationBody, {"prompt": "x", "tags": list(range(5000))}),
    ],
)
def test_a_wrong_body_has_few_errors(model: type[Strict], data: Any) -> None:
    """An error for each of many values would take much longer than reading the body."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(data)
    assert caught.value.error_count() <= 10


def test_the_first_unknown_field_is_named() -> None:
    with pytest.raises(ValidationError) as caught:
        SubmitBody.model_validate({"prompt": "x", **UNKNOWN})
    assert [(error["type"], error["loc"]) for error in caught.value.errors()] == [("extra_forbidden", ("field0",))]
