"""Test budgets in the console: how much is spent, and how a task with a spent budget continues."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from browsing import Desk

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("shared")]


async def test_a_spent_budget_is_shown_and_raised(desk: Desk) -> None:
    task = await desk.submit("demo:sleep=30 count the gulls", budget={"seconds": 1, "tokens": 5000})
    page = await desk.open(f"/tasks/{task}")
    await expect(page.locator(".task-line .status")).to_have_text("budget")
    spent = page.locator(".budget [data-meter=seconds]")
    await expect(spent).to_have_text(re.compile(r"^\d+ s of 1 s worked$"))
    await expect(page.locator(".budget [data-meter=tokens]")).to_have_text("0 of 5000 tokens")
    await page.get_by_role("button", name="Retry").click()
    await expect(page.get_by_label("Maximum work time")).to_have_value(re.compile(r"^\d+s$"))
    await page.get_by_label("Maximum work time").fill("1h")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.locator(".task-line .status")).to_have_text("running")
    await expect(page.locator(".budget [data-meter=seconds]")).to_contain_text("of 1 h worked")
    await expect(page.locator(".task-line code")).not_to_have_text(task)
