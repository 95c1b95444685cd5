"""A real server on a loopback port with a runtime in this process, whose agents a test controls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2
from fastapi import FastAPI

from midwatch.api.app import create_app
from midwatch.api.server import Server, listen, local_url
from midwatch.api.sse import Streams
from midwatch.desk.build import Registered
from midwatch.desk.config import Settings
from midwatch.domain.channel import Channel
from midwatch.runtime.runtime import Runtime


@dataclass
class Served:
    """A runtime with its server, and a client with the owner's token."""

    runtime: Runtime
    url: str
    http: httpx2.AsyncClient
    streams: Streams
    stopping: asyncio.Event

    async def get(self, path: str, /, **query: Any) -> Any:
        """Return the JSON of a GET request that must succeed."""
        reply = await self.http.get(path, params=query, headers={"accept": "application/json"})
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def post(self, path: str, body: Any = None, **headers: str) -> Any:
        """Return the JSON of a POST request that must succeed."""
        reply = await self.http.post(path, json=body, headers=headers)
        assert reply.is_success, reply.text
        return reply.json()

    async def wait_for_end(self, task_id: str) -> Any:
        """Return the task once it has ended."""
        await self.runtime.tasks.wait(task_id)
        return await self.get(f"/tasks/{task_id}")

    async def until(self, kind: str, **about: Any) -> None:
        """Return once the log has an event of the kind and values."""
        async for event in self.runtime.bus.follow(0):
            if event.kind == kind and all(getattr(event, name) == value for name, value in about.items()):
                return

    async def read_log(self, **query: Any) -> list[Any]:
        """Return all stored events of a filter."""
        events: list[Any] = []
        while page := (await self.get("/events", after=events[-1]["seq"] if events else 0, **query))["events"]:
            events += page
        return events

    @asynccontextmanager
    async def as_role(self, role: str) -> AsyncIterator[httpx2.AsyncClient]:
        """Yield a client with another role."""
        secret = (await self.post("/tokens", {"name": role, "role": role}))["secret"]
        async with client(self.url, secret) as http:
            yield http


def client(url: str, token: str) -> httpx2.AsyncClient:
    """Return a client with a token."""
    return httpx2.AsyncClient(
        base_url=f"{url}/api/v1", headers={"authorization": f"Bearer {token}"}, trust_env=False, timeout=30.0
    )


class Endpoint(NamedTuple):
    """The address and the app of a server, and the event that stops it."""

    url: str
    app: FastAPI
    stopping: asyncio.Event


@asynccontextmanager
async def serve_runtime(desk: Runtime) -> AsyncIterator[Endpoint]:
    """Serve a desk on a loopback port."""
    with listen("127.0.0.1", 0) as listener:
        app, ready, stopping = create_app(desk), asyncio.Event(), asyncio.Event()
        server = asyncio.create_task(Server(app, stopping, ready.set).serve([listener]))
        await ready.wait()
        yield Endpoint(local_url("127.0.0.1", listener), app, stopping)
        stopping.set()
        await server


@asynccontextmanager
async def serve_agents(
    home: Path, agents: Mapping[str, Registered], channels: Mapping[str, Channel] | None = None, /, **settings: Any
) -> AsyncIterator[Served]:
    """Serve these agents; the first one is the default."""
    values = {"detect_agents": False, "default_agent": next(iter(agents)), "shutdown_grace": 0, **settings}
    loaded = Settings.load(home, **values)
    async with (
        Runtime.open(home, settings=loaded, agents=agents, channels=channels, role="up") as runtime,
        serve_runtime(runtime) as (url, app, stopping),
        client(url, runtime.home.token()) as http,
    ):
        yield Served(runtime, url, http, app.state.streams, stopping)


class Frame(NamedTuple):
    """One server-sent event."""

    id: int | None
    event: str
    data: Any


async def watch(http: httpx2.AsyncClient, path: str, **headers: str) -> AsyncGenerator[Frame, None]:
    """Yield the frames of a stream without comments."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.stream("GET", path, headers=named, timeout=60.0) as reply:
        assert reply.status_code == 200, await reply.aread()
        assert reply.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        async for line in reply.aiter_lines():
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
            elif "data" in fields:
                number = int(fields["id"]) if "id" in fields else None
                yield Frame(number, fields["event"], json.loads(fields["data"]))
                fields = {}
            else:
                fields = {}


def path_of(key: str, part: str = "") -> str:
    """Return the path of a session."""
    return f"/sessions/{quote(key, safe='')}{part}"
