"""Test the other pages: the log, lists and filters, agents, tokens, directories, unknown addresses."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Route, expect

from browsing import Desk, wait_for_log, wait_for_stream

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_log_follows_new_events_and_can_be_paused_filtered_and_opened_at_any_event(desk: Desk) -> None:
    page = await desk.open("/events")
    rows = page.locator(".log > li")
    await desk.wait_for_end(await desk.submit("first"))
    await expect(page.locator(".log-text", has_text="submitted to demo: first")).to_be_visible()
    await page.keyboard.press("p")
    go_on = page.get_by_role("button", name="Resume")
    await expect(go_on).to_have_attribute("aria-pressed", "true")
    before = await rows.count()
    await desk.wait_for_end(await desk.submit("second"))
    await expect(go_on).to_contain_text("new")
    assert await rows.count() == before
    await go_on.click()
    await expect(page.locator(".log-text", has_text="submitted to demo: second")).to_be_visible()
    await wait_for_log(desk, page)

    await page.get_by_label("Kind").select_option("task_finished")
    await expect(rows).to_have_count(2)
    await expect(page).to_have_url(re.compile(r"kind=task_finished"))
    await desk.wait_for_end(await desk.submit("third"))
    await expect(rows).to_have_count(3)
    assert set(await page.locator(".log-kind").all_inner_texts()) == {"task_finished"}

    await page.get_by_label("Kind").select_option("")
    await expect(page.locator(".log-kind").first).not_to_have_text("task_finished")
    await page.get_by_label("Jump to seq").fill("5")
    await page.get_by_label("Jump to seq").press("Enter")
    await expect(page.locator(".log > li.here .log-seq")).to_have_text("5")
    await expect(page.locator(".log > li.here")).to_be_in_viewport()
    await expect(page.locator(".log > li.here pre")).to_contain_text('"seq": 5')
    await page.locator(".log > li.here").get_by_role("link", name="View task").click()
    await expect(page.locator(".task-line .status")).to_have_text("done")


async def test_older_events_are_loaded_above_without_moving_the_visible_ones(desk: Desk) -> None:
    for number in range(220):
        await desk.submit(f"number {number}", delay="1h")
    page = await desk.open("/events")
    first = page.locator(".log-seq").first
    begins = int(await first.inner_text())
    assert begins > 1
    await page.get_by_role("button", name="Load older").click()
    await expect(first).to_have_text("1")
    seqs = [int(text) for text in await page.locator(".log-seq").all_inner_texts()]
    assert seqs == list(range(1, len(seqs) + 1))
    await expect(page.locator(".log > li").nth(begins - 1)).to_be_in_viewport()


async def test_a_rare_filter_says_how_far_the_log_was_searched(desk: Desk) -> None:
    task = await desk.wait_for_end(await desk.submit("rare"))
    page = await desk.open("/")

    async def find_nothing(route: Route) -> None:  # as in a log of very many events
        await route.fulfill(json={"events": [], "next": 777, "last_seq": 900_000, "oldest_seq": 1})

    backwards = re.compile(r"/api/v1/events\?.*before=")
    await page.route(backwards, find_nothing)
    await page.goto(f"/events?task_id={task['id']}")
    row = page.locator(".log > li")
    await expect(row).to_have_text("No matching events since event 777. “Load older” searches further back.")
    await page.unroute(backwards)
    await page.get_by_role("button", name="Load older").click()
    await expect(page.locator(".log-text").first).to_contain_text("rare")
    await page.goto("/events?task_id=t_none")
    await expect(row).to_have_text("No matching events. New events appear here.")


async def test_tasks_are_filtered_and_the_filter_is_in_the_address(desk: Desk) -> None:
    for prompt, agent in (("good", "demo"), ("demo:fail bad", "demo"), ("said", "echo")):
        await desk.wait_for_end(await desk.submit(prompt, agent))
    page = await desk.open("/tasks")
    rows = page.locator(".task-list .row-title")
    await expect(rows).to_have_text(["said", "demo:fail bad", "good"])
    await page.get_by_role("group", name="Status").get_by_role("button", name="failed").click()
    await expect(rows).to_have_text(["demo:fail bad"])
    await page.reload()
    await expect(rows).to_have_text(["demo:fail bad"])
    await page.get_by_role("group", name="Status").get_by_role("button", name="all").click()
    await expect(rows).to_have_count(3)
    await page.get_by_label("Agent").fill("echo")
    await page.get_by_label("Agent").press("Enter")
    await expect(rows).to_have_text(["said"])
    await desk.submit("said later", "echo")
    await expect(rows).to_have_text(["said later", "said"])
    await page.goto("/tasks?agent=nobody")
    await expect(page.get_by_text("No matching tasks")).to_be_visible()
    await page.get_by_role("link", name="Clear filters").click()
    await expect(rows).to_have_count(4)


async def test_many_tasks_are_loaded_page_by_page(desk: Desk) -> None:
    for number in range(60):
        await desk.submit(f"number {number}", "demo", delay="1h")
    page = await desk.open("/tasks")
    rows = page.locator(".task-list .row-title")
    await expect(rows).to_have_count(50)
    await page.get_by_role("button", name="Load more").click()
    await expect(rows).to_have_count(60)
    await expect(rows.last).to_have_text("number 0")
    await expect(page.get_by_role("button", name="Load more")).to_be_hidden()


@pytest.mark.usefixtures("shared")
async def test_an_agent_is_tested_from_its_page(desk: Desk) -> None:
    page = await desk.open("/agents")
    card = page.locator("[data-agent=demo]")
    await expect(card.locator(".status")).to_have_text("live")
    await card.get_by_role("button", name="Test").click()
    await expect(page.locator(".task-line .status")).to_have_text("done")
    await expect(page.locator(".facts")).to_contain_text("demo")


@pytest.mark.usefixtures("shared")
async def test_a_new_token_is_shown_once_works_and_is_revoked(desk: Desk) -> None:
    desk.expect_problem(r"status of (409|422)")
    page = await desk.open("/settings")
    await page.get_by_label("Name").fill("phone")
    await page.get_by_label("Role").select_option("viewer")
    await page.get_by_role("button", name="Create").click()
    secret = await page.locator(".new-token code").inner_text()
    assert secret.startswith("mw_")
    await expect(page.get_by_role("row", name="phone")).to_contain_text("viewer")
    async with desk.server.client() as client:
        headers = {"Authorization": f"Bearer {secret}"}
        assert (await client.get("/me", headers=headers)).json()["role"] == "viewer"
        await page.get_by_label("Name").fill("phone")
        await page.get_by_role("button", name="Create").click()
        await expect(page.locator(".field-error:visible")).to_contain_text("phone")
        await page.reload()
        await expect(page.get_by_role("row", name="phone")).to_be_visible()
        assert secret not in await page.content()
        await page.get_by_role("row", name="phone").get_by_role("button", name="Revoke").click()
        await page.locator("dialog").get_by_role("button", name="Revoke").click()
        await expect(page.get_by_role("row", name="phone")).to_have_count(0)
        assert (await client.get("/me", headers=headers)).status_code == 401
    await page.get_by_text("Show revoked").click()
    await expect(page.get_by_role("row", name="phone")).to_contain_text("revoked")


@pytest.mark.usefixtures("shared")
async def test_a_directory_is_chosen_in_the_directory_list(desk: Desk, tmp_path: Path) -> None:
    desk.expect_problem(r"status of (404|422)")
    folder = tmp_path / "work"
    (folder / "deep <b>er").mkdir(parents=True)
    page = await desk.open("/tasks/new")
    await page.get_by_label("Directory").fill(str(folder.parent))
    await page.get_by_role("button", name="Browse").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="work", exact=True).click()
    await dialog.get_by_role("button", name="deep <b>er").click()
    await expect(dialog.get_by_label("Path")).to_have_value(f"{folder}/deep <b>er")
    await dialog.get_by_role("button", name="..", exact=True).click()
    await dialog.get_by_role("button", name="Use this directory").click()
    await expect(page.get_by_label("Directory")).to_have_value(str(folder))
    await expect(page.get_by_role("button", name="Browse")).to_be_focused()
    await page.get_by_role("button", name="Browse").click()
    await dialog.get_by_label("Path").fill("/no/such/place")
    await dialog.get_by_label("Path").press("Enter")
    await expect(dialog.get_by_text("Not found")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_label("Directory")).to_have_value(str(folder))


@pytest.mark.usefixtures("shared")
async def test_a_late_response_does_not_overwrite_typed_text(desk: Desk) -> None:
    desk.expect_problem(r"status of (404|422)")
    page = await desk.open("/tasks/new")
    requested, go = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        requested.set()
        await go.wait()
        await route.continue_()

    await page.route("**/api/v1/directories", late)
    await page.get_by_role("button", name="Browse").click()
    path = page.get_by_role("dialog").get_by_label("Path")
    await requested.wait()
    await path.fill("/no/such")
    async with page.expect_response("**/directories"):
        go.set()
    await expect(page.get_by_role("dialog").get_by_role("listitem").first).to_be_visible()
    await expect(path).to_have_value("/no/such")
    await expect(path).to_be_focused()
    go.clear()
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Browse").click()
    await path.fill("/no/such/place")
    await path.press("Enter")
    await expect(page.get_by_role("dialog").get_by_text("Not found")).to_be_visible()
    async with page.expect_response("**/directories"):
        go.set()
    await expect(page.get_by_role("dialog").get_by_text("Not found")).to_be_visible()
    await expect(path).to_have_value("/no/such/place")


@pytest.mark.usefixtures("shared")
async def test_unknown_addresses_show_an_error(desk: Desk) -> None:
    desk.expect_problem(r"status of 404")
    page = await desk.open("/tasks/t_0000000000000000000000000")
    heading = page.get_by_role("heading", name="Not found", level=1)
    await expect(heading).to_be_visible()
    await page.goto("/goals/g_0000000000000000000000000")
    await expect(heading).to_be_visible()
    await page.goto("/sessions/chat%3Anobody")
    await expect(heading).to_be_visible()
    await expect(page).to_have_title("Not found · midwatch")
    await page.get_by_role("link", name="Go to Now", exact=True).click()
    await wait_for_stream(page)
    await expect(page.get_by_role("heading", name="Now", level=1)).to_be_visible()
