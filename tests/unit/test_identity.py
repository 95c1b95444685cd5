"""Test identity: tokens, roles, and the rules that decide which requests are accepted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import APIRouter, FastAPI

from midwatch.api import guard, routes, web
from midwatch.api.admission import Admission, Call
from midwatch.api.identity import MINUTE, MOST_OF_A_PEER, MOST_OF_ALL, Failures
from midwatch.api.permissions import Permissions, contains, needs
from midwatch.base.errors import (
    BadConfig,
    Conflict,
    Forbidden,
    ForeignOrigin,
    InvalidInput,
    LimitReached,
    NotFound,
    StoreUnavailable,
    Unauthorized,
    WrongHost,
)
from midwatch.desk.config import Settings
from midwatch.domain.identity import KEPT_SECONDS, LIVES_SECONDS, NOTED_SECONDS, OWNER, Actor, hash_of
from midwatch.services.tokens import Tokens
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock

FILE = "the-secret-in-the-file"


@pytest.fixture
def store(memory: SqliteStore) -> SqliteStore:
    return memory


@pytest.fixture
async def tokens(store: SqliteStore, clock: FakeClock) -> AsyncIterator[Tokens]:
    token_service = Tokens(store, clock, FILE)
    yield token_service
    await token_service.close()


# -- tokens ------------------------------------------------------------------------------------------------------------


async def test_the_secret_is_returned_once_and_only_its_hash_is_stored(tokens: Tokens, store: SqliteStore) -> None:
    token, secret = await tokens.create("ci", "operator", by=OWNER)
    assert secret.startswith("mw_")
    assert len(secret) == 46
    assert (token.hash, token.actor, token.role, token.created_by) == (hash_of(secret), "ci", "operator", "owner")
    assert "hash" not in token.snapshot()
    assert secret not in repr(await store.list_tokens())
    assert secret not in repr(await store.read_events(0))


async def test_a_bearer_token_identifies_the_owner_or_its_actor(tokens: Tokens) -> None:
    _, secret = await tokens.create("ci", "viewer", actor="Ada L.", by=OWNER)
    assert await tokens.bearer(FILE) == OWNER
    actor = await tokens.bearer(secret)
    assert actor is not None
    assert actor[:3] == ("Ada L.", "viewer", "bearer")
    for wrong in ("", "mw_", FILE[:-1], FILE + " ", secret.lower(), "\ud800"):
        assert await tokens.bearer(wrong) is None


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "ü", "x" * 64, "a\n"])
async def test_names_of_tokens_are_restricted(tokens: Tokens, name: str) -> None:
    with pytest.raises(InvalidInput, match="name"):
        await tokens.create(name, "viewer", by=OWNER)


@pytest.mark.parametrize("actor", ["", " ", "a\n", " a", "a\x7f", "x" * 101, "a\u202eb"])
async def test_names_of_actors_must_be_printable(tokens: Tokens, actor: str) -> None:
    with pytest.raises(InvalidInput, match="actor"):
        await tokens.create("ci", "viewer", actor=actor, by=OWNER)


async def test_a_name_in_use_is_refused(tokens: Tokens) -> None:
    await tokens.create("ci", "viewer", by=OWNER)
    with pytest.raises(Conflict, match="'ci'"):
        await tokens.create("ci", "owner", by=OWNER)
    await tokens.revoke("ci", by=OWNER)
    await tokens.create("ci", "owner", by=OWNER)


async def test_a_revoked_token_is_refused(tokens: Tokens) -> None:
    token, secret = await tokens.create("ci", "viewer", by=OWNER)
    who = await tokens.bearer(secret)
    assert who is not None
    assert await tokens.is_valid(who)
    assert (await tokens.revoke("ci", by=OWNER)).revoked_at is not None
    assert await tokens.bearer(secret) is None
    assert not await tokens.is_valid(who)
    assert await tokens.is_valid(OWNER)
    with pytest.raises(Conflict, match="already"):
        await tokens.revoke(token.id, by=OWNER)
    with pytest.raises(NotFound):
        await tokens.revoke("ci", by=OWNER)


async def test_secrets_of_one_kind_are_refused_as_another(tokens: Tokens) -> None:
    _, api = await tokens.create("ci", "owner", by=OWNER)
    _, code = await tokens.link(OWNER)
    _, cookie = await tokens.sign_in(token=api)
    assert [await tokens.bearer(secret) for secret in (code, cookie)] == [None, None]
    assert [await tokens.cookie(secret) for secret in (code, api, FILE)] == [None, None, None]
    for wrong in (api, cookie, FILE):
        with pytest.raises(Unauthorized):
            await tokens.sign_in(code=wrong)
    for wrong in (code, cookie):
        with pytest.raises(Unauthorized):
            await tokens.sign_in(token=wrong)


async def test_a_link_signs_in_its_actor_once(tokens: Tokens) -> None:
    _, secret = await tokens.create("ci", "viewer", actor="ada", by=OWNER)
    who = await tokens.bearer(secret)
    assert who is not None
    _, code = await tokens.link(who)
    _, cookie = await tokens.sign_in(code=code)
    actor = await tokens.cookie(cookie)
    assert actor is not None
    assert actor[:3] == ("ada", "viewer", "cookie")
    with pytest.raises(Unauthorized):
        await tokens.sign_in(code=code)


async def test_links_and_cookies_expire(tokens: Tokens, clock: FakeClock) -> None:
    _, late = await tokens.link(OWNER)
    _, code = await tokens.link(OWNER)
    await clock.advance(LIVES_SECONDS["link"] - 1)
    _, cookie = await tokens.sign_in(code=code)
    await clock.advance(1)
    with pytest.raises(Unauthorized):
        await tokens.sign_in(code=late)
    await clock.advance(LIVES_SECONDS["browser"] - 2)
    who = await tokens.cookie(cookie)
    assert who is not None
    await clock.advance(1)
    assert await tokens.cookie(cookie) is None
    assert not await tokens.is_valid(who)


async def test_browser_sessions_end_with_their_token(tokens: Tokens) -> None:
    """The chain may be long: a link of a browser of a link of the token."""
    _, secret = await tokens.create("ci", "operator", by=OWNER)
    who = await tokens.bearer(secret)
    cookies, unused = [], []
    for _ in range(3):
        assert who is not None
        _, code = await tokens.link(who)
        unused.append((await tokens.link(who))[1])
        cookies.append((await tokens.sign_in(code=code))[1])
        who = await tokens.cookie(cookies[-1])
    assert who is not None
    assert await tokens.is_valid(who)
    _, owners = await tokens.sign_in(token=FILE)
    await tokens.revoke("ci", by=OWNER)
    assert [await tokens.cookie(cookie) for cookie in cookies] == [None, None, None]
    assert not await tokens.is_valid(who)
    assert await tokens.cookie(owners) is not None
    for code in unused:
        with pytest.raises(Unauthorized):
            await tokens.sign_in(code=code)


async def test_an_actor_named_by_a_proxy_gets_no_link(tokens: Tokens) -> None:
    with pytest.raises(Forbidden, match="proxy"):
        await tokens.link(Actor("ada", "operator", "proxy"))


async def test_the_number_of_links_per_actor_is_limited(store: SqliteStore, clock: FakeClock) -> None:
    tokens = Tokens(store, clock, FILE, most_of_actor=2)
    await tokens.link(OWNER)
    _, code = await tokens.link(OWNER)
    for more in (tokens.link(OWNER), tokens.sign_in(token=FILE)):
        with pytest.raises(LimitReached):
            await more
    await tokens.link(Actor("ada", "viewer"))
    await tokens.sign_in(code=code)  # the cookie replaces its link
    await tokens.close()


async def test_lists_show_no_links_and_remove_ended_tokens(
    tokens: Tokens, clock: FakeClock, store: SqliteStore
) -> None:
    await tokens.create("ci", "viewer", by=OWNER)
    await clock.advance(1)
    await tokens.create("old", "viewer", by=OWNER)
    await tokens.link(OWNER)
    await tokens.revoke("old", by=OWNER)
    assert [token.name for token in await tokens.list()] == ["old", "ci"]
    await clock.advance(LIVES_SECONDS["link"] + KEPT_SECONDS + 1)
    await tokens.create("new", "viewer", by=OWNER)
    assert [token.name for token in await store.list_tokens()] == ["new", "ci"]


async def test_use_is_recorded_rarely_and_in_the_background(
    tokens: Tokens, clock: FakeClock, store: SqliteStore
) -> None:
    token, secret = await tokens.create("ci", "viewer", by=OWNER)

    async def read_last_use() -> int | None:
        await asyncio.gather(*(tokens.bearer(secret) for _ in range(5)))
        await tokens.close()
        stored_token = await store.get_token(token.id)
        assert stored_token is not None
        return stored_token.last_used_at

    first = clock.now()
    assert await read_last_use() == first
    await clock.advance(NOTED_SECONDS - 1)
    assert await read_last_use() == first
    await clock.advance(1)
    assert await read_last_use() == clock.now()


async def test_a_failure_to_record_use_is_harmless(
    tokens: Tokens, store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    class ReadOnlyStore:
        """A store that refuses every write."""

        find_token = store.find_token

        async def apply(self, changes: object) -> None:
            raise StoreUnavailable("the disk is full.")

    token, secret = await tokens.create("ci", "viewer", by=OWNER)
    troubled = Tokens(ReadOnlyStore(), FakeClock(), FILE)
    assert await troubled.bearer(secret) is not None
    await troubled.close()
    assert f"token {token.id} was not written: the disk is full" in caplog.text


# -- the guard of requests ---------------------------------------------------------------------------------------------


def make_admission(home: Path = Path("/nowhere"), **settings: object) -> Admission:
    return Admission(Settings.load(home, **settings))


def call(
    admission: Admission,
    *,
    method: str = "GET",
    path: str = "/api/v1/tasks",
    peer: str | None = "127.0.0.1",
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    host: str | None = "localhost:7171",
) -> Call:
    header_pairs = list(headers.items()) if isinstance(headers, dict) else headers or []
    if host is not None:
        header_pairs.append(("host", host))
    return admission.read_call(
        {
            "type": "http",
            "method": method,
            "path": path,
            "scheme": "http",
            "client": None if peer is None else (peer, 1),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in header_pairs],
        }
    )


def refusal(admission: Admission, **fields: object) -> type[Exception] | None:
    try:
        admission.check(call(admission, **fields))
    except (WrongHost, ForeignOrigin) as problem:
        return type(problem)
    return None


OURS = [
    "localhost", "localhost:7171", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:7171", "127.9.9.9", "[::1]", "[::1]:7171",
    "[0:0:0:0:0:0:0:1]:7171", "[::ffff:127.0.0.1]", socket.gethostname(), f"{socket.gethostname().upper()}:7171",
]  # fmt: skip
FOREIGN = [
    "", "evil.example", "localhost.", "localhost.evil.example", "evil.localhost", "127.0.0.1.evil.example", "127.1",
    "2130706433", "0x7f.1", "0.0.0.0", "10.0.0.5", "[2001:db8::5]", "::1", "localhost:", "localhost:x",
    "localhost:123456", "localhost/", "user@localhost", "localhost, evil.example", "[::1", "[localhost]", " localhost",
    "local host", "localhost\t", "[::1]x", "%6cocalhost", "localhost#", "xn--localhost", "127.0.0.1\x00",
]  # fmt: skip


@pytest.mark.parametrize("host", OURS)
def test_names_of_this_machine_are_allowed_hosts(host: str) -> None:
    assert refusal(make_admission(), host=host) is None


@pytest.mark.parametrize("host", FOREIGN)
def test_other_hosts_are_refused(host: str) -> None:
    assert refusal(make_admission(), host=host) is WrongHost


def test_a_missing_or_duplicate_host_is_refused() -> None:
    assert refusal(make_admission(), host=None) is WrongHost
    assert refusal(make_admission(), headers=[("host", "localhost")], host="localhost") is WrongHost


@pytest.mark.parametrize(
    ("settings", "host", "ours"),
    [
        ({"hosts": ["Desk.Example.org"]}, "desk.example.ORG:443", True),
        ({"hosts": ["desk.example.org"]}, "desk.example.org.", False),
        ({"hosts": ["desk.example.org"]}, "a.desk.example.org", False),
        ({"hosts": ["desk.example.org"]}, "10.0.0.5", False),
        ({"hosts": ["10.0.0.5"]}, "10.0.0.5:7171", True),
        ({"hosts": ["2001:db8::5"]}, "[2001:db8:0::5]:7171", True),
        ({"expose": True}, "10.0.0.5", True),
        ({"expose": True}, "[2001:db8::5]:7171", True),
        ({"expose": True}, "evil.example", False),
        ({"expose": True, "host": "desk.lan"}, "desk.lan:7171", True),
    ],
)
def test_settings_add_allowed_hosts(settings: dict[str, object], host: str, ours: bool) -> None:
    assert (refusal(make_admission(**settings), host=host) is None) is ours


def test_the_error_names_the_setting() -> None:
    with pytest.raises(WrongHost, match="`hosts`"):
        make_admission().check(call(make_admission(), host="desk.lan"))
    with pytest.raises(ForeignOrigin, match="`origins`"):
        make_admission().check(call(make_admission(), headers={"origin": "https://evil.example"}))


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    ("origin", "welcome"),
    [
        ("http://localhost:7171", True),
        ("HTTP://LOCALHOST:7171", True),
        ("https://localhost:7171", False),
        ("http://localhost", False),
        ("http://localhost:7172", False),
        ("http://127.0.0.1:7171", False),
        ("http://localhost:7171.evil.example", False),
        ("http://localhost:7171/", False),
        ("null", False),
        ("file://", False),
        ("https://evil.example", False),
        ("https://listed.example", True),
        ("http://listed.example", False),
        ("https://listed.example:8443", False),
    ],
)
def test_only_own_and_listed_origins_are_allowed(method: str, origin: str, welcome: bool) -> None:
    admission = make_admission(origins=["https://Listed.example"])
    assert (refusal(admission, method=method, headers={"origin": origin}) is None) is welcome


def test_two_origin_headers_are_refused() -> None:
    twice = [("origin", "http://localhost:7171"), ("origin", "http://localhost:7171")]
    assert refusal(make_admission(), headers=twice) is ForeignOrigin


@pytest.mark.parametrize(
    ("site", "path", "welcome"),
    [
        ("same-origin", "/api/v1/tasks", True),
        ("none", "/api/v1/tasks", True),
        ("same-site", "/api/v1/tasks", False),
        ("cross-site", "/api/v1/tasks", False),
        ("cross-site", "/tasks", True),
    ],
)
def test_browser_headers_show_which_site_sends_the_request(site: str, path: str, welcome: bool) -> None:
    assert (refusal(make_admission(), path=path, headers={"sec-fetch-site": site}) is None) is welcome


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({}, False),
        ({"origin": "http://localhost:7171"}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "https://listed.example"}, False),
        ({"origin": "https://listed.example", "sec-fetch-site": "cross-site"}, False),
    ],
)
def test_requests_of_our_own_pages_are_recognised(headers: dict[str, str], own: bool) -> None:
    assert call(make_admission(), headers=headers).from_own_page is own


@pytest.mark.parametrize(
    ("method", "path", "is_open"),
    [
        ("GET", "/api/v1/health", True),
        ("GET", "/api/v1/ready", True),
        ("POST", "/api/v1/sign-in", True),
        ("GET", "/", True),
        ("HEAD", "/web/app.js", True),
        ("GET", "//api/v1/tasks", True),  # nothing is served at this path
        ("POST", "/", False),
        ("POST", "//api/v1/tasks", False),
        ("DELETE", "/tasks", False),
        ("OPTIONS", "/", False),
        ("GET", "/api", False),
        ("GET", "/api/", False),
        ("GET", "/api/v1/health/", False),
        ("GET", "/api/v1/health/../tasks", False),
        ("GET", "/api/v1/Health", False),
        ("GET", "/api/v1/health\0", False),
        ("GET", "/api/v1/openapi.json", False),
        ("GET", "/api//v1/tasks", False),
        ("GET", "/api/v1/health;x", False),
    ],
)
def test_some_paths_need_no_token(method: str, path: str, is_open: bool) -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.router.routes.extend(routes.list_routes())
    web.mount(app)
    request = call(make_admission(), method=method, path=path)
    assert guard.is_open(request, Permissions(app.routes).find(method, path)) is is_open


def test_a_route_without_an_action_is_refused_at_the_start() -> None:
    async def forgotten() -> None: ...

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.add_api_route("/api/v1/forgotten", forgotten)
    with pytest.raises(TypeError, match="/api/v1/forgotten has no action"):
        Permissions(app.routes)
    needs("manage")(forgotten)
    assert Permissions(app.routes).find("GET", "/api/v1/forgotten") == "manage"


def test_routes_behind_a_route_are_read_by_the_first_request_for_them() -> None:
    @needs("manage")
    async def inner() -> None: ...

    @needs("open")
    async def page() -> None: ...

    behind = APIRouter()
    behind.add_api_route("/status", inner)
    asked = []

    @contains(lambda: asked.append("once") or behind.routes)
    async def outer() -> None: ...

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.add_api_route("/things/{key}/inner/{path:path}", outer)
    app.add_api_route("/things/{path:path}", page)
    permissions = Permissions(app.routes)
    assert permissions.find("GET", "/things/a") == "open" and not asked
    for _ in range(2):
        assert permissions.find("GET", "/things/a/inner/status") == "manage"  # the route of the pages fits, too
        assert permissions.find("GET", "/things/a") == "open" and asked == ["once"]
    assert [(each.path, each.action) for each in permissions.all] == [
        ("/things/{key}/inner/status", "manage"), ("/things/{path:path}", "open"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "bearer", "cookie"),
    [
        ({}, None, None),
        ({"authorization": "Bearer x"}, "x", None),
        ({"authorization": "bearer  x "}, "x", None),
        ({"authorization": "Bearer"}, "", None),
        ({"authorization": "Basic x"}, None, None),
        ({"cookie": "midwatch=x"}, None, "x"),
        ({"cookie": "a=b; midwatch=x=y;c"}, None, "x=y"),
        ({"cookie": "xmidwatch=x; Midwatch=y"}, None, None),
    ],
)
def test_secrets_are_read_from_their_headers(headers: dict[str, str], bearer: str | None, cookie: str | None) -> None:
    request = call(make_admission(), headers=headers)
    assert (request.bearer(), request.cookie()) == (bearer, cookie)


@pytest.mark.parametrize(
    ("peer", "value", "actor"),
    [
        ("10.0.0.5", "ada", "ada"),
        ("10.0.0.5", " Ada Lovelace ", "Ada Lovelace"),
        ("10.0.0.5", "Ad\xc3\xa4", "Adä"),
        ("::ffff:10.0.0.5", "ada", "ada"),
        ("10.0.0.6", "ada", None),
        ("127.0.0.1", "ada", None),
        (None, "ada", None),
        ("/run/socket", "ada", None),
        ("10.0.0.5", "", None),
        ("10.0.0.5", "a\tb", None),
        ("10.0.0.5", "x" * 101, None),
        ("10.0.0.5", "\xff", None),
    ],
)
def test_a_proxy_is_trusted_by_its_address(peer: str | None, value: str, actor: str | None) -> None:
    admission = make_admission(proxy_header="X-Forwarded-User", proxy_addresses=["10.0.0.5"], proxy_role="viewer")
    proxy_actor = admission.find_proxy_actor(call(admission, peer=peer, headers={"x-forwarded-user": value}))
    assert proxy_actor == (None if actor is None else Actor(actor, "viewer", "proxy"))


def test_a_proxy_that_names_two_actors_names_none() -> None:
    admission = make_admission(proxy_header="x-user")
    assert admission.find_proxy_actor(call(admission, headers=[("x-user", "ada"), ("x-user", "bob")])) is None
    assert admission.find_proxy_actor(call(admission)) is None
    assert make_admission().find_proxy_actor(call(make_admission(), headers={"x-user": "ada", "": "ada"})) is None


@pytest.mark.parametrize(
    ("peer", "own"), [("127.0.0.1", "https://localhost:7171"), ("10.0.0.5", "http://localhost:7171")]
)
def test_only_a_trusted_proxy_may_report_https(peer: str, own: str) -> None:
    assert call(make_admission(), peer=peer, headers={"x-forwarded-proto": "https"}).own_origin == own


@pytest.mark.parametrize(
    "settings",
    [
        {"hosts": ["http://desk"]},
        {"hosts": ["desk:80"]},
        {"origins": ["desk.example"]},
        {"origins": ["https://desk.example/"]},
        {"origins": ["*"]},
        {"proxy_addresses": ["proxy.example"]},
        {"proxy_header": "X User"},
        {"proxy_role": "king"},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings: dict[str, object], home: Path) -> None:
    with pytest.raises(BadConfig, match=next(iter(settings))):
        Settings.load(home, **settings)


# -- failed sign-ins ---------------------------------------------------------------------------------------------------


async def test_failures_are_limited_per_peer(clock: FakeClock) -> None:
    failures = Failures(clock)
    assert [failures.add("a") for _ in range(MOST_OF_A_PEER)] == [None] * MOST_OF_A_PEER
    await clock.advance(20)
    assert failures.add("a") == pytest.approx(MINUTE - 20)
    assert failures.add("b") is None
    await clock.advance(MINUTE - 20)
    assert failures.add("a") is None


async def test_failures_are_limited_in_total(clock: FakeClock) -> None:
    failures = Failures(clock)
    assert [failures.add(f"peer {n}") for n in range(MOST_OF_ALL)] == [None] * MOST_OF_ALL
    assert failures.add("another") == pytest.approx(MINUTE)
    await clock.advance(MINUTE)
    assert failures.add("another") is None
