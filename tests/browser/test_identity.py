"""Test signing in, signing out, and the permissions of viewers in the console."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from playwright.async_api import Page, expect

from browsing import DESKTOP, Desk, session_path, wait_for_stream
from servers import PROGRAM, environment

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.usefixtures("shared")
async def test_a_link_signs_in_once_and_its_code_is_removed_from_the_address(desk: Desk) -> None:
    desk.expect_problem(r"status of 401")
    ran = await asyncio.to_thread(
        subprocess.run, [PROGRAM, "open", "--print"], env=environment(desk.server.home), capture_output=True, text=True
    )
    address = ran.stdout.strip()
    first, second = await desk.context(), await desk.context()
    page = await first.new_page()
    await page.goto(address)
    await wait_for_stream(page)
    assert page.url == f"{desk.server.url}/"
    cookie = (await first.cookies())[0]
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("midwatch", True, "Strict")
    late = await second.new_page()
    await late.goto(address)
    await expect(late.get_by_role("status").filter(has_text="link")).to_be_visible()
    await expect(late.get_by_label("Token")).to_be_focused()
    assert "#" not in late.url and await second.cookies() == []


@pytest.mark.usefixtures("shared")
async def test_without_a_sign_in_a_token_is_requested_and_then_the_page_opens(desk: Desk) -> None:
    desk.expect_problem(r"status of 401")
    page = await (await desk.context()).new_page()
    await page.goto("/agents")
    token = page.get_by_label("Token")
    await expect(token).to_be_focused()
    await token.fill("mw_not_a_token")
    await token.press("Enter")
    await expect(page.locator(".field-error")).to_be_visible()
    await expect(token).to_be_focused()
    await token.fill((desk.server.home / "token").read_text().strip())
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Agents", level=1)).to_be_visible()
    assert page.url == f"{desk.server.url}/agents"


@pytest.mark.usefixtures("shared")
async def test_a_sign_in_link_redirects_only_to_pages_of_the_console(desk: Desk) -> None:
    page = await (await desk.context()).new_page()
    for elsewhere in ("//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"):
        await page.goto((await desk.link()).replace("#", f"?next={elsewhere}#"))
        await wait_for_stream(page)
        assert page.url == f"{desk.server.url}/"


@pytest.mark.usefixtures("shared")
async def test_signing_out_ends_every_tab(desk: Desk) -> None:
    desk.expect_problem(r"status of 401")
    page = await desk.open("/settings", viewport=DESKTOP)  # in a browser of its own
    second_page = await desk.tab(page.context, "/")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in to midwatch")).to_be_visible()
    assert await page.context.cookies() == []
    await expect(second_page.get_by_role("heading", name="Sign in to midwatch")).to_be_visible()
    await page.goto("/tasks")
    await expect(page.get_by_role("heading", name="Sign in to midwatch")).to_be_visible()


@pytest.mark.usefixtures("shared")
async def test_a_viewer_sees_everything_and_has_no_controls_that_change_data(desk: Desk) -> None:
    task = await desk.submit("demo:ask may a viewer answer")
    session = (await desk.post("/sessions", {"agent": "demo", "title": "Looked at"}))["key"]
    await desk.post(f"{session_path(session)}/messages", {"text": "demo:hang"})
    await desk.until("/approvals", lambda inbox: inbox["approvals"])
    page = await desk.open("/", role="viewer")
    await expect(page.locator(".approval-question")).to_be_visible()
    for path in (
        "/",
        "/tasks",
        f"/tasks/{task}",
        "/sessions",
        session_path(session),
        "/events",
        "/inbox",
        "/rules",
        "/budgets",
        f"/budgets/{task}",
        "/usage",
        "/agents",
        "/settings",
    ):
        await page.goto(path)
        await wait_for_stream(page)
        await expect(page.locator("main h1")).to_be_visible()
        await expect(page.locator("main .skeleton")).to_have_count(0)
        assert await list_actions(page) == [], path
    await expect(page.get_by_text("Only the owner can see tokens")).to_be_visible()
    await page.keyboard.press("n")  # the keyboard shortcut opens no form either
    await expect(page.get_by_text("Read-only access")).to_be_visible()
    assert await list_actions(page) == []


BUTTONS = """(all) => all.filter((one) => !one.closest("[role=search]"))
  .map((one) => one.getAttribute("aria-label") || one.innerText)"""
"""The names of buttons that are not filters."""


async def list_actions(page: Page) -> list[str]:
    """Return the names of the visible controls that would change data."""
    harmless = {"Sign out", "Refresh", "Pause", "Load older", "Waterfall", "List", "Show all", "all"}
    harmless |= {"Expand Work", "Expand Timeline"}
    harmless |= {"cost", "tokens", "tasks"}  # the numbers in the navigation bars
    harmless |= {"steps", "time"}  # what the bars of a budget show
    harmless |= {"Test"}  # a test of rules changes nothing
    buttons = await page.locator("main").get_by_role("button").evaluate_all(BUTTONS)
    actions = [name for name in buttons if name not in harmless and not name.startswith("Copy")]
    return actions + await page.locator("main textarea:visible").all_inner_texts()


@pytest.mark.usefixtures("shared")
async def test_a_viewer_that_sends_a_change_is_refused_with_a_reason(desk: Desk) -> None:
    desk.expect_problem(r"status of 403")
    task = await desk.submit("demo:hang")
    page = await desk.open(f"/tasks/{task}", role="viewer")
    reply = await page.evaluate(
        """async (id) => { const r = await fetch(`/api/v1/tasks/${id}/cancel`, {method: "POST",
        headers: {"content-type": "application/json"}, body: "{}"}); return [r.status, (await r.json()).code]; }""",
        task,
    )
    assert reply == [403, "forbidden"]
    await expect(page.locator(".task-line .status")).to_have_text("running")
