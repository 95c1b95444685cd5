"""Test the overview over HTTP: now, the page of a task, usage, settings, directories, readiness, metrics, tests of
agents and retries of notices.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from commands import run
from midwatch.agents.function import FunctionAgent
from midwatch.base.clock import SystemClock
from midwatch.base.errors import AgentError, DiskFull, StoreUnavailable
from midwatch.domain.agent import AgentTerms, Turn, TurnResult, Usage
from midwatch.domain.event import EventFilter, TaskProgress
from midwatch.runtime.runtime import Runtime
from midwatch.services.system import System
from midwatch.testing import RecordingChannel
from servers import environment, eventually
from serving import Served, serve_agents

TERMS = AgentTerms(timeout_seconds=60.0, on_crash="rerun", slots=16, max_attempts=1)


async def echo(prompt: str) -> str:
    return prompt


async def fail(prompt: str) -> str:
    raise AgentError("it does not work")


async def hold(prompt: str, turn: Turn) -> str:
    await turn.emit(TaskProgress(text="half way"))
    await asyncio.Event().wait()
    return "never"


async def ask(prompt: str, turn: Turn) -> str:
    return str((await turn.ask("May I?")).choice)


async def costly(prompt: str) -> TurnResult:
    return TurnResult(text="done", usage=Usage(input_tokens=100, output_tokens=int(prompt), cost_usd=0.25))


AGENTS = {"echo": echo, "fail": fail, "hold": hold, "ask": ask, "costly": costly}


def agents() -> dict[str, Any]:
    return {name: FunctionAgent(name, body, on_loop=True, terms=TERMS) for name, body in AGENTS.items()}


@pytest.fixture
def channel() -> RecordingChannel:
    return RecordingChannel("pager")


@pytest.fixture
async def served(home: Path, channel: RecordingChannel) -> AsyncIterator[Served]:
    async with serve_agents(home, agents(), {"pager": channel}) as server:
        yield server


async def submit(served: Served, prompt: str, agent: str = "echo", **fields: Any) -> str:
    return str((await served.post("/tasks", {"prompt": prompt, "agent": agent, **fields}))["id"])


async def run_task(served: Served, prompt: str, agent: str = "echo", **fields: Any) -> str:
    task = await submit(served, prompt, agent, **fields)
    await served.runtime.tasks.wait(task)
    return task


# -- now ---------------------------------------------------------------------------------------------------------------


async def test_an_empty_desk_is_shown(served: Served) -> None:
    shown = await served.get("/now")
    assert [shown[name] for name in ("running", "approvals", "failed", "recent")] == [[], [], [], []]
    assert shown["summary"]["total"] == shown["as_of_seq"] == 0
    assert (shown["usage"]["total"]["tasks"], shown["usage"]["rows"]) == (0, [])


async def test_now_shows_running_waiting_failed_and_finished_tasks(served: Served) -> None:
    results = [await run_task(served, f"r{number}") for number in range(12)]
    failures = [await run_task(served, f"f{number}", "fail") for number in range(3)]
    await served.runtime.tasks.wait((await served.post(f"/tasks/{failures[1]}/retry"))["id"])
    asks, runs = await submit(served, "x", "ask"), await submit(served, "y" * 5000, "hold")
    await served.until("approval_requested")
    await served.until("task_progress", task_id=runs)
    shown = await served.get("/now")
    assert shown["summary"] == {"total": 18, "pending": 0, "running": 2, "done": 12, "failed": 4, "cancelled": 0}
    assert {task["id"] for task in shown["running"]} == {asks, runs}
    activity = {task["id"]: task["activity"]["text"] for task in shown["running"]}
    assert activity == {asks: "task waiting approval", runs: "task progress half way"}
    assert all(len(task["prompt"]) < 2100 for task in shown["running"])
    assert [approval["task_id"] for approval in shown["approvals"]] == [asks]
    assert failures[1] not in {task["id"] for task in shown["failed"]}, "it was tried again"
    assert {failures[0], failures[2]} < {task["id"] for task in shown["failed"]}
    assert [task["id"] for task in shown["recent"]] == results[:1:-1]
    assert shown["usage"]["total"]["tasks"] == 16
    assert shown["as_of_seq"] == (await served.get("/events", limit=0))["last_seq"]


# -- usage -------------------------------------------------------------------------------------------------------------


async def test_usage_is_summed_by_actor_and_agent_and_unknown_values_stay_unknown(served: Served) -> None:
    await run_task(served, "10", "costly")
    await run_task(served, "20", "costly")
    await run_task(served, "x")
    await run_task(served, "x", "fail")
    async with served.as_role("operator") as operator:
        task = (await operator.post("/tasks", json={"prompt": "5", "agent": "costly"})).json()["id"]
        await served.runtime.tasks.wait(task)
    used = await served.get("/usage")
    total = used["total"]
    assert (total["tasks"], total["done"], total["failed"], total["cancelled"]) == (5, 4, 1, 0)
    assert (total["input_tokens"], total["output_tokens"], total["cost_usd"]) == (300, 35, 0.75)
    rows = {(row["actor"], row["agent"]): row for row in used["rows"]}
    assert set(rows) == {("owner", "costly"), ("owner", "echo"), ("owner", "fail"), ("operator", "costly")}
    assert rows["owner", "costly"]["output_tokens"] == 30
    assert rows["owner", "echo"]["input_tokens"] is rows["owner", "echo"]["cost_usd"] is None
    assert used["rows"][0]["tasks"] == 2
    assert 0 <= total["seconds"] < 60


async def test_usage_can_start_at_a_time(served: Served) -> None:
    await run_task(served, "x")
    now = datetime.now(UTC)
    for since, tasks in ((now - timedelta(hours=1), 1), (now + timedelta(hours=1), 0)):
        for written in (since.isoformat(), since.isoformat().replace("+00:00", "Z")):
            used = await served.get("/usage", since=written)
            assert used["total"]["tasks"] == tasks
            assert datetime.fromisoformat(used["since"]) == since
            assert (await served.get("/now", since=written))["usage"] == used
    eastern = (now - timedelta(minutes=1)).astimezone().isoformat()
    assert (await served.get("/usage", since=eastern))["total"]["tasks"] == 1


async def test_usage_is_grouped_as_requested(served: Served) -> None:
    east, west = "Pacific/Kiritimati", "Pacific/Pago_Pago"
    zone = west if datetime.now(ZoneInfo(east)).hour == 23 else east  # in a zone where no midnight is near
    await run_task(served, "10", "costly")
    await run_task(served, "20", "costly", session_key="chat:1")
    await run_task(served, "x")
    today = datetime.now(ZoneInfo(zone)).date().isoformat()
    days = await served.get("/usage", by="day", zone=zone)
    assert (days["by"], days["zone"], days["until"]) == (["day"], zone, None)
    assert [(row["day"], row["tasks"], row["cost_usd"], row["untold"]) for row in days["rows"]] == [(today, 3, 0.5, 1)]
    sessions = await served.get("/usage", by=["session", "agent"])
    task_counts = {(row["session"], row["agent"]): row["tasks"] for row in sessions["rows"]}
    assert task_counts == {("", "costly"): 1, ("chat:1", "costly"): 1, ("", "echo"): 1}
    assert (await served.get("/usage", by="model"))["rows"][0]["model"] == ""
    assert (await served.get("/usage", session_key="chat:1"))["total"]["output_tokens"] == 20
    short = await served.get("/usage", by="agent", limit=1)
    assert ([row["agent"] for row in short["rows"]], short["left_off"]) == (["costly"], 1)
    past = datetime.now(UTC) - timedelta(hours=1)
    assert (await served.get("/usage", until=past.isoformat()))["total"]["tasks"] == 0


@pytest.mark.parametrize(
    ("asked", "field"),
    [({"by": "week"}, "by"), ({"zone": "Europe/Atlantis"}, "zone"), ({"until": "soon"}, "until"),
     ({"limit": 0}, "limit"), ({"by": ["day"] * 6}, "by")],
)  # fmt: skip
async def test_unknown_groups_of_usage_are_refused(served: Served, asked: dict[str, Any], field: str) -> None:
    reply = await served.http.get("/usage", params=asked)
    assert reply.status_code == 422
    assert reply.json()["field"].startswith(field)


@pytest.mark.parametrize(
    "since",
    ["yesterday", "5", "1.5", "2026-01-02", "2026-01-02T03:04:05", "0001-01-01T00:00:00+23:59", "-5",
     "9999-12-31T23:59:59-23:59", "2026-13-01T00:00:00Z", ""],
)  # fmt: skip
async def test_an_invalid_time_is_refused(served: Served, since: str) -> None:
    for path in ("/usage", "/now"):
        reply = await served.http.get(path, params={"since": since})
        assert (reply.status_code, reply.json()["field"]) == (422, "since"), since


# -- a task's page -----------------------------------------------------------------------------------------------------


async def test_a_tasks_page_shows_all_its_details(served: Served) -> None:
    harmful = "# Hi\n\n<script>alert(1)</script> ![x](http://evil.example/x.png) **bold** [l](javascript:alert(1))"
    task = await run_task(served, harmful, route="pager", notices="all")
    async with asyncio.timeout(20):
        while len((await served.get("/deliveries", status="sent"))["deliveries"]) < 2:
            await asyncio.sleep(0.01)
    page = await served.get(f"/tasks/{task}/page")
    assert page["task"] == await served.get(f"/tasks/{task}")
    for html in (page["prompt_html"], page["result_html"]):
        assert "<strong>bold</strong>" in html
        assert all(bad not in html for bad in ("<script", 'href="javascript', "<img"))
    assert [(relative["id"], relative["relation"]) for relative in page["lineage"]] == [(task, "self")]
    assert {delivery["notice"] for delivery in page["deliveries"]} == {"started", "done"}
    assert page["approvals"] == []
    last = (await served.get("/events", task_id=task, before=2**62, limit=1))["events"]
    assert page["last_event_at"] == last[0]["time"]
    assert (await served.http.get("/tasks/t_no/page")).status_code == 404


async def test_a_tasks_page_shows_its_questions_and_no_result_yet(served: Served) -> None:
    task = await submit(served, "x", "ask")
    await served.until("approval_requested")
    page = await served.get(f"/tasks/{task}/page")
    assert (page["result_html"], [approval["question"] for approval in page["approvals"]]) == (None, ["May I?"])


async def test_a_tasks_page_shows_its_retries(served: Served) -> None:
    first = await run_task(served, "x" * 500, "fail")
    second = (await served.post(f"/tasks/{first}/retry"))["id"]
    await served.runtime.tasks.wait(second)
    third = (await served.post(f"/tasks/{second}/retry"))["id"]
    await served.runtime.tasks.wait(third)

    async def relations(task: str) -> dict[str, str]:
        lineage = (await served.get(f"/tasks/{task}/page"))["lineage"]
        assert [relative["id"] for relative in lineage] == [first, second, third]
        assert all(len(relative["prompt"]) < 300 for relative in lineage)
        return {relative["id"]: relative["relation"] for relative in lineage}

    assert await relations(first) == {first: "self", second: "retry", third: "retry"}
    assert await relations(second) == {first: "retry_of", second: "self", third: "retry"}
    assert (await relations(third))[third] == "self"


# -- settings, directories ---------------------------------------------------------------------------------------------


async def test_settings_show_limits_and_no_secrets(home: Path) -> None:
    hidden = {
        "notify": "hook:https://user:sesame@example.org/x",
        "agents": {"bot": {"argv": ["true"], "env": {"KEY": "sesame"}}},
        "channels": {"hook": {"kind": "webhook", "url": "https://example.org/sesame", "secret": "whsec_c2VzYW1l"}},
    }  # fmt: skip
    async with serve_agents(home, agents(), **hidden, max_open=77) as served:
        reply = await served.http.get("/settings")
        settings = reply.json()
        assert (settings["default_agent"], settings["notify"]) == ("echo", "hook")
        assert set(settings["channels"]) == {"console", "webhook", "hook"}
        assert (settings["limits"]["max_open"], settings["limits"]["slots"]) == (77, 64)
        assert settings["retention"]["tasks"] == 10_000
        assert settings["store"]["kind"] == "sqlite"
        token = served.runtime.home.token()
        for secret in ("sesame", "c2VzYW1l", token):
            assert secret not in reply.text
        assert str(home) in reply.text
        async with served.as_role("operator") as operator:
            assert str(home) not in (await operator.get("/settings")).text, "only an owner is told where the home is"


async def test_directories_are_listed_for_choosing_one(served: Served, tmp_path: Path) -> None:
    base = tmp_path / "base"
    for name in ("b", "A", "c d", ".hidden", "ü"):
        (base / name).mkdir(parents=True)
    (base / "file").write_text("x")
    (base / "link").symlink_to(base / "b")
    (base / "broken").symlink_to(base / "nowhere")
    Path(os.fsdecode(os.fsencode(base) + b"/\xff\xfe")).mkdir()
    (base / "line\nbreak").mkdir()
    listing = await served.get("/directories", path=str(base))
    assert listing == {"path": str(base), "parent": str(tmp_path), "directories": ["A", "b", "c d", "link", "ü"]}
    assert ".hidden" in (await served.get("/directories", path=str(base), hidden=True))["directories"]
    assert (await served.get("/directories", path=f"{base}/b/.."))["path"] == str(base)
    assert (await served.get("/directories", path="/"))["parent"] is None
    assert (await served.get("/directories"))["path"] == str(Path.home().resolve())


async def test_directories_that_cannot_be_read_are_refused(served: Served, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    odd.mkdir()
    (tmp_path / "odd").symlink_to(odd)
    for path, status in (
        ("relative", 422), ("~", 422), (str(tmp_path / "no"), 404), (str(tmp_path / "file"), 404),
        (str(tmp_path / "circle"), 422), (str(tmp_path / "odd"), 422), ("/" + "x" * 300, 422), ("/" + "x" * 5000, 422),
    ):  # fmt: skip
        reply = await served.http.get("/directories", params={"path": path})
        assert reply.status_code == status, path
        assert reply.json()["field"] == ("path" if status == 422 else None)


# -- ready, metrics ----------------------------------------------------------------------------------------------------


async def test_ready_needs_no_token_and_reports_a_missing_database(served: Served) -> None:
    async with httpx2.AsyncClient(base_url=f"{served.url}/api/v1", trust_env=False, timeout=30.0) as stranger:
        reply = await stranger.get("/ready")
        assert (reply.status_code, reply.json()) == (200, {"status": "ready"})

        class MissingStore:
            async def read_log_bounds(self) -> None:
                raise StoreUnavailable("no such host secret.example")

        served.runtime.system = system_on(MissingStore())
        reply = await stranger.get("/ready")
        assert (reply.status_code, reply.json()["code"]) == (503, "store_unavailable")
        assert int(reply.headers["retry-after"]) > 0
        assert "secret" not in reply.text
        assert (await stranger.get("/health")).status_code == 200
        assert (await stranger.get("/metrics")).status_code == 401


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
async def test_ready_tells_that_the_disk_is_full_until_there_is_space(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        async with Runtime.open(disk / "home", work=False) as desk:
            await desk.system.check_ready()
            ballast = disk / "ballast"
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(65536)):
                    pass
            with pytest.raises(DiskFull, match="the disk is full") as caught:
                await desk.system.check_ready()
            assert str(disk) not in str(caught.value)
            with pytest.raises(DiskFull):
                for _ in range(100):
                    await desk.tasks.submit("x" * 50_000, agent="demo")
            status = run(["status"], env=environment(disk / "home"))
            assert "No tasks are accepted: the disk is full" in status.stdout
            doctor = run(["doctor"], env=environment(disk / "home"))
            assert (doctor.returncode, "free some disk space now" in doctor.stdout) == (1, True)
            ballast.unlink()
            await desk.system.check_ready()
    finally:
        subprocess.run(["umount", disk], check=True)


async def test_ready_tells_that_the_last_write_failed_until_a_write_succeeds(home: Path) -> None:
    async with Runtime.open(home, work=False) as desk:
        connection: Any = desk.store._connection  # type: ignore[attr-defined]
        connection.execute("PRAGMA query_only = ON")
        await desk.system.check_ready()  # nothing has failed yet
        with pytest.raises(StoreUnavailable):
            await desk.tasks.submit("x", agent="demo")
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="midwatch doctor"):
                await desk.system.check_ready()
        connection.execute("PRAGMA query_only = OFF")
        await desk.system.check_ready()


class AnsweringStore:
    """A store that can write."""

    async def check_writable(self) -> None:
        pass


def system_on(store: Any) -> System:
    """Return the service on a store that only answers where its log ends."""
    return System(store, SystemClock(), tasks=None, approvals=None, home=Path())  # type: ignore[arg-type]


async def test_a_database_that_does_not_answer_in_time_is_not_ready() -> None:
    class HangingStore:
        async def read_log_bounds(self) -> None:
            await asyncio.Event().wait()

    with pytest.raises(StoreUnavailable, match="does not answer"):
        await system_on(HangingStore()).check_ready(0.05)


async def test_ready_does_not_blame_the_database_for_a_blocked_process() -> None:
    class BlockingStore(AnsweringStore):
        async def read_log_bounds(self) -> None:
            """Answer in time while the event loop is blocked for longer than that."""
            asyncio.get_running_loop().call_soon(time.sleep, 1.5)
            await asyncio.to_thread(time.sleep, 0.2)
            for _ in range(5):  # the service knows this only after some loop iterations
                await asyncio.sleep(0)

    await system_on(BlockingStore()).check_ready(1.0)


async def test_metrics_have_the_prometheus_format(served: Served) -> None:
    never = asyncio.Event()
    end_filter = EventFilter(kinds=("task_finished",))
    stuck = await served.runtime.subscriptions.add("stuck", lambda _: never.wait(), end_filter)
    for prompt in ("a", "b"):
        await run_task(served, prompt)
    await run_task(served, "x", "fail")
    runs = await submit(served, "x", "hold")
    await served.until("task_progress", task_id=runs)
    await submit(served, "x", delay=3600)
    assert await eventually(lambda: served.runtime.running == 1 and stuck.received == 1)
    reply = await served.http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    metrics = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }
    by_status = {status: metrics["midwatch_tasks", status] for status in ("pending", "running", "done", "failed")}
    assert by_status == {"pending": 1, "running": 1, "done": 2, "failed": 1}
    assert metrics["midwatch_events_total",] == (await served.get("/events", limit=0))["last_seq"]
    assert metrics["midwatch_running_here",] == 1
    names = ("received_total", "handled_total", "failed_total", "dropped_total")
    assert [metrics[f"midwatch_subscription_{name}", "stuck"] for name in names] == [1, 0, 0, 0]
    assert metrics["midwatch_subscription_lag", "stuck"] > 2
    assert metrics["midwatch_oldest_pending_seconds",] == 0, "it is not due"
    assert (metrics["midwatch_processes",], metrics["midwatch_slots",], metrics["midwatch_event_streams",]) == (
        1,
        64,
        0,
    )


# -- tests of agents, retries of notices -------------------------------------------------------------------------------


async def test_an_agent_is_tested_with_a_real_task(served: Served) -> None:
    reply = await served.http.post("/agents/echo/test")
    assert reply.status_code == 201
    assert reply.headers["location"] == f"/api/v1/tasks/{reply.json()['id']}"
    tried = await served.wait_for_end(reply.json()["id"])
    assert (tried["status"], tried["agent"], tried["max_attempts"], tried["creator"]) == ("done", "echo", 1, "owner")
    assert "ready" in tried["result"]
    missing = await served.http.post("/agents/nobody/test")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


async def test_a_failed_notice_can_be_sent_again(served: Served, channel: RecordingChannel) -> None:
    channel.fail, channel.permanent = 2, True
    task = await run_task(served, "x", route="pager:me", notices="all")
    await served.until("delivery_failed", task_id=task)
    async with asyncio.timeout(20):
        while len(failed := (await served.get("/deliveries", status="failed"))["deliveries"]) < 2:
            await asyncio.sleep(0.01)
    delivery = failed[0]
    assert await served.get(f"/deliveries/{delivery['id']}") == delivery
    assert delivery["error"]
    again = await served.http.post(f"/deliveries/{delivery['id']}/retry")
    assert (again.status_code, again.json()["status"], again.json()["attempts"], again.json()["error"]) == (
        200, "pending", 0, None,
    )  # fmt: skip
    await channel.until(lambda seen: len(seen.delivered) == 1)
    assert channel.delivered[0].id == delivery["id"], "the receiver can tell a repetition"
    await served.until("delivery_sent", task_id=task)
    (event,) = await served.read_log(kind="delivery_retried")
    assert (event["payload"]["delivery_id"], event["actor"]) == (delivery["id"], "owner")
    sent = await served.http.post(f"/deliveries/{delivery['id']}/retry")
    assert (sent.status_code, sent.json()["code"]) == (409, "conflict")
    for verb, path in (("GET", "/deliveries/d_no"), ("POST", "/deliveries/d_no/retry")):
        reply = await served.http.request(verb, path)
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


async def test_concurrent_retries_of_a_notice_send_it_once(served: Served, channel: RecordingChannel) -> None:
    channel.fail, channel.permanent = 2, True
    await run_task(served, "x", route="pager", notices="all")
    async with asyncio.timeout(20):
        while len(failed := (await served.get("/deliveries", status="failed"))["deliveries"]) < 2:
            await asyncio.sleep(0.01)
    channel.hang = True
    path = f"/deliveries/{failed[0]['id']}/retry"
    replies = await asyncio.gather(*(served.http.post(path) for _ in range(8)))
    assert sorted(reply.status_code for reply in replies) == [200] + [409] * 7
    channel.hang = False


async def test_the_target_of_a_route_is_never_shown(served: Served, channel: RecordingChannel) -> None:
    """The target may be an address with a password. The record keeps it: a retry and an edit still send there."""
    fields = {"agent": "fail", "prompt": "x", "route": "pager:hush"}
    task = (await served.post("/tasks", fields))["id"]
    await served.wait_for_end(task)
    again = (await served.post(f"/tasks/{task}/retry"))["id"]
    await served.wait_for_end(again)
    automation = (await served.post("/automations", {**fields, "every": "1h"}))["id"]
    edited = await served.http.patch(f"/automations/{automation}", json={"title": "another"})
    assert edited.json()["route"] == "pager"
    await served.wait_for_end((await served.post(f"/automations/{automation}/run"))["id"])
    goal = await served.post("/goals", {"objective": "x", "agent": "hold", "route": "pager:hush"})
    await served.post(f"/goals/{goal['id']}/pause")
    await channel.until(
        lambda receiver: len([delivery for delivery in receiver.delivered if delivery.notice == "failed"]) == 3
    )
    assert {delivery.target for delivery in channel.delivered} == {"hush"}
    about = [f"/tasks/{task}", f"/tasks/{again}/page", f"/automations/{automation}", f"/goals/{goal['id']}"]
    more = ["/tasks", "/now", "/automations", f"/automations/{automation}/history", "/goals", "/deliveries", "/events"]
    async with served.as_role("viewer") as viewer:
        for path in (*about, *more, f"/goals/{goal['id']}/steps"):
            reply = await viewer.get(path, headers={"accept": "application/json"})
            assert reply.status_code == 200, reply.text
            assert "hush" not in reply.text, path
    assert (await served.get(f"/tasks/{task}"))["route"] == "pager"
