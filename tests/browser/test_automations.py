"""Test automations and goals in the console: created, watched, stopped and restored, without polling."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, expect

from browsing import AGENTS, PATIENT, Desk, press_together, wait_for_stream

pytestmark = pytest.mark.asyncio(loop_scope="session")

Look = Callable[..., Awaitable[None]]
WATCH_SHIFTS = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""
ACTION_BUTTONS = re.compile(r"^(Run|Pause|Resume|Delete|New|Edit|Clear|Complete|Step now|Delay)\b")


@pytest.fixture(scope="module")
def settings() -> str:
    """Return settings with a watchdog that soon reports a silent task when it is asked to check."""
    return f"silent_after = 0.2\n{AGENTS}"


async def add(desk: Desk, prompt: str, **more: object) -> str:
    """Create an automation over HTTP and return its id."""
    return str((await desk.post("/automations", {"prompt": prompt, "agent": "demo", **more}))["id"])


async def set_goal(desk: Desk, objective: str, **more: object) -> str:
    """Create a goal over HTTP and return its id."""
    return str((await desk.post("/goals", {"objective": objective, "agent": "demo", **more}))["id"])


async def test_an_automation_is_created_with_a_preview_run_paused_deleted_and_restored(desk: Desk) -> None:
    page = await desk.open("/automations", timezone_id="Europe/Berlin")
    await expect(page.locator(".empty")).to_contain_text("midwatch automation add")
    await page.get_by_role("link", name="New automation").first.click()
    await page.get_by_label("Prompt", exact=True).fill("Say what is new on {{date}}")
    await page.get_by_label("Agent").select_option("demo")
    await expect(page.get_by_label("Time zone")).to_have_value("Europe/Berlin")
    await page.get_by_label("Cron expression").fill("30 7 * * 1-5")
    preview = page.get_by_role("status", name="Next runs")
    await expect(preview).to_contain_text("at 07:30 on Monday through Friday (Europe/Berlin)", ignore_case=True)
    await expect(preview.locator("li")).to_have_count(5)
    await expect(preview.locator("li").first).to_contain_text("07:30 (+0")
    await page.locator("summary", has_text="More").click()
    await page.get_by_label("Title").fill("Morning news")
    await page.get_by_label("Days off").fill("12-24, mon")
    await page.get_by_label("Quiet hours").fill("22:00-08:00")
    await page.get_by_label("If a run is still open").select_option("queue")
    await expect(preview.locator("li").first).to_contain_text("08:00 (+0")
    await page.locator("summary", has_text="Budget").click()
    await page.get_by_label("Maximum dollars").fill("1.5")
    await page.get_by_label("When the budget is spent").select_option("ask")
    await page.get_by_role("button", name="Create automation").click()

    await expect(page.get_by_role("heading", name="Morning news", level=1)).to_be_visible()
    status = page.locator(".task-line .status")
    await expect(status).to_have_text("active")
    await expect(page.locator(".next-runs li")).to_have_count(5)
    await expect(page.locator(".facts")).to_contain_text("Each runat most $1.50When spentpeople are asked")
    facts = "Overlapone due run waitsDays off12-24, monQuiet hours22:00-08:00"
    await expect(page.locator(".facts")).to_contain_text(facts)
    await expect(page.get_by_text("No runs yet")).to_be_visible()
    await page.get_by_role("button", name="Run now").click()
    await expect(page.locator(".runs tbody .status")).to_have_text("done")
    await expect(status).to_have_text("active")
    await expect(page.locator(".runs tbody td").first).to_have_text("manual")

    await page.get_by_role("button", name="Pause").click()
    await expect(status).to_have_text("paused")
    await expect(page.locator("p.status-note")).to_have_text("Paused manually")
    await expect(page.locator(".next-runs li")).to_have_count(0)
    await page.get_by_role("button", name="Resume").click()
    await expect(status).to_have_text("active")
    await expect(page.locator(".next-runs li")).to_have_count(5)

    await page.get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("dialog")).to_contain_text("You can restore the automation within 30 days")
    await page.get_by_role("button", name="Delete automation").click()
    await expect(status).to_have_text("deleted")
    await expect(page.locator(".deleted-note")).to_contain_text("midwatch automation resume am_")
    await page.get_by_role("link", name="Automations").first.click()
    await expect(page.get_by_text("No automations yet")).to_be_visible()
    await page.get_by_role("button", name="deleted").click()
    await page.locator(".automation-row").click()
    await page.get_by_role("button", name="Restore").click()
    await expect(status).to_have_text("active")
    await page.locator(".runs tbody a").click()
    await expect(page.locator(".task-line .status")).to_have_text("done")
    await page.get_by_role("link", name="automation", exact=True).click()
    await expect(page.get_by_role("heading", name="Morning news", level=1)).to_be_visible()


@pytest.mark.usefixtures("shared")
async def test_an_invalid_schedule_shows_its_error(desk: Desk) -> None:
    desk.expect_problem("status of 422")
    page = await desk.open("/automations/new")
    await page.get_by_label("Prompt", exact=True).fill("anything")
    preview = page.get_by_role("status", name="Next runs")
    await page.get_by_label("Cron expression").fill("61 * * * *")
    await expect(preview).to_contain_text("has a bad minute")
    await page.get_by_role("button", name="Create automation").click()
    await expect(page.locator(".field-error:visible")).to_contain_text("has a bad minute")
    await page.get_by_role("button", name="Once").click()
    await expect(preview.locator("li")).to_have_count(1)
    await page.get_by_role("button", name="Every").click()
    await page.get_by_label("Interval").fill("5s")
    await expect(preview).to_contain_text("must be from one minute")
    await page.get_by_label("Interval").fill("90m")
    await expect(preview.locator("li")).to_have_count(5)
    await page.get_by_role("button", name="Create automation").click()
    await expect(page.locator(".task-line")).to_contain_text("every 1h30m")


@pytest.mark.usefixtures("shared")
async def test_an_edit_changes_only_the_edited_fields(desk: Desk) -> None:
    desk.expect_problem("status of 422")
    limits = {"tokens": 9000, "seconds": 90}
    times = {"cron": "15 6 * * *", "zone": "UTC"}
    key = await add(desk, "look around", **times, quiet="NOTHING", max_runs=7, budget=limits, on_budget="stop")
    page = await desk.open(f"/automations/{key}")
    await page.get_by_role("link", name="Edit").click()
    await expect(page.get_by_label("Cron expression")).to_have_value("15 6 * * *")
    await page.get_by_label("Prompt", exact=True).fill("look around twice")
    await page.locator("summary", has_text="More").click()
    await page.get_by_label("Quiet token").fill("")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="look around twice", level=1)).to_be_visible()
    automation = await desk.get(f"/automations/{key}")
    assert automation["quiet"] is None and automation["max_runs"] == 7 and automation["schedule"] == times
    assert automation["budget"] == limits and automation["on_budget"] == "stop"
    await page.get_by_role("link", name="Edit").click()
    await expect(page.get_by_label("Maximum work time")).to_have_value("1m30s")
    await page.get_by_label("Maximum work time").fill("")
    await page.get_by_label("Maximum tokens").fill("-1")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".field-error:visible")).to_have_text(
        "the budget's tokens must be a whole number above 0."
    )
    await page.get_by_label("Maximum tokens").fill("800")
    await page.get_by_label("When the budget is spent").select_option("default")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".facts")).to_contain_text("Each runat most 800 tokens")
    automation = await desk.get(f"/automations/{key}")
    assert automation["budget"] == {"tokens": 800} and automation["on_budget"] is None


async def test_the_list_of_automations_shows_changes_made_elsewhere(desk: Desk) -> None:
    pipe = desk.pipe()
    page = await desk.open("/automations")
    key = await add(desk, str(pipe.path), agent="pipe", every=3600, title="Gulls")
    row = page.locator(".automation-list li")
    await expect(row).to_have_count(1)
    await page.context.add_init_script(WATCH_SHIFTS)
    await page.reload()
    await wait_for_data(page)
    await expect(row.locator(".row-title")).to_have_text("Gulls")
    await expect(row.locator(".when")).to_have_text("every 1h")
    await expect(page.locator(".strip .mark")).to_have_count(24)
    await expect(page.locator(".strip-list li")).to_have_count(2)
    await row.get_by_role("button", name="Run Gulls now").click()
    await expect(row.locator(".status")).to_have_text("running")
    pipe.write("47 gulls")
    await pipe.read()
    pipe.close()
    await expect(row.locator(".status")).to_have_text("active")
    await expect(row.locator(".dots")).to_have_attribute("aria-label", "last runs: done")
    await expect(row.locator(".row-sub")).to_have_text("The last run succeeded")
    await row.get_by_role("button", name="Pause Gulls").click()
    await expect(row.locator(".status")).to_have_text("paused")
    await expect(row.get_by_role("button", name="Resume Gulls")).to_be_visible()
    await desk.post(f"/automations/{key}/resume")
    await expect(row.locator(".status")).to_have_text("active")
    assert await page.evaluate("() => window.shifted") < 0.02
    before = await desk.wait_until_silent()
    await page.evaluate("() => new Promise((done) => setTimeout(done, 2500))")  # an idle page sends no requests
    assert [r.url for r in desk.requests[before:]] == []


async def test_an_automation_that_paused_itself_needs_attention(desk: Desk) -> None:
    key = await add(desk, "demo:fail always", every=3600, title="Gulls")
    page = await desk.open("/")
    await expect(page.get_by_text("Nothing is waiting for you")).to_be_visible()
    for _ in range(3):
        await desk.until(f"/automations/{key}", lambda automation: not automation["running"])
        await desk.wait_for_end((await desk.post(f"/automations/{key}/run"))["id"])
    waiting = page.locator(".now-waiting")
    await expect(waiting.locator(".attention-row")).to_contain_text("Paused: Gulls")
    await expect(waiting.locator(".count")).to_have_text("1")
    await waiting.locator(".attention-row").click()
    await expect(page.locator("p.status-note")).to_contain_text("3 runs failed in a row")
    await page.get_by_role("button", name="Resume").click()
    await press_together(page, "gn")
    await expect(page.get_by_text("Nothing is waiting for you")).to_be_visible()


async def test_alerts_of_the_watchdog_are_shown_on_the_now_page_and_in_the_list(desk: Desk) -> None:
    key = await add(desk, "demo:hang watch the tide", every=3600, title="Tide")
    task = (await desk.post(f"/automations/{key}/run"))["id"]
    now = await desk.open("/")
    listed = await desk.tab(now.context, "/automations")
    subjects: list[str] = []
    while task not in subjects:  # reported now, or by the watchdog itself a moment ago
        looked = await desk.post("/watchdog")
        subjects = [alert["subject"] for alert in looked["told"] + looked["known"]]
    await expect(listed.locator(".automation-list .row-sub")).to_contain_text(f"Silent: {task} has emitted no event")
    notice = now.locator(".now-waiting .attention-row")
    await expect(notice).to_contain_text("Silent: demo:hang watch the tide")
    await now.reload()
    await expect(notice).to_contain_text("It does not wait for an answer.")
    await desk.post(f"/tasks/{task}/cancel")
    await expect(notice).to_have_count(0)
    await expect(listed.locator(".automation-list .row-sub")).not_to_contain_text("Silent")


async def test_an_alert_is_acknowledged_on_the_now_page_for_everybody(desk: Desk) -> None:
    task = (await desk.post("/tasks", {"prompt": "demo:hang watch the moon", "agent": "demo"}))["id"]
    page = await desk.open("/")
    row = page.locator(".now-waiting .attention li", has_text="Silent: demo:hang watch the moon")
    raised: list[str] = []
    while task not in raised:
        looked = await desk.post("/watchdog")
        raised = [alert["subject"] for alert in looked["told"] + looked["known"]]
    await row.get_by_role("button", name="Acknowledge").click()
    await expect(row).to_have_count(0)
    (alert,) = [alert for alert in (await desk.get("/alerts"))["alerts"] if alert["subject"] == task]
    assert (alert["status"], alert["acknowledged_by"]) == ("acknowledged", "owner")
    await desk.post(f"/tasks/{task}/cancel")


async def test_a_goal_is_set_watched_paused_edited_and_completed(desk: Desk) -> None:
    desk.expect_problem("status of 422")
    page = await desk.open("/goals")
    await expect(page.locator(".empty")).to_contain_text("midwatch goal set")
    await page.get_by_role("link", name="New goal").first.click()
    await page.get_by_label("Objective").fill("demo:ask every gull is counted")
    await page.get_by_label("Agent").select_option("demo")
    await page.get_by_label("Deadline").fill("in 6h")
    await page.locator("summary", has_text="Budget").click()
    await page.get_by_label("Maximum steps").fill("2")
    await page.get_by_label("Maximum tokens").fill("1e6")
    await page.get_by_label("Maximum work time").fill("2h")
    await page.get_by_label("When the budget is spent").select_option("stop")
    await page.get_by_role("button", name="Create goal").click()
    await expect(page.locator(".field-error:visible")).to_have_text("the budget's tokens must be a whole number.")
    await page.get_by_label("Maximum tokens").fill("1000000")
    await page.get_by_role("button", name="Create goal").click()
    await expect(page.locator(".toast")).to_contain_text("demo does not report its tokens")
    await expect(page.get_by_role("heading", name="every gull is counted", level=1)).to_be_visible()
    status = page.locator(".task-line .status")
    await expect(status).to_have_text("running")
    await expect(page.locator(".task-line")).to_contain_text(re.compile(r"5 h 5\d m left"))
    steps = page.locator(".steps li")
    for names in (["Step 1"], ["Step 2", "Step 1"]):
        await expect(steps.locator(".row-title")).to_have_text(names)
        reply = await desk.until("/approvals", lambda inbox: inbox["approvals"])
        await desk.post(f"/approvals/{reply['approvals'][0]['id']}/approve")
    await expect(status).to_have_text("paused")
    await expect(steps.locator(".status")).to_have_text(["done", "done"])
    await expect(page.locator("p.status-note")).to_contain_text("its budget of 2 steps is spent")
    await expect(page.locator(".budget [data-meter=steps]")).to_have_text("2 of 2 steps")
    await expect(page.locator(".budget [data-meter=tokens]")).to_have_text(re.compile(r"^\d+ of 1\.?0?M tokens$"))
    await expect(page.locator(".budget [data-meter=time]")).to_contain_text("of 2 h worked")
    await expect(page.locator(".facts")).to_contain_text("When spentthe work stops")

    await page.get_by_role("button", name="Edit").click()
    await page.get_by_role("textbox", name="Objective").fill("")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".field-error:visible")).to_have_text("the objective is empty; describe what to reach.")
    await page.get_by_role("textbox", name="Objective").fill("demo:ask every gull is counted")
    await page.get_by_label("Maximum steps").fill("9")
    await page.get_by_label("Maximum tokens").fill("")
    await page.get_by_label("When the budget is spent").select_option("default")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".budget [data-meter=steps]")).to_have_text("2 of 9 steps")
    await expect(page.locator(".budget [data-meter=tokens]")).to_have_text(re.compile(r"^\d+ tokens$"))
    await expect(page.locator(".facts")).not_to_contain_text("When spent")
    await page.get_by_role("button", name="Resume").click()
    await expect(steps).to_have_count(3)
    await page.get_by_role("button", name="Pause").click()
    note = re.compile("^(Paused manually|Silent: .*)$")  # the alert, if the watchdog has just looked
    await expect(page.locator("p.status-note")).to_have_text(note)
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    await page.get_by_role("button", name="Complete").click()
    await page.get_by_label("Evidence").fill("47 gulls, counted twice")
    await page.get_by_role("button", name="Complete goal").click()
    await expect(status).to_have_text("complete")
    await expect(page.locator("p.status-note")).to_have_text("Reached: 47 gulls, counted twice")
    await steps.locator("a").last.click()
    await page.get_by_role("link", name="goal", exact=True).click()
    await expect(status).to_have_text("complete")


async def test_a_goal_is_delayed_stepped_and_cleared(desk: Desk) -> None:
    key = await set_goal(desk, "demo:sleep=1 the harbour is quiet")
    listed = await desk.open("/goals")
    row = listed.locator(".goal-list li")
    await expect(row.locator(".row-sub")).to_contain_text("is running")
    page = await desk.tab(listed.context, f"/goals/{key}")
    await page.get_by_role("button", name="Delay").click()
    await page.get_by_label("Reason").fill("the tide")
    await page.get_by_role("button", name="Delay step").click()
    await expect(page.locator("p.status-note")).to_have_text("Waiting: the tide")
    await expect(page.locator(".task-line")).to_contain_text("next step in")
    await expect(row.locator(".row-sub")).to_contain_text("Waiting: the tide")
    before = await page.locator(".steps li").count()
    await page.get_by_role("button", name="Step now").click()
    await expect(page.locator(".steps li").nth(before)).to_be_visible()
    await page.get_by_role("button", name="Clear", exact=True).click()
    await page.get_by_role("button", name="Clear goal").click()
    await expect(page.get_by_text("No goals yet")).to_be_visible()
    await expect(listed.get_by_text("No goals yet")).to_be_visible()


async def press(page: Page, name: str) -> None:
    """Press the mouse on a button of the page without releasing it."""
    box = await page.get_by_role("button", name=name).bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    await page.mouse.down()


async def test_a_button_pressed_while_a_step_or_run_ends_does_what_its_label_says(desk: Desk) -> None:
    goal = await set_goal(desk, "demo:ask the harbour is quiet")
    page = await desk.open(f"/goals/{goal}")
    await expect(page.locator(".steps .row-title")).to_have_text(["Step 1"])
    await press(page, "Delay")
    reply = await desk.until("/approvals", lambda inbox: inbox["approvals"])
    await desk.post(f"/approvals/{reply['approvals'][0]['id']}/approve")
    await expect(page.locator(".steps .row-title")).to_have_text(["Step 2", "Step 1"])
    await page.mouse.up()
    await expect(page.get_by_role("dialog")).to_contain_text("Delay the next step")

    pipe = desk.pipe()
    key = await add(desk, str(pipe.path), agent="pipe", every=3600)
    await desk.post(f"/automations/{key}/run")
    await page.goto(f"/automations/{key}")
    await expect(page.locator(".runs tbody .status")).to_have_text("running")
    await press(page, "Delete")
    pipe.write("47 gulls")
    await pipe.read()
    pipe.close()
    await expect(page.locator(".runs tbody .status")).to_have_text("done")
    await expect(page.locator("p.status-note")).to_have_text("The last run succeeded")
    await page.mouse.up()
    await expect(page.get_by_role("dialog")).to_contain_text("Delete this automation?")


@pytest.mark.usefixtures("shared")
async def test_a_viewer_sees_automations_and_goals_and_cannot_change_them(desk: Desk) -> None:
    key = await add(desk, "count the gulls", every=3600)
    goal = await set_goal(desk, "every gull is counted", max_steps=1)
    await desk.until(f"/goals/{goal}", lambda shown: shown["status"] == "paused")
    page = await desk.open("/automations", role="viewer")
    for path in ("/automations", f"/automations/{key}", "/goals", f"/goals/{goal}"):
        await page.goto(path)
        await wait_for_data(page)
        main = page.locator("main")
        acting = main.get_by_role("button", name=ACTION_BUTTONS).or_(main.get_by_role("link", name=ACTION_BUTTONS))
        await expect(acting).to_have_count(0)
    await expect((await desk.open(f"/goals/{goal}")).get_by_role("button", name=ACTION_BUTTONS)).to_have_count(4)
    for path in ("/automations/new", "/goals/new", f"/automations/{key}?edit=1"):
        await page.goto(path)
        await wait_for_data(page)
        await expect(page.locator("form")).to_have_count(0)


@pytest.mark.usefixtures("shared")
async def test_a_chain_is_drawn_with_links_and_follows_its_runs(desk: Desk) -> None:
    report = await fill_chain(desk)
    page = await desk.open(f"/automations/{report}")
    nodes = page.locator(".chain-node")
    await expect(nodes).to_have_text([
        re.compile("Tests.*ok"), re.compile("Write the docs.*ok"), re.compile("Deploy.*failed"),
        re.compile("Report.*skipped"), re.compile("Roll back"),
    ])  # fmt: skip
    await expect(page.locator(".chain-line")).to_have_count(5)
    await expect(nodes.nth(3)).to_have_attribute("aria-current", "page")
    await nodes.nth(2).click()
    await expect(page.get_by_role("heading", name="Deploy", level=1)).to_be_visible()
    await desk.post(f"/automations/{report}/pause")
    await expect(nodes.nth(3)).to_contain_text("(paused)")


async def test_keyboard_shortcuts_open_automations_and_goals(desk: Desk) -> None:
    page = await desk.open("/")
    for keys, name in (("ga", "Automations"), ("go", "Goals"), ("gw", "Agents")):
        await press_together(page, keys)
        await expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()


@pytest.mark.usefixtures("shared")
async def test_the_automations_of_a_day_are_read_over_http(desk: Desk) -> None:
    tried = await desk.get("/schedules/preview?cron=0%209%20*%20*%20*&zone=Europe/Berlin&count=3")
    assert tried["when"] == "at 09:00 every day (Europe/Berlin)"
    assert [at[10:22] for at in tried["next_runs"]] == ["T09:00:00+01"] * 3 or "+02" in str(tried)
    hourly = await add(desk, "a", every=3600)
    daily = await add(desk, "b", cron="@daily", zone="UTC")
    await desk.post(f"/automations/{daily}/pause")
    days = {day["id"]: day for day in (await desk.get("/schedules/day"))["days"]}
    assert len(days[hourly]["next_runs"]) == 24 and days[hourly]["when"] == "every 1h"
    assert days[daily]["next_runs"] == [] and days[daily]["runs"] == []
    (day,) = (await desk.get(f"/schedules/day?id={hourly}"))["days"]
    assert day == days[hourly]


async def wait_for_data(page: Page) -> None:
    """Wait until the page has its data."""
    await wait_for_stream(page)
    await expect(page.locator("main h1")).to_be_visible()
    await expect(page.locator("main .skeleton")).to_have_count(0)


@PATIENT
@pytest.mark.parametrize("busy", [False, True], ids=["empty", "busy"])
async def test_automations_and_goals_look_right_in_light_dark_and_at_phone_width(
    desk: Desk, look: Look, busy: bool
) -> None:
    pages = {"automations": "/automations", "goals": "/goals"}
    if busy:
        pages |= await fill(desk)
    await look(pages, "busy" if busy else "empty", wait_for_preview)


async def wait_for_preview(page: Page, title: str) -> None:
    """Wait until the page has its data and, if it shows them, the next run times."""
    await wait_for_data(page)
    if title.startswith("new-auto"):
        await expect(page.locator(".preview li")).to_have_count(5)


async def fill(desk: Desk) -> dict[str, str]:
    """Create automations and goals in every state, and return the pages to check."""
    news = await add(
        desk, "Sum up what is new in the repository since yesterday", cron="30 7 * * *", title="Morning news"
    )
    await add(desk, "Compare the backups and explain every difference", cron="0 2 * * *", title="Nightly backups")
    await add(desk, "demo:hang Watch the queue and say when it grows", every=1200, title="Queue watch")
    failing = await add(desk, "demo:fail Check the links of the site", every=7200, title="Links of the whole long site")
    await add(desk, "Remind me of the berth", at="in 90m")
    resting = await add(desk, "Write the weekly report", cron="0 16 * * 5", max_runs=10)
    await desk.post(f"/automations/{resting}/pause")
    for key, times in ((news, 2), (failing, 3)):
        for _ in range(times):
            await desk.wait_for_end((await desk.post(f"/automations/{key}/run"))["id"])
            await desk.until(f"/automations/{key}", lambda automation: not automation["running"])
    hung = next(
        automation
        for automation in (await desk.get("/automations"))["automations"]
        if automation["title"] == "Queue watch"
    )
    await desk.post(f"/automations/{hung['id']}/run")
    reached = await set_goal(desk, "Every link of the site answers within two seconds", max_steps=2, scope_id="a")
    await desk.until(f"/goals/{reached}", lambda goal: goal["status"] == "paused")
    await desk.post(f"/goals/{reached}/complete", {"evidence": "all 412 links answer, the slowest in 1.4 s"})
    spent = await set_goal(
        desk, "The test suite passes on the three oldest supported versions", max_steps=2, max_seconds="2h",
        max_tokens=200_000, scope_id="b",
    )  # fmt: skip
    goes_on = await set_goal(
        desk, "demo:hang Move the archive to the new store, and prove that nothing was lost", max_steps=20, scope_id="c"
    )
    await desk.until(f"/goals/{spent}", lambda goal: goal["status"] == "paused")
    await desk.until(f"/goals/{goes_on}", lambda goal: goal["running"])
    return {
        "now-standing": "/", "automation": f"/automations/{news}", "automation-failed": f"/automations/{failing}",
        "new-automation": "/automations/new", "automation-edit": f"/automations/{news}?edit=1",
        "goal-reached": f"/goals/{reached}", "goal-paused": f"/goals/{spent}", "goal-running": f"/goals/{goes_on}",
        "new-goal": "/goals/new", "automation-chain": f"/automations/{await fill_chain(desk)}",
    }  # fmt: skip


async def fill_chain(desk: Desk) -> str:
    """Create a chain of which one part fails, run it, and return the id of its last automation."""
    first = await add(desk, "Run all tests", cron="0 3 * * *", title="Tests")

    async def add_after(title: str, *before: str, prompt: str = "Do it", **more: object) -> str:
        link = {"kind": "after", "automations": list(before), **more}
        return await add(desk, prompt, title=title, triggers=[link])

    docs = await add_after("Write the docs of everything that changed", first)
    deploy = await add_after("Deploy", first, prompt="demo:fail Deploy")
    report = await add_after("Report", docs, deploy)
    clean = await add_after("Roll back", deploy, outcomes=["failed"])
    await desk.post(f"/automations/{first}/run")
    for key, status in ((report, "skipped"), (clean, "started")):
        await desk.until(
            f"/automations/{key}/firings",
            lambda page, status=status: page["firings"] and page["firings"][0]["status"] == status,
        )
    await desk.until(f"/automations/{clean}", lambda automation: not automation["running"])
    return report


async def test_a_webhook_is_added_and_its_firing_repeated(desk: Desk) -> None:
    page = await desk.open("/automations/new")
    await page.get_by_label("Prompt", exact=True).fill("Look at the push")
    await page.get_by_label("Agent").select_option("demo")
    await page.get_by_role("button", name="No time").click()
    await expect(page.get_by_role("status", name="Next runs")).to_contain_text("Runs only when a trigger fires.")
    await page.locator("summary", has_text="Webhook").click()
    await page.get_by_label("Add a webhook").select_option("github")
    await page.get_by_label("Conditions").fill("ref = refs/heads/main\n")
    await page.get_by_role("button", name="Create automation").click()
    shown = page.locator(".new-webhook .command code")
    await expect(shown).to_have_count(2)
    url, secret = await shown.all_inner_texts()
    assert "/api/v1/hooks/tr_" in url and secret.startswith("whsec_")
    await page.get_by_role("link", name="Open the automation").click()

    triggers = page.locator(".panel.triggers")
    await expect(triggers).to_contain_text("sign: github, filter: ref = refs/heads/main")
    await expect(triggers).to_contain_text(url)
    assert secret not in await page.content()
    automation = page.url.rpartition("/")[2]
    await desk.post(f"/automations/{automation}/trigger", {"payload": {"ref": "refs/heads/<b>main</b>", "commits": []}})
    firings = page.locator(".panel.firings tbody tr")
    await expect(firings).to_have_count(1)
    await expect(firings).to_contain_text("by hand: push to <b>main</b> (0 commits)")
    await expect(firings.get_by_role("link", name="task")).to_be_visible()
    await firings.get_by_role("button", name="Replay").click()
    await expect(firings).to_have_count(2)


async def test_a_command_and_variables_are_set_in_the_form_and_a_skipped_run_says_why(desk: Desk) -> None:
    when = "echo no news; exit 1"
    automation = await add(desk, "Read the news", every="1h", env={"REGION": "eu", "API_KEY": "abcd"})
    page = await desk.open(f"/automations/{automation}?edit=1")
    await page.locator("summary", has_text="More").click()
    await page.get_by_label("Only if").fill(when)
    await expect(page.get_by_label("Variables")).to_have_value("REGION=eu\nAPI_KEY=***")
    await page.get_by_label("Variables").fill("API_KEY=***\nSIZE=a=b")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".facts")).to_contain_text("API_KEY=*** SIZE=a=b")
    await expect(page.locator(".facts")).to_contain_text(f"{when} (at most")
    changed = await desk.get(f"/automations/{automation}")
    assert (changed["env"], changed["when_command"]) == ({"API_KEY": "***", "SIZE": "a=b"}, when)
    await page.get_by_role("button", name="Run now").click()
    await expect(page.locator(".runs-table tbody")).to_contain_text("skipped")
    await page.locator(".runs-table").get_by_role("link", name="task").click()
    panel = page.locator("section", has=page.get_by_role("heading", name="Command before the run"))
    await expect(panel).to_contain_text("exit status 1")
    await expect(panel.locator(".plain-text")).to_have_text("no news")


async def test_lists_are_filtered_by_tags(desk: Desk) -> None:
    for tags in (["nightly"], ["nightly", "ci"]):
        await add(desk, f"Tagged {len(tags)}", every="1h", tags=tags)
        await desk.post("/tasks", {"prompt": f"Tagged {len(tags)}", "agent": "demo", "tags": tags})
    for address in ("/automations", "/tasks"):
        page = await desk.open(f"{address}?tag=nightly")
        rows = page.locator("ol.rows a.row")
        await expect(rows).to_have_count(2)
        await page.get_by_role("searchbox", name="Tag").fill("ci")
        await page.keyboard.press("Enter")
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("Tagged 2")
        await page.get_by_title("Remove the tag nightly").click()
        await expect(page).to_have_url(re.compile(rf"{address}\?tag=ci$"))
        await expect(rows).to_have_count(1)
