"""A person at the console: a real server with agents that a test controls, and a real browser."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import sys
import termios
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from playwright.async_api import Browser, BrowserContext, Page, Playwright, Request, expect

from servers import Server

PATIENCE = 30_000
"""Milliseconds to wait for an expected change: the machine may be busy."""
expect.set_options(timeout=PATIENCE)
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
FLAGS = (
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
LOST = (
    r"net::ERR_(CONNECTION_REFUSED|CONNECTION_RESET|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE"
    r"|SOCKET_NOT_CONNECTED|INTERNET_DISCONNECTED)"
)
"""Messages of the browser itself on its console when the server stops."""
LAG = int(os.environ.get("MIDWATCH_TEST_LAG", "0"))
"""The maximum random delay in milliseconds of each request and each response."""
QUICK = pytest.mark.skipif(LAG > 0, reason="it measures how quick something is, and the network is made slow")
"""For tests that only measure speed."""
PATIENT = pytest.mark.timeout(600 * (1 + LAG / 1000))
"""For tests that open very many pages."""
SLOW_NETWORK = """(() => {
  const quick = window.fetch;
  const nap = () => new Promise((go) => setTimeout(go, Math.random() ** 2 * LAG));
  window.fetch = async (...asked) => {
    await nap();
    const reply = await quick(...asked);
    await nap();
    return reply;
  };
})();"""
AGENTS = """
detect_agents = false
shutdown_grace = 0

[agents.echo]
kind = "command"
argv = ["cat"]
description = "says what it is told"

[agents.pipe]
kind = "command"
argv = ["cat", "{prompt}"]
on_crash = "rerun"
description = "writes what comes out of a pipe"

[agents.shell]
kind = "command"
argv = ["sh", "-c", "{prompt}"]
description = "does what it is told in a shell"

[agents.coder]
kind = "coder:Coder"
description = "thinks, plans, changes files and asks"

[agents.screen]
kind = "function"
target = "screen_agent:run"
path = "HOME"
description = "draws, warns and asks"
"""
SCREEN_AGENT = """
from midwatch.domain.event import AgentFault, ScreenUpdate

def run(prompt, turn):
    turn.ask("Shall I draw?")
    turn.emit(ScreenUpdate(screen="first picture"))
    turn.emit(AgentFault(message="the disk is nearly full", level="warning"))
    turn.emit(ScreenUpdate(screen="second picture"))
    turn.ask("Go on?")
    return "drawn"
"""


def program() -> str | None:
    """Return the path of the browser: $MIDWATCH_CHROMIUM, or Debian's. The headless one takes a third less time."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    return os.environ.get("MIDWATCH_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


async def slow_down(context: BrowserContext) -> BrowserContext:
    """Add the slow network if it is configured."""
    if LAG:
        await context.add_init_script(SLOW_NETWORK.replace("LAG", str(LAG)))
    return context


async def launch(playwright: Playwright, path: str) -> Browser:
    """Start the browser. Root cannot use its sandbox."""
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    return await playwright.chromium.launch(executable_path=path, args=[*FLAGS, *root])


class Pipe:
    """The output of the agent `pipe`, piece by piece."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._end = os.open(path, os.O_RDWR)

    def write(self, text: str) -> None:
        os.write(self._end, text.encode())

    async def read(self) -> None:
        """Wait until the agent has read all written text."""
        async with asyncio.timeout(60):
            while int.from_bytes(fcntl.ioctl(self._end, termios.FIONREAD, bytes(4)), sys.byteorder):
                await asyncio.sleep(0.02)

    def close(self) -> None:
        """End the output; the agent must have started to read."""
        if self._end >= 0:
            os.close(self._end)
            self._end = -1


class Desk:
    """One server, and browsers that are signed in to it."""

    def __init__(self, server: Server, browser: Browser, folder: Path) -> None:
        self.server = server
        self.browser = browser
        self.requests: list[Request] = []
        self._folder = folder
        self._problems: list[str] = []
        self._expected: list[str] = []
        self._contexts: list[BrowserContext] = []
        self._pipes: list[Pipe] = []
        # connections are not reused, so that the server may be killed and started again
        self._client = httpx2.AsyncClient(
            trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0), timeout=60
        )

    # -- browsers ------------------------------------------------------------------------------------------------

    async def context(self, **options: Any) -> BrowserContext:
        """Return a new browser context without a sign-in, whose errors and warnings are collected."""
        context = await self.browser.new_context(
            **{"viewport": DESKTOP, "base_url": self.server.url, "reduced_motion": "no-preference", **options}
        )
        context.set_default_timeout(PATIENCE)
        await slow_down(context)
        context.on("request", lambda request: self.requests.append(request))
        context.on(
            "console", lambda message: message.type in ("error", "warning") and self._problems.append(message.text)
        )
        context.on("weberror", lambda web_error: self._problems.append(f"not caught: {web_error.error}"))
        self._contexts.append(context)
        return context

    async def open(self, path: str = "/", role: str = "owner", **options: Any) -> Page:
        """Open a page in a new browser context with a one-time link, and wait for its stream."""
        page = await (await self.context(**options)).new_page()
        await page.goto((await self.link(role)).replace("#", f"?next={quote(path, safe='')}#"))
        await wait_for_stream(page)
        return page

    async def tab(self, context: BrowserContext, path: str = "/") -> Page:
        """Open another page of the same browser context."""
        page = await context.new_page()
        await page.goto(path)
        await wait_for_stream(page)
        return page

    async def link(self, role: str = "owner") -> str:
        """Return an address that signs in once."""
        if role == "owner":
            return str((await self.post("/links"))["url"])
        token = await self.post("/tokens", {"name": f"{role}-{time.monotonic_ns()}", "role": role, "actor": role})
        return str((await self.post("/links", bearer=token["secret"]))["url"])

    async def wait_until_silent(self) -> int:
        """Wait until no page sends requests, and return the number of requests so far."""
        count, checks = -1, 0
        while checks < 5:  # one check alone might fall into a moment in which the busy machine did nothing
            checks = checks + 1 if count == len(self.requests) else 0
            count = len(self.requests)
            await asyncio.sleep(0.5 + 2 * LAG / 5000)  # only time shows that no request comes
        return count

    # -- the server ----------------------------------------------------------------------------------------------

    async def post(self, path: str, body: Any = None, bearer: str | None = None) -> Any:
        """Send a request as the owner, without the browser."""
        token = bearer or (self.server.home / "token").read_text().strip()
        return await self._ask("POST", path, token, {} if body is None else body)

    async def get(self, path: str) -> Any:
        return await self._ask("GET", path, (self.server.home / "token").read_text().strip(), None)

    async def _ask(self, method: str, path: str, token: str, body: Any) -> Any:
        headers = {"accept": "application/json", "authorization": f"Bearer {token}"}
        reply = await self._client.request(method, f"{self.server.url}/api/v1{path}", json=body, headers=headers)
        assert reply.is_success, reply.text
        return reply.json()

    async def submit(self, prompt: str, agent: str = "demo", **more: Any) -> str:
        """Submit a task and return its id."""
        return str((await self.post("/tasks", {"prompt": prompt, "agent": agent, **more}))["id"])

    async def wait_for_end(self, task: str, seconds: float = 60.0) -> Any:
        """Return the task once it has ended."""
        return await self.until(f"/tasks/{task}", lambda t: t["status"] in ("done", "failed", "cancelled"), seconds)

    async def until(self, path: str, accepts: Any, seconds: float = 60.0) -> Any:
        """Return the content of the path once `accepts` returns true for it."""
        deadline = time.monotonic() + seconds
        while True:
            content = await self.get(path)
            if accepts(content):
                return content
            assert time.monotonic() < deadline, content
            await asyncio.sleep(0.05)

    async def last_seq(self) -> int:
        """Return the seq of the newest event."""
        return int((await self.get("/events?before=9007199254740991&limit=1"))["events"][0]["seq"])

    def pipe(self) -> Pipe:
        """Return a pipe for the agent `pipe`, whose prompt is the pipe's path."""
        pipe = Pipe(self._folder / f"pipe{len(self._pipes)}")
        self._pipes.append(pipe)
        return pipe

    # -- checks of every test ------------------------------------------------------------------------------------

    def expect_problem(self, pattern: str) -> None:
        """Allow a message on the browser's console."""
        self._expected.append(pattern)

    def check(self) -> None:
        """Check that no other host was contacted and the browser reported no errors."""
        elsewhere = [r.url for r in self.requests if not r.url.startswith((self.server.url + "/", "data:", "blob:"))]
        assert not elsewhere, elsewhere
        problems = [text for text in self._problems if not any(re.search(pattern, text) for pattern in self._expected)]
        assert not problems, problems

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()
        for pipe in self._pipes:
            pipe.close()
        await self._client.aclose()


async def wait_for_stream(page: Page) -> None:
    """Wait until the page's stream is connected."""
    await expect(page.locator("#link-state")).to_have_attribute("data-state", "live", timeout=2 * PATIENCE)


async def wait_for_log(desk: Desk, page: Page) -> list[int]:
    """Return the seqs of the log on the page once it ends with the newest event."""
    async with asyncio.timeout(60):
        while True:
            seqs = [int(text) for text in await page.locator(".log-seq").all_inner_texts()]
            if seqs and seqs[-1] == await desk.last_seq():
                return seqs
            await asyncio.sleep(0.05)


def session_path(key: str) -> str:
    """Return the address of a session's page."""
    return f"/sessions/{quote(key, safe='')}"


async def press_together(page: Page, keys: str) -> None:
    """Press keys of one shortcut without waiting in between, so that a busy machine does not separate them."""
    await asyncio.gather(*(page.keyboard.press(key) for key in keys))


async def count_text(page: Page, text: str) -> int:
    """Return how often a text appears in the visible content of the page."""
    shown: str = await page.locator("main").inner_text()
    return shown.count(text)
