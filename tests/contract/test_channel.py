"""Test the contract of channels with every kind, then the particular behaviour of each kind.

A new kind adds one `Case` to CASES.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from midwatch.base.clock import SECOND, SystemClock, iso
from midwatch.base.errors import DeliveryError
from midwatch.channels.console import ConsoleChannel
from midwatch.channels.registry import build
from midwatch.domain.channel import Channel, Delivery
from midwatch.testing import RecordingChannel

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
SECRET_PART = "hush-8c1f"
"""Part of every address and header that must stay secret."""


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """A web server on loopback that records requests and answers as the test requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.status = 200
        self.endless = False
        self.silent = False
        self.dripping = False
        self.asked = asyncio.Event()
        self._over = asyncio.Event()
        self._handlers: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._on_connect, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._over.set()
        self._server.close()
        await self._server.wait_closed()
        if self._handlers:
            await asyncio.wait(self._handlers)

    def address(self, path: str = f"/{SECRET_PART}") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the sender closed the connection
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append(Request(head[0].split()[1], headers, content))
        self.asked.set()
        if self.silent:
            await self._over.wait()
            return
        if self.dripping:
            await self._drip(writer)
            return
        writer.write(f"HTTP/1.1 {self.status} Answer\r\nlocation: /elsewhere\r\nconnection: close\r\n".encode())
        if not self.endless:
            writer.write(b"content-length: 2\r\n\r\nok")
            await writer.drain()
            return
        writer.write(b"content-type: text/plain\r\n\r\n")
        while not self._over.is_set():
            writer.write(b"and so on " * 1000)
            await writer.drain()

    async def _drip(self, writer: asyncio.StreamWriter) -> None:
        """Send a reply slowly whose header never ends."""
        writer.write(b"HTTP/1.1 200 Answer\r\n")
        while not self._over.is_set():
            writer.write(b"x: y\r\n")
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), 0.05)


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receiver]:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    receiver = Receiver()
    await receiver.start()
    yield receiver
    await receiver.stop()


def delivery(number: int = 1, **fields: Any) -> Delivery:
    now = SystemClock().now()
    return Delivery(
        **{
            "id": f"d_{number}",
            "task_id": f"t_{number}",
            "channel": "it",
            "notice": "done",
            "text": f"Done: job {number}.\nGrüße, 東京 👩‍👩‍👧\nFull result: midwatch result t_{number}",
            "created_at": now,
            "due_at": now,
            **fields,
        }
    )


class Case(Protocol):
    """A kind of channel, with ways to read what it sent and to make it fail."""

    channel: Channel

    def received(self) -> list[str]:
        """Return the texts of all messages that arrived."""
        ...

    def set_broken(self, broken: bool) -> None:
        """Make sending fail, or succeed again."""
        ...


class ConsoleCase:
    def __init__(self, receiver: Receiver) -> None:
        self.stream = io.StringIO()
        self.channel = ConsoleChannel("it", {}, self.stream)

    def received(self) -> list[str]:
        return ["Done" + part.replace("[it] ", "") for part in self.stream.getvalue().split("[it] Done")[1:]]

    def set_broken(self, broken: bool) -> None:
        if broken:
            self.stream.close()
        else:
            self.stream = self.channel._stream = io.StringIO()


class WebhookCase:
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        options = {"url": receiver.address(), "secret": SECRET, "headers": {"authorization": f"Bearer {SECRET_PART}"}}
        self.channel = build("it", "webhook", options)

    def received(self) -> list[str]:
        return [request.json()["data"]["text"] for request in self.receiver.requests]

    def set_broken(self, broken: bool) -> None:
        self.receiver.status = 500 if broken else 200


class AppriseCase:
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.channel = build(
            "it", "apprise", {"url": f"json://{SECRET_PART}:{SECRET_PART}@127.0.0.1:{receiver.port}/{SECRET_PART}"}
        )

    def received(self) -> list[str]:
        return ["\n".join((r.json()["title"], r.json()["message"])) for r in self.receiver.requests]

    def set_broken(self, broken: bool) -> None:
        self.receiver.status = 500 if broken else 200


class RecordingCase:
    def __init__(self, receiver: Receiver) -> None:
        self.channel = RecordingChannel("it")

    def received(self) -> list[str]:
        return [delivery.text for delivery in self.channel.delivered]

    def set_broken(self, broken: bool) -> None:
        self.channel.fail = 1000 if broken else 0


CASES = [ConsoleCase, WebhookCase, AppriseCase, RecordingCase]


@pytest.fixture(params=CASES, ids=lambda case: case.__name__.removesuffix("Case").lower())
async def case(request: pytest.FixtureRequest, receiver: Receiver) -> AsyncIterator[Case]:
    case: Case = request.param(receiver)
    yield case
    await case.channel.close()


async def test_the_whole_text_arrives(case: Case) -> None:
    sent = delivery()
    await case.channel.deliver(sent)
    [text] = case.received()
    assert text.strip() == sent.text


async def test_concurrent_messages_arrive_whole(case: Case) -> None:
    sent = [delivery(number) for number in range(8)]
    await asyncio.gather(*(case.channel.deliver(message) for message in sent))
    text = "\n".join(case.received())
    assert all(message.text in text for message in sent)
    assert text.count("midwatch result") == len(sent)


async def test_a_failure_is_a_temporary_delivery_error(case: Case) -> None:
    case.set_broken(True)
    with pytest.raises(DeliveryError) as caught:
        await case.channel.deliver(delivery())
    assert not caught.value.permanent
    assert str(caught.value).startswith("channel it")
    assert "\n" not in str(caught.value)
    case.set_broken(False)
    before = len(case.received())
    await case.channel.deliver(delivery())
    assert len(case.received()) == before + 1


async def test_errors_contain_no_secret(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    await case.channel.deliver(delivery())
    case.set_broken(True)
    with pytest.raises(DeliveryError) as caught:
        await case.channel.deliver(delivery(target="team"))
    shown = [repr(case.channel), repr(caught.value), str(caught.value), caplog.text]
    shown += [record.getMessage() for record in caplog.records]
    assert caught.value.__cause__ is None
    assert not [text for text in shown if SECRET_PART in text or SECRET in text or SECRET[6:] in text]


async def test_typing_wraps_a_run(case: Case) -> None:
    for target in (None, "somebody"):
        async with case.channel.typing(target):
            pass
    with pytest.raises(ZeroDivisionError):
        async with case.channel.typing(None):
            1 / 0  # noqa: B018


async def test_a_channel_listens_or_reports_that_it_cannot(case: Case) -> None:
    listener = case.channel.listen()
    assert listener is None or hasattr(listener, "__anext__")


async def test_closing_twice_is_harmless(case: Case) -> None:
    await case.channel.deliver(delivery())
    await case.channel.close()
    await case.channel.close()


# -- console -----------------------------------------------------------------------------------------------------


async def test_console_prefixes_every_line_and_strips_control_sequences() -> None:
    stream = io.StringIO()
    text = (
        "\x1b[31mred\x1b[0m\x1b]0;title\x07 \x9b2Jdone\x00\x08\x7f\r\n"
        "next\tline\u202eevil\n"
        "\x1b]52;c;aGk=\x1b\\\x1bcend"
    )
    await ConsoleChannel("desk", {}, stream).deliver(delivery(text=text))
    assert stream.getvalue() == "[desk] red done\n[desk] next lineevil\n[desk] end\n"


async def test_console_prints_to_the_servers_own_streams(capsys: pytest.CaptureFixture[str]) -> None:
    await build("desk", "console", {}).deliver(delivery(text="one"))
    await build("desk", "console", {"stream": "stdout"}).deliver(delivery(text="two"))
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("[desk] two\n", "[desk] one\n")


async def test_console_escapes_characters_the_stream_cannot_encode() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    await ConsoleChannel("desk", {}, stream).deliver(delivery(text="Grüße \ud800"))
    assert raw.getvalue() == b"[desk] Gr\\xfc\\xdfe \\ud800\n"


# -- webhook -----------------------------------------------------------------------------------------------------


async def test_webhook_is_signed_and_has_the_documented_body(receiver: Receiver) -> None:
    channel = build("hook", "webhook", {"url": receiver.address("/in"), "secret": SECRET, "headers": {"X-Team": "ops"}})
    sent = delivery(created_at=1_700_000_000 * SECOND)
    await channel.deliver(sent)
    await channel.close()
    [request] = receiver.requests
    assert Webhook(SECRET).verify(request.body, request.headers) == {
        "type": "task.done",
        "timestamp": iso(1_700_000_000 * SECOND),
        "data": {"delivery_id": "d_1", "task_id": "t_1", "notice": "done", "text": sent.text},
    }
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(request.body.replace(b"done", b"gone"), request.headers)
    assert (request.path, request.headers["content-type"], request.headers["x-team"]) == (
        "/in",
        "application/json",
        "ops",
    )
    assert request.headers["webhook-id"] == "d_1"


async def test_webhook_retries_have_the_same_id_and_body(receiver: Receiver) -> None:
    channel = build("hook", "webhook", {"url": receiver.address(), "secret": SECRET})
    sent = delivery()
    receiver.status = 503
    with pytest.raises(DeliveryError):
        await channel.deliver(sent)
    receiver.status = 204
    await channel.deliver(sent)
    await channel.close()
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == "d_1"
    assert first.body == second.body
    Webhook(SECRET).verify(second.body, second.headers)


async def test_webhook_without_a_secret_is_not_signed(receiver: Receiver) -> None:
    channel = build("hook", "webhook", {"url": receiver.address()})
    await channel.deliver(delivery(notice="asked:a_1"))
    await channel.close()
    [request] = receiver.requests
    assert "webhook-signature" not in request.headers
    assert request.headers["webhook-id"] == "d_1"
    assert (request.json()["type"], request.json()["data"]["notice"]) == ("task.asked", "asked:a_1")


@pytest.mark.parametrize(
    ("status", "permanent"),
    [(301, False), (400, True), (404, True), (408, False), (410, True), (425, False), (429, False), (500, False)],
)
async def test_webhook_distinguishes_permanent_from_temporary_failures(
    receiver: Receiver, status: int, permanent: bool
) -> None:
    receiver.status = status
    channel = build("hook", "webhook", {"url": receiver.address()})
    with pytest.raises(DeliveryError, match=f"answered {status}") as caught:
        await channel.deliver(delivery())
    await channel.close()
    assert caught.value.permanent is permanent
    assert len(receiver.requests) == 1  # redirects are not followed


async def test_webhook_posts_to_a_target_that_is_an_address(receiver: Receiver) -> None:
    options = {"url": receiver.address("/usual"), "secret": SECRET, "headers": {"authorization": SECRET_PART}}
    channel = build("hook", "webhook", options)
    await channel.deliver(delivery(target=receiver.address("/other")))
    await channel.deliver(delivery(target="not an address"))
    await channel.close()
    direct, usual = receiver.requests
    assert (direct.path, usual.path) == ("/other", "/usual")
    Webhook(SECRET).verify(direct.body, direct.headers)
    assert "authorization" not in direct.headers  # the headers are for the configured address only
    assert usual.headers["authorization"] == SECRET_PART


@pytest.mark.parametrize("target", [None, "team", "http://", "http://[", "ftp://127.0.0.1/"])
async def test_webhook_without_an_address_fails_permanently(target: str | None) -> None:
    with pytest.raises(DeliveryError, match=r"channels\.hook\.url") as caught:
        await build("hook", "webhook", {}).deliver(delivery(target=target))
    assert caught.value.permanent


@pytest.mark.parametrize("manner", ["silent", "dripping"])
async def test_webhook_has_a_timeout(receiver: Receiver, manner: str) -> None:
    setattr(receiver, manner, True)
    channel = build("hook", "webhook", {"url": receiver.address(), "timeout": "0.2s"})
    with pytest.raises(DeliveryError, match=r"no answer within 0\.2 s") as caught:
        await channel.deliver(delivery())
    assert not caught.value.permanent
    await channel.close()


async def test_webhook_stops_reading_an_endless_reply(receiver: Receiver) -> None:
    receiver.endless = True
    channel = build("hook", "webhook", {"url": receiver.address()})
    await channel.deliver(delivery())
    await channel.close()


@pytest.mark.usefixtures("receiver")
async def test_webhook_refused_connections_are_temporary_failures() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # nobody listens there, and no other process can take the port
        channel = build("hook", "webhook", {"url": f"http://127.0.0.1:{reserved.getsockname()[1]}/"})
        with pytest.raises(DeliveryError, match="cannot be reached") as caught:
            await channel.deliver(delivery())
    assert not caught.value.permanent
    await channel.close()


async def test_webhook_works_again_after_a_cancelled_send(receiver: Receiver) -> None:
    receiver.silent = True
    channel = build("hook", "webhook", {"url": receiver.address()})
    sending = asyncio.create_task(channel.deliver(delivery(1)))
    await receiver.asked.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    receiver.silent = False
    await channel.deliver(delivery(2))
    await channel.close()
    assert [request.json()["data"]["delivery_id"] for request in receiver.requests] == ["d_1", "d_2"]


# -- apprise -----------------------------------------------------------------------------------------------------


async def test_apprise_uses_the_first_line_as_title(receiver: Receiver) -> None:
    channel = build("phone", "apprise", {"urls": [f"json://127.0.0.1:{receiver.port}/{n}" for n in (1, 2)]})
    await channel.deliver(delivery(text="Failed: build\nno space left", notice="failed"))
    await channel.deliver(delivery(text="one line"))
    assert sorted(request.path for request in receiver.requests) == ["/1", "/1", "/2", "/2"]
    first, last = receiver.requests[0].json(), receiver.requests[-1].json()
    assert (first["title"], first["message"], first["type"]) == ("Failed: build", "no space left", "failure")
    assert (last["title"], last["message"], last["type"]) == ("", "one line", "success")


async def test_apprise_sends_to_a_target_that_is_an_address(receiver: Receiver) -> None:
    channel = build("phone", "apprise", {})
    await channel.deliver(delivery(target=f"json://127.0.0.1:{receiver.port}/target"))
    assert [request.path for request in receiver.requests] == ["/target"]


@pytest.mark.parametrize("target", [None, "me", f"nosuchservice://{SECRET_PART}"])
async def test_apprise_without_a_usable_address_fails_permanently(
    target: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    with pytest.raises(DeliveryError, match="address") as caught:
        await build("phone", "apprise", {}).deliver(delivery(target=target))
    assert caught.value.permanent
    assert SECRET_PART not in str(caught.value) + caplog.text


def test_apprise_log_lines_of_other_code_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    build("phone", "apprise", {})
    with caplog.at_level(logging.INFO):
        logging.getLogger("apprise").info("not ours")
    assert "not ours" in caplog.text


async def test_the_receiver_in_the_documentation_works(receiver: Receiver) -> None:
    page = (Path(__file__).parents[2] / "docs" / "channels.md").read_text()
    documented: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], documented)
    channel = build("hook", "webhook", {"url": receiver.address(), "secret": documented["SECRET"]})
    sent = delivery()
    await channel.deliver(sent)
    await channel.close()
    [request] = receiver.requests
    assert documented["receive"](request.body, request.headers) == sent.text
    assert documented["receive"](request.body, request.headers) is None
