"""How a command reaches midwatch: the live server over HTTP, or else the store, through the same interface."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from midwatch.base.errors import BadConfig, HomeUnusable, MidwatchError, NotRunning

if TYPE_CHECKING:
    from midwatch.base.home import Home, ServerInfo
    from midwatch.client import Client, Which
    from midwatch.desk.config import Settings
    from midwatch.runtime.runtime import Runtime
    from midwatch.wire.events import EventInfo

T = TypeVar("T")

HEALTH_SECONDS = 3.0
PATIENCE_SECONDS = 30.0
"""How long a follower waits for a server that went away."""


class Desk:
    """What a command works with. `server` is that of this home, `runtime` the store that was opened for want of one."""

    def __init__(self, client: Client, home: Home, server: ServerInfo | None, runtime: Runtime | None) -> None:
        self.client = client
        self.home = home
        self.server = server
        self.runtime = runtime

    async def served(self) -> bool:
        """Whether some process takes tasks: the server of this home, or on a shared database any other."""
        if self.runtime is None:
            return True
        return any(one.role != "run" for one in await self.runtime.living())

    async def follow(
        self, after: int, *, live: bool = False, **which: Unpack[Which]
    ) -> AsyncGenerator[EventInfo, None]:
        """Events as they come, for ever."""
        if self.runtime is None:
            async with aclosing(self.client.follow(after, live=live, patience=PATIENCE_SECONDS, **which)) as told:
                async for one in told:
                    yield one
            return
        from midwatch.domain.event import EventFilter

        wanted = EventFilter(
            kinds=tuple(which.get("kinds", ())), task_id=which.get("task_id"), turn_id=which.get("turn_id"),
            session_key=which.get("session_key"), agent_id=which.get("agent"), actor=which.get("actor"),
        )  # fmt: skip
        async for event in self.runtime.bus.follow(after, wanted, live=live):
            yield event.snapshot()  # type: ignore[misc]  # a snapshot is what EventInfo describes


def home_path() -> Path:
    """Where midwatch keeps everything."""
    return Path(os.environ.get("MIDWATCH_HOME") or "~/.midwatch").expanduser().absolute()


def settings(**overrides: object) -> Settings:
    """The settings of this home; what was said on the command line wins."""
    from midwatch.desk.config import Settings

    return Settings.load(home_path(), **{name: value for name, value in overrides.items() if value is not None})


def live_server() -> ServerInfo | None:
    """The server of this home, if one lives."""
    from midwatch.base.home import Home

    place = Home(home_path())
    try:
        return place.server()
    except OSError as problem:
        raise HomeUnusable(
            f"the home directory {place.path} cannot be used: {problem.strerror}. "
            "Make it writable, or choose another with MIDWATCH_HOME."
        ) from None


def elsewhere() -> tuple[str, str] | None:
    """Address and token of another server that commands are to speak to, if both are set in the environment."""
    url, token = os.environ.get("MIDWATCH_URL"), os.environ.get("MIDWATCH_TOKEN")
    if not url or not token:
        return None
    if not re.fullmatch(r"https?://[^\s/?#]+/?", url):
        raise BadConfig(f"MIDWATCH_URL is {url!r}; write it as https://host or http://host:port.")
    return url.rstrip("/"), token.strip()


def own_token() -> str | None:
    """The token of an attempt, in the environment of its agent: commands that it runs may do what the agent may."""
    return os.environ.get("MIDWATCH_TOKEN") if os.environ.get("MIDWATCH_TASK") else None


@asynccontextmanager
async def connect(*, work: bool = False) -> AsyncIterator[Desk]:
    """The live server, or the store. With `work` and no server, this process runs what it submits."""
    from midwatch.base.home import Home
    from midwatch.client import Client

    home = Home(home_path())
    if there := elsewhere():
        async with Client(*there) as client:
            yield Desk(client, home, None, None)
        return
    server = live_server()
    if server is not None:
        async with Client.for_home(home.path, own_token()) as client:
            if await answers(client):
                yield Desk(client, home, server, None)
                return
    async with opened("run" if work else "library", work=work) as desk:
        yield desk


async def answers(client: Client) -> bool:
    """Whether the server really takes requests: it may be about to stop, or be suspended."""
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            await client.health()
    except (NotRunning, TimeoutError):
        return False
    return True


async def check_same_database(wanted: Settings) -> None:
    """BadConfig when the live server of this home keeps its data elsewhere than the settings say."""
    from midwatch.client import Client

    try:
        async with Client.for_home(wanted.home) as client:
            if not await answers(client):
                return
            store = (await client.cluster())["store"]
    except MidwatchError:
        return  # none runs, it is stopping, or it is of another version: the settings are all there is to go by
    if (store["kind"] == "postgres") != bool(wanted.db):
        raise BadConfig(f"the server of this home uses {store['path']}; say so with the setting db or MIDWATCH_DB.")


@asynccontextmanager
async def opened(role: Literal["run", "library"], *, work: bool) -> AsyncIterator[Desk]:
    """The store of this home, behind the same interface as a server."""
    import httpx2

    from midwatch.api.app import create_app
    from midwatch.client import Client
    from midwatch.runtime.runtime import Runtime

    async with Runtime.open(home_path(), role=role, work=work) as runtime:
        transport = httpx2.ASGITransport(create_app(runtime, hosts=("midwatch",)))
        async with Client("http://midwatch", own_token() or runtime.home.token(), transport=transport) as client:
            yield Desk(client, runtime.home, None, runtime)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end."""
    return asyncio.run(work)
