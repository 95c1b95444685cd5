"""Test that events are shown as they happen: in one tab, in two, after a reload, and after a restart of the server."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import expect

from browsing import LOST, Desk, count_text, wait_for_log, wait_for_stream

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.usefixtures("shared")
async def test_a_submitted_task_is_shown_as_finished_without_a_reload(desk: Desk) -> None:
    pipe = desk.pipe()
    page = await desk.open("/")
    await page.get_by_role("link", name="New task").first.click()
    await page.get_by_label("Prompt", exact=True).fill(str(pipe.path))
    await page.get_by_label("Agent").select_option("pipe")
    await page.get_by_role("button", name="Submit").click()
    await expect(page.get_by_role("heading", name=str(pipe.path), level=1)).to_be_visible()
    pipe.write("Hello to **the night shift**")
    written = page.locator(".task-output .plain-text")
    await expect(written).to_have_text("Hello to **the night shift**")  # before the task has ended
    await expect(page.locator(".task-output h2")).to_have_text("Output")
    await expect(page.locator(".task-line .status")).to_have_text("running")
    pipe.close()
    await expect(page.locator(".task-output h2")).to_have_text("Result")
    await expect(page.locator(".task-output .page-text")).to_have_text("Hello to the night shift")
    await expect(page.locator(".task-line .status")).to_have_text("done")
    await page.get_by_role("link", name="Now").first.click()
    await expect(page.locator(".now-recent .row-title", has_text=str(pipe.path))).to_have_count(1)
    documents = [request.url for request in desk.requests if request.resource_type == "document"]
    assert len(documents) == 1, documents  # this page was never reloaded


@pytest.mark.usefixtures("shared")
async def test_a_reload_during_a_stream_loses_nothing(desk: Desk) -> None:
    pipe = desk.pipe()
    task = await desk.submit(str(pipe.path), "pipe")
    page = await desk.open(f"/tasks/{task}")
    output = page.locator(".task-output .plain-text")
    pipe.write("first words, ")
    await expect(output).to_have_text("first words, ")
    await page.reload()
    await wait_for_stream(page)
    await expect(output).to_have_text("first words, ")
    pipe.write("then ☕ more, ")
    await expect(output).to_have_text("first words, then ☕ more, ")
    await page.reload(wait_until="commit")
    pipe.write("and the last.")
    await expect(output).to_have_text("first words, then ☕ more, and the last.")
    pipe.close()
    await expect(page.locator(".task-output .page-text")).to_have_text("first words, then ☕ more, and the last.")
    assert await count_text(page, "first words, then ☕ more, and the last.") == 1


@pytest.mark.usefixtures("shared")
async def test_two_tabs_show_the_same_events(desk: Desk) -> None:
    pipe = desk.pipe()
    task = await desk.submit(str(pipe.path), "pipe")
    first_page = await desk.open(f"/tasks/{task}")
    second_page = await desk.tab(first_page.context, f"/tasks/{task}")
    for text in ("alpha ", "beta ", "gamma"):
        pipe.write(text)
    for page in (first_page, second_page):
        await expect(page.locator(".task-output .plain-text")).to_have_text("alpha beta gamma")
    pipe.close()
    for page in (first_page, second_page):
        await expect(page.locator(".task-line .status")).to_have_text("done")
        await expect(page.locator(".task-output .page-text")).to_have_text("alpha beta gamma")
    await expect(first_page.locator("mw-waterfall .step").first).to_be_visible()
    names = "() => [...document.querySelectorAll('mw-waterfall .step')].map((one) => one.ariaLabel)"
    async with asyncio.timeout(60):
        while await first_page.evaluate(names) != await second_page.evaluate(names):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_lost_server_is_shown_and_missed_events_are_loaded_when_it_returns(desk: Desk, how: str) -> None:
    desk.expect_problem(LOST)
    pipe = desk.pipe()
    page = await desk.open("/events")
    watching = await desk.tab(page.context, "/")
    task = await desk.submit(str(pipe.path), "pipe")
    watched = await desk.tab(page.context, f"/tasks/{task}")
    pipe.write("half a sentence")
    await expect(watched.locator(".task-output .plain-text")).to_have_text("half a sentence")
    if how == "killed":
        await desk.server.kill()
    else:
        await desk.server.stop()
    for tab in (page, watching, watched):
        await expect(tab.locator("#banner")).to_contain_text("Offline")
        await expect(tab.locator("#link-state")).to_have_text("offline")
    await desk.server.start()
    meanwhile = await desk.submit("happened meanwhile")
    await desk.wait_for_end(meanwhile)
    pipe.write("a whole sentence")
    await expect(watched.locator(".task-output .plain-text")).to_have_text("a whole sentence")
    for tab in (page, watching, watched):
        await wait_for_stream(tab)
        await expect(tab.locator("#banner")).to_be_hidden()
    pipe.close()
    await expect(watched.locator(".task-output .page-text")).to_have_text("a whole sentence")
    await expect(watching.locator(".now-recent .row-title")).to_have_count(2)
    seqs = await wait_for_log(desk, page)
    assert seqs == list(range(seqs[0], seqs[-1] + 1))
