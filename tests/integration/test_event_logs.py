"""Test that an event log of a real server misses no event, although the server is stopped, killed and restarted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime, Settings
from midwatch.testing import ScriptedAgent, result
from servers import Server, eventually, until

SETTINGS = """
detect_agents = false

[event_logs.all]
path = "logs/all.jsonl"
max_bytes = "20K"
keep = 1000

[event_logs.ends]
include = ["task_*"]
exclude = ["task_st*", "task_submitted"]
severity = "info"
"""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the events of a log and of its full files, oldest first."""
    full = sorted(path.parent.glob(f"{path.name}.*"), key=lambda file: -int(file.suffix[1:]))
    files = [*full, path] if path.exists() else full
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


async def test_a_log_is_whole_after_stops_and_kills(home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "midwatch.toml").write_text(SETTINGS)
    server, sent = Server(home), list[str]()
    for end in (server.kill, server.stop, server.kill, None):
        await server.start()
        async with server.client() as client:
            for _ in range(30):
                reply = await client.post("/tasks", json={"prompt": "hello", "agent": "demo"})
                sent.append(reply.json()["id"])
            if end is not None:
                await end()
                continue
            for task_id in sent:

                async def has_ended(task_id: str = task_id) -> bool:
                    return (await client.get(f"/tasks/{task_id}")).json()["completed_at"] is not None

                await until(has_ended)
            last = (await client.get("/events", params={"limit": 0}, headers={"Accept": "application/json"})).json()
            assert (
                'midwatch_subscription_failed_total{subscription="event_log:all"} 0.0'
                in (await client.get("/metrics")).text
            )
    logs = home / "logs" / "all.jsonl"
    assert await eventually(lambda: any(line["seq"] >= last["last_seq"] for line in read_lines(logs)))
    seqs = [line["seq"] for line in read_lines(logs)]
    assert sorted(set(seqs)) == list(range(min(seqs), max(seqs) + 1))
    assert min(seqs) == 1
    assert len(list(logs.parent.iterdir())) > 3
    ends = {line["task_id"] for line in read_lines(home / "ends.jsonl") if line["kind"] == "task_finished"}
    assert ends == set(sent)
    await server.stop()


async def test_a_log_that_cannot_be_written_waits_and_stops_nothing(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.mkdir(exist_ok=True)
    (home / "midwatch.toml").write_text("[event_logs.a]\npath = 'place/a.jsonl'")
    (home / "place").write_text("not a directory")
    agents = {"it": ScriptedAgent(result("done"))}
    async with Runtime.open(home, settings=Settings.load(home, detect_agents=False), agents=agents) as desk:
        task = await desk.tasks.wait((await desk.tasks.submit("go", agent="it")).id)
        assert task.status == "done"
        assert await eventually(lambda: "event_log:a waits and tries again: the event log" in caplog.text)
        (log,) = [each for each in desk.subscriptions.list() if each.name == "event_log:a"]
        assert (log.handled, log.failed) == (0, 0)
        lags: dict[int, set[int]] = {}

        def has_tried_twice() -> bool:  # each try takes events out of the log
            lags.setdefault(log.received, set()).add(log.lag)
            return len(lags) == 3

        assert await eventually(has_tried_twice)
        assert 0 not in set().union(*lags.values()), "what waits is counted, also between two tries"
        (home / "place").unlink()
        assert await eventually(lambda: log.handled > 0)
        last = (await desk.events.bounds()).last_seq
        assert await eventually(lambda: [line["seq"] for line in read_lines(home / "place/a.jsonl")][-1:] == [last])
    assert [line["seq"] for line in read_lines(home / "place/a.jsonl")] == list(range(1, last + 1))
