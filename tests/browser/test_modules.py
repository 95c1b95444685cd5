"""Test the functions of the console's modules by JavaScript in the browser: `unit/NAME.test.js` for each module."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route

import midwatch

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNIT = Path(__file__).parent / "unit"
WEB = Path(midwatch.__file__).parent / "api" / "web"
FILES = sorted(UNIT.glob("*.test.js"))
NAMES = {path.name: re.findall(r'^  "(.+)": (?:async )?\(\) =>', path.read_text(), re.M) for path in FILES}
RUN = """async ([file, name]) => {
  const { default: tests } = await import(`/unit/${file}`);
  try {
    await tests[name]();
  } catch (error) {
    return error.stack;
  }
}"""


async def serve_from_disk(route: Route) -> None:
    """Answer with a file; there is no server, and the sign-in page needs none."""
    path = urlsplit(route.request.url).path
    if path == "/sign-in":
        return await route.fulfill(path=WEB / "index.html")
    folder, _, name = path.removeprefix("/").partition("/")
    file = {"web": WEB, "unit": UNIT}.get(folder, UNIT) / name
    return await (route.fulfill(path=file) if file.is_file() else route.fulfill(status=404))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """Yield one page for all tests, in a zone with summer time."""
    context = await browser.new_context(timezone_id="Europe/Berlin", locale="en-US", base_url="http://127.0.0.1")
    await context.route("**", serve_from_disk)
    opened = await context.new_page()
    await opened.goto("/sign-in")
    yield opened
    await context.close()


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, names in NAMES.items() for name in names])
async def test_the_unit_tests_of_a_module_pass(page: Page, file: str, name: str) -> None:
    error = await page.evaluate(RUN, [file, name])
    assert error is None, f"{file}, {name}: {error}"


@pytest.mark.parametrize("file", NAMES)
async def test_every_unit_test_of_a_file_is_collected(page: Page, file: str) -> None:
    names = await page.evaluate("async (file) => Object.keys((await import(file)).default)", f"/unit/{file}")
    assert names == NAMES[file]
