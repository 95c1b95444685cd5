"""Test failures of the page's event stream: pruned events, a restored store, and more tabs than connections."""

from __future__ import annotations

import shutil
import sqlite3

import pytest
from playwright.async_api import Page, expect

from browsing import LOST, Desk, wait_for_stream

pytestmark = pytest.mark.asyncio(loop_scope="session")

HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""A headless browser does not hide its tabs, so the test reports it to the page."""


async def offline(page: Page) -> None:
    await expect(page.locator("#link-state")).to_have_attribute("data-state", "offline")


async def test_the_page_reloads_its_data_when_missed_events_were_pruned(desk: Desk) -> None:
    desk.expect_problem(LOST)
    page = await desk.open("/")
    tasks = await desk.tab(page.context, "/tasks")
    await desk.wait_for_end(await desk.submit("seen"))
    await expect(page.locator(".now-recent .row-title")).to_have_text("seen")
    await desk.server.stop()
    for tab in (page, tasks):
        await offline(tab)
    await desk.server.start()
    for tab in (page, tasks):
        await tab.context.set_offline(True)  # it returns after the events it missed were pruned
    missed = await desk.submit("missed")
    await desk.wait_for_end(missed)
    await desk.server.stop()
    with sqlite3.connect(desk.server.home / "midwatch.db") as store:
        last = store.execute("SELECT last_seq FROM event_head").fetchone()[0]
        store.execute("DELETE FROM events")
        store.execute("UPDATE event_head SET oldest_seq = ?", (last + 1,))
    store.close()
    await desk.server.start()
    await page.context.set_offline(False)
    for tab in (page, tasks):
        await wait_for_stream(tab)
    await expect(page.locator(".now-recent .row-title")).to_have_text(["missed", "seen"])
    await expect(tasks.locator(".row-title")).to_have_text(["missed", "seen"])


async def test_a_restored_store_is_loaded_again(desk: Desk) -> None:
    desk.expect_problem(LOST)
    store = desk.server.home / "midwatch.db"
    page = await desk.open("/tasks")
    await desk.wait_for_end(await desk.submit("kept"))
    await desk.server.stop()
    shutil.copy(store, store.with_suffix(".copy"))
    await desk.server.start()
    await desk.wait_for_end(await desk.submit("undone"))
    await wait_for_stream(page)
    await expect(page.locator(".row-title")).to_have_text(["undone", "kept"])
    await desk.server.stop()
    shutil.copy(store.with_suffix(".copy"), store)
    await offline(page)
    await desk.server.start()
    await wait_for_stream(page)
    await expect(page.locator(".row-title")).to_have_text(["kept"])
    await desk.submit("after")
    await expect(page.locator(".row-title")).to_have_text(["after", "kept"])


async def test_hidden_tabs_close_their_streams_for_newer_tabs_and_catch_up_later(desk: Desk) -> None:
    oldest = await desk.open("/tasks")
    tabs = [oldest]
    for _ in range(7):  # one more than a browser has connections
        await tabs[-1].evaluate(HIDE, True)
        tabs.append(await desk.tab(oldest.context, "/"))
    await expect(oldest.locator("#link-state")).to_have_text("paused")
    await expect(oldest.locator("#banner")).to_be_hidden()
    await desk.wait_for_end(await desk.submit("while it rested"))
    await expect(tabs[-1].locator(".now-recent .row-title")).to_have_text("while it rested")
    await expect(oldest.locator(".row-title")).to_have_count(0)
    await oldest.evaluate(HIDE, False)
    await wait_for_stream(oldest)
    await expect(oldest.locator(".row-title")).to_have_text(["while it rested"])


async def test_a_burst_of_events_is_shown_completely(desk: Desk) -> None:
    page = await desk.open("/events")
    for number in range(150):
        await desk.submit(f"number {number}", delay="1h")
    await expect(page.locator(".log-text", has_text="number 149")).to_be_visible()
    seqs = [int(text) for text in await page.locator(".log-seq").all_inner_texts()]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
