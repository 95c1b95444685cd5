"""Test adding an agent to midwatch.toml: the rest of the file does not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from midwatch.base.errors import BadConfig, Conflict, InvalidInput
from midwatch.desk.config import Settings, add_agent

SECTION = {"kind": "headless", "profile": "claude"}


def test_an_agent_is_appended_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "midwatch.toml"
    file.write_text('# mine\nport = 0\n\n[agents.shell]\nargv = ["sh"] # no newline at the end')
    file.chmod(0o640)
    assert add_agent(tmp_path, "night-watch", SECTION) == file
    assert file.read_text().startswith('# mine\nport = 0\n\n[agents.shell]\nargv = ["sh"] # no newline at the end\n\n')
    agent = Settings.load(tmp_path).agents["night-watch"]
    assert (agent.kind, agent.options()) == ("headless", {"profile": "claude"})
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["midwatch.toml"]


def test_a_missing_home_is_created(tmp_path: Path) -> None:
    file = add_agent(tmp_path / "new", "claude", SECTION)
    assert file.read_text() == '[agents.claude]\nkind = "headless"\nprofile = "claude"\n'
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_taken_or_invalid_name_changes_nothing(tmp_path: Path) -> None:
    file = add_agent(tmp_path, "claude", SECTION)
    before = file.read_text()
    with pytest.raises(Conflict, match="already"):
        add_agent(tmp_path, "claude", SECTION)
    with pytest.raises(InvalidInput, match="letters"):
        add_agent(tmp_path, "my agent", SECTION)
    assert file.read_text() == before


def test_a_file_that_cannot_be_extended_is_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "midwatch.toml"
    file.write_text('agents = { shell = { argv = ["sh"] } }\n')
    with pytest.raises(BadConfig, match="by hand"):
        add_agent(tmp_path, "claude", SECTION)
    assert file.read_text() == 'agents = { shell = { argv = ["sh"] } }\n'
