"""Test that texts of agents and prompts are only text: they run nothing, load nothing and cannot mislead."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from browsing import Desk, session_path, wait_for_stream

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVIL = """# <script>window.stolen = 1</script>
<script>window.stolen = 2</script>
<img src=x onerror="window.stolen = 3"> <svg onload="window.stolen = 4">
<style>body { display: none }</style> <iframe src="https://evil.example/frame"></iframe>
<form action="https://evil.example/"><input name="q"></form>

![picture](https://evil.example/pixel.png) ![data](data:image/png;base64,AAAA) ![own](/web/mark.svg)
[click](javascript:window.stolen=5) [tricky](JaVaScRiPt&colon;window.stolen=6) [vb](vbscript:x) [data](data:text/html,x)
[web](https://example.org/page) <https://example.org/auto> https://example.org/bare
<a href="javascript:window.stolen=7" style="position:fixed;inset:0">all over</a>

`<script>window.stolen = 8</script>` &lt;script&gt; \u202egnp.exe
"""


async def check_harmless(page: Page) -> None:
    """Check that no script ran, nothing was loaded, and nothing covers the page."""
    assert await page.evaluate("window.stolen") is None
    main = page.locator("main")
    for selector in (
        "script",
        "style",
        "iframe",
        "object",
        "embed",
        "link",
        "meta",
        ".page-text :is(img, form, input, svg)",
    ):
        await expect(main.locator(selector)).to_have_count(0)
    links = await main.locator("a[href]").evaluate_all("(all) => all.map((one) => [one.protocol, one.outerHTML])")
    for address, link in links:
        assert address in ("http:", "https:", "mailto:"), link
    assert await main.locator("[style*=position], [onerror], [onload], [onclick]").count() == 0


@pytest.mark.usefixtures("shared")
async def test_a_hostile_prompt_and_result_do_no_harm_on_any_page(desk: Desk) -> None:
    task = await desk.submit(EVIL, "echo")
    failed = await desk.submit(EVIL + " demo:fail", "demo")
    for task_id in (task, failed):
        await desk.wait_for_end(task_id)
    asking = await desk.submit(EVIL + " demo:ask", "demo")
    session = (await desk.post("/sessions", {"agent": "echo", "title": "<img src=x onerror='window.stolen=9'>"}))["key"]
    sent = await desk.post(f"{session_path(session)}/messages", {"text": EVIL})
    await desk.wait_for_end(sent["id"])
    await desk.until("/approvals", lambda inbox: inbox["approvals"])
    page = await desk.open(f"/tasks/{task}")
    await expect(page.locator(".task-output .page-text")).to_contain_text("<script>window.stolen = 2</script>")
    await expect(page.locator(".task-output").get_by_role("link", name="web")).to_have_attribute(
        "rel", "noopener noreferrer nofollow"
    )
    paths = (
        f"/tasks/{task}",
        f"/tasks/{failed}",
        f"/tasks/{asking}",
        session_path(session),
        "/",
        "/tasks",
        "/sessions",
        "/events",
    )
    for path in paths:
        await page.goto(path)
        await wait_for_stream(page)
        await expect(page.locator("main .skeleton")).to_have_count(0)
        await check_harmless(page)
    await page.goto(session_path(session))
    await expect(page.locator(".message.agent .page-text")).to_contain_text("<script>window.stolen = 2</script>")
    await check_harmless(page)


@pytest.mark.usefixtures("shared")
async def test_hostile_text_does_no_harm_while_it_streams(desk: Desk) -> None:
    pipe = desk.pipe()
    task = await desk.submit(str(pipe.path), "pipe")
    page = await desk.open(f"/tasks/{task}")
    pipe.write(EVIL)
    await expect(page.locator(".task-output .plain-text")).to_contain_text("<script>window.stolen = 2</script>")
    await check_harmless(page)
    pipe.close()
    await expect(page.locator(".task-output .page-text")).to_contain_text("<script>window.stolen = 2</script>")
    await check_harmless(page)


async def test_hostile_text_in_any_event_of_an_agent_does_no_harm(desk: Desk) -> None:
    """Thoughts, plans, tools, diffs, commands, file names, questions, models: each contains hostile text."""
    session = (await desk.post("/sessions", {"agent": "coder", "key": "chat:evil"}))["key"]
    sent = await desk.post(f"{session_path(session)}/messages", {"text": f"say:{EVIL}"})
    await desk.until("/approvals", lambda inbox: inbox["approvals"])
    page = await desk.open(session_path(session))
    for path in (session_path(session), f"/tasks/{sent['id']}", "/inbox", "/", "/events"):
        await page.goto(path)
        await wait_for_stream(page)
        await expect(page.locator("main .skeleton")).to_have_count(0)
        await page.evaluate("() => { for (const one of document.querySelectorAll('main details')) one.open = true; }")
        await expect(page.locator("main")).to_contain_text("<script>window.stolen = 2</script>")
        await check_harmless(page)
    await page.goto("/inbox")
    card = page.locator(".inbox-open .approval")
    await expect(card.locator(".diff .line.added")).to_contain_text("<script>window.stolen = 2</script>")
    await check_harmless(page)
    await card.locator(".approval-buttons button").last.click()
    await expect(card).to_have_count(0)
    await expect(page.locator(".answered-row")).to_contain_text("<script>")
    await check_harmless(page)
    await desk.wait_for_end(sent["id"])
    for path in (session_path(session), f"/tasks/{sent['id']}", "/usage?by=model", "/usage?by=session"):
        await page.goto(path)
        await wait_for_stream(page)
        await expect(page.locator("main .skeleton")).to_have_count(0)
        await page.evaluate("() => { for (const one of document.querySelectorAll('main details')) one.open = true; }")
        await check_harmless(page)
    await expect(page.locator(".usage-table tbody tr")).to_have_count(1)


@pytest.mark.usefixtures("shared")
async def test_the_content_security_policy_forbids_inline_code_and_other_hosts(desk: Desk) -> None:
    desk.expect_problem(r"Content Security Policy|status of 404|net::ERR")
    page = await desk.open("/")
    result = await page.evaluate(
        """async () => {
          const tried = [];
          const inline = document.createElement("script");
          inline.textContent = "window.stolen = 1";
          document.head.append(inline);
          const picture = new Image();
          const blocked = new Promise((resolve) => addEventListener("securitypolicyviolation", (told) => {
            if (told.effectiveDirective === "img-src") resolve();
          }));
          picture.src = "https://evil.example/pixel.png";
          await blocked;
          try { await fetch("https://evil.example/"); tried.push("fetch"); } catch { /* as it should be */ }
          return [tried, window.stolen ?? null];
        }"""
    )
    assert result == [[], None]
    desk.requests[:] = [request for request in desk.requests if "evil.example" not in request.url]
