"""Test budgets in the console: how much is spent, by which tasks of a tree, and how spent budgets continue."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import expect

from browsing import AGENTS, DESKTOP, PHONE, Desk

pytestmark = pytest.mark.asyncio(loop_scope="session")

SPENDERS = """
[day_budget]
tokens = 2000

[agents.leader]
kind = "browser.spender:Spender"

[agents.helper]
kind = "browser.spender:Spender"
day_budget = {usd = 0.5}
"""
TREE = """Tidy up the tests of the worker
call 2
helper: Look at the tests of the retries; call 3; leader: Run them, call 1
helper: Write down what was found; call 2
hold"""


@pytest.fixture(scope="module")
def settings() -> str:
    return AGENTS + SPENDERS


@pytest.mark.usefixtures("shared")
async def test_a_spent_budget_is_shown_and_raised(desk: Desk) -> None:
    desk.expect_problem("status of 422")
    task = await desk.submit("demo:sleep=30 count the gulls", budget={"seconds": 1, "tokens": 5000})
    page = await desk.open(f"/tasks/{task}")
    await expect(page.locator(".task-line .status")).to_have_text("budget")
    spent = page.locator(".budget [data-meter=seconds]")
    await expect(spent).to_have_text(re.compile(r"^\d+ s of 1 s worked$"))
    await expect(page.locator(".budget [data-meter=tokens]")).to_have_text("0 of 5000 tokens")
    await page.get_by_role("button", name="Retry").click()
    await expect(page.get_by_label("Maximum work time")).to_have_value(re.compile(r"^\d+s$"))
    await page.get_by_label("Maximum work time").fill("an hour")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.locator(".field-error:visible")).to_contain_text("or a duration such as 10m")
    await page.get_by_label("Maximum work time").fill("1h")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.locator(".task-line .status")).to_have_text("running")
    await expect(page.locator(".budget [data-meter=seconds]")).to_contain_text("of 1 h worked")
    await expect(page.locator(".task-line code")).not_to_have_text(task)


@pytest.mark.usefixtures("shared")
async def test_a_task_tells_its_own_usage_from_that_of_its_tree_without_a_budget(desk: Desk) -> None:
    task = await desk.submit("call 2\nhelper: call 3", "leader")
    await desk.wait_for_end(task)
    page = await desk.open(f"/tasks/{task}")
    own, tree = page.locator(".used p").all_inner_texts, page.locator(".used a")
    await expect(tree).to_have_text("500 tokens · $0.0500 · 5 steps · 2 tasks")
    assert await own() == [
        "This task\n160 tokens in · 40 out · $0.0200 · m",
        "With all work that grew out of it\n500 tokens · $0.0500 · 5 steps · 2 tasks",
    ]
    await page.get_by_role("link", name="helper").first.click()
    await expect(page.locator(".used")).to_contain_text("The whole work that it belongs to")
    unpriced = await desk.submit("unpriced 2", "leader")
    await desk.wait_for_end(unpriced)
    await page.goto(f"/tasks/{unpriced}")
    await expect(tree).to_have_text("200 tokens · cost unknown · 2 steps · 1 task")


async def test_the_tree_of_a_budget_is_shown_while_it_is_spent_and_its_question_is_answered(
    desk: Desk, look: Callable[..., Awaitable[None]]
) -> None:
    page = await desk.open("/budgets")
    await expect(page.get_by_text("No budgets yet")).to_be_visible()
    await desk.post("/goals", {"objective": "All links work", "agent": "demo", "max_tokens": 9000, "deadline": "in 1d"})
    task = await desk.submit(TREE, "leader", budget={"tokens": 900, "usd": 5})
    row = page.locator(f".budget-row[href='/budgets/{task}']")
    await expect(row.locator("[data-meter=tokens]")).to_have_text("800 of 900 tokens")
    await expect(row.locator("[data-meter=tokens]")).to_have_class(re.compile("nearly"))
    await expect(row).to_contain_text("warned: tokens")
    day = page.locator("ol[aria-label=Day] .budget-row")
    await expect(day).to_have_count(2)
    await expect(day.first.locator("[data-meter=tokens]")).to_have_text("800 of 2000 tokens")
    await row.click()
    tree = page.locator(".budget-tree .tree-row")
    await expect(tree).to_have_count(4)
    depths = await page.locator(".budget-tree > li").evaluate_all("all => all.map((one) => one.style.cssText)")
    assert [re.sub(r"\D", "", depth) for depth in depths] == ["0", "1", "2", "1"]
    assert await tree.locator(".meter").all_inner_texts() == [
        "not known yet", "300 tokens · 38 %", "100 tokens · 13 %", "200 tokens · 25 %"
    ]  # fmt: skip
    rest = page.locator(".budget-tasks .rows .tree-row", has_text="Running or interrupted")
    await expect(rest).to_contain_text("200 tokens · 25 %")
    await page.get_by_role("button", name="steps").click()
    await expect(tree.nth(1)).to_contain_text("3 steps")
    await page.get_by_role("button", name="tokens").click()
    await page.locator(".task-buttons").get_by_role("link", name="Task").click()
    await page.get_by_role("link", name="800 tokens").click()
    await expect(tree).to_have_count(4)

    asking = await desk.submit("Count the gulls\ncall 5", "leader", budget={"tokens": 300})
    await desk.until(f"/budgets/{asking}", lambda account: account["question"])
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Budgets").click()
    first = page.locator("ol[aria-label=Work] > li").first
    await expect(first).to_contain_text("leader asks whether the work may go on")
    await look({"budgets": "/budgets", "budget": f"/budgets/{task}", "budget-asks": f"/budgets/{asking}"}, "tree")
    await first.get_by_role("link", name="Answer").click()
    card = page.locator("article.approval", has_text="Its budget of 300 tokens is spent")
    await expect(card).to_be_focused()
    await page.set_viewport_size(PHONE)
    cut = "(text) => text.scrollHeight - text.clientHeight"
    assert await card.locator(".approval-question").evaluate(cut) <= 1
    await page.set_viewport_size(DESKTOP)
    await page.goto(f"/budgets/{asking}")
    await expect(page.locator(".task-line .status")).to_have_text("asks")
    await page.get_by_role("button", name="raise by 100 %").click()
    await expect(page.locator(".budget [data-meter=tokens]")).to_have_text("500 of 600 tokens")
    await expect(page.locator(".task-line .status")).to_have_text("ended")
    await expect(page.locator("article.approval")).to_have_count(0)
    await expect(tree.locator(".meter")).to_have_text("500 tokens · 100 %")
