"""Test the page of rules: the rules of the settings, and a test that says which rule decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import expect

from browsing import Desk

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def settings() -> str:
    return """
[approvals]
deny = [{ command = "git push --force" }, { path = "**/.env" }]
ask = [{ command = "git push" }, { tool = "github/*", agent = "demo" }]

[agents.demo]
kind = "demo"

[agents.demo.approvals]
allow = [{ kind = "read" }, { kind = "edit", path = "src/**" }]
"""


async def test_rules_are_listed_and_tested(
    desk: Desk, look: Callable[..., Awaitable[None]], faults: Callable[..., Awaitable[list[str]]]
) -> None:
    await look({"rules": "/rules"}, "written")
    desk.expect_problem("404")
    session = await desk.post("/sessions", {"agent": "demo", "approvals": {"deny": [{"kind": "edit"}]}})
    page = await desk.open("/rules")
    rows = page.locator(".rules-written .rule-row")
    await expect(rows).to_have_count(6)
    await expect(rows.first).to_contain_text("deny`git push --force`")
    await expect(rows.first.locator(".tag")).to_have_text("desk")
    await expect(rows.last.locator(".tag")).to_have_text("agent demo")
    await expect(page.locator(".rules-answers")).to_contain_text("No rules")
    result = page.locator(".rule-effect")
    await page.get_by_label("Command").fill("sh -c 'git push --force'")
    await page.get_by_role("button", name="Test").click()
    await expect(result).to_contain_text("denied by a rule of the desk: deny `git push --force`")
    await page.get_by_label("Command").fill("")
    await page.get_by_label("Tool").fill("write_file")
    await page.get_by_label("Path").fill("src/x")
    await page.get_by_text("Rules of work").click()
    await page.get_by_label("Directory").fill("/tmp")
    await page.get_by_role("button", name="Test").click()
    await expect(result).to_contain_text("allowed by a rule of the agent: allow edit of src/**")
    await page.get_by_label("Session").fill(session["key"])
    await page.get_by_label("Session").press("Control+Enter")
    await expect(result).to_contain_text("denied by a rule of the session: deny edit")
    await expect(page.locator(".rule-result .rule-row")).to_have_count(2)
    await expect(page.locator(".rule-result .row-sub").last).to_have_text(f"session {session['key']}")
    assert await faults(page, light="rules-tested-light", dark="rules-tested-dark") == []
    await page.get_by_label("Session").fill("chat:nobody")
    await page.get_by_role("button", name="Test").click()
    await expect(page.locator(".toast, .field-error:visible").first).to_contain_text("chat:nobody")
