"""Test handoffs in the console: drawn and listed as they happen, opened, cancelled, retried; and a task handed off."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from playwright.async_api import Page, expect

from browsing import AGENTS, Desk, session_path, wait_for_stream

pytestmark = pytest.mark.asyncio(loop_scope="session")

Look = Callable[..., Awaitable[None]]
TIDE = re.compile("owner to demo: demo:hang watch the tide; in progress")
CAPABLE = """
[[agents.echo.capabilities]]
name = "talking"
task_types = ["say"]

[agents.picky]
kind = "transfer_agents:RefusingAgent"

[agents.giver]
kind = "function"
target = "transfer_agents:transfer"

[agents.leader]
kind = "function"
target = "transfer_agents:delegate"

[agents.starter]
kind = "browser.spender:Spender"

[agents.shut]
kind = "demo"
handoffs = false
"""


@pytest.fixture(scope="module")
def settings() -> str:
    return AGENTS + CAPABLE


async def hand_off(desk: Desk, to: str, text: str, **more: Any) -> Any:
    """Create a handoff over HTTP."""
    return await desk.post("/handoffs", {"to": to, "task": {"description": text}, "wait": 10, **more})


@pytest.mark.usefixtures("shared")
async def test_a_task_is_handed_off_from_its_page_and_shows_its_lineage(desk: Desk) -> None:
    task = await desk.submit("demo:hang count the gulls", agent="demo")
    page = await desk.open(f"/tasks/{task}")
    await page.get_by_role("button", name="Hand over").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("To", exact=True).select_option("echo")
    await dialog.get_by_label("Instructions").fill("count them for me")
    await expect(dialog.get_by_label("Stop this task")).to_be_checked()
    await dialog.get_by_role("button", name="Hand over").click()

    await expect(page).to_have_url(re.compile(r"/handoffs/h_"))
    await expect(page.locator(".task-line .status")).to_have_text("completed")
    await expect(page.locator(".handoff-answer")).to_contain_text("count them for me")
    await expect(page.locator(".history")).to_contain_text("demo:hang count the gulls")
    assert (await desk.wait_for_end(task))["status"] == "cancelled"
    await page.locator(".facts").get_by_role("link", name=task).click()
    row = page.locator(".handoff-row")
    await expect(row).to_contain_text("demo")
    await expect(row.locator(".status")).to_have_text("completed")
    await expect(page.locator(".relative")).to_contain_text("child")
    await page.locator(".relative").click()
    await page.get_by_role("link", name="handoff", exact=True).click()
    await expect(page).to_have_url(re.compile(r"/handoffs/h_"))


@pytest.mark.usefixtures("shared")
async def test_a_refusal_is_shown_in_the_form_and_another_agent_can_be_chosen(desk: Desk) -> None:
    desk.expect_problem("status of 409")
    task = await desk.submit("count the gulls", agent="echo")
    await desk.wait_for_end(task)
    page = await desk.open(f"/tasks/{task}")
    await page.get_by_role("button", name="Hand over").click()
    dialog = page.get_by_role("dialog")
    choice = dialog.get_by_label("To", exact=True)
    await choice.select_option("picky")
    offered = await choice.locator("option").all_inner_texts()
    assert "shell" in offered and not {"echo", "shut"} & set(offered)
    await dialog.get_by_role("button", name="Hand over").click()
    await expect(dialog.locator(".field-error:visible")).to_contain_text("agent 'picky' did not accept it: not today")
    await choice.select_option("demo")
    await dialog.get_by_role("button", name="Hand over").click()
    await expect(page).to_have_url(re.compile(r"/handoffs/h_"))
    await expect(page.locator(".task-line .parties")).to_contain_text("demo")


@pytest.mark.usefixtures("shared")
async def test_a_transferred_task_links_to_the_task_that_continues(desk: Desk) -> None:
    task = await desk.submit("count the gulls", agent="giver")
    await desk.wait_for_end(task)
    page = await desk.open(f"/tasks/{task}")
    await expect(page.locator(".handoff-row .row-sub")).to_contain_text("transfer")
    await page.get_by_role("link", name="view its task").click()
    await expect(page.locator(".relative")).to_have_text(re.compile("parent.*giver.*count the gulls"))


@pytest.mark.usefixtures("shared")
async def test_delegated_work_is_nested_in_the_timeline_while_it_happens(
    desk: Desk, faults: Callable[..., Awaitable[list[str]]]
) -> None:
    pipe = desk.pipe()
    task = await desk.submit(f"giver count the gulls\npipe {pipe.path}", agent="leader")
    page = await desk.open(f"/tasks/{task}")
    steps, child = page.locator("mw-waterfall .step"), page.locator("mw-waterfall .step.child")
    names = ["queued", "attempt 1", "turn", "ask_giver", "giver, delegate", "turn", "echo, transfer", "turn"]
    running = [*names, "ask_pipe", "pipe, delegate", "turn"]

    async def expect_steps(wanted: list[str]) -> None:
        await expect(steps).to_have_count(len(wanted))
        labels = await steps.evaluate_all("all => all.map((one) => one.ariaLabel)")
        for label, name in zip(labels, wanted, strict=True):
            assert label.startswith(f"{name}, "), labels

    await expect_steps(running)
    await expect(child.last).to_have_attribute("aria-label", re.compile("so far"))
    reloaded = await desk.tab(page.context, f"/tasks/{task}")
    await expect(reloaded.locator("mw-waterfall .step")).to_have_count(len(running))
    pipe.write("done")
    pipe.close()
    await expect(child.last).not_to_have_attribute("aria-label", re.compile("so far"))
    await child.first.click()
    await expect_steps(["queued", "attempt 1", "turn", "ask_giver", "giver, delegate", *running[8:]])
    await expect(page.locator(".waterfall-detail")).to_contain_text("giver, delegate")
    await page.keyboard.press("Tab")
    await child.first.focus()
    await page.keyboard.press("Enter")
    await expect_steps(running)
    await page.mouse.move(0, 0)
    assert await faults(page, light="task-nested-light", dark="task-nested-dark") == []
    await page.locator(".waterfall-detail").get_by_role("link", name="Open its task").click()
    await expect(page.locator("main h1")).to_have_text("count the gulls")
    await expect(child).to_have_count(1)


@pytest.mark.usefixtures("shared")
async def test_results_of_background_work_are_shown_where_the_agent_got_them(desk: Desk, look: Look) -> None:
    key = (await desk.post("/sessions", {"agent": "starter", "key": "chat:results"}))["key"]
    page = await desk.open(session_path(key))
    await page.get_by_label("Message").fill("start echo: 41 gulls\nstart shell: exit 3")
    await page.get_by_role("button", name="Send").click()
    done = ("completed", "failed")
    await desk.until("/handoffs", lambda found: [h["status"] in done for h in found["handoffs"][:2]] == [True, True])
    await desk.submit("9 gulls", "echo", origin_session=key)
    await expect(page.locator(".message.result", has_text="result of echo")).to_contain_text("9 gulls")
    line = page.locator(".step.results")
    await expect(line).to_have_count(0)
    await page.get_by_label("Message").fill("call 1")
    await page.get_by_role("button", name="Send").click()
    for again in (False, True):
        if again:
            await page.reload()
        await expect(line).to_have_text(re.compile(r"^Got results of background work: t_\w+ \(\w+\), t_\w+ \(\w+\)$"))
        await expect(line).to_contain_text("(ok)")
        await expect(line).to_contain_text("(error)")
    await look({"session": session_path(key)}, "results")
    await line.get_by_role("link").first.click()
    await expect(page.locator(".facts")).to_contain_text("handoff")


async def test_many_handoffs_are_drawn_below_fixed_names_and_listed_in_pages(desk: Desk) -> None:
    for number in range(101):
        await hand_off(desk, "demo", f"demo:hang watch {number}", wait=0)
    page = await desk.open("/handoffs")
    rows = page.locator(".handoff-row")
    await expect(rows).to_have_count(100)
    await expect(page.locator(".handoff-arrow")).to_have_count(60)
    await expect(page.locator(".handoff-chart-panel .count")).to_have_text("latest 60")
    await page.locator(".handoff-arrow").last.scroll_into_view_if_needed()
    await expect(page.locator(".handoff-chart-head")).to_be_in_viewport()
    await page.get_by_role("button", name="Load more").click()
    await expect(rows).to_have_count(101)
    await expect(page.get_by_role("button", name="Load more")).to_have_count(0)


async def test_the_page_draws_and_lists_handoffs_made_elsewhere(desk: Desk) -> None:
    page = await desk.open("/handoffs")
    await expect(page.get_by_text("No handoffs yet")).to_be_visible()
    handoff = await hand_off(desk, "demo", "demo:hang watch the tide", wait=0)
    arrow = page.locator(".handoff-arrow")
    await expect(arrow).to_have_count(1)
    await expect(arrow.locator("a")).to_have_attribute(
        "aria-label", re.compile("owner to demo: demo:hang watch the tide; in progress")
    )
    row = page.locator("ol[aria-label=Handoffs] .handoff-row")
    await expect(row.locator(".status")).to_have_text("in progress")
    await expect(page.locator(".lane text")).to_have_text(["owner", "demo"])
    await arrow.locator("a").focus()
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(handoff["id"]))
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Cancel handoff").click()
    await expect(page.locator(".task-line .status")).to_have_text("cancelled")
    await expect(page.locator("p.status-note")).to_have_text("cancelled by owner")
    await page.get_by_role("button", name="Retry").click()
    await expect(page.locator(".task-line .status")).to_have_text("in progress")
    await page.get_by_role("link", name="Handoffs").first.click()
    await expect(page.locator(".handoff-arrow")).to_have_count(2)
    await page.get_by_role("button", name="cancelled", exact=True).click()
    await expect(page.locator(".handoff-arrow")).to_have_count(1)
    await expect(page.locator(".handoff-row .status")).to_have_text("cancelled")
    await page.get_by_label("Agent").fill("echo")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("No matching handoffs")).to_be_visible()


@pytest.mark.usefixtures("shared")
async def test_a_viewer_sees_handoffs_and_cannot_change_them(desk: Desk) -> None:
    handoff = await hand_off(desk, "demo", "demo:hang watch", wait=0)
    page = await desk.open(f"/handoffs/{handoff['id']}", "viewer")
    await expect(page.locator(".task-line .status")).to_have_text("in progress")
    await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    await page.goto(f"/tasks/{handoff['task_id']}")
    await expect(page.locator(".task-line .status")).to_have_text("running")
    await expect(page.get_by_role("button", name="Hand over")).to_have_count(0)


async def create_handoffs(desk: Desk) -> dict[str, str]:
    """Create handoffs of every kind and return the pages to check."""
    task = await desk.submit("Find out why the nightly build is red, and mend it", agent="echo")
    await desk.wait_for_end(task)
    first = await hand_off(
        desk, "shell", "sleep 0.2; echo the cause is a missing import in worker.py", source_task=task
    )
    back = await hand_off(desk, "echo", "Write it down for the release notes", source_task=first["task_id"])
    await hand_off(desk, "demo", "demo:fail Compare with the build of the day before yesterday", source_task=task)
    await hand_off(desk, "demo", "demo:hang Watch the build and say when it is green again", source_task=task, wait=0)
    cancelled = await hand_off(desk, "shell", "sleep 60", wait=0)
    await desk.post(f"/handoffs/{cancelled['id']}/cancel")
    await hand_off(desk, "coder", "Say what you would do", wait=0)
    await desk.post("/handoffs", {"task": {"type": "say", "description": "good morning"}, "wait": 10})
    return {
        "handoffs": "/handoffs", "handoff": f"/handoffs/{back['id']}", "handoff-ended": f"/handoffs/{cancelled['id']}",
        "task-lineage": f"/tasks/{task}",
    }  # fmt: skip


async def test_the_pages_of_handoffs_look_right(desk: Desk, look: Look) -> None:
    await look(await create_handoffs(desk), "busy", wait_for_data)


async def wait_for_data(page: Page, name: str) -> None:
    """Wait until the page has its data."""
    await wait_for_stream(page)
    await expect(page.locator("main h1")).to_be_visible()
    await expect(page.locator(".skeleton")).to_have_count(0)
    if name == "handoffs":
        await expect(page.locator(".handoff-arrow")).to_have_count(7)
        await expect(page.locator(".handoff-row").first).to_contain_text("good morning · refused by picky")
    if name == "handoff-ended":
        await expect(page.locator("p.status-note")).to_be_visible()
        await expect(page.locator(".facts")).not_to_contain_text("Late result")
