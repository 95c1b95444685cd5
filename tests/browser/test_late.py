"""Test a slow network: responses that come late, overtake each other, or come when the page no longer needs them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, Route, expect

from browsing import Desk, session_path, wait_for_stream

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOLD_STATES = """(() => {
  const quick = window.fetch;
  window.held = 0;
  window.fetch = async (...asked) => {
    const reply = await quick(...asked);
    if (!String(asked[0]).includes("session_key=") || !String(asked[0]).includes("state=true")) return reply;
    window.held += 1;
    await new Promise((go) => { window.release = go; });
    return reply;
  };
})();"""
"""Delays the first state of a session's page until the test releases it."""
REFUSAL = {"detail": "too much at once", "code": "store_unavailable"}


class DelayedResponses:
    """Responses of the server that have not reached the page yet."""

    def __init__(self) -> None:
        self._go = asyncio.Event()
        self._left = asyncio.Semaphore(0)

    async def __call__(self, route: Route) -> None:
        answer = await route.fetch()
        self._left.release()
        await self._go.wait()
        await route.fulfill(response=answer)

    async def wait_for_next(self) -> None:
        """Wait for the next response that was not waited for before."""
        await asyncio.wait_for(self._left.acquire(), 60)

    def deliver(self) -> None:
        self._go.set()


async def wait_until_drawn(page: Page) -> None:
    """Wait until received data is drawn."""
    await page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.usefixtures("shared")
async def test_an_older_response_that_arrives_last_is_ignored(desk: Desk) -> None:
    session = (await desk.post("/sessions", {"agent": "coder"}))["key"]
    page = await desk.open("/")
    late = DelayedResponses()
    await page.route("**/api/v1/usage?*", late, times=1)
    await page.goto(session_path(session))
    await late.wait_for_next()
    await desk.wait_for_end(
        (await desk.post(f"{session_path(session)}/messages", {"text": "put a ceiling on it"}))["id"]
    )
    used = page.locator(".session-sub", has_text="used 48.2K tokens in")
    await expect(used).to_be_visible()
    async with page.expect_response("**/api/v1/usage?*") as answered:
        late.deliver()
    await (await answered.value).finished()
    await expect(page.get_by_label("Message")).to_be_focused()  # when everything has been read
    await wait_until_drawn(page)
    assert await used.count() == 1


async def pause(desk: Desk) -> str:
    automation = await desk.post("/automations", {"prompt": "look around", "agent": "demo", "every": 3600})
    return f"/automations/{automation['id']}/pause"


async def close(desk: Desk) -> str:
    session = await desk.post("/sessions", {"agent": "demo"})
    return f"{session_path(session['key'])}/close"


async def rest(desk: Desk) -> str:
    goal = await desk.post("/goals", {"objective": "all is well", "agent": "demo"})
    return f"/goals/{goal['id']}/pause"


@pytest.mark.parametrize(
    ("path", "prepare", "status"),
    [("/automations", pause, "paused"), ("/sessions", close, "closed"), ("/goals", rest, "paused")],
)
async def test_changes_while_a_list_is_loading_are_shown(
    desk: Desk, path: str, prepare: Callable[[Desk], Awaitable[str]], status: str
) -> None:
    act = await prepare(desk)
    page = await desk.open("/")
    late = DelayedResponses()
    await page.route(re.compile(rf"/api/v1{path}\?.*limit="), late, times=1)
    await page.goto(path)
    await wait_for_stream(page)
    await late.wait_for_next()
    seq = await desk.last_seq()
    await desk.post(act)
    assert (await desk.get(f"/events?after={seq}"))["events"], "something happened"
    late.deliver()
    await expect(page.locator(".rows .status")).to_have_text(status)


@pytest.mark.usefixtures("shared")
async def test_a_change_between_the_first_response_and_the_start_of_the_stream_is_shown(desk: Desk) -> None:
    pipe = desk.pipe()
    task = await desk.submit(str(pipe.path), "pipe")
    page = await desk.open("/")
    connected = asyncio.Event()

    async def hold(route: Route) -> None:
        await connected.wait()
        await route.continue_()

    await page.route("**/api/v1/events?state=true&live=true", hold)
    await page.goto(f"/tasks/{task}")
    await expect(page.locator(".task-line .status")).to_have_text("running")
    pipe.close()
    await desk.wait_for_end(task)
    connected.set()
    await wait_for_stream(page)
    await expect(page.locator(".task-line .status")).to_have_text("done")


@pytest.mark.usefixtures("shared")
async def test_text_that_arrives_before_the_page_is_loaded_is_kept(desk: Desk) -> None:
    pipe = desk.pipe()
    session = (await desk.post("/sessions", {"agent": "pipe"}))["key"]
    page = await desk.open("/")
    await page.add_init_script(HOLD_STATES)
    await page.goto(session_path(session))
    await page.wait_for_function("() => window.held")
    await wait_for_stream(page)
    sent = await desk.post(f"{session_path(session)}/messages", {"text": str(pipe.path)})
    await desk.until(f"/tasks/{sent['id']}", lambda task: task["status"] == "running")
    pipe.write("first words")
    watching = await desk.tab(page.context, f"/tasks/{sent['id']}")
    await expect(watching.locator(".task-output .plain-text")).to_have_text("first words")
    await page.evaluate("() => window.release()")
    await expect(page.locator(".message.writing .plain-text")).to_have_text("first words")
    await wait_until_drawn(page)
    await expect(page.locator(".message.writing .plain-text")).to_have_text("first words")


@pytest.mark.usefixtures("shared")
async def test_a_late_response_does_not_navigate_after_the_user_left_the_page(desk: Desk) -> None:
    page = await desk.open("/tasks/new?prompt=hello")
    late = DelayedResponses()
    await page.route("**/api/v1/tasks", late)
    await page.get_by_role("button", name="Submit").click()
    await late.wait_for_next()
    await page.get_by_role("link", name="Agents").click()
    await expect(page.get_by_role("heading", name="Agents", level=1)).to_be_visible()
    async with page.expect_response("**/api/v1/tasks") as answered:
        late.deliver()
    await (await answered.value).finished()
    await wait_until_drawn(page)
    await expect(page.locator("[data-agent=demo]")).to_be_visible()
    assert page.url.endswith("/agents")
    await expect(page).to_have_title("Agents · midwatch")


@pytest.mark.usefixtures("shared")
async def test_a_dialog_closes_with_its_page(desk: Desk) -> None:
    task = await desk.submit("demo:hang in the harbour")
    page = await desk.open("/tasks")
    await page.locator(".task-list a", has_text="in the harbour").click()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.go_back()
    await expect(page.get_by_role("heading", name="Tasks", level=1)).to_be_visible()
    await expect(page.locator("dialog")).to_have_count(0)
    await desk.until(f"/tasks/{task}", lambda one: one["status"] == "running")


@pytest.mark.usefixtures("shared")
async def test_a_task_goes_to_the_chosen_agent_although_the_list_of_agents_is_still_loading(desk: Desk) -> None:
    page = await desk.open("/")
    late = DelayedResponses()
    await page.route("**/api/v1/agents", late)
    await page.goto("/tasks/new?agent=echo&prompt=hello")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.locator(".task-line .status")).to_have_text("done")
    await expect(page.locator(".facts .fact").first).to_have_text("Agentecho")
    late.deliver()


@pytest.mark.usefixtures("shared")
async def test_a_new_token_stays_visible_when_the_list_of_tokens_cannot_be_read(desk: Desk) -> None:
    desk.expect_problem("status of 503")
    page = await desk.open("/settings")
    await page.get_by_label("Name").fill("tablet")

    async def refuse(route: Route) -> None:
        await (route.fulfill(status=503, json=REFUSAL) if route.request.method == "GET" else route.continue_())

    await page.route("**/api/v1/tokens", refuse)
    await page.get_by_role("button", name="Create").click()
    await expect(page.locator(".toast")).to_have_text("too much at once")
    await expect(page.locator(".new-token code")).to_have_text(re.compile("^mw_"))


SEEN = """(node) => {
  const { left, top, width, height } = node.getBoundingClientRect();
  return document.elementFromPoint(left + width / 2, top + height / 2) === node;
}"""


@pytest.mark.usefixtures("shared")
async def test_a_notice_is_shown_above_a_dialog_and_stays_after_it_closes(desk: Desk) -> None:
    desk.expect_problem("status of 503")
    task = await desk.submit("demo:hang")
    page = await desk.open(f"/tasks/{task}")

    async def refuse(route: Route) -> None:
        await route.fulfill(status=503, json=REFUSAL)

    await page.route("**/api/v1/handoffs", refuse)
    await page.get_by_role("button", name="Hand over").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("To", exact=True).select_option("echo")
    await dialog.get_by_role("button", name="Hand over").click()
    notice = page.locator(".toast")
    await expect(notice).to_have_text("too much at once")
    assert await notice.evaluate(SEEN)
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(notice).to_be_visible()
