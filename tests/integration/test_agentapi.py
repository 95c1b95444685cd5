"""Test the agentapi routes over HTTP, with a real program in a real terminal."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from midwatch import Runtime, Settings
from midwatch.agents.registry import build
from midwatch.agents.terminal import sending
from midwatch.api.agentapi.allowed_origins import HOSTS, ORIGINS, Rules, check_hosts, check_origins
from midwatch.api.agentapi.app import create_standalone
from midwatch.api.agentapi.bodies import EVENTS
from midwatch.api.agentapi.follower import SessionFollower
from midwatch.api.agentapi.uploads import Uploads
from midwatch.api.server import Server, listen, local_url
from midwatch.base.clock import SECOND
from midwatch.base.errors import UsageLimit
from midwatch.domain.event import MessageDelta
from midwatch.programs.guard import guard
from midwatch.testing import ScriptedAgent, result
from serving import serve_agents, watch

ECHO = """
import os, signal, subprocess, sys, termios, time
print("Welcome to echo")
while True:
    said = input("> ")
    word, _, rest = said.partition(" ")
    if word == "leave": sys.exit(int(rest))
    elif word == "abandon":
        for number in (signal.SIGHUP, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
        subprocess.Popen(["sleep", "600"])
        sys.exit(int(rest))
    elif word == "hold":
        print("first part", flush=True)
        while not os.path.exists(rest): time.sleep(0.01)
        print("second part")
    elif word == "deaf":
        mode = termios.tcgetattr(0)
        mode[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(0, termios.TCSANOW, mode)
        print("> ", end="", flush=True)
        while not os.path.exists(rest): time.sleep(0.01)
        sys.exit(0)
    elif word == "lines":
        for number in range(int(rest)): print("line", number)
    else: print("you said", said)
"""
PROGRAM = {"argv": [sys.executable, "-c", ECHO], "prompt": "^> $", "columns": 80, "rows": 40}
BUSY_SIGN = {**PROGRAM, "busy": "^working"}
"""A program with a known busy sign, so that a prompt it does not accept is noticed."""
PROBLEM = "application/problem+json"
BUSY = "failed to send message: message can only be sent when the agent is waiting for user input"


@dataclass
class AgentApi:
    """A standalone agentapi server and a client of it."""

    follower: SessionFollower
    http: httpx2.AsyncClient
    url: str
    stopping: asyncio.Event
    desk: Runtime

    async def status(self) -> str:
        return str((await self.http.get("/status")).json()["status"])

    async def wait_until_stable(self) -> None:
        async with asyncio.timeout(60):
            while await self.status() != "stable":
                await asyncio.sleep(0.01)

    async def messages(self) -> list[Any]:
        return list((await self.http.get("/messages")).json()["messages"])

    async def send(self, text: str, kind: str = "user") -> httpx2.Response:
        return await self.http.post("/message", json={"content": text, "type": kind})

    async def ask(self, text: str) -> str:
        """Send a message and poll for the reply, as a client does."""
        await self.wait_until_stable()
        reply = await self.send(text)
        assert reply.status_code == 200, reply.text
        await self.wait_until_stable()
        last = (await self.messages())[-1]
        assert last["role"] == "agent"
        return str(last["content"])

    async def wait_for_screen(self, text: str) -> None:
        async with asyncio.timeout(60):
            while text not in self.follower.feed.screen:
                await asyncio.sleep(0.01)


def make_rules(hosts: tuple[str, ...] = HOSTS, origins: tuple[str, ...] = ORIGINS) -> Rules:
    return Rules(check_hosts(hosts), check_origins(origins))


@asynccontextmanager
async def serve_agent(
    folder: Path, allowed: Rules | None = None, chat: str = "/chat", program: Any = PROGRAM
) -> AsyncIterator[AgentApi]:
    settings = Settings.load(folder / "home", detect_agents=False, shutdown_grace=0)
    agent = build("echo", "terminal", program)
    uploads = Uploads()
    with listen("127.0.0.1", 0) as listener:
        async with Runtime.open(settings=settings, agents={"echo": agent}) as desk:
            view, _ = await desk.sessions.create(agent="echo", workdir=str(folder))
            follower = SessionFollower(desk, view.session, kind="terminal", needs_terminal=True)
            await follower.start()
            await follower.open_terminal()
            app = create_standalone(desk, follower, allowed or make_rules(), chat, uploads)
            ready, stopping = asyncio.Event(), asyncio.Event()
            server = asyncio.create_task(Server(app, stopping, ready.set).serve([listener]))
            await ready.wait()
            url = local_url("127.0.0.1", listener)
            async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=60.0) as http:
                yield AgentApi(follower, http, url, stopping, desk)
            stopping.set()
            await server
            await follower.close()
    uploads.close()
    assert guard.pid is None, "a process group was left behind"


@pytest.fixture
async def agent_api(tmp_path: Path) -> AsyncIterator[AgentApi]:
    async with serve_agent(tmp_path) as agent_api:
        yield agent_api


async def frames(agent_api: AgentApi, path: str = "/events") -> AsyncGenerator[tuple[str, Any], None]:
    async with aclosing(watch(agent_api.http, path)) as stream:
        async for frame in stream:
            yield frame.event, frame.data


# -- the conversation --------------------------------------------------------------------------------------------------


async def test_a_client_polls_status_and_messages(agent_api: AgentApi) -> None:
    assert await agent_api.ask("hello") == "you said hello"
    assert await agent_api.ask("hello") == "you said hello", "the same words twice are two turns"
    assert await agent_api.ask("  trimmed \n") == "you said trimmed"
    messages = await agent_api.messages()
    assert [(message["id"], message["role"], message["content"]) for message in messages] == [
        (0, "agent", "Welcome to echo"),
        (1, "user", "hello"), (2, "agent", "you said hello"),
        (3, "user", "hello"), (4, "agent", "you said hello"),
        (5, "user", "trimmed"), (6, "agent", "you said trimmed"),
    ]  # fmt: skip
    assert all(list(message) == ["id", "content", "role", "time"] for message in messages)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z", message["time"]) for message in messages)


async def test_replies_link_their_schema(agent_api: AgentApi) -> None:
    await agent_api.wait_until_stable()
    reply = await agent_api.http.get("/status")
    port = agent_api.url.rpartition(":")[2]
    assert reply.text == (
        f'{{"$schema":"http://127.0.0.1:{port}/schemas/StatusResponseBody.json","status":"stable",'
        '"agent_type":"custom","transport":"pty"}\n'
    )
    assert reply.headers["link"] == '</schemas/StatusResponseBody.json>; rel="describedBy"'
    assert reply.headers["vary"] == "Origin"
    schema = await agent_api.http.get("/schemas/StatusResponseBody.json")
    assert schema.json()["properties"]["status"]["$ref"] == "/schemas/AgentStatus.json"
    assert (await agent_api.http.get("/schemas/Nothing.json")).json() is None
    reply = await agent_api.http.get("/messages")
    assert list(reply.json()) == ["$schema", "messages"]
    reply = await agent_api.send("<a> & ü")
    assert (list(reply.json()), reply.json()["ok"]) == (["$schema", "ok"], True)
    await agent_api.wait_until_stable()
    assert "<a> & ü" in (await agent_api.http.get("/messages")).text


async def test_a_client_follows_the_event_stream(agent_api: AgentApi, tmp_path: Path) -> None:
    await agent_api.wait_until_stable()
    events: list[tuple[str, Any]] = []
    sending = None
    async with asyncio.timeout(60), aclosing(frames(agent_api)) as stream:
        async for name, data in stream:
            events.append((name, data))
            if len(events) == 2:
                sending = asyncio.create_task(agent_api.send(f"hold {tmp_path / 'go'}"))
            if name == "message_update" and data["id"] == 2 and data["message"] == "first part":
                (tmp_path / "go").touch()
            if len(events) > 3 and data == {"status": "stable", "agent_type": "custom"}:
                break
    assert sending is not None and (await sending).status_code == 200
    assert events[0][0] == "message_update"
    assert (list(events[0][1]), events[0][1]["message"]) == (["id", "role", "message", "time"], "Welcome to echo")
    assert events[1] == ("status_change", {"status": "stable", "agent_type": "custom"})
    assert events[2] == ("status_change", {"status": "running", "agent_type": "custom"})
    assert (events[3][1]["id"], events[3][1]["role"]) == (1, "user")
    texts = [data["message"] for name, data in events[4:-1] if data["id"] == 2]
    assert texts[-1] == "first part\nsecond part"
    assert "first part" in texts
    state = await anext(agent_api.follower.feed.follow(*EVENTS))
    async with aclosing(frames(agent_api)) as stream:
        replay = [await anext(stream) for _ in range(4)]
    assert replay == [(event.event, event.model_dump()) for event in state]
    assert [name for name, _ in replay] == ["message_update"] * 3 + ["status_change"]


async def test_a_stream_has_the_headers_of_agentapi(agent_api: AgentApi) -> None:
    async with agent_api.http.stream("GET", "/events") as reply:
        assert reply.headers["content-type"] == "text/event-stream"
        assert reply.headers["cache-control"] == "no-cache, no-store, must-revalidate"
        for name, value in (("pragma", "no-cache"), ("expires", "0"), ("x-accel-buffering", "no"),
                            ("x-proxy-buffering", "no"), ("connection", "keep-alive")):  # fmt: skip
            assert reply.headers[name] == value
        assert "content-length" not in reply.headers


async def test_the_screen_is_sent_with_every_change(agent_api: AgentApi) -> None:
    async with asyncio.timeout(60), aclosing(frames(agent_api, "/internal/screen")) as stream:
        name, data = await anext(stream)
        assert (name, list(data)) == ("screen", ["screen"])
        await agent_api.wait_until_stable()
        assert (await agent_api.send("raw words", "raw")).status_code == 200
        while "> raw words" not in data["screen"]:
            name, data = await anext(stream)
            assert name == "screen"
        assert data["screen"] == data["screen"].rstrip()
        assert (await agent_api.send("\r", "raw")).status_code == 200
        while "you said raw words" not in data["screen"]:
            _, data = await anext(stream)
    assert [message["role"] for message in await agent_api.messages()] == ["agent"], "keys are no messages"


async def test_streams_end_cleanly_with_the_server(agent_api: AgentApi) -> None:
    async with asyncio.timeout(60):
        async with agent_api.http.stream("GET", "/events") as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            agent_api.stopping.set()
            async for _ in lines:
                pass  # an end without the last chunk would be an error here


async def test_a_message_is_refused_while_the_agent_works(agent_api: AgentApi, tmp_path: Path) -> None:
    await agent_api.wait_until_stable()
    assert (await agent_api.send(f"hold {tmp_path / 'go'}")).status_code == 200
    assert await agent_api.status() == "running"
    assert [message["role"] for message in await agent_api.messages()][:2] == ["agent", "user"], (
        "nobody waits for the agent"
    )
    refused = await agent_api.send("too early")
    assert (refused.status_code, refused.headers["content-type"]) == (409, PROBLEM)
    assert refused.headers["retry-after"] == "1"
    assert list(refused.json()) == ["$schema", "title", "status", "detail", "errors"]
    assert refused.json()["detail"] == "unexpected error occurred"
    assert refused.json()["errors"] == [{"message": BUSY}]
    (tmp_path / "go").touch()
    await agent_api.wait_until_stable()
    assert "too early" not in (await agent_api.http.get("/messages")).text


async def test_of_two_concurrent_messages_one_is_accepted(agent_api: AgentApi, tmp_path: Path) -> None:
    await agent_api.wait_until_stable()
    go = tmp_path / "go"  # nobody answers before the last request has arrived
    replies = await asyncio.gather(*(agent_api.send(f"hold {go}") for _ in range(5)))
    assert sorted(reply.status_code for reply in replies) == [200, 409, 409, 409, 409]
    go.touch()
    await agent_api.wait_until_stable()
    assert len(await agent_api.messages()) == 3


async def test_an_agent_that_does_not_react_is_reported(tmp_path: Path) -> None:
    async with serve_agent(tmp_path, program=BUSY_SIGN) as agent_api:
        await agent_api.wait_until_stable()
        assert (await agent_api.send(f"deaf {tmp_path / 'end'}\r", "raw")).status_code == 200
        await agent_api.wait_for_screen("deaf")
        await agent_api.wait_until_stable()
        sending = asyncio.create_task(agent_api.send("anybody there?"))
        answered = 0
        async with asyncio.timeout(60):
            while not sending.done():
                assert (await agent_api.http.get("/status")).status_code == 200
                answered += not sending.done()
                await asyncio.sleep(0.05)
        assert answered, "others are answered meanwhile"
        reply = await sending
        assert reply.status_code == 504, reply.text
        assert reply.json()["errors"][0]["message"] == (
            "failed to send message: failed to send message: failed to wait for processing to start: "
            "timeout waiting for condition"
        )
        assert "check its terminal" in reply.json()["errors"][1]["message"]
        (tmp_path / "end").touch()


SLEEPS = "print('> ', end='', flush=True); import time; time.sleep(1000)"
READS_ON = "print('> ', end='', flush=True); import sys; [None for _ in sys.stdin]"
IGNORES = (
    "import tty; tty.setraw(0); print('> ', end='', flush=True); import os; [os.read(0, 99) for _ in iter(int, 1)]"
)
STOPPED = "import os, signal; input('> '); print('> ', end='', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
LEAVES = "input('> '); raise SystemExit(3)"


@pytest.mark.parametrize("agent", [SLEEPS, READS_ON, IGNORES, STOPPED, LEAVES])
async def test_an_agent_without_signs_that_does_not_react_is_reported(
    tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SILENT_REACTION_SECONDS", 0.5)
    async with serve_agent(tmp_path, program={"argv": [sys.executable, "-c", agent]}) as agent_api:
        await agent_api.wait_until_stable()
        if agent == STOPPED:
            assert (await agent_api.send("stop\r", "raw")).status_code == 200
            await agent_api.wait_for_screen("> stop\n>")
            await agent_api.wait_until_stable()
        reply = await agent_api.send("anybody there?")
        assert reply.status_code == 504, reply.text
        promised, reason = (error["message"] for error in reply.json()["errors"])
        assert promised.endswith("failed to wait for processing to start: timeout waiting for condition")
        assert ("exit code 3" if agent == LEAVES else "did not react") in reason


async def test_a_silent_agent_may_think_before_it_answers(tmp_path: Path) -> None:
    """It shows nothing after it has read the message, for longer than the silence after which others count as idle."""
    waits = f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)"
    thinks = f"import os, time\nsaid = input('> ')\n{waits}\nprint('you said', said)\ninput('> ')"
    program = {"argv": [sys.executable, "-c", thinks], "quiet": 0.2}
    async with serve_agent(tmp_path, program=program) as agent_api:
        await agent_api.wait_until_stable()
        assert (await agent_api.send("hello")).status_code == 200
        assert await agent_api.status() == "running"
        screen = agent_api.desk.terminals.screenshot
        for _ in range(50):
            assert (await screen(agent_api.follower.key)).status == "busy"
            await asyncio.sleep(0.02)
        (tmp_path / "go").touch()
        await agent_api.wait_until_stable()
        assert (await agent_api.messages())[-1]["content"] == "you said hello"


async def test_a_long_reply_is_complete(agent_api: AgentApi) -> None:
    text = await agent_api.ask("lines 3000")
    assert text.split("\n") == [f"line {number}" for number in range(3000)]


@pytest.mark.parametrize("way", ["leave", "abandon"])
async def test_the_exit_of_the_agent_is_noticed(agent_api: AgentApi, way: str) -> None:
    """The exit status is known from then on, even if the agent left processes that take time to end."""
    await agent_api.wait_until_stable()
    assert (await agent_api.send(f"{way} 3\r", "raw")).status_code == 200
    async with asyncio.timeout(60):
        await agent_api.follower.program_ended.wait()
    exit_status = agent_api.desk.agents["echo"].exits[agent_api.follower.key]  # type: ignore[attr-defined]
    assert exit_status.code == 3
    assert await agent_api.status() == "running", "nobody waits for input"
    refused = await agent_api.send("x", "raw")
    assert refused.status_code == 409


async def test_a_slow_reader_delays_nobody(agent_api: AgentApi) -> None:
    await agent_api.wait_until_stable()
    host, port = agent_api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for number in range(3):
            assert await agent_api.ask(f"lines {2000 + number}")
        assert len(agent_api.follower.feed) == 1
    assert await agent_api.ask("still here") == "you said still here"


# -- invalid requests --------------------------------------------------------------------------------------------------


async def test_wrong_messages_are_refused(agent_api: AgentApi) -> None:
    await agent_api.wait_until_stable()
    http = agent_api.http

    async def refuse(content: bytes, **headers: str) -> tuple[int, str, Any]:
        reply = await http.post(
            "/message", content=content, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        assert reply.headers["content-type"] == PROBLEM
        assert reply.headers["link"] == '</schemas/ErrorModel.json>; rel="describedBy"'
        body = reply.json()
        assert (list(body)[:4], body["status"]) == (["$schema", "title", "status", "detail"], reply.status_code)
        return reply.status_code, body["detail"], body.get("errors", [{}])[0]

    empty = "failed to send message: message must not be empty"
    assert await refuse(b'{"content":" \\n","type":"user"}') == (422, "unexpected error occurred", {"message": empty})
    only_keys = b'{"content":"\\u0003 \\u001b","type":"user"}'
    assert await refuse(only_keys) == (422, "unexpected error occurred", {"message": empty})
    assert await refuse(b"") == (400, "request body is required", {})
    assert (await refuse(b"x", content_type="text/plain"))[0] == 415
    assert (await refuse(b'{"content":"x"}'))[0] == 422
    assert (await refuse(b'{"content":"x","type":"foo"}'))[2]["location"] == "body.type"
    assert (await refuse(b"{"))[:2] == (400, "validation failed")
    assert (await refuse(b" " * 1048576))[:2] == (413, "request body is too large limit=1048576 bytes")
    assert await agent_api.ask("unharmed") == "you said unharmed"


async def test_unknown_paths_and_methods_are_refused(agent_api: AgentApi) -> None:
    http = agent_api.http
    reply = await http.get("/nothing")
    assert (reply.status_code, reply.text) == (404, "404 page not found\n")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    for method, path, allow in (
        ("POST", "/status", "GET"), ("HEAD", "/status", "GET"), ("OPTIONS", "/messages", "GET"),
        ("GET", "/message", "POST"),
        ("DELETE", "/upload", "POST"), ("PUT", "/events", "GET"), ("POST", "/internal/screen", "GET"),
        ("POST", "/openapi.json", "GET"),
    ):  # fmt: skip
        reply = await http.request(method, path)
        assert (reply.status_code, reply.content, reply.headers["allow"]) == (405, b"", allow), (method, path)
    for method in ("GET", "POST", "DELETE"):
        reply = await http.request(method, "/")
        assert (reply.status_code, reply.headers["location"]) == (307, "/chat/embed")


async def test_the_openapi_document_and_the_pages_are_served(agent_api: AgentApi) -> None:
    http = agent_api.http
    for path, version, media in (
        ("/openapi.json", "3.1.0", "json"), ("/openapi.yaml", "3.1.0", "yaml"),
        ("/openapi-3.0.json", "3.0.3", "json"), ("/openapi-3.0.yaml", "3.0.3", "yaml"),
    ):  # fmt: skip
        reply = await http.get(path)
        assert reply.headers["content-type"] == f"application/vnd.oai.openapi+{media}"
        assert json.loads(reply.text)["openapi"] == version
    assert (await http.get("/docs")).headers["content-type"].startswith("text/html")
    for path in ("/chat", "/chat/", "/chat/embed", "/chat/embed/"):
        reply = await http.get(path)
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
        policy = reply.headers["content-security-policy"]
        assert "frame-ancestors 'self' http://localhost:3284 http://localhost:3000 http://localhost:3001" in policy
        assert "x-frame-options" not in reply.headers
        for name in re.findall(r'(?:src|href)="(/chat/[^"]+)"', reply.text):
            assert (await http.get(name)).status_code == 200, name
    assert (await http.get("/chat/../../secrets")).status_code == 404
    assert (await http.get("/chat/nothing.js")).status_code == 404


async def test_the_chat_page_may_have_another_base_path(tmp_path: Path) -> None:
    async with serve_agent(tmp_path, chat="/@me/app/chat") as agent_api:
        assert (await agent_api.http.get("/")).headers["location"] == "/@me/app/chat/embed"
        page = (await agent_api.http.get("/chat/embed")).text
        assert 'data-api="/@me/app/chat/api/v1"' in page and 'src="/@me/app/chat/app.js"' in page
        assert '"/web/' not in page


async def test_the_console_of_one_session_sees_only_that_session(agent_api: AgentApi) -> None:
    http, desk, key = agent_api.http, agent_api.desk, agent_api.follower.key
    other_key = (await desk.sessions.create(agent="echo"))[0].session.key
    waiting = await desk.tasks.submit("hello", session_key=other_key, delay=3600)
    base = "/chat/api/v1"
    assert (await http.get(f"{base}/me")).json()["role"] == "operator"
    assert (await http.get(f"{base}/sessions/{key}")).json()["key"] == key
    sent = await http.post(f"{base}/sessions/{key}/messages", json={"text": "by the console"})
    assert sent.status_code == 202
    await agent_api.wait_until_stable()
    assert [message["content"] for message in await agent_api.messages()][1:] == [
        "by the console",
        "you said by the console",
    ]
    shown = (await http.get(f"{base}/sessions/{key}/messages?html=true")).json()["messages"]
    assert shown[1]["html"] == "<p>you said by the console</p>\n"
    assert (await http.get(f"{base}/approvals")).json() == {"approvals": []}
    accept = {"accept": "application/json"}
    events = (await http.get(f"{base}/events?session_key={key}", headers=accept)).json()["events"]
    assert {event["session_key"] for event in events} == {key}
    for method, path in (
        ("GET", f"/sessions/{other_key}"), ("GET", f"/sessions/{other_key}/messages"),
        ("POST", f"/sessions/{other_key}/interrupt"), ("POST", f"/sessions/{other_key}/messages"),
        ("POST", f"/tasks/{waiting.id}/cancel"), ("GET", "/events"),
        ("GET", f"/events?session_key={other_key}"), ("GET", f"/events?session_key={key}&session_key={other_key}"),
        ("GET", f"/events?task_id={waiting.id}"), ("GET", f"/events?task_id={waiting.id}&session_key={key}"),
        ("GET", "/events?turn_id=x"), ("GET", f"/usage?session_key={other_key}"),
        ("GET", "/usage"), ("GET", "/approvals/a_1"), ("GET", "/tasks"), ("GET", "/sessions"), ("GET", "/tokens"),
        ("GET", "/settings"), ("POST", f"/sessions/{key}/close"), ("POST", "/sessions"),
    ):  # fmt: skip
        reply = await http.request(
            method,
            base + path,
            headers=accept,
            json={"text": "x"} if path.endswith("/messages") and method == "POST" else None,
        )
        assert reply.status_code in (403, 404, 405), (method, path, reply.text)
        assert "hello" not in reply.text
    watched = await http.get(f"{base}/events?task_id={waiting.id}&session_key={key}&state=true", timeout=5.0)
    assert (watched.status_code, watched.json()["code"]) == (403, "forbidden")
    assert (await desk.tasks.get(waiting.id)).status == "pending"
    large = await http.post(f"{base}/sessions/{key}/messages", json={"text": "x" * 3_000_000})
    assert large.status_code == 413
    foreign = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    refused = await http.post(f"{base}/sessions/{key}/messages", json={"text": "x"}, headers=foreign)
    assert refused.status_code == 403
    assert (await http.get(f"{base}/me", headers={"host": "evil.example"})).status_code == 400


# -- uploads -----------------------------------------------------------------------------------------------------------


async def test_uploads_are_stored(agent_api: AgentApi) -> None:
    http = agent_api.http
    reply = await http.post("/upload", files={"file": ("../../../evil.txt", b"content", "text/plain")})
    assert reply.status_code == 200, reply.text
    assert (list(reply.json()), reply.json()["ok"]) == (["$schema", "ok", "filePath"], True)
    path = Path(reply.json()["filePath"])
    assert path.read_bytes() == b"content"
    assert (path.name, path.parent.name) == ("evil.txt", "ed7002b439e9ac84")
    assert path.parent.parent.name.startswith("midwatch-uploads-")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    again = await http.post("/upload", files={"file": ("evil.txt", b"content")})
    assert again.json()["filePath"] == str(path)
    most = await http.post("/upload", files={"file": ("big", b"x" * (10 << 20))})
    assert most.status_code == 200
    for size in ((10 << 20) + 1, (10 << 20) + (1 << 17), 20 << 20):
        reply = await http.post("/upload", files={"file": ("big", b"x" * size)})
        assert (reply.status_code, reply.json()["detail"]) == (400, "file size exceeds 10MB limit"), size
    reply = await http.post("/upload", files={"other": ("a", b"x")})
    assert (reply.status_code, reply.json()["errors"]) == (422, [{"message": "File required", "location": "file"}])
    reply = await http.post("/upload", json={})
    assert reply.json()["errors"][0]["location"] == "body"


async def test_uploads_are_removed_with_the_server(tmp_path: Path) -> None:
    async with serve_agent(tmp_path) as agent_api:
        reply = await agent_api.http.post("/upload", files={"file": ("a", b"x")})
        path = Path(reply.json()["filePath"])
        assert path.exists()
    assert not path.parent.parent.exists()


# -- hosts and origins -------------------------------------------------------------------------------------------------


async def test_only_allowed_hosts_are_served(agent_api: AgentApi) -> None:
    for host in ("localhost", "LOCALHOST:99", "[::1]:1", "127.0.0.1"):
        assert (await agent_api.http.get("/status", headers={"host": host})).status_code == 200
    reply = await agent_api.http.get("/status", headers={"host": "evil.com"})
    assert (reply.status_code, reply.text) == (
        400, "Invalid host header. Allowed hosts: localhost, 127.0.0.1, ::1\n"
    )  # fmt: skip
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert "vary" not in reply.headers
    far = await agent_api.http.get("/status", headers={"host": "localhost.example:80"})
    assert far.status_code == 400


async def test_schema_links_of_another_host_use_https(tmp_path: Path) -> None:
    async with serve_agent(tmp_path, make_rules(("*",))) as agent_api:
        reply = await agent_api.http.get("/status", headers={"host": "a.example"})
        assert reply.json()["$schema"] == "https://a.example/schemas/StatusResponseBody.json"


async def test_only_allowed_origins_are_served(agent_api: AgentApi) -> None:
    http, allowed_origin, foreign_origin = (
        agent_api.http,
        {"origin": "http://localhost:3000"},
        {"origin": "https://evil.com"},
    )
    reply = await http.get("/status", headers=allowed_origin)
    assert reply.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert reply.headers["access-control-allow-credentials"] == "true"
    assert reply.headers["access-control-expose-headers"] == "Link"
    own_origin = {"origin": agent_api.url}
    assert (await http.get("/status", headers=own_origin)).status_code == 200
    for path in ("/status", "/messages", "/events", "/", "/chat", "/chat/embed", "/chat/api/v1/me", "/openapi.json"):
        reply = await http.get(path, headers=foreign_origin)
        assert (reply.status_code, "--allowed-origins" in reply.text) == (403, True), path
        assert not [name for name in reply.headers if name.startswith("access-control")]
        assert (await http.get(path, headers={"origin": "null"})).status_code == 403
    preflight = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type, authorization",
    }
    reply = await http.options("/message", headers={**allowed_origin, **preflight})
    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["access-control-allow-methods"] == "POST"
    assert reply.headers["access-control-allow-headers"] == "Content-Type, Authorization"
    assert reply.headers["access-control-max-age"] == "300"
    assert reply.headers.get_list("vary") == [
        "Origin",
        "Access-Control-Request-Method",
        "Access-Control-Request-Headers",
    ]
    reply = await http.options("/message", headers={**foreign_origin, **preflight})
    assert reply.status_code == 403
    assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_a_page_of_another_site_cannot_send_messages(agent_api: AgentApi) -> None:
    await agent_api.wait_until_stable()
    body = b'{"content":"x","type":"user"}'
    for site in ("cross-site", "same-site"):
        headers = {"origin": "https://evil.com", "sec-fetch-site": site}
        assert (
            await agent_api.http.post("/message", content=body, headers={"sec-fetch-site": site})
        ).status_code == 403
        assert (await agent_api.http.post("/message", content=body, headers=headers)).status_code == 403
    own = {"origin": "https://proxied.example", "sec-fetch-site": "same-origin"}
    assert (await agent_api.http.post("/message", content=body, headers=own)).status_code == 200


async def test_a_wildcard_allows_every_origin(tmp_path: Path) -> None:
    async with serve_agent(tmp_path, make_rules(origins=("*",))) as agent_api:
        reply = await agent_api.http.get("/status", headers={"origin": "https://any.example"})
        assert reply.headers["access-control-allow-origin"] == "*"
        assert reply.headers["access-control-allow-credentials"] == "true"


# -- routes of each session of a server --------------------------------------------------------------------------------


async def test_every_session_of_a_server_has_the_agentapi_routes(home: Path) -> None:
    echo = build("echo", "terminal", PROGRAM)
    async with serve_agents(home, {"echo": echo, "scripted": ScriptedAgent(result("pong"))}) as served:
        for key, agent in (("chat:a/b", "echo"), ("chat:two", "scripted")):
            await served.post("/sessions", {"key": key, "agent": agent})
        http, token = served.http, dict(served.http.headers)["authorization"]
        base = f"{served.url}/sessions/chat%3Aa%2Fb/agentapi"
        status = (await http.get(f"{base}/status")).json()
        assert status["$schema"].endswith("/sessions/chat%3Aa%2Fb/agentapi/schemas/StatusResponseBody.json")
        assert (status["status"], status["transport"]) == ("stable", "pty")
        reply = await http.post(f"{base}/message", json={"content": "hello", "type": "user"})
        assert reply.status_code == 200, reply.text
        async with asyncio.timeout(60):
            while (await http.get(f"{base}/status")).json()["status"] != "stable":
                await asyncio.sleep(0.01)
        messages = (await http.get(f"{base}/messages")).json()["messages"]
        assert [(message["id"], message["role"], message["content"]) for message in messages] == [
            (0, "agent", ""), (1, "user", "hello"), (2, "agent", "you said hello")
        ]  # fmt: skip
        reply = await http.post(f"{base}/upload", files={"file": ("a.bin", b"x" * (3 << 20))})
        assert Path(reply.json()["filePath"]).stat().st_size == 3 << 20
        assert (await http.get(f"{base}/")).headers["location"] == "/sessions/chat%3Aa%2Fb/agentapi/chat/embed"
        assert (await http.get(f"{base}/chat/embed")).headers["x-frame-options"] == "DENY"
        nobody = await http.get(f"{served.url}/sessions/chat:nobody/agentapi/status")
        assert nobody.status_code == 404
        other_url = f"{served.url}/sessions/chat:two/agentapi"
        assert (await http.get(f"{other_url}/messages")).json()["messages"] == []
        assert (await http.post(f"{other_url}/message", json={"content": "x", "type": "raw"})).status_code == 409
        assert (await http.post(f"{other_url}/message", json={"content": "ping", "type": "user"})).status_code == 200
        async with asyncio.timeout(60):
            while (await http.get(f"{other_url}/status")).json()["status"] != "stable":
                await asyncio.sleep(0.01)
        async with asyncio.timeout(60), aclosing(watch(http, f"{other_url}/events")) as stream:
            events = [(frame.event, frame.data) for frame in [await anext(stream), await anext(stream)]]
        assert [data["message"] for _, data in events if "message" in data] == ["ping", "pong"]
        await check_roles(served, base, token)


async def test_a_message_replaces_one_that_waits_for_a_usage_limit(home: Path) -> None:
    end = (int(time.time()) + 3600) * SECOND

    async def act(turn: Any) -> str:
        if turn.prompt == "first":
            await turn.emit(MessageDelta(message_id="part", offset=0, text="You've hit"))
            raise UsageLimit("You've hit your limit.", resets_at=end)
        return "pong"

    async with serve_agents(home, {"scripted": ScriptedAgent(act)}) as served:
        await served.post("/sessions", {"key": "chat:1"})
        http, base = served.http, f"{served.url}/sessions/chat:1/agentapi"

        async def exchange(text: str) -> list[str]:
            reply = await http.post(f"{base}/message", json={"content": text, "type": "user"})
            assert reply.status_code == 200, reply.text
            async with asyncio.timeout(60):
                while (await http.get(f"{base}/status")).json()["status"] != "stable":
                    await asyncio.sleep(0.01)
            return [message["content"] for message in (await http.get(f"{base}/messages")).json()["messages"]]

        (first, limit) = await exchange("first")
        (parked,) = (await served.get("/tasks"))["tasks"]
        assert limit == (
            "[usage limit: You've hit your limit] Your message is sent again at "
            f"{parked['due_at']}, unless you send another one before."
        )
        assert await exchange("second") == [first, limit, "second", "pong"]
        tasks = (await served.get("/tasks"))["tasks"]
        assert sorted(task["status"] for task in tasks) == ["cancelled", "done"]


async def test_the_conversation_is_unchanged_after_a_restart(home: Path) -> None:
    path = "/sessions/chat:1/agentapi"
    messages: list[Any] = []
    for text in ("one", "two"):
        async with serve_agents(home, {"echo": build("echo", "terminal", PROGRAM)}) as served:
            await served.post("/sessions", {"key": "chat:1"})
            http = served.http
            reply = await http.post(f"{served.url}{path}/message", json={"content": text, "type": "user"})
            assert reply.status_code == 200, reply.text
            async with asyncio.timeout(60):
                while (await http.get(f"{served.url}{path}/status")).json()["status"] != "stable":
                    await asyncio.sleep(0.01)
            messages = (await http.get(f"{served.url}{path}/messages")).json()["messages"]
    assert [(message["id"], message["content"]) for message in messages] == [
        (0, ""), (1, "one"), (2, "you said one"), (3, "two"), (4, "you said two")
    ]  # fmt: skip


async def check_roles(served: Any, base: str, token: str) -> None:
    """Check the permissions of each role."""
    async with httpx2.AsyncClient(trust_env=False, timeout=30.0) as nobody:
        for path in ("status", "messages", "events", "internal/screen", "chat/embed", "openapi.json", ""):
            reply = await nobody.get(f"{base}/{path}")
            assert (reply.status_code, reply.json()["code"]) == (401, "unauthorized"), path
        assert (await nobody.post(f"{base}/message", json={"content": "x", "type": "user"})).status_code == 401
        assert (await nobody.post(f"{base}/upload", files={"file": ("a", b"x")})).status_code == 401
    async with served.as_role("viewer") as viewer:
        assert (await viewer.get(f"{base}/messages")).status_code == 200
        assert (await viewer.post(f"{base}/message", json={"content": "x", "type": "user"})).status_code == 403
        assert (await viewer.post(f"{base}/upload", files={"file": ("a", b"x")})).status_code == 403
    async with served.as_role("operator") as operator:
        assert (await operator.get(f"{base}/messages")).status_code == 200
        for content in ("user", "raw"):
            reply = await operator.post(f"{base}/message", json={"content": "x", "type": content})
            assert (reply.status_code, "so only owners may do it" in reply.text) == (403, True), reply.text
        assert (await operator.post(f"{base}/upload", files={"file": ("a", b"x")})).status_code == 403
    evil = {"authorization": token, "origin": "https://evil.com"}
    async with httpx2.AsyncClient(trust_env=False, timeout=30.0) as http:
        assert (await http.get(f"{base}/status", headers=evil)).status_code == 403
