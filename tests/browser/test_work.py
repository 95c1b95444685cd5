"""Test how the work of agents is shown: thoughts, plans, tools, diffs and costs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from playwright.async_api import Route, expect

from browsing import Desk, session_path, wait_for_stream
from coder import PLAN, THOUGHT
from repositories import a_repository

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.usefixtures("shared")
async def test_a_session_shows_what_its_agent_thinks_plans_and_does(desk: Desk) -> None:
    session = (await desk.post("/sessions", {"agent": "coder", "key": "chat:work"}))["key"]
    page = await desk.open(session_path(session))
    await page.get_by_label("Message").fill("put a ceiling on it")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".message.agent .page-text")).to_contain_text("The back-off has a ceiling now")
    steps = page.locator(".steps-list > li > .step")
    kinds = ["thought", "plan", "tool", "tool", "tool", "tool", "turn"]
    for again in (False, True):
        if again:
            await page.reload()
            await wait_for_stream(page)
        await expect(steps).to_have_class([re.compile(rf"\b{kind}\b") for kind in kinds])  # in order of arrival
        await expect(page.locator(".plan-list li")).to_have_text(list(PLAN))
        await expect(page.locator(".plan-head")).to_contain_text("4 of 4 done")
        order = ["message user", "work", "message agent", "work"]
        await expect(page.locator(".conversation > li")).to_have_class(order)
        await expect(page.locator(".step.turn")).to_contain_text("4 tools")
        await expect(page.locator(".step.turn")).to_contain_text("48.2K tokens in · 2904 out · $0.2113 · large-4")
        await expect(page.locator(".session-sub")).to_contain_text("used 48.2K tokens in · 2904 out · $0.2113")


@pytest.mark.usefixtures("shared")
async def test_a_tasks_timeline_shows_model_calls_and_tools_with_tokens_and_money(desk: Desk) -> None:
    task = await desk.submit("put a ceiling on it", "coder")
    await desk.wait_for_end(task)
    page = await desk.open(f"/tasks/{task}")
    model = page.get_by_role("listitem", name=re.compile("^large-4, "))
    await expect(model).to_have_accessible_name(re.compile(r"48\.2K tokens in · 2904 out · \$0\.2113$"))
    await expect(model.locator(".bar.llm")).to_be_visible()
    await expect(model.locator(".note")).to_have_text("51.1K · $0.2113")
    await expect(page.locator("mw-waterfall .bar.tool")).to_have_count(4)
    await model.focus()
    await expect(page.locator(".waterfall-detail")).to_contain_text("48.2K tokens in · 2904 out · $0.2113")
    await expect(page.locator(".waterfall-detail")).to_contain_text("9 messages")


@pytest.mark.usefixtures("shared")
async def test_a_thought_is_shown_at_its_place_although_the_browsers_clock_is_wrong(desk: Desk) -> None:
    session = (await desk.post("/sessions", {"agent": "coder", "key": "chat:clock"}))["key"]
    page = await desk.open(session_path(session))
    await page.add_init_script("const rightly = Date.now; Date.now = () => rightly() + 2000")
    await page.reload()
    await wait_for_stream(page)
    await expect(page.get_by_label("Message")).to_be_focused()
    await desk.post(f"{session_path(session)}/messages", {"text": "hold it"})
    await expect(page.locator(".step.thought")).to_have_count(2)
    await page.locator(".approval").get_by_role("button", name="Go on").click()
    await expect(page.locator(".step.turn")).to_contain_text("5 tools")
    await expect(page.locator(".conversation > li")).to_have_class(["message user", "work", "message agent", "work"])
    await expect(page.locator(".conversation > .work .step.thought")).to_have_count(2)
    await expect(page.locator(".message.agent + .work .step")).to_have_count(1)  # how the turn ended


@pytest.mark.usefixtures("shared")
async def test_thoughts_and_tools_are_collapsed_and_open_by_keyboard(desk: Desk) -> None:
    task = await desk.submit("put a ceiling on it", "coder", session_key="chat:folded")
    await desk.wait_for_end(task)
    for path in (session_path("chat:folded"), f"/tasks/{task}"):
        page = await desk.open(path)
        thought = page.locator(".step.thought")
        await expect(thought.locator(".plain-text")).to_be_hidden()
        await thought.locator("summary").focus()
        await page.keyboard.press("Enter")
        await expect(thought.locator(".plain-text")).to_be_visible()
        await expect(thought.locator(".plain-text")).to_have_text(THOUGHT)
        bad = page.locator(".step.tool[data-state=bad]")
        await expect(bad).to_contain_text("failed")
        await expect(bad.locator(".duration")).to_have_text("400 ms")
        await bad.locator("summary").focus()
        await page.keyboard.press("Enter")
        await expect(bad.locator(".tool-body")).to_contain_text("1 failed, 87 passed")
        await expect(bad.locator(".tool-body")).to_contain_text("pytest")


@pytest.mark.usefixtures("shared")
async def test_the_work_of_a_task_is_shown_although_its_events_arrive_late(desk: Desk) -> None:
    task = await desk.submit("put a ceiling on it", "coder")
    await desk.wait_for_end(task)
    page = await desk.open("/")
    routes: asyncio.Queue[Route] = asyncio.Queue()
    await page.route("**/api/v1/events?task_id=*", routes.put)
    async with page.expect_response(f"**/api/v1/tasks/{task}/page") as answered:
        await page.goto(f"/tasks/{task}")
    await (await answered.value).finished()
    await page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    await (await asyncio.wait_for(routes.get(), 60)).continue_()
    await expect(page.locator(".task-work .step.tool").first).to_be_visible()


@pytest.mark.usefixtures("shared")
async def test_a_diff_is_coloured_and_counted_and_a_long_one_is_collapsed(desk: Desk) -> None:
    task = await desk.submit("put a ceiling on it", "coder")
    await desk.wait_for_end(task)
    page = await desk.open(f"/tasks/{task}")
    short, long = page.locator(".diff").first, page.locator(".diff").last
    await expect(short.locator("summary")).to_contain_text("src/worker.py")
    await expect(short.locator("summary .added")).to_have_text("+3")
    await expect(short.locator("summary .removed")).to_contain_text("1")
    await expect(short.locator(".line.removed")).to_have_text("-    return 2.0**task.failures\n")
    await expect(short.locator(".line.added")).to_have_count(3)
    await expect(long.locator(".patch")).to_be_hidden()
    await long.locator("summary").click()
    await expect(long.locator(".line.added")).to_have_count(60)
    await expect(long.locator(".diff-left")).to_contain_text("cut")


@pytest.mark.usefixtures("shared")
async def test_work_is_shown_while_it_happens(desk: Desk) -> None:
    session = (await desk.post("/sessions", {"agent": "coder", "key": "chat:held"}))["key"]
    page = await desk.open(session_path(session))
    await expect(page.get_by_label("Message")).to_be_focused()  # live thoughts are sent once, to present watchers only
    sent = await desk.post(f"{session_path(session)}/messages", {"text": "hold it"})
    watched = await desk.tab(page.context, f"/tasks/{sent['id']}")
    thinking = page.locator(".step.thought[data-state=open]")
    await expect(thinking).to_contain_text("Thinking")
    await thinking.locator("summary").click()
    await expect(thinking.locator(".plain-text")).to_have_text(THOUGHT)
    for tab in (page, watched):
        await expect(tab.locator(".plan-list li[data-status=in_progress]")).to_have_text(PLAN[1])
        runs = tab.locator(".step.tool[data-state=open]")
        await expect(runs).to_contain_text("pytest tests/unit")
        await expect(runs).to_contain_text("running")
    await page.locator(".approval").get_by_role("button", name="Go on").click()
    for tab in (page, watched):
        await expect(tab.locator(".step.tool[data-state=open]")).to_have_count(0)
        await expect(tab.locator(".step.thought[data-state=open]")).to_have_count(0)
        await expect(tab.locator(".plan-list")).to_have_count(1)
        await expect(tab.locator(".plan-head")).to_contain_text("4 of 4 done")
        await expect(tab.locator(".step.question-step")).to_contain_text("Go on: allowed by owner")


@pytest.mark.usefixtures("shared")
async def test_a_thought_that_arrives_before_the_page_is_loaded_is_kept(desk: Desk) -> None:
    session = (await desk.post("/sessions", {"agent": "coder", "key": "chat:early"}))["key"]
    page = await desk.open("/")
    routes: asyncio.Queue[Route] = asyncio.Queue()
    await page.route("**/api/v1/events?*kind=thought_update*", routes.put)
    await page.goto(session_path(session))
    await wait_for_stream(page)
    reading = await asyncio.wait_for(routes.get(), 60)
    await desk.post(f"{session_path(session)}/messages", {"text": "hold it"})
    await expect(page.locator("#nav .badge")).to_have_text("1")
    await reading.continue_()
    await expect(page.locator(".step.thought[data-state=open]")).to_contain_text("Thinking")


async def test_the_usage_of_a_task_is_shown_and_missing_values_are_unknown(desk: Desk) -> None:
    for prompt, says in (
        ("do it", "48.2K tokens in · 2904 out · $0.2113 · large-4"), ("untold", "unknown, not reported by the agent")
    ):  # fmt: skip
        task = await desk.submit(prompt, "coder")
        await desk.wait_for_end(task)
        page = await desk.open(f"/tasks/{task}")
        await expect(page.locator(".used p").first).to_have_text(f"This task{says}")
    page = await desk.open("/usage")
    await expect(page.locator("[data-tile=tasks] dd")).to_have_text("2")
    await expect(page.locator("[data-tile=cost] dd")).to_have_text("$0.2113")
    await expect(page.locator(".usage-note")).to_have_text("No usage reported for 1 of 2 tasks.")
    await expect(page.locator(".bar-day")).to_have_count(7)
    await page.get_by_role("group", name="Group by", exact=True).get_by_role("button", name="model").click()
    await expect(page.locator(".usage-table tbody tr")).to_have_count(2)
    untold = page.locator(".usage-table tbody tr", has_text="not reported")
    await expect(untold.locator("td.unknown")).to_have_text(["unknown", "unknown", "unknown"])
    await page.reload()
    await expect(untold).to_have_count(1)
    await desk.wait_for_end(await desk.submit("once more", "coder"))
    await expect(page.locator("[data-tile=cost] dd")).to_have_text("$0.4226")
    await page.get_by_role("group", name="Group by", exact=True).get_by_role("button", name="agent").click()
    await page.get_by_role("link", name="coder").click()
    await expect(page.locator(".task-list .row-title")).to_have_count(3)


@pytest.mark.usefixtures("shared")
async def test_the_branch_of_a_task_is_shown_compared_merged_and_removed(desk: Desk, tmp_path: Path) -> None:
    desk.expect_problem("status of 409")  # the open diff may be loaded again just when its branch is removed
    repo = a_repository(tmp_path / "repo")
    prompt = "echo '<b>new</b>' > fresh.txt; git add fresh.txt; git commit -qm fresh; echo rest > 'and <i>.txt'"
    task = await desk.submit(prompt, "shell", workdir=str(repo), worktree=True)
    ended_task = await desk.wait_for_end(task)
    assert ended_task["status"] == "done", ended_task
    page = await desk.open(f"/tasks/{task}")
    branch = page.locator(".worktree")
    await expect(branch.locator(".branch-line")).to_contain_text(ended_task["worktree"]["branch"])
    await expect(branch.locator(".branch-line")).to_contain_text("2 files, +2")
    await expect(branch).to_contain_text("uncommitted changes")
    await branch.get_by_text("Show the diff").click()
    await expect(branch.locator(".diff-path")).to_have_text(["and <i>.txt", "fresh.txt"])
    await expect(branch.locator(".line.added").last).to_have_text("+<b>new</b>\n")
    await branch.get_by_role("button", name="Merge").click()
    await page.get_by_role("dialog").get_by_role("button", name="Merge").click()
    await expect(branch.locator(".status")).to_have_text("merged")
    assert (repo / "fresh.txt").read_text() == "<b>new</b>\n"
    await branch.get_by_role("button", name="Remove").click()
    await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    await expect(branch.locator(".status")).to_have_text("removed")
    await expect(branch.get_by_role("button", name="Merge")).to_be_disabled()


@pytest.mark.usefixtures("shared")
async def test_a_worktree_with_unmerged_work_is_removed_only_after_a_second_confirmation(
    desk: Desk, tmp_path: Path
) -> None:
    desk.expect_problem("status of 409")
    repo = a_repository(tmp_path / "repo")
    task = await desk.submit("echo lost > lost.txt", "shell", workdir=str(repo), worktree=True)
    ended_task = await desk.wait_for_end(task)
    page = await desk.open(f"/tasks/{task}")
    branch = page.locator(".worktree")
    await branch.get_by_role("button", name="Remove").click()
    await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    again = page.get_by_role("dialog").get_by_role("button", name="Remove and discard")
    await expect(again).to_be_visible()
    assert Path(ended_task["worktree"]["path"]).is_dir()
    await again.click()
    await expect(branch.locator(".status")).to_have_text("removed")
    assert not Path(ended_task["worktree"]["path"]).exists()


@pytest.mark.usefixtures("shared")
async def test_changed_files_that_run_code_are_marked_and_hooks_run_only_on_request(desk: Desk, tmp_path: Path) -> None:
    repo = a_repository(tmp_path / "repo")
    hook = repo / ".git" / "hooks" / "post-merge"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    prompt = "mkdir -p .github/workflows; echo 'on: push' > .github/workflows/ci.yml; echo x > plain.txt"
    task = await desk.submit(prompt, "shell", workdir=str(repo), worktree=True)
    await desk.wait_for_end(task)
    page = await desk.open(f"/tasks/{task}")
    branch = page.locator(".worktree")
    await branch.get_by_text("Show the diff").click()
    await expect(branch.locator(".code-list li")).to_have_text(
        [".github/workflows/ci.yml: it runs on a server that builds or tests"]
    )
    marked = branch.locator(".diff", has=page.locator(".runs-code"))
    await expect(marked.locator(".diff-path")).to_have_text([".github/workflows/ci.yml"])
    await expect(marked.locator(".runs-code")).to_have_attribute(
        "title", "This file runs code: it runs on a server that builds or tests."
    )
    await branch.get_by_label("Run the git hooks of the repository").check()
    await branch.get_by_role("button", name="Merge").click()
    await expect(page.get_by_role("dialog")).to_contain_text(
        "run code: .github/workflows/ci.yml. The hooks of the repository run outside of every sandbox."
    )
    await page.get_by_role("dialog").get_by_role("button", name="Merge").click()
    await expect(branch.locator(".status")).to_have_text("merged")
    await expect(branch.get_by_label("Run the git hooks of the repository")).to_be_hidden()
    assert (repo / "hooked").exists()
