"""Test the hooks on the Settings page of the console."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from playwright.async_api import expect

from browsing import Desk

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROGRAM = Path(__file__).parent.parent / "fakes" / "hook_program.py"


@pytest.fixture(scope="module")
def settings() -> str:
    """Return settings with two hook programs; one of them always fails."""
    good = f'{{ argv = ["{sys.executable}", "{PROGRAM}", "hang", "HOME/bad"], name = "good", seams = ["before_tool"] }}'
    broken = '{ argv = ["false"], name = "broken", seams = ["observe"], priority = 1 }'
    return f"detect_agents = false\nhooks = [{good}, {broken}]\n"


@pytest.mark.usefixtures("shared")
async def test_the_settings_page_lists_hooks_with_their_state(desk: Desk) -> None:
    await desk.until("/hooks", lambda page: [hook["state"] for hook in page["hooks"]] == ["waiting", "running"])
    page = await desk.open("/settings")
    hooks = page.locator("section", has=page.get_by_role("heading", name="Hooks")).locator("li")
    await expect(hooks).to_have_count(2)
    await expect(hooks.nth(0)).to_contain_text("broken")
    await expect(hooks.nth(0)).to_contain_text(": the program failed with exit code 1.")
    await expect(hooks.nth(0)).not_to_contain_text("0 calls")
    await expect(hooks.nth(0)).to_contain_text("restart")
    await expect(hooks.nth(1)).to_contain_text("before_tool · 0 calls")
