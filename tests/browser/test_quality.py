"""Test quality: a fast first paint, no layout shifts, no requests when idle, and use without a mouse and on a phone."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from statistics import median

import pytest
from playwright.async_api import Page, Request, expect

from browsing import PHONE, Desk, press_together, session_path, wait_for_stream
from midwatch.api.web import FOLDER

pytestmark = pytest.mark.asyncio(loop_scope="session")

BUILT = Path(__file__).parents[2] / "build"
IDLE_SECONDS = 10
WATCH_SHIFTS = """
window.shifted = 0;
window.moved = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.hadRecentInput) continue;
    window.shifted += entry.value;
    window.moved.push(...entry.sources.map((source) => source.node?.className ?? source.node?.nodeName));
  }
}).observe({ type: "layout-shift", buffered: true });
"""
FOCUS = """() => {
  const node = document.activeElement;
  const style = getComputedStyle(node);
  const box = node.getBoundingClientRect();
  const ringed = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return { tag: node.tagName, text: node.textContent.trim(), seen: ringed && box.width > 0 && box.bottom > 0 };
}"""


def list_requests(desk: Desk, page: Page) -> list[Request]:
    """Return the requests of a page."""
    return [request for request in desk.requests if request.frame.page == page]


async def test_an_idle_page_sends_no_requests(desk: Desk) -> None:
    task = await desk.submit("demo:hang")
    session = (await desk.post("/sessions", {"agent": "demo"}))["key"]
    first = await desk.open("/")
    await desk.wait_for_end(await desk.submit("put a ceiling on it", "coder", session_key=session))
    for path in (f"/tasks/{task}", session_path(session), "/events", "/inbox"):  # a browser has six connections
        await desk.tab(first.context, path)
    modules = {f"/web/{path.relative_to(FOLDER).as_posix()}" for path in FOLDER.rglob("*.js")}
    async with asyncio.timeout(90):  # the page preloads all modules, so that it works while it is offline
        for page in first.context.pages:
            while modules - {request.url.removeprefix(desk.server.url) for request in list_requests(desk, page)}:
                await asyncio.sleep(0.05)
    before = await desk.wait_until_silent()
    await asyncio.sleep(IDLE_SECONDS)  # only time shows that no request comes
    assert [request.url for request in desk.requests[before:]] == []
    for page in first.context.pages:
        await expect(page.locator("#link-state")).to_have_text("live")


@pytest.mark.usefixtures("shared")
async def test_the_first_paint_happens_within_a_second(desk: Desk) -> None:
    await desk.wait_for_end(await desk.submit("something to show"))
    page = await desk.open("/")
    paints = []
    for _ in range(3):
        await page.goto("/")
        await expect(page.locator(".now-recent .row-title", has_text="something to show")).to_have_count(1)
        entries = "() => performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)"
        paints.append((await page.evaluate(entries))[0])
    BUILT.mkdir(exist_ok=True)
    (BUILT / "first-paint.txt").write_text(f"milliseconds: {paints}\n")
    assert median(paints) <= 1000, paints


async def test_the_layout_does_not_shift_while_tasks_start_and_finish(desk: Desk) -> None:
    watched = await desk.submit("demo:ask may it")
    await desk.until("/approvals", lambda inbox: inbox["approvals"])
    now = await desk.open("/")
    task = await desk.tab(now.context, f"/tasks/{watched}")
    for page in (now, task):
        await page.context.add_init_script(WATCH_SHIFTS)
        await page.reload()
        await wait_for_stream(page)
        await expect(page.locator("main .skeleton")).to_have_count(0)
    for number in range(4):
        await desk.submit(f"demo:sleep=0.{number} number {number}")
    await desk.submit("demo:fail number 4")
    await expect(now.locator(".now-recent .row-title")).to_have_count(4)
    await expect(now.locator(".now-failed .row-title")).to_have_count(1)
    approval_id = (await desk.get("/approvals"))["approvals"][0]["id"]
    await desk.post(f"/approvals/{approval_id}/approve")
    await expect(task.locator(".task-output .page-text")).to_contain_text("the answer was")
    await expect(now.locator(".now-recent .row-title")).to_have_count(5)
    for page in (now, task):
        shifted, moved = await page.evaluate("() => [window.shifted, window.moved]")
        assert shifted < 0.02, (page.url, shifted, moved)


async def test_the_layout_does_not_shift_while_an_agent_thinks_works_and_asks(desk: Desk) -> None:
    session = (await desk.post("/sessions", {"agent": "coder", "key": "chat:still"}))["key"]
    sent = await desk.post(f"{session_path(session)}/messages", {"text": "hold it"})
    await desk.until("/approvals", lambda inbox: inbox["approvals"])
    talk = await desk.open(session_path(session))
    task = await desk.tab(talk.context, f"/tasks/{sent['id']}")
    inbox = await desk.tab(talk.context, "/inbox")
    usage = await desk.tab(talk.context, "/usage")
    for page in (talk, task, inbox, usage):
        await page.add_init_script(WATCH_SHIFTS)
        await page.reload()
        await wait_for_stream(page)
        await expect(page.locator("main .skeleton")).to_have_count(0)
    approval_id = (await desk.get("/approvals"))["approvals"][0]["id"]
    await desk.post(f"/approvals/{approval_id}/approve")
    await desk.wait_for_end(sent["id"])
    await desk.submit("with asks", "coder")
    await expect(talk.locator(".message.agent .page-text")).to_contain_text("ceiling")
    await expect(task.locator(".task-output .page-text")).to_contain_text("ceiling")
    await expect(inbox.locator(".inbox-open .approval .request-line")).to_contain_text("git push")
    await expect(inbox.locator(".answered-row")).to_have_count(1)
    await expect(usage.locator("[data-tile=tasks] dd")).to_have_text("1")
    for page in (talk, task, inbox, usage):
        shifted, moved = await page.evaluate("() => [window.shifted, window.moved]")
        assert shifted < 0.02, (page.url, shifted, moved)


async def get_focused_text(page: Page) -> str:
    """Return the text of the focused element, which must have a visible focus style."""
    focused = await page.evaluate(FOCUS)
    assert focused["seen"], focused
    return str(focused["text"])


async def test_a_task_is_submitted_and_opened_without_a_mouse(desk: Desk) -> None:
    page = await desk.open("/")
    await expect(page.get_by_role("heading", name="Now", level=1)).to_be_visible()
    await page.keyboard.press("Tab")
    assert await get_focused_text(page) == "Skip to content"
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    await page.keyboard.press("Tab")
    assert await get_focused_text(page) == "New task"
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
    await page.keyboard.type("typed, gn not a shortcut")
    for _ in range(8):  # every control on the way to the button shows its focus
        await page.keyboard.press("Tab")
        if await get_focused_text(page) == "Submit":
            break
    await page.keyboard.press("Enter")
    await expect(page.locator(".task-line .status")).to_have_text("done")
    await press_together(page, "gt")
    await expect(page.get_by_role("heading", name="Tasks", level=1)).to_be_visible()
    await expect(page.locator(".task-list .row-title")).to_have_count(1)
    await page.keyboard.press("j")
    assert "typed, gn not a shortcut" in await get_focused_text(page)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="typed, gn not a shortcut", level=1)).to_be_visible()
    await page.locator("mw-waterfall .step").first.focus()
    await page.keyboard.press("ArrowDown")
    await expect(page.locator(".waterfall-detail")).to_contain_text("attempt 1")


@pytest.mark.usefixtures("shared")
async def test_dialogs_keep_the_focus_and_return_it_when_they_close(desk: Desk) -> None:
    task = await desk.submit("demo:hang")
    page = await desk.open(f"/tasks/{task}")
    await expect(page.locator(".task-line .status")).to_have_text("running")
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    await cancel.focus()
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("button", name="Back")).to_be_focused()
    for _ in range(6):
        await page.keyboard.press("Tab")
        inside = "() => document.activeElement === document.body || Boolean(document.activeElement.closest('dialog'))"
        assert await page.evaluate(inside)
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(cancel).to_be_focused()
    await page.keyboard.press("?")
    await expect(dialog.get_by_role("heading", name="Keyboard")).to_be_visible()
    await expect(dialog).to_contain_text("Go to Tasks")
    await page.keyboard.press("Escape")
    await expect(cancel).to_be_focused()
    await expect(page.locator(".task-line .status")).to_have_text("running")


@pytest.mark.usefixtures("shared")
async def test_the_chosen_theme_is_kept(desk: Desk) -> None:
    page = await desk.open("/", color_scheme="light")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(ground)
    await page.keyboard.press("t")
    assert await page.evaluate(ground) != light
    await page.reload()
    assert await page.evaluate(ground) != light
    await page.get_by_role("button", name="Switch between light and dark").click()
    assert await page.evaluate(ground) == light


@pytest.mark.usefixtures("shared")
async def test_every_page_opens_and_a_task_can_be_submitted_on_a_phone(desk: Desk) -> None:
    page = await desk.open("/", viewport=PHONE, has_touch=True, is_mobile=True)
    pages = page.get_by_role("navigation", name="Pages")
    for name in ("Inbox", "Tasks", "Sessions", "Events", "Usage", "Agents", "Settings", "Now"):
        link = pages.get_by_role("link", name=name)
        if not await link.is_visible():
            await pages.get_by_role("button", name="More").tap()
            await expect(link).to_be_visible()
        box = await link.bounding_box()
        assert box and box["width"] >= 44 and box["height"] >= 44 and box["x"] + box["width"] <= PHONE["width"]
        await link.tap()
        await expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
    await page.get_by_role("link", name="New task").first.tap()
    await page.get_by_label("Prompt", exact=True).fill("from the phone " + "averylongwordwithoutanyblanks" * 12)
    await page.get_by_role("button", name="Submit").tap()
    await expect(page.locator(".task-line .status")).to_have_text("done")
    await expect(page).to_have_url(re.compile(r"/tasks/t_"))
    worked = await desk.submit("put a ceiling on it", "coder", session_key="chat:phone")
    await desk.wait_for_end(worked)
    await desk.submit("with asks", "coder", session_key="chat:phone")
    await desk.until("/approvals", lambda inbox: inbox["approvals"])
    more = (f"/tasks/{worked}", session_path("chat:phone"), "/inbox", "/rules", "/usage", "/usage?by=model")
    for path in (page.url, "/", "/tasks", "/events", "/budgets", f"/budgets/{worked}", *more):
        await page.goto(path)
        await expect(page.locator("main h1")).to_be_visible()
        await expect(page.locator("main .skeleton")).to_have_count(0)
        wide = await page.evaluate("() => document.scrollingElement.scrollWidth")
        assert wide <= PHONE["width"], (path, wide)
