"""Test the tool that fetches pages, with a real server on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

import pytest

from midwatch.agents.llm.fetch import MOST_BYTES, Allows, extract_text, fetch_tool
from midwatch.agents.llm.tools import Toolbox, ToolOutput
from midwatch.base.addresses import is_public
from midwatch.domain.tool_call import GO_ON, ToolCall, ToolDecision
from midwatch.testing import RecordingTurn


class Pages(BaseHTTPRequestHandler):
    """A server with a reply for each path."""

    stop = threading.Event()
    asked: list[tuple[str, str]] = []  # noqa: RUF012 - one list for all requests is meant

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["host"]))
        getattr(self, f"get_{self.path.strip('/').partition('?')[0].replace('-', '_') or 'index'}")()

    def send_page(self, body: bytes, media: str = "text/html; charset=utf-8", status: int = 200, **more: str) -> None:
        self.send_response(status)
        if media:
            self.send_header("content-type", media)
        self.send_header("content-length", str(len(body)))
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def get_index(self) -> None:
        self.send_page(
            "<html><head><title>Tide table</title><style>p {}</style><script>bad()</script><body>"
            "<h1>Faro &amp; Olhão</h1><p>High   water<br>at <b>six</b></p><noscript>no</noscript>".encode()
        )

    def get_json(self) -> None:
        self.send_page(b'{"a": 1}', "application/json")

    def get_latin(self) -> None:
        self.send_page("Olhão".encode("latin-1"), "text/plain; charset=iso-8859-1")

    def get_odd_charset(self) -> None:
        self.send_page("Olhão".encode(), "text/plain; charset=klingon")

    def get_binary(self) -> None:
        self.send_page(b"\0\1\2", "application/octet-stream")

    def get_missing(self) -> None:
        self.send_page(b"nothing here", "text/plain", 404)

    def get_zipped(self) -> None:
        self.send_page(b"\x1f\x8b", "text/plain", content_encoding="gzip")

    def get_round(self) -> None:
        self.send_page(b"", status=302, location="/round")

    def get_moved(self) -> None:
        self.send_page(b"", status=301, location="json")

    def get_to_file(self) -> None:
        self.send_page(b"", status=302, location="file:///etc/passwd")

    def get_to_metadata(self) -> None:
        self.send_page(b"", status=302, location="http://169.254.169.254/latest/")

    def get_elsewhere(self) -> None:
        self.send_page(b"", status=302, location=f"http://localhost:{self.server.server_port}/json")

    def get_endless(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.end_headers()
        try:
            while not self.stop.is_set():
                self.wfile.write(b"x" * 65536)
        except OSError:
            pass

    def get_slow(self) -> None:
        self.stop.wait(30)

    def get_drip(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.end_headers()
        try:
            while not self.stop.wait(0.05):
                self.wfile.write(b"x")
        except OSError:
            pass


@contextmanager
def serve_page() -> Iterator[str]:
    Pages.stop.clear()
    Pages.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        Pages.stop.set()
        server.shutdown()
        server.server_close()
        thread.join()


def anything(address: object) -> bool:
    return True


async def fetch(
    url: str, allows: Allows = anything, *, seconds: float = 60.0, answer: str = "yes", asks: bool = True
) -> ToolOutput:
    turn = RecordingTurn(answers=[answer])
    output = await Toolbox([fetch_tool(allows, seconds)]).run("fetch_url", {"url": url}, turn)
    asked = [(question.kind, question.tool, question.text) for question in turn.asked]
    assert asked == ([("fetch", "fetch_url", f"Fetch {url}")] if asks else [])
    return output


async def test_a_page_is_returned_as_text() -> None:
    with serve_page() as url:
        assert (await fetch(url)).text == "Tide table\n\nFaro & Olhão\n\nHigh water\nat six"
        assert Pages.asked == [("/", url.removeprefix("http://"))]
        assert (await fetch(f"{url}/json?x=1#part")).text == '{"a": 1}'
        assert Pages.asked[-1][0] == "/json?x=1"
        assert (await fetch(f"{url}/latin")).text == "Olhão"
        assert (await fetch(f"{url}/odd-charset")).text == "Olhão"
        assert (await fetch(f"{url}/moved")).text == '{"a": 1}'


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/binary", "is application/octet-stream, 3 bytes"),
        ("/missing", "status 404: nothing here"),
        ("/zipped", "content encoding gzip"),
        ("/round", "redirects more than 5 times"),
        ("/to-file", "begins with http"),
        ("/nowhere", "cannot be fetched"),
    ],
)
async def test_a_page_that_is_no_text_is_reported(path: str, told: str) -> None:
    with serve_page() as url:
        output = await fetch(url + path)
        assert output.is_error
        assert told in output.text


async def test_an_endless_page_is_truncated_and_a_slow_one_times_out() -> None:
    with serve_page() as url:
        endless = await fetch(f"{url}/endless")
        assert not endless.is_error
        assert len(endless.text) < MOST_BYTES
        for path in ("slow", "drip"):
            output = await fetch(f"{url}/{path}", seconds=0.5)
            assert output.is_error
            assert "did not answer within 0.5 s" in output.text


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://localhost/", "http://[::1]/", "http://0.0.0.0/", "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data", "http://192.168.1.1/", "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/", "http://[fe80::1]/", "http://[fd00::1]/", "http://2130706433/", "http://127.1/",
        "http://0x7f.1/", "http://100.64.0.1/",
    ],
)  # fmt: skip
async def test_private_addresses_are_refused_in_every_notation(url: str) -> None:
    output = await fetch(url, is_public)
    assert output.is_error
    assert "address of this machine or its network" in output.text or "there is no host" in output.text


async def test_a_server_on_this_machine_is_reached_only_if_allowed() -> None:
    with serve_page() as url:
        assert (await fetch(url, is_public)).is_error
        assert not Pages.asked


async def test_a_redirect_to_a_private_address_is_refused() -> None:
    """The first address counts as public, as a real one would; the redirect leads to a private one."""
    with serve_page() as url:
        output = await fetch(f"{url}/to-metadata", lambda address: str(address) == "127.0.0.1")
        assert "169.254.169.254 is an address of this machine or its network" in output.text


class StrictTurn(RecordingTurn):
    """A turn whose rules forbid one host."""

    async def before_tool(self, call: ToolCall) -> ToolDecision:
        self.tool_calls.append(call)
        return ToolDecision("deny", reason="A rule forbids it.") if "localhost" in call.hosts else GO_ON


async def test_rules_decide_on_the_host_of_a_redirect() -> None:
    with serve_page() as url:
        turn = StrictTurn(answers=["yes", "yes"])
        box = Toolbox([fetch_tool(anything, 60.0)])
        output = await box.run("fetch_url", {"url": f"{url}/elsewhere"}, turn)
        assert output.is_error and "A rule forbids it." in output.text
        assert [path for path, _ in Pages.asked] == ["/elsewhere"]
        moved = await box.run("fetch_url", {"url": f"{url}/moved"}, turn)  # the same host
        assert moved.text == '{"a": 1}' and [call.hosts for call in turn.tool_calls] == [("localhost",)]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("file:///etc/passwd", "begins with http"),
        ("ftp://x/", "begins with http"),
        ("not an address", "begins with http"),
        ("http://", "begins with http"),
        ("http://user:word@example.org/", "user name"),
        ("http://no-such-host.invalid/", "there is no host"),
        ("http://a..b/", "there is no host"),
        ("http://\x00/", "is not a valid address"),
        ("http://[::1", "is not a valid address"),
    ],
)
async def test_unusable_addresses_are_reported(url: str, told: str) -> None:
    output = await fetch(url, asks=told == "there is no host")
    assert output.is_error
    assert told in output.text


async def test_nothing_is_fetched_without_approval() -> None:
    with serve_page() as url:
        output = await fetch(url, answer="no")
        assert output.is_error
        assert "not allowed" in output.text
        assert not Pages.asked


async def test_a_refused_connection_is_reported() -> None:
    with socket.socket() as bound_socket:
        bound_socket.bind(("127.0.0.1", 0))
        output = await fetch(f"http://127.0.0.1:{bound_socket.getsockname()[1]}/")
    assert output.is_error
    assert "cannot be fetched" in output.text


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1::1", True), ("::ffff:8.8.8.8", True), ("64:ff9b::808:808", True),
        ("::ffff:10.0.0.1", False), ("::7f00:1", False), ("2002:7f00:1::", False), ("240.0.0.1", False),
        ("224.0.0.1", False), ("255.255.255.255", False), ("192.0.0.8", False), ("192.88.99.1", False),
        ("64:ff9b:1::808:808", False), ("64:ff9b:1:ffff::1", False), ("fec0::1", False), ("feff::1", False),
        ("fe80::1", False), ("fc00::1", False), ("100::1", False), ("5f00::1", False), ("ff02::1", False),
        ("64:ff9b::a00:1", False), ("2002:a00:1::1", False), ("2002:808:808::1", True), ("::ffff:0:10.0.0.1", False),
        ("2001:0:808:808::1", False), ("2001:db8::1", False), ("3fff::1", False),
    ],
)  # fmt: skip
def test_public_addresses_are_recognised(address: str, public: bool) -> None:
    assert is_public(ip_address(address)) is public


def test_text_of_broken_html_is_extracted() -> None:
    assert extract_text("<p>a<p>b<script>x") == "a\nb"
    assert extract_text("</script></style>still <b>here") == "still here"
    assert extract_text("<div>" * 20_000 + "deep") == "deep"
