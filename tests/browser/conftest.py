"""One browser for each worker, a fresh profile and a fresh server for each test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from browsing import AGENTS, SCREEN_AGENT, Desk, launch, program
from servers import Server

MISSING = "chromium is not installed: run tests/install-services as root, or set MIDWATCH_CHROMIUM to its path"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A browser without a window. Where there is none its tests are skipped, and in CI they fail."""
    path = program()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    async with async_playwright() as playwright:
        started = await launch(playwright, path)
        yield started
        await started.close()


@pytest.fixture
def settings() -> str:
    """What is set in `midwatch.toml`; modules may have their own."""
    return AGENTS


@pytest_asyncio.fixture(loop_scope="session")
async def desk(browser: Browser, settings: str, tmp_path: Path) -> AsyncIterator[Desk]:
    """A server and a browser; no test may leave a complaint on the browser's console."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "midwatch.toml").write_text(settings.replace("HOME", str(home)))
    (home / "screen_agent.py").write_text(SCREEN_AGENT)
    places = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    server = Server(home, PYTHONPATH=places)  # where the agents of coder.py are found
    made = Desk(server, browser, tmp_path)
    try:
        await server.start()
        yield made
        made.check()
    finally:
        await made.close()
        await server.stop()
