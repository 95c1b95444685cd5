"""The chat page of a conversation: read, spoken to, typed to, given files."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.async_api import expect

from browsing import AGENTS, Desk

pytestmark = pytest.mark.asyncio(loop_scope="session")

LISTENER = """
import sys
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


@pytest.fixture
def settings() -> str:
    return AGENTS + TALKER.replace("PYTHON", sys.executable).replace("PROGRAM", LISTENER)


async def test_a_conversation_on_the_chat_page(desk: Desk, tmp_path: Path) -> None:
    key = (await desk.post("/sessions", {"agent": "talker"}))["key"]
    page = await desk.open()
    await page.goto(f"/sessions/{quote(key, safe='')}/agentapi/")
    await expect(page.locator("#agent")).to_have_text("custom")
    await expect(page.locator("#status")).to_have_text("waits for you")
    box = page.get_by_label("Message")
    await box.fill("hello there")
    await box.press("Enter")
    await expect(page.locator("article.user")).to_have_text("hello there")
    reply = page.locator("article.agent", has_text="you said")
    await expect(reply).to_have_text("<b>you said</b> hello there")
    assert await page.locator("article b").count() == 0, "what an agent writes is text"
    await expect(page.locator("#status")).to_have_text("waits for you")
    notes = tmp_path / "notes.txt"
    notes.write_text("some notes")
    await page.locator("#file").set_input_files(notes)
    await expect(box).to_have_value(re.compile(r'^@"/.*/notes\.txt"$'))
    await box.fill("")
    await page.get_by_label("Keys go to the terminal").check()
    await box.press("h")
    await box.press("i")
    await box.press("Enter")
    async with asyncio.timeout(15):
        while "you said</b> hi" not in (await desk.get(f"/sessions/{quote(key, safe='')}/screen"))["text"]:
            await asyncio.sleep(0.05)
    await expect(box).to_have_value("")
    await expect(page.locator("article.user")).to_have_count(1)
