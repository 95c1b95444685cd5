"""Test the chat page: the console for one conversation, of a server for one agent and of a desk."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page, Route, expect

from browsing import AGENTS, DESKTOP, PHONE, Desk, session_path, slow_down, wait_for_stream
from standalone import StandaloneServer, start_standalone

pytestmark = pytest.mark.asyncio(loop_scope="session")

Faults = Callable[..., Awaitable[list[str]]]
LISTENER = """
import sys
print("Welcome")
while True:
    said = input("> ")
    print("<b>you said</b>", said)
"""
TALKER = """
[agents.talker]
kind = "terminal"
argv = ['PYTHON', '-c', '''PROGRAM''']
prompt = '^> $'
"""
AGENT = [sys.executable, "-c", LISTENER]


@pytest.fixture(scope="module")
def settings() -> str:
    return AGENTS + TALKER.replace("PYTHON", sys.executable).replace("PROGRAM", LISTENER)


@asynccontextmanager
async def open_chat(
    browser: Browser, folder: Path, *flags: str, behind: str = "", **options: Any
) -> AsyncIterator[tuple[Page, StandaloneServer]]:
    """Start a server for one agent and open its page below the path `behind`. The page sends no other requests and logs
    no errors.
    """
    async with start_standalone(folder, *flags, agent=AGENT) as server:
        await server.wait_until_stable()
        url = str(server.http.base_url).rstrip("/")
        context = await slow_down(await browser.new_context(base_url=url, **{"viewport": DESKTOP, **options}))
        urls: list[str] = []
        problems: list[str] = []
        context.on("request", lambda request: urls.append(request.url))
        context.on("console", lambda message: message.type in ("error", "warning") and problems.append(message.text))
        context.on("weberror", lambda web_error: problems.append(str(web_error.error)))
        if behind:

            async def strip(route: Route) -> None:
                await route.continue_(url=route.request.url.replace(f"{url}{behind}/", f"{url}/", 1))

            await context.route(f"{url}{behind}/**", strip)
        page = await context.new_page()
        try:
            await page.goto(f"{behind}/chat/embed" if behind else "/")
            await wait_for_stream(page)
            yield page, server
            assert [address for address in urls if not address.startswith((f"{url}{behind}/", "data:", "blob:"))] == []
            assert problems == []
        finally:
            await context.close()


async def talk(page: Page, text: str) -> None:
    """Send a message and wait for its answer."""
    box = page.get_by_label("Message", exact=True)
    await box.fill(text)
    await box.press("Control+Enter")
    await expect(page.locator(".message.user").last).to_contain_text(text)
    await expect(page.locator(".message.agent:not(.writing)").last).to_contain_text(f"you said</b> {text.strip()}")
    await expect(page.locator(".status")).to_have_text("idle")


async def test_a_person_chats_with_one_agent(browser: Browser, tmp_path: Path) -> None:
    async with open_chat(browser, tmp_path) as (page, server):
        screen = page.get_by_role("application")
        await expect(screen).to_contain_text("Welcome\n>")
        await expect(page.locator("h1")).to_have_text("agentapi")
        await talk(page, "hello there")
        assert await page.locator(".message.agent b", has_text="you said").count() == 0, "what an agent writes is text"
        await expect(screen).to_contain_text("<b>you said</b> hello there")
        assert (await server.messages())[1:] == ["hello there", "<b>you said</b> hello there"]
        await screen.press("h")
        await screen.press("i")
        await screen.press("Backspace")
        await screen.press("o")
        await page.get_by_role("button", name="Enter", exact=True).click()
        await expect(screen).to_contain_text("<b>you said</b> ho")
        await expect(page.locator(".message.user")).to_have_count(1)
        notes = tmp_path / "notes.txt"
        notes.write_text("some notes")
        await page.get_by_label("File for the agent").set_input_files(notes)
        box = page.get_by_label("Message", exact=True)
        await expect(box).to_have_value(re.compile(r'^@"/.*/notes\.txt"$'))
        await page.get_by_role("button", name="Terminal", exact=True).click()
        await expect(screen).to_have_count(0)
        for away in ("a[href^='/']:not(.skip)", "#nav a", "text=Close"):
            assert await page.locator(away).count() == 0, "there is no other page to go to"
        await page.reload()
        await expect(page.locator(".message")).to_have_count(2)


async def test_earlier_messages_are_on_the_page(browser: Browser, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    async with start_standalone(tmp_path, "--state-file", str(state), agent=AGENT) as server:
        await server.wait_until_stable()
        await server.send("remember me")
        await server.wait_until_stable()
    async with open_chat(browser, tmp_path, "--state-file", str(state)) as (page, _):
        await expect(page.locator(".message.user")).to_contain_text("remember me")
        await talk(page, "once more")
        await expect(page.locator(".message.user")).to_have_count(2)


async def test_the_chat_page_works_behind_a_proxy(browser: Browser, tmp_path: Path) -> None:
    async with open_chat(browser, tmp_path, "--chat-base-path", "/@me/app/chat", behind="/@me/app") as (page, _):
        await talk(page, "from afar")
        await expect(page.get_by_role("application")).to_contain_text("you said</b> from afar")


async def test_the_chat_page_looks_right(browser: Browser, tmp_path: Path, faults: Faults) -> None:
    async with open_chat(browser, tmp_path) as (page, _):
        await talk(page, "hello " * 30 + "end")
        await expect(page.get_by_role("application")).to_contain_text("Welcome")
        assert await faults(page, light="chat-light", dark="chat-dark") == []
        await page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        await page.reload()
        await wait_for_stream(page)
        await expect(page.locator(".message.agent")).to_be_visible()
        await expect(page.get_by_role("button", name="Terminal", exact=True)).to_be_visible()
        await expect(page.get_by_role("application")).to_have_count(0)
        assert await faults(page, light="chat-closed-phone", dark="chat-closed-phone-dark") == []
        await page.get_by_role("button", name="Terminal", exact=True).click()
        await expect(page.get_by_role("application")).to_contain_text("Welcome")
        assert await faults(page, light="chat-phone", dark="chat-phone-dark") == []


@pytest.mark.usefixtures("shared")
async def test_the_chat_page_works_below_a_desk(desk: Desk) -> None:
    key = (await desk.post("/sessions", {"agent": "talker"}))["key"]
    page = await desk.open()
    await page.goto(f"/sessions/{quote(key, safe='')}/agentapi/")
    await wait_for_stream(page)
    await talk(page, "hello desk")
    await expect(page.get_by_role("application")).to_contain_text("you said</b> hello desk")
    assert await page.locator("#nav a").count() == 0


@pytest.mark.usefixtures("shared")
async def test_the_page_of_a_session_shows_its_terminal(desk: Desk) -> None:
    key = (await desk.post("/sessions", {"agent": "talker"}))["key"]
    page = await desk.open(session_path(key))
    await talk(page, "first")
    await expect(page.get_by_role("application")).to_have_count(0)
    await page.get_by_role("button", name="Terminal", exact=True).click()
    screen = page.get_by_role("application")
    await expect(screen).to_contain_text("you said</b> first")
    await screen.press("n")
    await screen.press("Enter")
    await expect(screen).to_contain_text("you said</b> n\n")
    assert page.url.endswith(session_path(key)), "what is typed into a terminal is no shortcut"
    other_key = (await desk.post("/sessions", {"agent": "echo"}))["key"]
    await page.goto(session_path(other_key))
    await wait_for_stream(page)
    await expect(page.get_by_role("button", name="Interrupt")).to_be_visible()
    await expect(page.get_by_role("button", name="Terminal", exact=True)).to_be_hidden()
