"""Connect a command to the running server over HTTP. Without a server, open the store with the same interface."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from midwatch.base.directories import expand_user
from midwatch.base.errors import BadConfig, HomeUnusable, MidwatchError, NotRunning

if TYPE_CHECKING:
    from midwatch.base.home import Home, ServerInfo
    from midwatch.client import Client, Which
    from midwatch.desk.config import Settings
    from midwatch.runtime.runtime import Runtime
    from midwatch.wire.events import EventInfo

HEALTH_SECONDS = 3.0
PATIENCE_SECONDS = 30.0
"""If the server stops, a command that follows events waits this many seconds for the server to return."""


class Desk:
    """The connection of a command. `server` is the server of this home; without it, `runtime` has the open store."""

    def __init__(self, client: Client, home: Home, server: ServerInfo | None, runtime: Runtime | None) -> None:
        self.client = client
        self.home = home
        self.server = server
        self.runtime = runtime

    async def has_worker(self) -> bool:
        """Return whether a process runs tasks: the server of this home, or any process on a shared database."""
        if self.runtime is None:
            return True
        return any(instance.role != "run" for instance in await self.runtime.living())

    async def warn_without_worker(self, consequence: str) -> str | None:
        """Return a notice with the `consequence` if no process runs tasks, else None."""
        if await self.has_worker():
            return None
        return f"No server is running, so {consequence}; start one with `midwatch up`."

    async def follow(
        self, after: int, *, live: bool = False, **which: Unpack[Which]
    ) -> AsyncGenerator[EventInfo, None]:
        """Yield the events after the seq `after`, then new events as they happen, without end."""
        if self.runtime is None:
            async with aclosing(self.client.follow(after, live=live, patience=PATIENCE_SECONDS, **which)) as events:
                async for event in events:
                    yield event
            return
        from midwatch.domain.event import EventFilter

        event_filter = EventFilter(
            kinds=tuple(which.get("kinds", ())), task_id=which.get("task_id"), turn_id=which.get("turn_id"),
            session_key=which.get("session_key"), agent_id=which.get("agent"), actor=which.get("actor"),
            tree=which.get("tree"),
        )  # fmt: skip
        async for stored in self.runtime.bus.follow(after, event_filter, live=live):
            yield stored.snapshot()  # type: ignore[misc]  # a snapshot has the fields of EventInfo


def home_path() -> Path:
    """Return the home directory of midwatch."""
    return expand_user(os.environ.get("MIDWATCH_HOME") or "~/.midwatch", "MIDWATCH_HOME").absolute()


def load_settings(**overrides: object) -> Settings:
    """Return the settings of this home. `overrides` are options of the command line that replace settings."""
    from midwatch.desk.config import Settings

    return Settings.load(home_path(), **{name: value for name, value in overrides.items() if value is not None})


def find_server() -> ServerInfo | None:
    """Return the running server of this home, or None."""
    from midwatch.base.home import Home

    home = Home(home_path())
    try:
        return home.server()
    except OSError as problem:
        raise HomeUnusable(
            f"the home directory {home.path} cannot be used: {problem.strerror}. "
            "Make it writable, or choose another directory with MIDWATCH_HOME."
        ) from None


def find_remote_server() -> tuple[str, str] | None:
    """Return the address and token of a remote server, or None if they are not set in the environment."""
    url, token = os.environ.get("MIDWATCH_URL"), os.environ.get("MIDWATCH_TOKEN")
    if not url or not token:
        return None
    port = re.search(r":(\d+)/?$", url)
    if not re.fullmatch(r"https?://[^\s/?#]+/?", url) or (port and int(port[1]) > 65535):
        raise BadConfig(f"MIDWATCH_URL is {url!r}; write it as https://host or http://host:port.")
    return url.rstrip("/"), token.strip()


def find_attempt_token() -> str | None:
    """Return the token of the agent that runs this command, or None. The token limits what the command may do."""
    return os.environ.get("MIDWATCH_TOKEN") if os.environ.get("MIDWATCH_TASK") else None


@asynccontextmanager
async def connect(*, work: bool = False) -> AsyncIterator[Desk]:
    """Connect to the running server, or open the store. In the second case, with `work`, this process runs tasks."""
    from midwatch.base.home import Home
    from midwatch.client import Client

    home = Home(home_path())
    if remote := find_remote_server():
        async with Client(*remote) as client:
            yield Desk(client, home, None, None)
        return
    server = find_server()
    if server is not None:
        async with Client.for_home(home.path, find_attempt_token()) as client:
            if await is_answering(client):
                yield Desk(client, home, server, None)
                return
    async with open_store(work=work) as desk:
        yield desk


async def is_answering(client: Client) -> bool:
    """Return whether the server answers. A server that is stopping or suspended does not answer."""
    import asyncio

    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            await client.health()
    except (NotRunning, TimeoutError):
        return False
    return True


async def check_same_database(settings: Settings) -> None:
    """Raise BadConfig if the running server of this home uses another database than these settings."""
    from midwatch.client import Client

    try:
        async with Client.for_home(settings.home) as client:
            if not await is_answering(client):
                return
            store = (await client.cluster())["store"]
    except MidwatchError:
        return  # no server is running, it is stopping, or it has another version: nothing to compare
    if (store["kind"] == "postgres") != bool(settings.db):
        raise BadConfig(f"the server of this home uses {store['path']}; set `db` or MIDWATCH_DB to this address.")


@asynccontextmanager
async def open_store(*, work: bool) -> AsyncIterator[Desk]:
    """Open the store of this home, and connect to it with the same interface as to a server."""
    from midwatch.api.app import create_app
    from midwatch.cli.in_process import call_app
    from midwatch.client import Client
    from midwatch.runtime.runtime import Runtime

    async with Runtime.open(home_path(), role="run" if work else "library", work=work) as runtime:
        exchange = call_app(create_app(runtime, hosts=("midwatch",)))
        token = find_attempt_token() or runtime.owner_secret
        async with Client("http://midwatch", token, exchange=exchange) as client:
            yield Desk(client, runtime.home, None, runtime)
