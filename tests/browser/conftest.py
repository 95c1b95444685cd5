"""Fixtures of browser tests. Each worker process has one browser. A test has its own server, or with
`usefixtures("shared")` a server that earlier tests used: then it checks only its own records, and need not wait for a
server to start and pages to load.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from browsing import AGENTS, DESKTOP, PHONE, SCREEN_AGENT, Desk, launch, program, wait_for_stream
from servers import Server

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "build" / "screenshots"
STRUCTURE, CONTRAST = (HERE / "structure.js").read_text(), (HERE / "contrast.js").read_text()
WIDTHS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": DESKTOP},
    "phone": {"viewport": PHONE, "has_touch": True, "device_scale_factor": 2},
}
NAVIGATE = """async (path) => {
  const { go } = await import("/web/app.js");
  for (const node of document.querySelector("main").children) node.classList.add("left");
  go(path);
}"""
MISSING = "chromium is not installed: run tests/install-services as root, or set MIDWATCH_CHROMIUM to its path"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Yield a headless browser. Without one, its tests are skipped, and in CI they fail."""
    path = program()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    async with async_playwright() as playwright:
        started = await launch(playwright, path)
        yield started
        await started.close()


@dataclass(frozen=True)
class Shared:
    """A server that several tests use one after the other, and a browser that is signed in to it."""

    server: Server
    context: BrowserContext


class Console(Desk):
    """A desk whose pages open without a sign-in link; other tests cover the links."""

    shared: Shared | None = None

    async def open(self, path: str = "/", role: str = "owner", **options: Any) -> Page:
        """Open a page in the shared browser, or in a browser of its own for another role or other options."""
        if self.shared and role == "owner" and not options:
            return await self.tab(self.shared.context, path)
        context = await self.context(**options)
        await self.sign_in(context, role)
        return await self.tab(context, path)

    async def sign_in(self, context: BrowserContext, role: str = "owner") -> None:
        """Sign a browser in."""
        if role == "owner":
            secret = (self.server.home / "token").read_text().strip()
        else:
            name = f"{role}-{time.monotonic_ns()}"
            secret = (await self.post("/tokens", {"name": name, "role": role, "actor": role}))["secret"]
        reply = await context.request.post("/api/v1/sign-in", data={"token": secret})
        assert reply.ok, await reply.text()

    def share(self, shared: Shared) -> None:
        """Use a shared browser; from now on its requests and console messages count for this test."""
        self.shared = shared
        self._listeners = {
            "request": lambda request: self.requests.append(request),
            "console": lambda message: message.type in ("error", "warning") and self._problems.append(message.text),
            "weberror": lambda web_error: self._problems.append(f"not caught: {web_error.error}"),
        }
        for name, hear in self._listeners.items():
            shared.context.on(name, hear)  # type: ignore[call-overload]

    async def reset(self) -> None:
        """Close the pages and cancel all tasks, so that the next test finds nothing running."""
        assert self.shared is not None
        for name, hear in self._listeners.items():
            self.shared.context.remove_listener(name, hear)
        for page in self.shared.context.pages:
            await page.close()
        going = "/tasks?status=running&status=pending&limit=200"
        while tasks := (await self.get(going))["tasks"]:
            await asyncio.gather(*(self.post(f"/tasks/{task['id']}/cancel") for task in tasks))
            await asyncio.gather(*(self.wait_for_end(task["id"]) for task in tasks))


@pytest.fixture(scope="module")
def settings() -> str:
    """Return the content of `midwatch.toml`; modules may have their own."""
    return AGENTS


@pytest.fixture
def shared() -> None:
    """Request a server and a browser that other tests have used."""


def server_at(folder: Path, settings: str) -> Server:
    """Return a server that has not started, with its home in the folder."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    (home / "midwatch.toml").write_text(settings.replace("HOME", str(home)))
    (home / "screen_agent.py").write_text(SCREEN_AGENT)
    places = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return Server(home, PYTHONPATH=places)  # where the agents of coder.py are found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def get_shared(browser: Browser) -> AsyncIterator[Callable[[str], Awaitable[Shared]]]:
    """Return a function that returns the shared server for the settings, and starts it at its first use."""
    cache: dict[str, Shared] = {}
    async with AsyncExitStack() as stack:

        async def share(settings: str) -> Shared:
            if settings not in cache:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="shared-")))
                server = server_at(folder, settings)
                await server.start()
                stack.push_async_callback(server.stop)
                maker = Console(server, browser, folder)
                stack.push_async_callback(maker.close)
                context = await maker.context(reduced_motion="reduce")
                await maker.sign_in(context)
                cache[settings] = Shared(server, context)
            return cache[settings]

        yield share


@pytest_asyncio.fixture(loop_scope="session")
async def desk(
    request: pytest.FixtureRequest,
    browser: Browser,
    settings: str,
    tmp_path: Path,
    get_shared: Callable[[str], Awaitable[Shared]],
) -> AsyncIterator[Desk]:
    """Yield a server and a browser; the test fails if the browser's console has errors or warnings."""
    common = await get_shared(settings) if "shared" in request.fixturenames else None
    server = common.server if common else server_at(tmp_path, settings)
    console = Console(server, browser, tmp_path)
    try:
        if common:
            console.share(common)
        else:
            await server.start()
        yield console
        console.check()
    finally:
        if common:
            await console.reset()
        await console.close()
        if not common:
            await server.stop()


@pytest.fixture
def faults() -> Callable[..., Awaitable[list[str]]]:
    """Return a function that lists the visual faults of a page; `light` and `dark` are names of screenshots in that
    colour scheme.
    """
    PICTURES.mkdir(parents=True, exist_ok=True)

    async def find(page: Page, full: bool = False, **pictures: str) -> list[str]:
        wrong = []
        for light, picture in pictures.items():
            await page.emulate_media(color_scheme=light)  # type: ignore[arg-type]
            await page.screenshot(path=PICTURES / f"{picture}.png", full_page=full, animations="disabled")
            problems = [*await page.evaluate(STRUCTURE), *await page.evaluate(CONTRAST)]
            wrong += [f"{light}: {problem}" for problem in problems]
        return wrong

    return find


async def wait_for_data(page: Page, title: str) -> None:
    """Wait until the page has its data."""
    await wait_for_stream(page)
    await expect(page.locator("main h1")).to_be_visible()
    await expect(page.locator("main .skeleton")).to_have_count(0)


@pytest.fixture
def look(desk: Desk, faults: Callable[..., Awaitable[list[str]]]) -> Callable[..., Awaitable[None]]:
    """Return a function that opens pages in light mode, dark mode and at phone width, checks each, and takes
    screenshots.
    """

    async def go(
        pages: dict[str, str], name: str, ready: Callable[[Page, str], Awaitable[None]] = wait_for_data
    ) -> None:
        wrong = {}
        for width, options in WIDTHS.items():
            page = None
            for title, path in pages.items():
                if page:
                    await page.evaluate(NAVIGATE, path)  # as people do, and much faster than a new load
                    await expect(page.locator("main > .left")).to_have_count(0)
                else:
                    page = await desk.open(path, **options)
                await ready(page, title)
                lights = {"light": "phone"} if width == "phone" else {"light": "light", "dark": "dark"}
                pictures = {light: f"{title}-{name}-{kind}" for light, kind in lights.items()}
                wrong[title, width] = await faults(page, full=width == "phone", **pictures)
        assert not any(wrong.values()), wrong

    return go
