"""Test event logs: chosen events as JSON lines in files that are rotated, private, and whole after a crash."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from midwatch.base.errors import BadConfig
from midwatch.desk.config import Settings
from midwatch.domain.event import KINDS, Event, Gap, TaskProgress, event
from midwatch.domain.event.severity import EXCEPTIONS, OF_KIND, SEVERITIES, severity_of
from midwatch.live.event_logs import EventLogOptions, EventLogWriter
from midwatch.live.subscriptions import TryAgain


def make(kind: str, seq: int = 1, **payload: Any) -> Event:
    return Event(kind, 1_700_000_000_000_000, payload, f"e_{seq}", seq)


def make_many(first: int, last: int, text: str = "x") -> list[Event]:
    return [make("task_progress", seq, text=text) for seq in range(first, last + 1)]


def read(path: Path) -> list[int]:
    assert path.stat().st_mode & 0o777 == 0o600
    return [json.loads(line)["seq"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, ["task_finished", "task_started", "tool_exec_end", "llm_delta", "newer_kind"]),
        ({"include": ("task_*",)}, ["task_finished", "task_started"]),
        ({"include": ("task_*", "llm_delta"), "exclude": ("*_started",)}, ["task_finished", "llm_delta"]),
        ({"exclude": ("*_delta", "t*")}, ["newer_kind"]),
        ({"severity": "info"}, ["task_finished", "task_started", "newer_kind"]),
        ({"severity": "error"}, ["task_finished"]),
    ],
)
def test_a_log_has_the_chosen_kinds_from_the_lowest_severity_on(
    tmp_path: Path, options: dict[str, Any], written: list[str]
) -> None:
    writer = EventLogWriter(EventLogOptions(path=tmp_path / "a.jsonl", **options))
    events = [
        make("task_finished", status="failed"), make("task_started"), make("tool_exec_end", is_error=False),
        make("llm_delta"), make("newer_kind"),
    ]  # fmt: skip
    assert [event.kind for event in events if writer.wants(event)] == written
    assert writer.wants(event(Gap(dropped=1), 1))


def test_the_severity_depends_on_kind_and_payload() -> None:
    assert set(OF_KIND) | set(EXCEPTIONS) <= set(KINDS)
    assert {severity_of(make(kind)) for kind in KINDS} == set(SEVERITIES)
    for kind, payload, severity in (
        ("task_finished", {"status": "failed"}, "error"), ("task_finished", {"status": "done"}, "info"),
        ("tool_exec_end", {"is_error": True}, "warning"), ("tool_exec_end", {"is_error": False}, "debug"),
        ("agent_error", {"level": "warning"}, "warning"), ("agent_error", {"level": "error"}, "error"),
        ("delivery_failed", {}, "error"), ("budget_reached", {}, "warning"), ("watchdog_alert", {}, "warning"),
        ("turn_end", {"status": "timeout"}, "warning"), ("turn_end", {"status": "completed"}, "info"),
    ):  # fmt: skip
        assert severity_of(make(kind, **payload)) == severity, (kind, payload)


async def test_lines_are_snapshots_even_of_strange_payloads(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "a.jsonl"
    plain = event(TaskProgress(text="Grüße\nzweite Zeile"), 1, task_id="t_1")._replace(seq=1)
    strange = [make("a", 2, text="\ud800"), make("b", 3, number=float("nan")), make("c", 4, thing=object())]
    await EventLogWriter(EventLogOptions(path=path)).write([plain, *strange])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == plain.snapshot()
    assert [line["seq"] for line in lines] == [1, 2, 3, 4]
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_a_full_file_is_renamed_and_the_oldest_is_removed(tmp_path: Path) -> None:
    path, size = tmp_path / "a.jsonl", len(json.dumps(make("task_progress", 10, text="x").snapshot())) + 1
    writer = EventLogWriter(EventLogOptions(path=path, max_bytes=3 * size, keep=2))
    await writer.write(make_many(10, 14))
    await writer.write(make_many(15, 20))
    assert [read(tmp_path / name) for name in ("a.jsonl.2", "a.jsonl.1", "a.jsonl")] == [
        [13, 14, 15], [16, 17, 18], [19, 20],
    ]  # fmt: skip
    await writer.write(make_many(30, 30, "long" * size))  # larger than a file
    await writer.write(make_many(31, 31))
    assert [read(tmp_path / name) for name in ("a.jsonl.2", "a.jsonl.1", "a.jsonl")] == [[19, 20], [30], [31]]
    await EventLogWriter(EventLogOptions(path=path, max_bytes=size, keep=0)).write(make_many(40, 41))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.jsonl"]
    assert read(path) == [41]


async def test_two_writers_of_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    writers = [EventLogWriter(EventLogOptions(path=path, max_bytes=2000, keep=1000)) for _ in range(2)]
    await asyncio.gather(*(writer.write(make_many(10 * n, 10 * n + 9)) for n in range(1, 21) for writer in writers))
    written = [seq for file in tmp_path.iterdir() for seq in read(file)]
    assert sorted(written) == sorted([*range(10, 210)] * 2)
    assert max(file.stat().st_size for file in tmp_path.iterdir()) <= 2000


@pytest.mark.parametrize("torn", [b'{"seq": 9, "ki', b"x" * 200_000])
async def test_a_torn_line_is_removed(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "a.jsonl"
    writer = EventLogWriter(EventLogOptions(path=path))
    await writer.write(make_many(1, 2))
    with path.open("ab") as file:
        file.write(torn)
    path.chmod(0o644)
    await writer.write(make_many(3, 3))
    assert read(path) == [1, 2, 3]
    path.write_bytes(torn)
    await writer.write(make_many(4, 4))
    assert read(path) == [4]


async def test_a_file_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    place = tmp_path / "place"
    writer = EventLogWriter(EventLogOptions(path=place / "a.jsonl"))
    place.write_text("a file, not a directory")
    for block in (
        lambda: (place.unlink(), place.mkdir(), os.mkfifo(place / "a.jsonl")),
        lambda: ((place / "a.jsonl").unlink(), (place / "a.jsonl").symlink_to(tmp_path / "elsewhere")),
        lambda: (place / "a.jsonl").unlink(),
    ):
        with pytest.raises(TryAgain, match=r"a\.jsonl cannot be written: .*; make space"):
            await writer.write(make_many(1, 1))
        block()
    await writer.write(make_many(1, 1))
    assert read(place / "a.jsonl") == [1]
    assert not (tmp_path / "elsewhere").exists()


async def test_a_batch_that_does_not_fit_on_the_disk_leaves_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    writer = EventLogWriter(EventLogOptions(path=path))
    await writer.write(make_many(1, 2))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 300, hard))  # a part of the batch can be written
    try:
        with pytest.raises(TryAgain, match="File too large"):
            await writer.write(make_many(3, 12))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read(path) == [1, 2]
    await writer.write(make_many(3, 12))
    assert read(path) == [*range(1, 13)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[event_logs.a]\npath = 'midwatch.db'", "event_logs.a.path: the name of the file must end with .jsonl"),
        ("[event_logs.a]\ninclude = ['taks_*']", "event_logs.a.include: no kind of event matches 'taks_*'"),
        (
            "[event_logs.a]\nseverity = 'loud'",
            "event_logs.a.severity: it must be one of: debug, info, warning, error",
        ),
        ("[event_logs.a]\nmax_bytes = '10 bananas'", "event_logs.a.max_bytes: write a number of bytes"),
        ("[event_logs.a]\nkeep = -1", "event_logs.a.keep: it must be at least 0. Correct"),
        ("[event_logs.a]\nkinds = ['error']", "event_logs.a.kinds: there is no such setting"),
        ("[event_logs.a]\npath = 'x/../../a.jsonl'", "event_logs.a.path: a relative path begins in the home"),
        ("[event_logs.a]\ninclude = 'task_*'", "event_logs.a.include: it must be a list. Correct"),
        ("event_logs = 3", "setting event_logs: it must be a table. Correct"),
        ("[event_logs.'a b']\nkeep = 3", "event_logs.a b: a name has 1 to 63 letters"),
        ("[event_logs.a]\n[event_logs.b]\npath = 'x/../a.jsonl'", "event_logs: b and a write the same file"),
        ("[event_logs.a]\n[event_logs.b]\npath = 'HOME/a.jsonl'", "event_logs: b and a write the same file"),
        ("[event_logs.a]\npath = '~nobody-at-all/a.jsonl'", "event_logs.a.path: the user after `~` is not known"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(home: Path, text: str, message: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "midwatch.toml").write_text(text.replace("HOME", str(home)))
    with pytest.raises(BadConfig) as caught:
        Settings.load(home)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_file_is_in_the_home_unless_the_path_is_absolute(home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "midwatch.toml").write_text(
        "[event_logs.a]\nmax_bytes = '10 MB'\n"
        "[event_logs.b]\npath = 'logs/b.jsonl'\n"
        "[event_logs.c]\npath = '/x/c.jsonl'"
    )
    settings = Settings.load(home)
    options = [log.options(name, settings.home) for name, log in settings.event_logs.items()]
    assert [option.path for option in options] == [home / "a.jsonl", home / "logs/b.jsonl", Path("/x/c.jsonl")]
    assert options[0].max_bytes == 10 << 20
