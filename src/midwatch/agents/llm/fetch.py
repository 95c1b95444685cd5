"""Built-in tool that fetches a web page as text.

For each request and redirect, the host name is resolved once, and its addresses are checked. The connection then uses a
checked address. So a later change of the host name in DNS has no effect.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from html.parser import HTMLParser
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Any, NamedTuple

import httpx2
from pydantic import Field

from midwatch.agents.llm.tools import Tool, ToolError, make
from midwatch.base.threads import in_thread
from midwatch.base.version import __version__
from midwatch.domain.agent import Turn
from midwatch.domain.tool_call import ToolCall, ToolFacts

FETCH_SECONDS = 30.0
MOST_BYTES = 2_000_000
MOST_REDIRECTS = 5
LONGEST_URL = 4000
TEXTS = re.compile(r"text/|application/(.*\+)?(json|xml|javascript|yaml|toml|x-ndjson)\b")
HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object"})
BLOCKS = frozenset({
    "p", "div", "br", "li", "ul", "ol", "tr", "table", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article",
    "header", "footer", "nav", "main", "aside", "pre", "blockquote", "dt", "dd", "hr", "form", "figure", "title",
})  # fmt: skip


Allows = Callable[[IPv4Address | IPv6Address], bool]


class Page(NamedTuple):
    """The web server's answer to a request."""

    url: str
    status: int
    media: str
    charset: str
    body: bytes
    cut: bool


def fetch_tool(allows: Allows, seconds: float = FETCH_SECONDS) -> Tool:
    """Return the tool that fetches pages. It connects only to IP addresses that `allows` accepts."""

    async def fetch_url(
        turn: Turn, url: Annotated[str, Field(max_length=LONGEST_URL, description="http:// or https://")]
    ) -> str:
        """Fetch a page and return its text."""
        try:
            page = await _follow(url, allows, seconds, partial(_check_redirect, turn))
            text = await in_thread(lambda: _read_text(page))
        except TimeoutError:
            raise ToolError(f"{url} did not answer within {seconds:g} s.") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as problem:
            raise ToolError(f"{url} cannot be fetched: {problem or type(problem).__name__}.") from None
        if page.status >= 400:
            raise ToolError(f"{page.url} answers with status {page.status}: {text[:2000]}")
        return text + (f"\n… cut after {MOST_BYTES} bytes …" if page.cut else "")

    return make(fetch_url, safe=True, kind="fetch", ask=True, read=_read_address)


def _read_address(arguments: Mapping[str, Any], turn: Turn) -> ToolFacts:
    url = str(arguments.get("url") or "")
    return {"text": f"Fetch {url}", "hosts": (_parse(url).host,)}


async def _check_redirect(turn: Turn, url: httpx2.URL) -> None:
    """Raise ToolError if a rule forbids the host that a page redirects to."""
    call = ToolCall("fetch_url", {"url": str(url)}, kind="fetch", hosts=(url.host,), text=f"Follow to {url}")
    decision = await turn.before_tool(call)
    if decision.action != "go_on":
        raise ToolError(f"it redirects to {url}. {decision.reason or 'This is not allowed.'}")


async def _follow(
    url: str, allows: Allows, seconds: float, check_redirect: Callable[[httpx2.URL], Awaitable[None]]
) -> Page:
    """Follow redirects and return the page. The address of each redirect is checked like the first address.

    Each request has `seconds` to end. A question about a redirect may take longer.
    """
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with httpx2.AsyncClient(trust_env=False, timeout=FETCH_SECONDS, limits=limits) as http:
        here = _parse(url)
        for _ in range(MOST_REDIRECTS + 1):
            async with asyncio.timeout(seconds):
                answer = await _request(http, here, allows)
            if isinstance(answer, Page):
                return answer
            there = _parse(str(answer))
            if there.host != here.host:
                await check_redirect(there)
            here = there
    raise ToolError(f"{url} redirects more than {MOST_REDIRECTS} times.")


def _parse(url: str) -> httpx2.URL:
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError, TypeError) as problem:
        raise ToolError(f"{url[:200]!r} is not a valid address: {problem}.") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ToolError(f"{url[:200]!r} cannot be fetched; write an address that begins with http:// or https://.")
    if parsed.userinfo:
        raise ToolError("the address must not contain a user name; remove the user name.")
    return parsed


async def _request(http: httpx2.AsyncClient, url: httpx2.URL, allows: Allows) -> Page | httpx2.URL:
    """Request `url` once. Return the page, or the URL that the server redirects to."""
    address = await _resolve(url, allows)
    host = url.netloc.decode("ascii")
    headers = {
        "host": host, "accept-encoding": "identity", "accept": "text/html, text/*, application/json, */*;q=0.5",
        "user-agent": f"midwatch/{__version__}",
    }  # fmt: skip
    request = http.build_request("GET", url.copy_with(host=address, fragment=None), headers=headers)
    if url.scheme == "https":
        request.extensions["sni_hostname"] = url.raw_host.decode("ascii")
    response = await http.send(request, stream=True, follow_redirects=False)
    try:
        if response.is_redirect and "location" in response.headers:
            return url.join(response.headers["location"])
        encoding = response.headers.get("content-encoding", "identity").lower()
        if encoding not in ("", "identity"):
            raise ToolError(f"{url} cannot be read: it sends the content encoding {encoding}, which was not requested.")
        body, cut = await _read_body(response)
        media = response.headers.get("content-type", "").lower()
        return Page(str(url), response.status_code, media, response.charset_encoding or "utf-8", body, cut)
    finally:
        await response.aclose()


async def _read_body(response: httpx2.Response) -> tuple[bytes, bool]:
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) > MOST_BYTES:
            return bytes(body[:MOST_BYTES]), True
    return bytes(body), False


async def _resolve(url: httpx2.URL, allows: Allows) -> str:
    """Return an IP address of the host. Raise ToolError if one of the host's addresses is not allowed."""
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        records = await asyncio.get_running_loop().getaddrinfo(
            url.raw_host.decode("ascii").strip("[]"), port, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError):
        raise ToolError(f"there is no host {url.host!r}; check the address.") from None
    addresses = [ip_address(str(record[4][0]).partition("%")[0]) for record in records]
    if not all(allows(record) for record in addresses):
        raise ToolError(f"{url.host} is an address of this machine or its network, which may not be fetched.")
    return str(addresses[0])


# -- text --------------------------------------------------------------------------------------------------------


def _read_text(page: Page) -> str:
    if page.media and not TEXTS.match(page.media):
        kind = page.media.partition(";")[0][:100]
        raise ToolError(f"{page.url} is {kind}, {len(page.body)} bytes or more; only text can be read.")
    try:
        text = page.body.decode(page.charset, "replace")
    except LookupError:
        text = page.body.decode("utf-8", "replace")
    if "html" in page.media or (not page.media and text.lstrip()[:9].lower().startswith(("<!doctype", "<html"))):
        return extract_text(text)
    return text


def extract_text(html: str) -> str:
    """Return the readable text of an HTML page, without the markup."""
    reader = _Words()
    reader.feed(html)
    reader.close()
    lines = (re.sub(r"[ \t\r\f\v\xa0]+", " ", line).strip() for line in "".join(reader.words).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in HIDDEN
        if tag in BLOCKS:
            self.words.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in HIDDEN))
        if tag in BLOCKS:
            self.words.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)
