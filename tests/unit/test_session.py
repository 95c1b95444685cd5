"""Test session keys: which keys share a lock, and which keys are valid."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from midwatch.base.clock import SECOND
from midwatch.base.errors import InvalidInput
from midwatch.domain.session import MAX_KEY, Message, Session, View, check_key, gate_key, thread_scope, visibility_key

# The grammar is <type>:<id>, then tokens. The first token of seed, thread and work, in this order, is the thread.
TABLE = [
    ("chat:1", "chat:1", ""),
    ("chat:1|message:9", "chat:1", ""),
    ("chat:1|reset:1", "chat:1", ""),
    ("chat:1|thread:7", "chat:1", "|thread:7"),
    ("chat:1|thread:7|message:9", "chat:1", "|thread:7"),
    ("chat:1|message:9|thread:7", "chat:1", "|thread:7"),
    ("chat:1|seed:5", "chat:1", "|seed:5"),
    ("chat:1|work:5", "chat:1", "|seed:5"),
    ("chat:1|work:5|message:6", "chat:1", "|seed:5"),
    ("chat:1|thread:7|seed:5", "chat:1", "|seed:5"),
    ("chat:1|seed:5|thread:7", "chat:1", "|seed:5"),
    ("chat:1|work:5|thread:7", "chat:1", "|thread:7"),
    ("chat:1|work:5|thread:7|seed:3", "chat:1", "|seed:3"),
    ("user:a:b|thread:x:y", "user:a:b", "|thread:x:y"),
    ("chat:1|thread:", "chat:1", ""),
    ("chat:1|seed:|thread:7", "chat:1", "|thread:7"),
    ("chat:1|thread", "chat:1", ""),
    ("chat:1|", "chat:1", ""),
    ("chat:1||", "chat:1", ""),
    ("", "", ""),
    ("|thread:7", "", "|thread:7"),
]


@pytest.mark.parametrize(("key", "visible", "scope"), TABLE)
def test_a_key_is_split_into_its_parts(key: str, visible: str, scope: str) -> None:
    assert (visibility_key(key), thread_scope(key), gate_key(key)) == (visible, scope, visible + scope)


CONFLICTS = [
    ("chat:1", "chat:1", True),
    ("chat:1", "chat:1|message:3", True),
    ("chat:1|message:2", "chat:1|message:3", True),
    ("chat:1", "chat:2", False),
    ("chat:1|work:5", "chat:1|work:6", False),  # different work threads of a chat are independent
    ("chat:1", "chat:1|work:5", False),  # a plain chat is not blocked by a work thread
    ("chat:1|work:5", "chat:1|seed:5", True),
    ("chat:1|work:5", "chat:1|thread:5", False),
    ("chat:1|thread:7", "chat:1|thread:7|message:3", True),
    ("chat:1|thread:7", "chat:2|thread:7", False),
    ("chat:1|reset:1", "chat:1|reset:2", True),
    ("chat:1", "chat:1 ", False),
    ("chat:1", "Chat:1", False),
]


@pytest.mark.parametrize(("one", "other", "conflict"), CONFLICTS)
def test_sessions_with_the_same_gate_key_share_a_lock(one: str, other: str, conflict: bool) -> None:
    assert (gate_key(one) == gate_key(other)) == conflict
    assert (gate_key(other) == gate_key(one)) == conflict


PART = st.text("ab:|", max_size=3)
TOKEN = st.builds("{}:{}".format, st.sampled_from(["seed", "thread", "work", "message", "reset", ""]), PART)
KEYS = st.one_of(
    st.text(max_size=30),
    st.builds(lambda visible, tokens: "|".join([visible, *tokens]), PART, st.lists(TOKEN, max_size=4)),
)


@given(KEYS, KEYS)
@example("chat:1|seed:a", "chat:1|work:a")
def test_two_keys_conflict_only_with_equal_visible_parts_and_threads(one: str, other: str) -> None:
    same = visibility_key(one) == visibility_key(other) and thread_scope(one) == thread_scope(other)
    assert (gate_key(one) == gate_key(other)) == same


@given(KEYS)
def test_making_a_gate_key_is_idempotent(key: str) -> None:
    assert gate_key(gate_key(key)) == gate_key(key)


@given(KEYS, st.text("ab1", min_size=1, max_size=4))
def test_a_message_token_never_changes_the_lock(key: str, message: str) -> None:
    assert gate_key(f"{key}|message:{message}") == gate_key(key)


@pytest.mark.parametrize("key", ["chat:1", "  chat:1\n", "a", "größe:ü|thread:1", "x" * MAX_KEY])
def test_a_valid_key_is_stripped_and_kept(key: str) -> None:
    assert check_key(key) == key.strip()


@pytest.mark.parametrize("key", ["", "   ", "a\nb", "a\x00b", "x" * (MAX_KEY + 1), "\ud800", "a\u200bb"])
def test_an_invalid_key_is_refused_by_name(key: str) -> None:
    with pytest.raises(InvalidInput, match="session key") as refused:
        check_key(key)
    assert refused.value.field == "session_key"
    assert len(str(refused.value).splitlines()) == 1


def test_records_are_immutable_and_hide_the_gate_key() -> None:
    session = Session(key="chat:1|message:2", agent="demo", gate_key="chat:1", created_at=SECOND)
    message = Message(session_key="chat:1", role="user", text="hi", time=SECOND)
    with pytest.raises(dataclasses.FrozenInstanceError):
        session.key = "x"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.text = "x"  # type: ignore[misc]
    shown = View(session).snapshot()
    assert shown["created_at"] == "1970-01-01T00:00:01.000000Z"
    assert "gate_key" not in shown
    assert message.snapshot()["number"] == 0
