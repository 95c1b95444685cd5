"""Test the channel module: truncation, routes, statuses, the notification service, and channels built from settings."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midwatch.base.errors import BadConfig, InvalidInput, NotFound
from midwatch.base.text import cut
from midwatch.channels.registry import KINDS, build
from midwatch.domain.changes import Changes
from midwatch.domain.channel import (
    BACKOFF_SECONDS,
    MAX_ATTEMPTS,
    TRANSITIONS,
    Channel,
    Delivery,
    Route,
    Status,
    backoff,
    hide_target,
)
from midwatch.domain.notice import end_text
from midwatch.services.notifications import Notifications
from midwatch.testing import FakeClock

FAMILY = "👩\u200d👩\u200d👧"
GERMANY, FRANCE = "🇩🇪", "🇫🇷"
ENGLAND = "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"


# -- cut ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "length", "expected"),
    [
        ("short", 5, "short"),
        ("", 5, ""),
        ("longer", 5, "longe…"),
        ("ends in  space", 8, "ends in…"),
        ("cafe\u0301s", 4, "caf…"),
        ("cafe\u0301s", 5, "cafe\u0301…"),
        (f"a{FAMILY}b", 2, "a…"),
        (f"a{FAMILY}b", 3, "a…"),
        (f"a{FAMILY}b", 5, "a…"),
        (f"a{FAMILY}b", 6, f"a{FAMILY}…"),
        ("a👍🏽b", 2, "a…"),
        ("a❤\ufe0fb", 2, "a…"),
        ("a1\ufe0f\u20e3b", 3, "a…"),
        ("नमस्ते दुनिया", 5, "नमस्…"),
    ],
)
def test_cut_never_splits_a_grapheme(text: str, length: int, expected: str) -> None:
    assert cut(text, length) == expected


@pytest.mark.parametrize(
    ("text", "length", "expected"),
    [
        (f"a{GERMANY}b", 2, "a…"),
        (f"{GERMANY}{FRANCE}b", 3, f"{GERMANY}…"),
        (f"a{ENGLAND}b", 4, "a…"),
    ],
)
def test_cut_never_splits_a_flag(text: str, length: int, expected: str) -> None:
    assert cut(text, length) == expected


def test_cut_may_split_between_flags() -> None:
    assert cut(f"{GERMANY}{FRANCE}b", 2) == f"{GERMANY}…"
    assert cut(f"{GERMANY}{FRANCE}b", 4) == f"{GERMANY}{FRANCE}…"


def test_cut_shortens_a_long_text() -> None:
    short = cut("word " * 100_000, 500)
    assert len(short) <= 501
    assert short.endswith("word…")


def test_cut_shortens_a_text_of_combining_marks() -> None:
    assert len(cut("\u0301" * 1000, 10)) <= 11


def test_cut_looks_back_a_limited_distance() -> None:
    """Limit the work for a text that consists of many combining marks."""
    assert cut("word" + "\u0301" * 30_000, 20_000) == "word" + "\u0301" * 19_996 + "…"
    many = GERMANY * 5000
    assert cut(many, 5001) == GERMANY * 2500 + "…"


@settings(database=None)
@given(st.text(max_size=60), st.integers(1, 50))
def test_cut_returns_a_prefix_within_the_length(text: str, length: int) -> None:
    short = cut(text, length)
    if len(text) <= length:
        assert short == text
        return
    assert short.endswith("…")
    prefix = short[:-1]
    assert text.startswith(prefix)
    assert len(prefix) <= length


def test_notices_contain_the_next_command() -> None:
    assert end_text("done", "t_1", "p", "r" * 600, "") == f"Done: p\n{'r' * 500}…\nFull result: midwatch result t_1"
    assert end_text("timed_out", "t_1", "p", "", "midwatch retry t_1") == "Timed out: p\nTry again: midwatch retry t_1"


# -- routes, states, back-off ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("console", Route("console")),
        (" console ", Route("console")),
        ("console:", Route("console")),
        ("phone:alice", Route("phone", "alice")),
        ("hook:https://example.org:8080/a?b=c", Route("hook", "https://example.org:8080/a?b=c")),
    ],
)
def test_a_route_is_parsed(text: str, route: Route) -> None:
    assert Route.parse(text) == route


@pytest.mark.parametrize("text", ["", "  ", ":target"])
def test_a_route_without_a_channel_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Route.parse(text)
    assert caught.value.field == "route"


def test_only_a_person_can_retry_a_failed_delivery() -> None:
    states: set[Status] = {"pending", "sent", "failed"}
    assert set(TRANSITIONS) == states
    assert {(old, new) for old in states for new in TRANSITIONS[old]} == {
        ("pending", "sent"),
        ("pending", "failed"),
        ("failed", "pending"),
    }


def test_every_try_except_the_last_is_followed_by_a_pause() -> None:
    assert len(BACKOFF_SECONDS) == MAX_ATTEMPTS - 1
    assert [backoff(n) for n in range(1, MAX_ATTEMPTS)] == [float(pause) for pause in BACKOFF_SECONDS]
    assert backoff(MAX_ATTEMPTS + 5) == BACKOFF_SECONDS[-1]


# -- notifications -------------------------------------------------------------------------------------------------


class NoDeliveries:
    """A store without deliveries."""

    async def apply(self, changes: Changes) -> None:
        raise AssertionError

    async def list_due_deliveries(self, now: int, limit: int = 50) -> list[Delivery]:
        return []

    async def find_next_delivery_at(self) -> int | None:
        return None

    async def get_delivery(self, delivery_id: str) -> Delivery | None:
        return None

    async def list_deliveries(
        self, *, task_id: str | None = None, status: Status | None = None, limit: int = 50
    ) -> list[Delivery]:
        return []


class TypingChannel:
    """A channel that records calls of its typing indicator and fails on request."""

    name = "typist"

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.did: list[str] = []

    async def deliver(self, delivery: Delivery) -> None: ...

    def typing(self, target: str | None) -> AbstractAsyncContextManager[None]:
        self._do(f"asked {target}")
        return self

    async def __aenter__(self) -> None:
        self._do("shown")

    async def __aexit__(self, *problem: Any) -> None:
        self._do("hidden")

    def listen(self) -> AsyncIterator[Mapping[str, Any]] | None:
        return None

    async def close(self) -> None: ...

    def _do(self, what: str) -> None:
        self.did.append(what)
        if self.fails and what.startswith(self.fails):
            raise RuntimeError(what)


def notifications(**channels: Channel) -> Notifications:
    return Notifications(NoDeliveries(), FakeClock(), channels)


def test_a_route_needs_a_configured_channel() -> None:
    service = notifications(desk=TypingChannel(), phone=TypingChannel())
    assert service.check_route(" phone:alice ") == "phone:alice"
    with pytest.raises(InvalidInput) as caught:
        service.check_route("pager:https://hush.example")
    assert str(caught.value) == (
        "there is no channel 'pager'; use one of: desk, phone; or add a table [channels.NAME] to midwatch.toml."
    )
    assert caught.value.field == "route"


async def test_an_unknown_delivery_is_not_found() -> None:
    with pytest.raises(NotFound):
        await notifications().get("d_1")
    assert await notifications().list() == []


async def test_typing_is_shown_during_the_block() -> None:
    channel = TypingChannel()
    async with notifications(desk=channel).typing("desk:alice"):
        assert channel.did == ["asked alice", "shown"]
    assert channel.did == ["asked alice", "shown", "hidden"]


async def test_typing_is_stopped_when_the_block_raises() -> None:
    channel = TypingChannel()
    with pytest.raises(ZeroDivisionError):
        async with notifications(desk=channel).typing("desk"):
            1 / 0  # noqa: B018
    assert channel.did[-1] == "hidden"


@pytest.mark.parametrize("route", [None, "pager"])
async def test_typing_without_a_channel_does_nothing(route: str | None) -> None:
    done = False
    async with notifications(desk=TypingChannel()).typing(route):
        done = True
    assert done


@pytest.mark.parametrize("fails", ["shown", "hidden", "asked"])
async def test_a_channel_that_cannot_show_typing_does_no_harm(fails: str) -> None:
    channel = TypingChannel(fails)
    done = False
    async with notifications(desk=channel).typing("desk"):
        done = True
    assert done
    assert channel.did[-1].startswith(fails)


def test_a_snapshot_does_not_show_the_target() -> None:
    delivery = Delivery(id="d_1", task_id="t_1", channel="hook", notice="done", text="x", target="https://hush.example")
    assert "hush" not in str(delivery.snapshot())


@pytest.mark.parametrize(
    ("route", "shown"), [(None, None), ("console", "console"), ("webhook:https://hush.example/?token=a:b", "webhook")]
)
def test_only_the_channel_of_a_route_is_shown(route: str | None, shown: str | None) -> None:
    assert hide_target(route) == shown


# -- building channels -----------------------------------------------------------------------------------------------

SECRET = "hush-8c1f"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_built_without_options(kind: str) -> None:
    assert build("it", kind, {}).name == "it"


def test_a_dotted_path_is_accepted_as_kind() -> None:
    assert build("mine", "midwatch.channels.console:ConsoleChannel", {"stream": "stdout"}).name == "mine"


@pytest.mark.parametrize(
    ("kind", "options", "place"),
    [
        ("pigeon", {}, "channels.it.kind: "),
        ("no_such_module:Class", {}, "channels.it.kind: "),
        ("midwatch.channels.console:NoSuchClass", {}, "channels.it.kind: "),
        (":x", {}, "channels.it.kind: "),
        ("builtins:int", {"base": SECRET}, "channels.it: "),
        ("console", {"colour": SECRET}, "channels.it.colour: "),
        ("console", {"stream": "printer"}, "channels.it.stream: "),
        ("console", {"stream": ["stdout"]}, "channels.it.stream: "),
        ("webhook", {"url": 5}, "channels.it.url: "),
        ("webhook", {"url": "  "}, "channels.it.url: "),
        ("webhook", {"url": f"{SECRET}.example/hook"}, "channels.it.url: "),
        ("webhook", {"url": f"ftp://{SECRET}.example"}, "channels.it.url: "),
        ("webhook", {"url": f"http://{SECRET}.example:99999"}, "channels.it.url: "),
        ("webhook", {"secret": f"{SECRET}!"}, "channels.it.secret: "),
        ("webhook", {"secret": "whsec_"}, "channels.it.secret: "),
        ("webhook", {"secret": 5}, "channels.it.secret: "),
        ("webhook", {"timeout": 0}, "channels.it.timeout: "),
        ("webhook", {"timeout": True}, "channels.it.timeout: "),
        ("webhook", {"timeout": "soon"}, "channels.it.timeout: "),
        ("webhook", {"timeout": float("inf")}, "channels.it.timeout: "),
        ("webhook", {"timeout": float("nan")}, "channels.it.timeout: "),
        ("webhook", {"headers": {"x": SECRET}}, "channels.it.headers: "),
        ("webhook", {"url": "http://a", "headers": [SECRET]}, "channels.it.headers: "),
        ("webhook", {"url": "http://a", "headers": {"x": 5}}, "channels.it.headers.x: "),
        ("webhook", {"url": "http://a", "headers": {"x": f"{SECRET}\r\ny: z"}}, "channels.it.headers: "),
        ("webhook", {"url": "http://a", "headers": {"x y": SECRET}}, "channels.it.headers: "),
        ("webhook", {"url": "http://a", "headers": {"Webhook-Id": SECRET}}, "channels.it.headers: "),
        ("webhook", {"url": "http://a", "headers": {"Content-Type": SECRET}}, "channels.it.headers: "),
        ("apprise", {"url": "json://a", "urls": ["json://b"]}, "channels.it.urls: "),
        ("apprise", {"urls": "json://b"}, "channels.it.urls: "),
        ("apprise", {"urls": [5]}, "channels.it.urls.0: "),
        ("apprise", {"url": f"nosuchservice://{SECRET}"}, "channels.it.url: "),
        ("apprise", {"urls": ["json://a", f"nosuchservice://{SECRET}"]}, "channels.it.urls: "),
    ],
)
def test_invalid_options_are_reported_by_name_in_one_line(kind: str, options: dict[str, Any], place: str) -> None:
    with pytest.raises(BadConfig) as caught:
        build("it", kind, options)
    message = str(caught.value)
    assert message.startswith(place)
    assert "\n" not in message
    assert SECRET not in message


@pytest.mark.parametrize("form", ["whsec_{}", "{}"])
def test_a_webhook_secret_may_have_a_prefix_and_padding(form: str) -> None:
    secret = form.format(base64.b64encode(b"0123456789").decode().rstrip("="))
    assert build("it", "webhook", {"secret": secret}).name == "it"


def test_a_missing_library_is_reported_with_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(BadConfig, match=r"pip install 'midwatch\[apprise\]'"):
        build("phone", "apprise", {})


def test_libraries_are_imported_only_when_used() -> None:
    program = (
        "import sys, midwatch.channels.apprise, midwatch.channels.console, midwatch.channels.webhook\n"
        "print(sorted({'apprise', 'httpx2', 'standardwebhooks'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
