"""Test actions of a person in the console: answer, cancel, retry, send messages, read the log, test agents, create
tokens.
"""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Route, expect

from browsing import Desk, session_path, wait_for_stream

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.usefixtures("shared")
async def test_a_question_is_answered_on_the_now_page(desk: Desk) -> None:
    page = await desk.open("/")
    await expect(page.get_by_text("Nothing is waiting for you")).to_be_visible()
    task = await desk.submit("demo:ask clean the decks")
    question = page.locator(".now-waiting .approval")
    await expect(question).to_contain_text("May it?")
    await expect(page.locator("#nav .badge")).to_have_text("1")
    await expect(page).to_have_title("(1) Now · midwatch")
    await expect(page.locator(".now-running .status")).to_have_text("asking")
    await question.get_by_label("Reason for the answer").fill("as agreed")
    await question.get_by_role("button").first.click()
    await expect(question).to_have_count(0)
    await expect(page.get_by_text("Nothing is waiting for you")).to_be_visible()
    await expect(page).to_have_title("Now · midwatch")
    assert (await desk.wait_for_end(task))["status"] == "done"
    await expect(page.locator(".now-recent .row-title", has_text="clean the decks")).to_have_count(1)


@pytest.mark.usefixtures("shared")
async def test_a_question_answered_elsewhere_disappears(desk: Desk) -> None:
    task = await desk.submit("demo:ask sail on")
    page = await desk.open(f"/tasks/{task}")
    await expect(page.locator(".approval")).to_be_visible()
    approval_id = await page.locator(".approval").get_attribute("data-approval")
    await desk.post(f"/approvals/{approval_id}/deny")
    await expect(page.locator(".approval")).to_have_count(0)
    await expect(page.locator(".task-output .page-text")).to_contain_text("the answer was")


@pytest.mark.usefixtures("shared")
async def test_a_task_is_cancelled_and_retried_from_its_page(desk: Desk) -> None:
    task = await desk.submit("demo:hang keep watch")
    page = await desk.open(f"/tasks/{task}")
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Back").click()
    await expect(page.locator(".task-line .status")).to_have_text("running")
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Cancel task").click()
    await expect(page.locator(".task-line .status")).to_have_text("cancelled")
    await page.get_by_role("button", name="Retry").click()
    await expect(page.locator(".task-line .status")).to_have_text("running")
    assert not page.url.endswith(task)
    await expect(page.locator(".relative")).to_contain_text("retry of")
    await page.locator(".relative").click()
    await expect(page.locator(".relative")).to_contain_text("retried as")
    await page.go_back()
    await expect(page.locator(".task-line .status")).to_have_text("running")


@pytest.mark.usefixtures("shared")
async def test_a_failed_task_shows_its_reason_and_can_be_retried(desk: Desk) -> None:
    task = await desk.submit("demo:fail to count the gulls")
    await desk.wait_for_end(task)
    page = await desk.open("/")
    await page.locator(".now-failed a.row", has_text="count the gulls").click()
    await expect(page.locator(".task-output .problem")).to_contain_text("told to fail")
    await page.get_by_role("link", name="Edit and submit").click()
    await expect(page.get_by_label("Prompt", exact=True)).to_have_value("demo:fail to count the gulls")
    await page.get_by_label("Prompt", exact=True).fill("do it well")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.locator(".task-line .status")).to_have_text("done")


@pytest.mark.usefixtures("shared")
async def test_a_form_shows_each_error_at_its_field(desk: Desk) -> None:
    desk.expect_problem(r"status of 422")
    page = await desk.open("/tasks/new")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.locator(".field-error:visible")).to_have_text("Enter a prompt.")
    await expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
    await page.get_by_label("Prompt", exact=True).fill("something")
    await page.locator("summary", has_text="More").click()
    await page.get_by_label("Timeout").fill("a while")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.locator(".field-error:visible")).to_have_count(1)
    await expect(page.get_by_label("Timeout")).to_be_focused()
    await page.get_by_label("Timeout").fill("")
    await page.locator("summary", has_text="Budget").click()
    await page.get_by_label("Maximum steps").fill("30")
    await page.get_by_label("Maximum work time").fill("10m")
    await page.get_by_label("When the budget is spent").select_option("stop")
    await page.get_by_label("Maximum tokens").fill("many")
    await page.locator("summary", has_text="Budget").click()
    await page.get_by_role("button", name="Submit").click()
    await expect(page.locator(".field-error:visible")).to_have_text(
        "the budget's tokens must be a whole number above 0."
    )
    await expect(page.get_by_label("Maximum tokens")).to_be_focused()
    await page.get_by_label("Maximum tokens").fill("5000")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.locator(".budget .meter")).to_have_count(3)
    task = await desk.get(f"/tasks/{page.url.rsplit('/', 1)[1]}")
    assert task["on_budget"] == "stop" and task["budget"] == {"tokens": 5000, "steps": 30, "seconds": 600.0}
    await page.get_by_role("link", name="Submit again").click()
    await expect(page.get_by_label("Maximum work time")).to_have_value("10m")
    await expect(page.get_by_label("When the budget is spent")).to_have_value("stop")


async def test_a_busy_session_takes_messages_and_can_be_interrupted_and_closed(desk: Desk) -> None:
    page = await desk.open("/sessions")
    await expect(page.get_by_text("No sessions yet")).to_be_visible()
    await page.get_by_role("button", name="New session").first.click()
    await page.get_by_label("Title").fill("Night watch")
    await page.get_by_role("button", name="Open session", exact=True).click()
    await expect(page.get_by_role("heading", name="Night watch", level=1)).to_be_visible()
    message = page.get_by_label("Message")
    await expect(message).to_be_focused()
    await message.fill("demo:hang look out")
    await message.press("Control+Enter")
    await expect(page.locator(".message.user")).to_contain_text("look out")
    await expect(page.locator(".task-line .status")).to_have_text("busy")
    for text in ("and then this", "take this out"):
        await message.fill(text)
        await message.press("Control+Enter")
    await expect(page.locator(".queued")).to_have_count(2)
    await page.locator(".queued").last.get_by_role("button").click()
    await expect(page.locator(".queued")).to_have_count(1)
    await page.get_by_role("button", name="Interrupt").click()
    await expect(page.locator(".queued")).to_have_count(0)
    await expect(page.locator(".message.user")).to_have_count(2)
    await expect(page.locator(".message.agent:not(.writing)").last).to_contain_text("You asked: and then this")
    await expect(page.locator(".message.writing")).to_have_count(0)
    await expect(page.locator(".task-line .status")).to_have_text("idle")
    await page.get_by_role("button", name="Close", exact=True).click()
    await page.get_by_role("button", name="Close session").click()
    await expect(page.locator(".task-line .status")).to_have_text("closed")
    await expect(message).to_be_disabled()
    await page.get_by_role("link", name="Sessions").first.click()
    await expect(page.locator(".session-row .status")).to_have_text("closed")


@pytest.mark.usefixtures("shared")
async def test_messages_are_sent_in_order_and_none_is_lost_although_the_server_is_slow_or_refuses(desk: Desk) -> None:
    desk.expect_problem("status of 503")
    session = (await desk.post("/sessions", {"agent": "demo"}))["key"]
    page = await desk.open(session_path(session))
    message = page.get_by_label("Message")
    await expect(message).to_be_focused()
    routes: asyncio.Queue[Route] = asyncio.Queue()
    await page.route("**/messages", routes.put)
    for text in ("demo:hang first", "second", "third"):
        await message.fill(text)
        await message.press("Control+Enter")
        await expect(message).to_have_value("")
    await (await asyncio.wait_for(routes.get(), 60)).continue_()
    await expect(page.locator(".message.user")).to_contain_text("first")
    await (await asyncio.wait_for(routes.get(), 60)).continue_()
    await expect(page.locator(".queued")).to_contain_text("second")
    await message.fill("fourth")
    await page.get_by_role("button", name="Queue", exact=True).click()
    await message.fill("and what is being written")
    refusal = {"detail": "too much at once", "code": "store_unavailable"}
    await (await asyncio.wait_for(routes.get(), 60)).fulfill(status=503, json=refusal)
    await expect(message).to_have_value("third\nfourth\nand what is being written")
    await expect(page.locator(".toast")).to_have_text("too much at once")
    await message.press("Control+Enter")
    await (await asyncio.wait_for(routes.get(), 60)).continue_()
    await expect(page.locator(".queued")).to_contain_text(["second", "third"])
    keys = [request.headers["idempotency-key"] for request in desk.requests if request.url.endswith("/messages")]
    assert len(set(keys)) == len(keys) == 4, keys


@pytest.mark.usefixtures("shared")
async def test_a_session_streams_its_text_and_keeps_it_after_a_reload(desk: Desk) -> None:
    pipe = desk.pipe()
    session = (await desk.post("/sessions", {"agent": "pipe", "key": "chat:a/b|c d"}))["key"]
    page = await desk.open(session_path(session))
    await page.get_by_label("Message").fill(str(pipe.path))
    await page.get_by_role("button", name="Send").click()
    pipe.write("one **two** ")
    writing = page.locator(".message.writing .plain-text")
    await expect(writing).to_have_text("one **two** ")
    await page.reload()
    await wait_for_stream(page)
    await expect(writing).to_have_text("one **two** ")
    pipe.write("three")
    await expect(writing).to_have_text("one **two** three")
    pipe.close()
    await expect(page.locator(".message.agent .page-text")).to_have_text("one two three")
    await expect(page.locator(".message.agent")).to_have_count(1)
    await expect(page.locator(".message.agent strong")).to_have_text("two")


@pytest.mark.usefixtures("shared")
async def test_screens_warnings_and_questions_of_an_agent_are_shown_in_its_session(desk: Desk) -> None:
    session = (await desk.post("/sessions", {"agent": "screen"}))["key"]
    page = await desk.open(session_path(session))
    await page.get_by_label("Message").fill("draw")
    await page.get_by_role("button", name="Send").click()
    await page.locator(".approval", has_text="Shall I draw?").get_by_role("button").first.click()
    await expect(page.locator(".screen")).to_have_text("second picture")
    await expect(page.locator(".task-line .status")).to_have_text("asking")
    await page.locator(".errors summary").click()
    await expect(page.locator(".errors li")).to_contain_text("the disk is nearly full")
    await page.reload()
    await expect(page.locator(".screen")).to_have_text("second picture")
    await expect(page.locator(".errors summary")).to_contain_text("1 warning")
    await page.locator(".approval", has_text="Go on?").get_by_role("button").first.click()
    await expect(page.locator(".message.agent .page-text")).to_have_text("drawn")
    await expect(page.locator(".screen")).to_be_hidden()


@pytest.mark.usefixtures("shared")
async def test_the_agents_avatar_is_shown_on_its_task(desk: Desk) -> None:
    task = await desk.submit("draw", "screen")
    page = await desk.open(f"/tasks/{task}")
    await page.locator(".approval", has_text="Shall I draw?").get_by_role("button").first.click()
    await expect(page.locator(".task-output")).to_contain_text("second picture")
    await page.locator(".approval", has_text="Go on?").get_by_role("button").first.click()
    await expect(page.locator(".task-output .page-text")).to_have_text("drawn")
