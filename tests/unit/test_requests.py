"""Test submissions: invalid values are refused by name, and equal requests have the same hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midwatch.base.errors import InvalidInput
from midwatch.domain.requests import MAX_PROMPT, PRIORITY, YEAR, Submission, body_hash
from midwatch.services.request_checks import check

NAN, INF = float("nan"), float("inf")


def check_refused(prompt: str = "do it", *, most: int = MAX_PROMPT, **options: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        check(prompt, options, most)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("prompt", ["", " ", "\n\t ", "\u3000"])
def test_an_empty_prompt_is_refused(prompt: str) -> None:
    assert check_refused(prompt).field == "prompt"


def test_a_prompt_is_limited_and_the_error_names_its_length() -> None:
    check("x" * 10, {}, 10)
    problem = check_refused("x" * 11, most=10)
    assert problem.field == "prompt"
    assert "11" in str(problem) and "10" in str(problem)


BAD: list[tuple[str, Any]] = [
    ("timeout", 0),
    ("timeout", -1),
    ("timeout", -0.0),
    ("timeout", NAN),
    ("timeout", INF),
    ("timeout", YEAR + 1),
    ("priority", PRIORITY + 1),
    ("priority", -PRIORITY - 1),
    ("priority", NAN),
    ("delay", -1e-9),
    ("delay", NAN),
    ("delay", INF),
    ("delay", YEAR + 1),
    ("max_attempts", 0),
    ("max_attempts", -3),
    ("max_attempts", 101),
    ("on_crash", "retry"),
    ("on_crash", ""),
    ("idempotency_key", ""),
    ("idempotency_key", "x" * 201),
    ("idempotency_key", "a\nb"),
    ("workdir", "/no/such/place"),
    ("workdir", "/etc/passwd"),
    ("workdir", "a\x00b"),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda v: str(v)[:20])
def test_invalid_values_are_refused_by_name_in_one_line(field: str, value: Any) -> None:
    problem = check_refused(**{field: value})
    assert problem.field == field
    assert len(str(problem).splitlines()) == 1


GOOD: list[tuple[str, Any]] = [
    ("timeout", None),
    ("timeout", 0.001),
    ("timeout", YEAR),
    ("priority", PRIORITY),
    ("priority", -PRIORITY),
    ("delay", 0),
    ("delay", YEAR),
    ("max_attempts", 1),
    ("max_attempts", 100),
    ("on_crash", None),
    ("on_crash", "resume"),
    ("idempotency_key", "x" * 200),
    ("idempotency_key", "größe 🎉"),
    ("workdir", "/"),
    ("agent", None),
]


@pytest.mark.parametrize(("field", "value"), GOOD, ids=lambda v: str(v)[:20])
def test_the_limits_themselves_are_accepted(field: str, value: Any) -> None:
    check("do it", {field: value}, MAX_PROMPT)  # type: ignore[misc]


def test_a_symlink_to_a_directory_is_accepted(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    check("x", {"workdir": str(link)}, 10)
    link.unlink()
    link.symlink_to(link)
    assert check_refused(workdir=str(link)).field == "workdir"


def test_a_path_the_system_cannot_use_is_refused() -> None:
    assert check_refused(workdir="/" + "x" * 5000).field == "workdir"


@pytest.mark.parametrize("workdir", [".", ""])
def test_a_relative_path_is_refused(workdir: str) -> None:
    assert check_refused(workdir=workdir).field == "workdir"


def test_an_unknown_cause_is_refused() -> None:
    assert check_refused(cause="whim").field == "cause"


@pytest.mark.parametrize("text", ["half of a pair: \ud83d", "a\x00b"])
@pytest.mark.parametrize("field", ["prompt", "session_key", "origin_session", "origin_channel", "route", "agent"])
def test_values_that_are_no_text_are_refused(field: str, text: str) -> None:
    request = {"prompt": "do it", field: text}
    assert check_refused(**request).field == field


# -- the hash of a request ---------------------------------------------------------------------------------------

OPTIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "agent": st.sampled_from([None, "demo", "other"]),
        "timeout": st.sampled_from([None, 1.0, 2.0]),
        "priority": st.integers(-2, 2),
        "route": st.sampled_from([None, "console"]),
        "budget": st.sampled_from([None, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2}]),
    },
)


@given(OPTIONS, st.randoms())
def test_the_order_and_defaults_of_options_do_not_change_the_hash(wish: dict[str, Any], shuffle: Any) -> None:
    names = list(wish)
    shuffle.shuffle(names)
    mixed = {name: wish[name] for name in names}
    stated_options = {name: value for name, value in wish.items() if value is not None}
    every: Submission = {**dict.fromkeys(["agent", "workdir", "timeout", "on_crash"]), **stated_options}  # type: ignore[typeddict-item]
    assert body_hash("x", mixed) == body_hash("x", wish) == body_hash("x", every)  # type: ignore[arg-type]


@given(OPTIONS, OPTIONS)
def test_other_options_change_the_hash(one: dict[str, Any], other: dict[str, Any]) -> None:
    stated_options = [{k: v for k, v in options.items() if v not in (None, 0)} for options in (one, other)]
    assert (body_hash("x", one) == body_hash("x", other)) == (stated_options[0] == stated_options[1])  # type: ignore[arg-type]


def test_the_prompt_is_hashed_and_the_key_is_not() -> None:
    assert body_hash("x", {}) != body_hash("y", {})
    assert body_hash("x", {"idempotency_key": "k"}) == body_hash("x", {"idempotency_key": "l"})


def test_the_hash_is_the_same_in_every_process_and_version() -> None:
    """The hash is stored: if it changed, replays would become conflicts."""
    expected = "1b0f8e85b97adaafc893e8ec1679be9db5e5701d2b1e7be8c6f02a75db2da8cd"
    assert body_hash("grüße", {"agent": "demo", "timeout": 1.5}) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [({"timeout": 600}, {"timeout": 600.0}), ({"priority": 0}, {}), ({"delay": 0}, {"delay": 0.0}), ({"delay": 0}, {})],
)
def test_equivalent_options_have_the_same_hash(one: Submission, other: Submission) -> None:
    """One client sends the number and the other omits the default: the same key returns the same task."""
    assert body_hash("x", one) == body_hash("x", other)
