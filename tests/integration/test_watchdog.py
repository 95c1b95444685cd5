"""Test the watchdog with a real server: its commands, and the pings to an address outside."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from commands import run
from midwatch.base.clock import SECOND
from midwatch.domain.changes import Changes
from midwatch.runtime.runtime import Runtime
from midwatch.testing import FakeClock, ScriptedAgent, ask, result, wait_for
from records import CLOCK, a_task, an_automation
from servers import Server, environment, eventually, until

SECRET = "s3cr3t-id"


class Receiver:
    """A receiver of pings on a loopback port. `answer` is the status line and headers of its replies."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.answer = "200 OK"
        self.port = 0

    async def reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Note the path and the body of a request, and answer it."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        found = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(found[1]) if found else 0)
        self.calls.append((head.split()[1], body.decode()))
        writer.write(f"HTTP/1.1 {self.answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    def has(self, path: str) -> bool:
        """Return whether a ping came to this path."""
        return any(called == path for called, _ in self.calls)


@asynccontextmanager
async def receive() -> AsyncIterator[Receiver]:
    """Open a receiver on a free port."""
    receiver = Receiver()
    server = await asyncio.start_server(receiver.reply, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


async def test_pings_say_whether_all_is_well_and_show_no_secret(tmp_path: Path) -> None:
    async with receive() as receiver:
        url = f"http://127.0.0.1:{receiver.port}/{SECRET}"
        server = Server(
            tmp_path / "home", MIDWATCH_PING_URL=url, MIDWATCH_PING_EVERY="0.2", MIDWATCH_SILENT_AFTER="0.1",
            MIDWATCH_DETECT_AGENTS="false", MIDWATCH_SHUTDOWN_GRACE="0",
        )  # fmt: skip
        await server.start()
        try:
            async with server.client() as client:
                assert await eventually(lambda: receiver.has(f"/{SECRET}"))
                task = (await client.post("/tasks", json={"prompt": "demo:hang", "agent": "demo"})).json()["id"]
                told: list[dict[str, str]] = []
                while not told:
                    told = (await client.post("/watchdog")).json()["told"]
                assert [(alert["subject"], alert["status"]) for alert in told] == [(task, "raised")]
                assert await eventually(lambda: receiver.has(f"/{SECRET}/fail"))
                assert receiver.calls[-1][1] == f"1 open alerts\nsilent {task}"

                status = await asyncio.to_thread(run, ["status", "--check"], env=server.env)
                assert (status.returncode, "Nothing needs attention" in status.stdout) == (1, False)
                acknowledged = await asyncio.to_thread(run, ["watchdog", "ack", told[0]["id"]], env=server.env)
                assert acknowledged.returncode == 0
                receiver.calls.clear()
                assert await eventually(lambda: receiver.has(f"/{SECRET}"))
                status = await asyncio.to_thread(run, ["status", "--check"], env=server.env)
                assert (status.returncode, "Nothing needs attention" in status.stdout) == (0, True)
                listed = await asyncio.to_thread(run, ["watchdog", "--json"], env=server.env)
                assert [alert["status"] for alert in json.loads(listed.stdout)["known"]] == ["acknowledged"]
                doctor = await asyncio.to_thread(run, ["doctor"], env=server.env)
                assert re.search(r"routine ping: .*all is well, answered 200", doctor.stdout)
                assert "acknowledged by owner" in doctor.stdout

                receiver.answer = f"302 Found\r\nlocation: http://localhost:{receiver.port}/elsewhere"
                receiver.calls.clear()
                assert await eventually(lambda: len(receiver.calls) > 1)
                assert not receiver.has("/elsewhere")
                routines = {routine["name"]: routine for routine in (await client.get("/routines")).json()["routines"]}
                assert "answered 302" in routines["ping"]["last_error"]
                assert SECRET not in json.dumps(routines) + doctor.stdout + server.log.read_text()
        finally:
            await server.stop()


async def test_status_without_a_server_names_what_does_not_continue_despite_a_bad_record(tmp_path: Path) -> None:
    home = tmp_path / "home"
    now = CLOCK.now()
    bad_zone = {"every": 3600, "zone": "Mars/Olympus", "anchor": "2026-01-01T00:00:00Z"}
    async with Runtime.open(home, work=False) as desk:
        paused = an_automation(now, id="am_p", status="paused", paused_why="3 runs failed", next_run_at=None)
        broken = an_automation(now, id="am_z", schedule=bad_zone, session_key="auto:z")
        await desk.store.apply(Changes(records=(paused, broken, a_task(id="t_1"))))
    env = environment(home, MIDWATCH_DETECT_AGENTS="false")
    status = await asyncio.to_thread(run, ["status", "--check", "--json"], env=env)
    told = json.loads(status.stdout)
    assert status.returncode == 1
    assert sorted(alert["alert"] for alert in told["attention"]["alerts"]) == ["paused", "stopped"]
    text, doctor, watchdog = await asyncio.gather(
        *(asyncio.to_thread(run, [name], env=env) for name in ("status", "doctor", "watchdog"))
    )
    for output in (text.stdout, doctor.stdout, watchdog.stdout):
        assert "Paused: look {{date}}" in output
        assert "no server is running" in output
    assert "Nothing needs attention" not in text.stdout


async def test_the_process_of_a_task_knows_how_long_it_worked(tmp_path: Path) -> None:
    clock, go_on = FakeClock(CLOCK.now()), asyncio.Event()
    agent = ScriptedAgent(ask("May I?", expires=10**6), wait_for(go_on), result("done"), name="it")
    async with Runtime.open(tmp_path / "home", agents={"it": agent}, clock=clock) as desk:
        task = await desk.tasks.submit("dig", agent="it", timeout_seconds=600.0)
        question = await until(desk.approvals.list)
        await clock.advance(3000)  # it waits for an answer
        await desk.approvals.answer(question[0].id, grant=True)
        await until(lambda: desk.running_tasks[task.id].worked_seconds > 0 or clock.advance(1))
        worked = desk.running_tasks[task.id].worked_seconds
        clock.set(clock.now() + 8 * 3600 * SECOND)  # the machine was suspended
        assert desk.running_tasks.read_worked_seconds(task.id, 1) == worked < 60
        assert desk.running_tasks.read_worked_seconds(task.id, 2) is None
        assert "stuck" not in [alert.kind for alert in await desk.alerts.find()]
        go_on.set()
        assert (await desk.tasks.wait(task.id)).status == "done"
