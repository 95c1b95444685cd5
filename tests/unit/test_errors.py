"""Test errors: the documented tree is the real one, codes are stable, and every message is one line with a remedy."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import midwatch
from midwatch.base import errors
from midwatch.base.errors import (
    AlreadyFinished,
    DeliveryError,
    InvalidInput,
    KeyReused,
    LeaseLost,
    MidwatchError,
    NotFinished,
    NotFound,
    UnknownAgent,
)
from midwatch.cli.main import app

ALL = {
    name: made
    for name, made in vars(errors).items()
    if inspect.isclass(made) and issubclass(made, Exception) and made.__module__ == errors.__name__
}
SOURCE = Path(midwatch.__file__).parent
COMMANDS = set(app.commands)


def read_documented_errors() -> dict[str, str]:
    """Return each error of the table on the errors page, with its base class."""
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `\w+` \| \d+ \| \w+ \| (.*?) \|", page, re.MULTILINE)
    return {name: parent.strip("`") or "Exception" for name, parent in rows}


def test_the_errors_page_shows_the_real_tree() -> None:
    assert read_documented_errors() == {name: error_class.__bases__[0].__name__ for name, error_class in ALL.items()}


def test_codes_are_stable_unique_and_match_the_name() -> None:
    codes = {name: error_class.code for name, error_class in ALL.items() if error_class is not MidwatchError}
    assert len(set(codes.values())) == len(codes)
    assert {name: re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in codes} == codes


def test_every_error_has_a_nonzero_exit_status() -> None:
    for error_class in ALL.values():
        assert 0 < error_class.exit_status < 64, error_class  # numbers of 64 and above have a meaning of their own


@pytest.mark.parametrize("name", ALL)
def test_every_error_has_a_one_line_docstring_and_the_base_class(name: str) -> None:
    error_class = ALL[name]
    assert error_class.__doc__ and len(error_class.__doc__.splitlines()) == 1
    assert issubclass(error_class, MidwatchError)


EXAMPLES = [
    UnknownAgent("a\nb", ["x", "a"]),
    UnknownAgent("nobody", []),
    NotFound("task", "t\n1"),
    AlreadyFinished("t_1", "done"),
    NotFinished("t_1", "running", "wait."),
    KeyReused("k\n", "task t_1"),
    LeaseLost("t_1", 2),
]


@pytest.mark.parametrize("problem", EXAMPLES, ids=lambda p: type(p).__name__)
def test_a_message_is_always_one_line(problem: MidwatchError) -> None:
    text = str(problem)
    assert len(text.splitlines()) == 1
    assert text.endswith(".")


def test_errors_have_attributes_for_programs() -> None:
    assert InvalidInput("x", field="timeout").field == "timeout"
    assert InvalidInput("x").field is None
    assert UnknownAgent("nobody", []).field == "agent"
    assert (NotFound("task", "t_1").noun, NotFound("task", "t_1").key) == ("task", "t_1")
    assert (LeaseLost("t_1", 2).task_id, LeaseLost("t_1", 2).attempt) == ("t_1", 2)
    assert DeliveryError("x", permanent=True).permanent and not DeliveryError("x").permanent


def test_known_agents_are_listed_sorted() -> None:
    assert "known agents: a, b, c." in str(UnknownAgent("nobody", ["c", "a", "b"]))
    assert "known agents: none." in str(UnknownAgent("nobody", []))


# -- remedies ----------------------------------------------------------------------------------------------------

NAMED = sorted(
    {
        (path.name, command)
        for path in SOURCE.rglob("*.py")
        for command in re.findall(r"`midwatch ([a-z]+)", path.read_text())
    }
)
LIST_COMMANDS = sorted(
    {noun for path in SOURCE.rglob("*.py") for noun in re.findall(r"NotFound\(\"(\w+)\"", path.read_text())}
)


@pytest.mark.parametrize(("file", "command"), NAMED)
def test_commands_named_in_messages_exist(file: str, command: str) -> None:
    assert command in COMMANDS


@pytest.mark.parametrize("noun", LIST_COMMANDS)
def test_a_not_found_error_names_an_existing_list_command(noun: str) -> None:
    text = str(NotFound(noun, "x"))
    assert noun in text
    assert set(re.findall(r"`midwatch (\w+)`", text)) <= COMMANDS
