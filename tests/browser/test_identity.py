"""Coming in, going out, and what those who may only look can do."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from playwright.async_api import Page, expect

from browsing import DESKTOP, Desk, live, session_path
from servers import PROGRAM, environment

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.usefixtures("shared")
async def test_a_link_signs_in_once_and_its_code_does_not_stay_in_the_address(desk: Desk) -> None:
    desk.expect_problem(r"status of 401")
    made = await asyncio.to_thread(
        subprocess.run, [PROGRAM, "open", "--print"], env=environment(desk.server.home), capture_output=True, text=True
    )
    address = made.stdout.strip()
    first, second = await desk.context(), await desk.context()
    page = await first.new_page()
    await page.goto(address)
    await live(page)
    assert page.url == f"{desk.server.url}/"
    cookie = (await first.cookies())[0]
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("midwatch", True, "Strict")
    late = await second.new_page()
    await late.goto(address)
    await expect(late.get_by_role("status").filter(has_text="link")).to_be_visible()
    await expect(late.get_by_label("Token")).to_be_focused()
    assert "#" not in late.url and await second.cookies() == []


@pytest.mark.usefixtures("shared")
async def test_who_is_not_signed_in_is_asked_for_a_token_and_comes_back_to_the_page(desk: Desk) -> None:
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
async def test_a_link_to_sign_in_leads_nowhere_else(desk: Desk) -> None:
    page = await (await desk.context()).new_page()
    for elsewhere in ("//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"):
        await page.goto((await desk.link()).replace("#", f"?next={elsewhere}#"))
        await live(page)
        assert page.url == f"{desk.server.url}/"


@pytest.mark.usefixtures("shared")
async def test_signing_out_ends_every_tab(desk: Desk) -> None:
    desk.expect_problem(r"status of 401")
    page = await desk.open("/settings", viewport=DESKTOP)  # in a browser of its own
    other = await desk.tab(page.context, "/")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in to midwatch")).to_be_visible()
    assert await page.context.cookies() == []
    await expect(other.get_by_role("heading", name="Sign in to midwatch")).to_be_visible()
    await page.goto("/tasks")
    await expect(page.get_by_role("heading", name="Sign in to midwatch")).to_be_visible()


@pytest.mark.usefixtures("shared")
async def test_a_viewer_sees_everything_and_has_nothing_that_acts(desk: Desk) -> None:
    task = await desk.submit("demo:ask may a viewer answer")
    session = (await desk.post("/sessions", {"agent": "demo", "title": "Looked at"}))["key"]
    await desk.post(f"{session_path(session)}/messages", {"text": "demo:hang"})
    await desk.until("/approvals", lambda found: found["approvals"])
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
        "/usage",
        "/agents",
        "/settings",
    ):
        await page.goto(path)
        await live(page)
        await expect(page.locator("main h1")).to_be_visible()
        await expect(page.locator("main .skeleton")).to_have_count(0)
        assert await acting(page) == [], path
    await expect(page.get_by_text("Only the owner can see tokens")).to_be_visible()
    await page.keyboard.press("n")  # also the shortcut leads to nothing that could be sent
    await expect(page.get_by_text("Read-only access")).to_be_visible()
    assert await acting(page) == []


BUTTONS = """(all) => all.filter((one) => !one.closest("[role=search]"))
  .map((one) => one.getAttribute("aria-label") || one.innerText)"""
"""The names of buttons that are no filters."""


async def acting(page: Page) -> list[str]:
    """Names of the visible controls that would change something."""
    harmless = {"Sign out", "Refresh", "Pause", "Load older", "Waterfall", "List", "Show all", "all", "Expand"}
    harmless |= {"cost", "tokens", "tasks"}  # what the bars count
    buttons = await page.locator("main").get_by_role("button").evaluate_all(BUTTONS)
    found = [name for name in buttons if name not in harmless and not name.startswith("Copy")]
    return found + await page.locator("main textarea:visible").all_inner_texts()


@pytest.mark.usefixtures("shared")
async def test_a_viewer_who_asks_for_more_is_refused_with_a_reason(desk: Desk) -> None:
    desk.expect_problem(r"status of 403")
    task = await desk.submit("demo:hang")
    page = await desk.open(f"/tasks/{task}", role="viewer")
    said = await page.evaluate(
        """async (id) => { const r = await fetch(`/api/v1/tasks/${id}/cancel`, {method: "POST",
        headers: {"content-type": "application/json"}, body: "{}"}); return [r.status, (await r.json()).code]; }""",
        task,
    )
    assert said == [403, "forbidden"]
    await expect(page.locator(".task-line .status")).to_have_text("running")
