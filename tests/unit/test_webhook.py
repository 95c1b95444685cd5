"""Test signatures with published examples, conditions on payloads, and summaries."""

from __future__ import annotations

from typing import Any

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import InvalidInput
from midwatch.domain.payload_filter import find_unmet, parse_condition
from midwatch.domain.trigger import define, read_secrets
from midwatch.domain.webhook import TOLERANCE, find_delivery_id, is_signed
from midwatch.domain.webhook_summary import summarise

PAYLOAD = {
    "action": "opened", "number": 7, "draft": False, "base": None, "ref": "refs/tags/v1", "text": "a = b",
    "commits": [{"id": "a1"}, {"id": "b2"}], "repository": {"full_name": "a/b"},
}  # fmt: skip
AT = 1_614_265_330


def test_published_examples_are_accepted() -> None:
    """The first is in the documentation of GitHub, the second in the libraries of Standard Webhooks."""
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    secret, body = "It's a Secret to Everybody", b"Hello, World!"
    assert is_signed({"sign": "github"}, secret, {"x-hub-signature-256": signature}, body, 0)
    assert not is_signed({"sign": "github"}, secret, {"x-hub-signature-256": signature}, body + b"!", 0)
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": str(AT),
        "webhook-signature": "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }  # fmt: skip
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    for late, right in ((0, True), (TOLERANCE, True), (-TOLERANCE, True), (TOLERANCE + 1, False)):
        for sign in ("standard", "gitlab"):
            assert is_signed({"sign": sign}, secret, headers, body, (AT + late) * SECOND) is right
    assert not is_signed({"sign": "standard"}, "no base64", headers, body, AT * SECOND)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("action = opened", True), ("action=closed", False), ("action != closed", True), ("number = 7", True),
        ("draft = false", True), ("draft = False", False), ("base = null", True), ("missing = null", False),
        ("missing != x", True), ("missing exists", False), ("base exists", True), ("ref ~ refs/tags/*", True),
        ("ref ~ refs/heads/*", False), ("commits[1].id = b2", True), ("commits[2].id exists", False),
        ("commits.id exists", False), ("commits = x", False), ("repository.full_name = 'a/b'", True),
        ("text = 'a = b'", True), ("text = \"'a = b'\"", False), ("header:X-GitHub-Event = push", True),
        ("header:X-Other exists", False), ("action ~ " + "*a" * 200, False),
    ],
)  # fmt: skip
def test_conditions_hold(condition: str, holds: bool) -> None:
    stored = parse_condition(condition).text
    assert parse_condition(stored) == parse_condition(condition)
    assert (find_unmet([stored], PAYLOAD, {"x-github-event": "push"}) is None) is holds


@pytest.mark.parametrize(
    ("trigger", "error"),
    [
        ({"kind": "webhook"}, "`sign` of a webhook trigger must be one of"),
        ({"kind": "webhook", "sign": "github", "header": "X-Own"}, "only for the sign hmac"),
        ({"kind": "webhook", "sign": "hmac", "header": "a b"}, "name of a header"),
        ({"kind": "webhook", "sign": "hmac", "colour": "red"}, "no option 'colour'"),
        ({"kind": "webhook", "sign": "hmac", "per_minute": 0}, "from 1 to 600"),
        ({"kind": "webhook", "sign": "hmac", "filter": ["action"]}, "the condition 'action' cannot be read"),
        ({"kind": "webhook", "sign": "hmac", "filter": ["a"] * 21}, "at most 20"),
        ({"kind": "webhook", "sign": "hmac", "secret": "short"}, "16 to 200 printable"),
        ({"kind": "webhook", "sign": "standard", "secret": "long enough but no base64"}, "in base64"),
    ],
)
def test_wrong_webhooks_are_refused(trigger: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidInput, match=error) as refused:
        read_secrets([trigger], define([trigger], 0))
    assert trigger.get("secret", "\n") not in str(refused.value)


def test_payloads_are_summarised() -> None:
    push = {"object_kind": "push", "ref": "refs/heads/main", "user_username": "jo", "total_commits_count": 1}
    merge = {
        "object_kind": "merge_request",
        "object_attributes": {"action": "open", "iid": 3},
        "user": {"username": "jo"},
    }
    assert summarise(push, {}) == "push to main by jo (1 commit)"
    assert summarise(merge, {}) == "merge request open #3 by jo"
    assert summarise({"action": "opened", "issue": {"number": 12}}, {"x-github-event": "issues"}) == "issue opened #12"
    assert summarise({"type": "invoice.paid"}, {}) == "invoice.paid"
    for odd in ([], None, 3, {"type": {"a": 1}}, {"ref": 5, "commits": "x"}):
        assert summarise(odd, {}).startswith("delivery")


def test_equal_ids_mean_equal_deliveries() -> None:
    gitlab, hmac = {"sign": "gitlab"}, {"sign": "hmac"}
    one = {"x-gitlab-webhook-uuid": "u"}
    assert find_delivery_id(gitlab, {**one, "idempotency-key": "k"}, b"a") == "k"
    assert find_delivery_id(gitlab, one, b"a") == find_delivery_id(gitlab, one, b"a")
    assert find_delivery_id(gitlab, one, b"a") != find_delivery_id(gitlab, one, b"b"), "hooks may share an id"
    assert find_delivery_id(hmac, {"x-timestamp": "1"}, b"a") != find_delivery_id(hmac, {"x-timestamp": "2"}, b"a")
    assert len(find_delivery_id({"sign": "github"}, {"x-github-delivery": "x" * 5000}, b"a")) == 64
