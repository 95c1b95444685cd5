"""Test the watcher of files and branches: it fires once for each change, also after a restart, and costs little."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import InvalidInput
from midwatch.domain.automation_step import pause_automation, resume_automation
from midwatch.domain.changes import Changes
from midwatch.domain.trigger import Firing, define
from midwatch.domain.watch_options import describe_trigger
from midwatch.loops.triggers import POLL_SECONDS, TriggerWatch
from midwatch.programs.git_branch import GitBranches
from midwatch.programs.watched_files import look_at
from midwatch.services.automations import create_automation
from midwatch.services.triggers import Triggers
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock
from records import an_automation


class Watched:
    """A store with one automation that a file or a branch starts, and its watcher."""

    def __init__(self, store: SqliteStore) -> None:
        self.store, self.clock = store, FakeClock()
        self.restart()

    def restart(self) -> None:
        async def follow() -> None:
            pass

        triggers = Triggers(self.store, self.clock)
        self.watch = TriggerWatch(self.store, self.clock, lambda: True, triggers, GitBranches(), follow)

    async def add(self, **options: Any) -> None:
        now = self.clock.now()
        triggers = define([options], now)
        automation = an_automation(
            now, id="am_1", schedule={"zone": "UTC"}, triggers=triggers, next_run_at=None, session_key="auto:1"
        )
        await self.store.apply(create_automation(automation, now, None))
        await self.look()

    async def look(self, seconds: float = 0.0) -> int | None:
        await self.clock.advance(seconds)
        return await self.watch.look()

    async def list_firings(self) -> list[Firing]:
        return (await self.store.list_firings("am_1"))[::-1]


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    store = await SqliteStore.open(tmp_path / "midwatch.db")
    yield Watched(store)
    await store.close()


async def test_files_fire_once_when_they_are_quiet(watched: Watched, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "old.csv").write_text("1")
    await watched.add(kind="file", paths=[f"{folder}/**/*.csv"], debounce=5)
    await watched.look(30)
    assert await watched.list_firings() == [], "the first look only records"

    (folder / "deep" / "new.csv").write_text("1")
    (folder / "note.txt").write_text("1")
    await watched.look(2)
    (folder / "deep" / "new.csv").write_text("12")  # it still grows
    await watched.look(4)
    await watched.look(4)
    assert await watched.list_firings() == []
    await watched.look(4)
    (firing,) = await watched.list_firings()
    assert (firing.summary, json.loads(firing.payload or "")) == (
        "changed: new.csv", {"created": [f"{folder}/deep/new.csv"]},
    )  # fmt: skip

    watched.restart()  # what was seen is stored
    await watched.look()
    await watched.look(10)
    assert len(await watched.list_firings()) == 1
    (folder / "old.csv").rename(folder / "old.bak")  # while no process runs
    for _ in range(3):  # the same change three times: away, back, away
        watched.restart()
        await watched.look()
        await watched.look(10)
        await watched.look(10)
        names = ("old.bak", "old.csv") if (folder / "old.bak").exists() else ("old.csv", "old.bak")
        (folder / names[0]).rename(folder / names[1])
    assert [firing.summary for firing in await watched.list_firings()][1:] == [
        "changed: 1 files", "files changed", "changed: 1 files",
    ]  # fmt: skip


async def test_a_repository_that_does_not_answer_holds_up_no_other(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midwatch.loops.triggers.BRANCH_SECONDS", 0.1)
    folder, repository = tmp_path / "in", tmp_path / "repo"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    os.mkfifo(repository / ".git" / "packed-refs")  # git waits for somebody who writes
    now = watched.clock.now()
    entries = [{"kind": "git", "repository": str(repository), "branch": "main", "every": 1}]
    await watched.add(kind="file", paths=[str(folder)], debounce=0)
    automation = an_automation(
        now, id="am_2", schedule={"zone": "UTC"}, triggers=define(entries, now), next_run_at=None, session_key="auto:2"
    )
    await watched.store.apply(create_automation(automation, now, None))
    watched.watch.wake()
    async with asyncio.timeout(15):  # git itself is stopped after 20 seconds
        for _ in range(2):
            due_at = await watched.look(2)
            assert due_at is not None and due_at > watched.clock.now(), "it would look without a pause"
        (folder / "new").write_text("x")
        await watched.look(2)
        await watched.look(2)
        await watched.watch.stop()
    assert [firing.summary for firing in await watched.list_firings()] == ["changed: new"]


async def test_a_file_with_any_name_fires(watched: Watched, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    await watched.add(kind="file", paths=[str(folder)], debounce=0)
    for name in (b"caf\xe9", b"a\x1b[31m\nb"):  # not UTF-8, and what could control a terminal
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_text("x")
        await watched.look(2)
        await watched.look(2)
    first, second = await watched.list_firings()
    assert (first.summary, second.summary) == ("changed: caf\\xe9", "changed: a\\u001b[31m b")
    assert json.loads(second.payload or "") == {"created": [f"{folder}/a\x1b[31m\nb"]}


async def test_a_branch_fires_for_new_commits_and_tells_a_forced_push(watched: Watched, tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "a@example.org",
           "GIT_COMMITTER_NAME": "Ann", "GIT_COMMITTER_EMAIL": "a@example.org"}  # fmt: skip

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *words], check=True, env=env, capture_output=True, text=True
        ).stdout.strip()

    folder.mkdir()
    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "one")
    first = git("rev-parse", "HEAD")
    await watched.add(kind="git", repository=str(folder), branch="main", every="1m")
    await watched.look(60)
    git("commit", "-q", "--allow-empty", "-m", "two")
    git("commit", "-q", "--allow-empty", "-m", "three")
    watched.restart()
    await watched.look(60)
    await watched.look(60)
    (firing,) = await watched.list_firings()
    payload = json.loads(firing.payload or "")
    assert firing.key == git("rev-parse", "HEAD")
    assert ([commit["subject"] for commit in payload["commits"]], payload["forced"]) == (["three", "two"], False)
    assert payload["before"] == first

    git("reset", "-q", "--hard", first)
    git("commit", "-q", "--allow-empty", "-m", "other")
    await watched.look(60)
    git("update-ref", "refs/heads/main", firing.key)  # back to a commit for which it has fired
    await watched.look(60)
    git("commit", "-q", "--allow-empty", "-m", "four")
    await watched.look(60)
    firings = await watched.list_firings()
    assert [json.loads(each.payload or "")["forced"] for each in firings] == [False, True, False]
    assert firings[2].summary.endswith(" four on main")

    automation = await watched.store.get_automation("am_1")
    assert automation is not None
    await watched.store.apply(pause_automation(automation, watched.clock.now(), "enough", None))
    git("commit", "-q", "--allow-empty", "-m", "during the pause")
    paused = await watched.store.get_automation("am_1")
    assert paused is not None
    await watched.store.apply(resume_automation(paused, watched.clock.now(), None))
    watched.watch.wake()
    await watched.look()
    await watched.look(60)
    assert len(await watched.list_firings()) == 3

    folder.rename(tmp_path / "gone")  # an error of one trigger does not end the loop
    assert await watched.look(60) == watched.clock.now() + 60 * SECOND
    (unread,) = await watched.store.list_unread_triggers(9)
    assert unread.unread_at == watched.clock.now()
    assert "does not exist" in (unread.state or {})["unread_why"]
    watched.restart()
    await watched.look(60)
    assert (await watched.store.list_unread_triggers(9)) == [unread]  # written once
    (tmp_path / "gone").rename(folder)
    git("commit", "-q", "--allow-empty", "-m", "while it was gone")
    await watched.look(60)
    assert await watched.store.list_unread_triggers(9) == []
    assert (await watched.list_firings())[3].summary.endswith(" while it was gone on main")
    git("branch", "-m", "main", "other")
    await watched.look(60)
    (unread,) = await watched.store.list_unread_triggers(9)
    assert "has no commit on main" in (unread.state or {})["unread_why"]


async def test_a_thousand_watched_files_cost_little(watched: Watched, tmp_path: Path) -> None:
    now = watched.clock.now()
    step = Changes()
    for number in range(1000):
        triggers = define([{"kind": "file", "paths": [str(tmp_path / f"{number}.txt")]}], now)
        automation = an_automation(
            now, id=f"am_{number}", schedule={"zone": "UTC"}, triggers=triggers, next_run_at=None,
            session_key=f"auto:{number}",
        )  # fmt: skip
        step = step.plus(create_automation(automation, now, None))
    await watched.store.apply(step)
    await watched.look()
    (tmp_path / "7.txt").write_text("x")
    at = await watched.look(60)
    assert at is not None
    assert watched.clock.now() + POLL_SECONDS * SECOND <= at <= watched.clock.now() + 30 * SECOND
    await watched.look(60)
    assert await watched.store.list_firings("am_7") != []
    assert await watched.store.list_firings("am_8") == []


def test_a_look_is_limited_and_follows_no_links_of_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.txt").write_text("x")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert list(look_at([f"{tmp_path}/**"]).files) == [f"{tmp_path}/a/b/x.txt"]
    assert list(look_at([f"{tmp_path}/a/b"]).files) == [f"{tmp_path}/a/b/x.txt"]
    assert look_at([f"{tmp_path}/none"]).files == {}
    monkeypatch.setattr("midwatch.programs.watched_files.MOST_ENTRIES", 2)
    assert look_at([f"{tmp_path}/**"]).cut


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "file", "paths": ["in/*.csv"]}, "absolute paths"),
        ({"kind": "file", "paths": ["/a/**/b/**"]}, "once in each path"),
        ({"kind": "file", "paths": []}, "is empty"),
        ({"kind": "file", "paths": ["/a"], "debounce": "2h"}, "`debounce` of a file trigger must be from 0s to 1h"),
        ({"kind": "file", "paths": ["/a"], "every": 1}, "has no option 'every'"),
        ({"kind": "git"}, "absolute path of a local repository"),
        ({"kind": "git", "repository": "/r", "branch": "--upload-pack=x"}, "name of a branch"),
        ({"kind": "event", "kinds": ["nothing_*"]}, "no stored kind of event matches 'nothing_\\*'"),
        ({"kind": "event", "kinds": ["task_finished"], "filter": "boo"}, "condition 'boo' cannot be read"),
        ({"kind": "after"}, "name an automation"),
        ({"kind": "after", "automations": ["a"], "outcomes": ["good"]}, "must be some of ok, failed"),
        ({"kind": "after", "automations": ["a"], "join": "first"}, "must be all or any"),
    ],
)
def test_wrong_options_are_refused_with_a_remedy(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        define([options], 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "file", "paths": ["/a", "/b/*"]}, "when /a or /b/* changes"),
        ({"kind": "git", "repository": "/r", "branch": "main"}, "on a new commit in /r on main"),
        ({"kind": "event", "kinds": ["goal_*"]}, "on the event goal_*"),
        ({"kind": "after", "automations": ["am_1", "am_2"], "join": "any"}, "after test or am_2"),
        ({"kind": "after", "automations": ["am_1"], "outcomes": ["failed"]}, "after test (failed)"),
    ],
)
def test_a_trigger_is_described_in_one_line(options: dict[str, Any], words: str) -> None:
    assert describe_trigger(options, {"am_1": "test"}) == words
