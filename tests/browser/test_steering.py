"""Test messages to a working agent: when it takes them, which it has not taken yet, and two ways to stop it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.async_api import expect

from browsing import DESKTOP, PHONE, Desk, session_path

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("shared")]

SETTINGS = """
detect_agents = false
shutdown_grace = 0

[agents.listener]
kind = "function"
target = "crew:listen"
path = "HERE"

[agents.deaf]
kind = "function"
target = "crew:ignore_messages"
path = "HERE"
"""


@pytest.fixture(scope="module")
def settings() -> str:
    return SETTINGS.replace("HERE", str(Path(__file__).parent))


async def test_a_message_reaches_the_running_turn(desk: Desk) -> None:
    session = (await desk.post("/sessions", {"agent": "listener"}))["key"]
    page = await desk.open(session_path(session))
    modes = page.get_by_role("group", name="When the agent receives it")
    message = page.get_by_label("Message")
    await expect(message).to_be_focused()
    await expect(modes).to_be_hidden()
    await expect(page.get_by_role("button", name="Stop after this step")).to_be_hidden()
    await message.fill("begin")
    await message.press("Control+Enter")
    await expect(modes).to_be_visible()
    await expect(modes.get_by_role("button", name="After the turn")).to_have_attribute("aria-pressed", "true")
    await expect(page.get_by_role("button", name="Queue", exact=True)).to_be_visible()
    await modes.get_by_role("button", name="At next step").press("Enter")
    for text in ("left a bit", "enough"):
        await message.fill(text)
        await message.press("Control+Enter")
    await expect(page.locator(".message.agent:not(.writing)")).to_contain_text("heard: left a bit, enough")
    await expect(page.locator(".message.user .plain-text")).to_have_text(["begin", "left a bit", "enough"])
    await expect(modes).to_be_hidden()
    await expect(page.locator(".queued")).to_have_count(0)
    await expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()


async def test_messages_of_other_people_show_their_names(desk: Desk) -> None:
    secret = (await desk.post("/tokens", {"name": "sam", "role": "owner"}))["secret"]
    session = (await desk.post("/sessions", {"agent": "listener", "prompt": "begin"}))["key"]
    page = await desk.open(session_path(session))
    await expect(page.get_by_role("group", name="When the agent receives it")).to_be_visible()
    await desk.post(f"{session_path(session)}/messages", {"text": "enough", "mode": "interrupt"}, secret)
    names = page.locator(".message.user .message-head b")
    await expect(names).to_have_text(["you", "sam"])
    await page.reload()
    await expect(names).to_have_text(["you", "sam"])


async def test_an_agent_that_is_asked_to_stop_ends_with_an_answer(desk: Desk) -> None:
    session = (await desk.post("/sessions", {"agent": "listener", "prompt": "begin"}))["key"]
    page = await desk.open(session_path(session))
    await page.get_by_role("button", name="Stop after this step").click()
    await expect(page.locator(".message.agent:not(.writing)")).to_contain_text("heard: Stop here")
    await expect(page.locator(".task-line .status")).to_have_text("idle")


@pytest.mark.parametrize("width", ["desktop", "phone"])
async def test_a_message_not_taken_yet_is_marked_and_continues_after_the_turn(
    desk: Desk, tmp_path: Path, width: str
) -> None:
    done = tmp_path / "done"
    session = (await desk.post("/sessions", {"agent": "deaf", "prompt": str(done)}))["key"]
    page = await desk.open(session_path(session), viewport=PHONE if width == "phone" else DESKTOP)
    message, modes = page.get_by_label("Message"), page.get_by_role("group", name="When the agent receives it")
    for mode, text in (("At next step", str(done)), ("After the tool", "after that")):
        await modes.get_by_role("button", name=mode).click()
        await message.fill(text)
        await message.press("Control+Enter")
    unheard = page.locator(".message.user .waiting-tag:visible")
    await expect(unheard).to_have_text(["waiting for the next step", "waiting for the tool"])
    await page.reload()
    await expect(unheard).to_have_text(["waiting for the next step", "waiting for the tool"])
    await page.get_by_role("button", name="Stop after this step").click()
    await expect(page.get_by_role("button", name="Stop after this step")).to_be_disabled()
    await expect(page.get_by_role("button", name="Abort now")).to_be_visible()
    await page.screenshot(path=tmp_path / f"steering-{width}.png")
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    done.touch()
    await expect(unheard).to_have_count(0)
    await expect(page.locator(".message.agent:not(.writing)")).to_have_count(2)
    running = f"/tasks?status=running&session_key={quote(session, safe='')}"
    await desk.until(running, lambda listed: [task["prompt"] for task in listed["tasks"]] == ["after that"])
    await page.get_by_role("button", name="Abort now").click()
    await expect(page.locator(".message.no-answer")).to_have_count(1)
    await expect(page.locator(".message.user .plain-text")).to_have_text([str(done), str(done), "after that"])
