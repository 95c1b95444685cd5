"""Test who may call a real server, from where, and with which permissions."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from midwatch.api import web
from midwatch.api.admission import AGENTAPI
from midwatch.api.guard import HEADERS, MAX_BODY, MAX_STRANGERS_BODY
from midwatch.api.identity import MOST_OF_A_PEER
from midwatch.base.errors import Conflict, Forbidden, NotFound, Unauthorized
from midwatch.client import Client
from midwatch.desk.config import Settings
from midwatch.runtime.runtime import Runtime
from midwatch.testing import FakeClock
from serving import serve_runtime

JSON = {"content-type": "application/json"}


@dataclass
class Served:
    runtime: Runtime
    app: FastAPI
    url: str
    http: httpx2.AsyncClient
    """A client without a token."""

    def client(self, token: str | None = None) -> Client:
        return Client(self.url, token or self.runtime.home.token())

    def bearer(self, token: str | None = None) -> dict[str, str]:
        return {"authorization": f"Bearer {token or self.runtime.home.token()}"}

    async def token(self, role: str, name: str | None = None) -> str:
        async with self.client() as client:
            return (await client.create_token(name or role, role))["secret"]

    async def code(self, token: str | None = None) -> str:
        async with self.client(token) as client:
            return (await client.link())["url"].partition("#")[2]

    async def cookie(self, token: str | None = None) -> dict[str, str]:
        """Return the cookie header of a browser that has signed in."""
        reply = await self.http.post("/sign-in", json={"code": await self.code(token)})
        assert reply.status_code == 200, reply.text
        self.http.cookies.clear()
        return {"cookie": reply.headers["set-cookie"].partition(";")[0]}

    async def status(self, method: str, path: str, headers: dict[str, str], **more: object) -> tuple[int, str | None]:
        """Return status and error code of the reply."""
        reply = await self.http.request(method, path, headers=headers, **more)
        is_problem = "problem" in reply.headers.get("content-type", "")
        return reply.status_code, reply.json()["code"] if is_problem else None


@asynccontextmanager
async def serve_desk(home: Path, clock: FakeClock | None = None, **settings: object) -> AsyncIterator[Served]:
    loaded = Settings.load(home, **{"detect_agents": False, "shutdown_grace": 0, **settings})
    async with (
        Runtime.open(home, settings=loaded, work=False, clock=clock) as runtime,
        serve_runtime(runtime) as (url, app, _),
        httpx2.AsyncClient(base_url=f"{url}/api/v1", trust_env=False, timeout=30.0) as http,
    ):
        yield Served(runtime, app, url, http)


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    async with serve_desk(home) as server:
        yield server


def paths(app: FastAPI) -> list[tuple[str, str]]:
    """Return every method and path of the app with example parameters."""
    method_paths = []
    for route in iter_route_contexts(app.routes):
        assert route.path and route.methods, route
        method_paths += [(method, re.sub(r"\{\w+(:path)?\}", "x", route.path)) for method in sorted(route.methods)]
    assert len(method_paths) > 20
    return method_paths


# -- missing tokens, invalid tokens, insufficient roles ----------------------------------------------------------------


async def test_without_a_token_only_the_sign_in_page_is_served(served: Served) -> None:
    open_ones = set()
    for method, path in paths(served.app):
        for headers in (
            {},
            served.bearer("mw_wrong"),
            {"cookie": "midwatch=mw_wrong"},
            {"authorization": "Basic eDp5"},
        ):
            reply = await served.http.request(method, f"{served.url}{path}", headers=headers)
            if reply.status_code == 401:
                assert method == "HEAD" or reply.json()["code"] == "unauthorized"
                assert reply.headers["www-authenticate"] == "Bearer"
            else:
                open_ones.add((method, path))
    assert {path for _, path in open_ones if path.startswith("/api")} == {
        "/api/v1/health",
        "/api/v1/sign-in",
        *({"/api/v1/ready"} & {path for _, path in paths(served.app)}),
    }
    assert {method for method, path in open_ones if not path.startswith("/api")} <= {"GET", "HEAD"}
    assert (await served.runtime.store.read_log_bounds()).last_seq == 0


async def test_paths_outside_of_the_api_serve_the_console(served: Served) -> None:
    """These pages are shown to everybody, so they must contain nothing else."""
    everything = {route.path or "" for route in iter_route_contexts(served.app.routes)}
    outside = {path for path in everything if not path.startswith("/api/") and not AGENTAPI.match(path)}
    assert outside == {*web.PAGES, "/web/{name:path}"}


async def test_a_viewer_cannot_change_anything(served: Served) -> None:
    """Check every route, so that a new one is refused too."""
    viewer = await served.token("viewer")
    before = await served.runtime.store.read_log_bounds()
    refused = []
    for method, path in paths(served.app):
        open_to_all = ("/sign-in", "/sign-out", "/links", "/rules/test", "/hooks/x")  # a webhook checks signatures
        for_all = path.removeprefix("/api/v1") in open_to_all or path.startswith("/sessions/x/agentapi")
        if method not in ("GET", "HEAD") and not for_all:
            for body in ({}, {"json": {}}):
                status = await served.status(method, f"{served.url}{path}", served.bearer(viewer), **body)
                assert status == (403, "forbidden"), (method, path)
            refused.append(path)
    assert len(refused) > 5
    assert await served.runtime.store.read_log_bounds() == before
    async with served.client(viewer) as client:
        assert (await client.me())["role"] == "viewer"
        assert (await client.list())["tasks"] == []
        await client.link()


@pytest.mark.parametrize("role", ["viewer", "operator"])
async def test_tokens_are_for_owners_only(served: Served, role: str) -> None:
    async with served.client(await served.token(role)) as client:
        for refused in (client.tokens(), client.create_token("x", "viewer"), client.revoke_token(role)):
            with pytest.raises(Forbidden):
                await refused
        me = await client.me()
        assert (me["actor"], me["role"], me["home"]) == (role, role, None)
    async with served.client(await served.token("owner", "second")) as client:
        assert (await client.me())["home"] == str(served.runtime.home.path)
        assert (await client.revoke_token(role))["revoked_at"]


async def test_an_operator_cannot_create_a_token_even_with_an_invalid_body(served: Served) -> None:
    secret = await served.token("operator")
    reply = await served.http.post("/tokens", json={"role": "king"}, headers=served.bearer(secret))
    assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")


async def test_an_operator_acts_under_its_own_name(served: Served) -> None:
    async with served.client() as owner:
        secret = (await owner.create_token("bot", "operator", "ada"))["secret"]
    async with served.client(secret) as client:
        task = await client.submit("x", {"agent": "demo"})
        assert task["creator"] == "ada"
        await client.cancel(task["id"])
        events = (await client.events())["events"]
    assert [(event["kind"], event.get("actor")) for event in events if event["kind"].startswith("task")] == [
        ("task_submitted", "ada"),
        ("task_finished", "ada"),
    ]


# -- tokens ------------------------------------------------------------------------------------------------------------


async def test_a_token_is_made_listed_and_revoked(served: Served) -> None:
    async with served.client() as owner:
        token = await owner.create_token("ci", "operator")
        with pytest.raises(Conflict, match="'ci'"):
            await owner.create_token("ci", "viewer")
        async with served.client(token["secret"]) as client:
            assert (await client.me())["actor"] == "ci"
            await served.runtime.tokens.close()
            listed = await owner.tokens()
            assert [(entry["name"], entry["kind"], bool(entry["last_used_at"])) for entry in listed] == [
                ("ci", "api", True)
            ]
            assert token["secret"] not in json.dumps(listed)
            assert (await owner.revoke_token(token["id"]))["revoked_at"]
            with pytest.raises(Unauthorized):
                await client.me()
        with pytest.raises(NotFound):
            await owner.revoke_token("ci")
        with pytest.raises(Conflict):
            await owner.revoke_token(token["id"])
        events = (await owner.events())["events"]
    assert [event["kind"] for event in events] == ["token_created", "token_revoked"]
    assert {event["actor"] for event in events} == {"owner"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x"}, "role"),
        ({"name": "x", "role": "king"}, "role"),
        ({"name": "a b", "role": "viewer"}, "name"),
        ({"name": "x", "role": "viewer", "actor": "a\n"}, "actor"),
        ({"name": "x", "role": "viewer", "hash": "x"}, "hash"),
    ],
)
async def test_a_wrong_token_body_names_its_field(served: Served, body: dict[str, str], field: str) -> None:
    reply = await served.http.post("/tokens", json=body, headers=served.bearer())
    assert (reply.status_code, reply.json()["field"]) == (422, field)


async def test_a_token_is_valid_on_every_server_of_a_store(served: Served, home: Path) -> None:
    """Another process revokes the token; this server has no cache of it."""
    secret = await served.token("viewer")
    async with Runtime.open(home, work=False) as other_runtime:
        assert await other_runtime.tokens.bearer(secret) is not None
        await served.runtime.tokens.revoke("viewer", by=(await other_runtime.tokens.bearer(other_runtime.home.token())))
        assert await other_runtime.tokens.bearer(secret) is None


@pytest.mark.parametrize("way", ["bearer", "cookie", "child"])
async def test_the_stream_of_a_revoked_token_ends(served: Served, way: str) -> None:
    """Check also the stream of a browser, and of a browser that signed in with the token."""
    served.app.state.streams.heartbeat = 0.05
    secret = await served.token("viewer")
    headers = served.bearer(secret) if way == "bearer" else await served.cookie(secret)
    async with served.http.stream("GET", "/events", headers=headers) as reply:
        assert reply.status_code == 200
        parts = reply.aiter_bytes()
        for _ in range(3):
            assert await anext(parts)
        async with served.client() as owner:
            kind = "browser" if way == "cookie" else "api"
            await owner.revoke_token(next(token["id"] for token in await owner.tokens() if token["kind"] == kind))
        async with asyncio.timeout(20):
            async for _ in parts:
                pass
    assert (await served.http.get("/events", headers=headers)).status_code == 401


# -- browsers ----------------------------------------------------------------------------------------------------------


async def test_a_link_signs_a_browser_in(served: Served) -> None:
    async with served.client() as owner:
        link = await owner.link()
    address, _, code = link["url"].partition("#")
    assert address == f"{served.url}/sign-in"
    reply = await served.http.post("/sign-in", json={"code": code}, headers={"origin": served.url})
    assert reply.status_code == 200
    assert (reply.json()["actor"], reply.json()["role"]) == ("owner", "owner")
    cookie = reply.headers["set-cookie"].lower()
    for part in ("httponly", "samesite=strict", "path=/", "max-age=2592000"):
        assert part in cookie.split("; "), cookie
    assert "secure" not in cookie
    assert (await served.http.get("/me")).json()["actor"] == "owner"
    assert [event.kind for event in await served.runtime.store.read_events(0)] == ["token_created", "signed_in"]
    again = await served.http.post("/sign-in", json={"code": code})
    assert (again.status_code, again.json()["code"]) == (401, "unauthorized")


async def test_a_token_signs_a_browser_in(served: Served) -> None:
    viewer = await served.token("viewer")
    reply = await served.http.post("/sign-in", json={"token": viewer})
    assert (reply.status_code, reply.json()["role"]) == (200, "viewer")
    assert (await served.http.get("/me")).json()["actor"] == "viewer"
    await served.runtime.tokens.revoke("viewer", by=(await served.runtime.tokens.bearer(served.runtime.home.token())))
    assert (await served.http.get("/me")).status_code == 401


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b'{"code": null}', b'{"code": 1}', b'{"code": "a", "token": "b"}', b'{"cod": "a"}',
     b'{"code": "\\ud800"}', b"[" * 4000, b'{"code": "' + b"x" * 300 + b'"}', b"\xff\xfe", b"null"],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
async def test_an_invalid_sign_in_is_refused(served: Served, body: bytes) -> None:
    reply = await served.http.post("/sign-in", content=body, headers=JSON)
    assert reply.status_code == 422, reply.text
    assert "set-cookie" not in reply.headers


async def test_concurrent_uses_of_one_link_sign_in_once(served: Served) -> None:
    code = await served.code()
    replies = await asyncio.gather(*(served.http.post("/sign-in", json={"code": code}) for _ in range(6)))
    assert sorted(reply.status_code for reply in replies) == [200] + [401] * 5


async def test_two_servers_accept_a_link_once(database: str, tmp_path: Path) -> None:
    """Two servers of one database see the same link."""
    async with serve_desk(tmp_path / "a", db=database) as first, serve_desk(tmp_path / "b", db=database) as second:
        for _ in range(3):
            code = await first.code()
            attempts = [(first, code), (second, code)] * 2
            replies = await asyncio.gather(*(who.http.post("/sign-in", json={"code": c}) for who, c in attempts))
            assert sorted(reply.status_code for reply in replies) == [200, 401, 401, 401]


async def test_an_expired_link_is_refused(home: Path) -> None:
    clock = FakeClock()
    async with serve_desk(home, clock) as served:
        late, code = await served.code(), await served.code()
        await clock.advance(599)
        cookie = await served.http.post("/sign-in", json={"code": code})
        assert cookie.status_code == 200
        await clock.advance(1)
        assert (await served.http.post("/sign-in", json={"code": late})).status_code == 401
        assert (await served.http.get("/me")).status_code == 200
        await clock.advance(30 * 86400)
        assert (
            await served.http.get("/me", headers={"cookie": f"midwatch={cookie.cookies['midwatch']}"})
        ).status_code == 401


async def test_signing_out_ends_the_cookie_everywhere(served: Served) -> None:
    cookie = await served.cookie()
    reply = await served.http.post("/sign-out", headers={**cookie, "origin": served.url})
    assert (reply.status_code, reply.json()) == (200, {"signed_out": True})
    assert "max-age=0" in reply.headers["set-cookie"].lower()
    assert (await served.http.get("/me", headers=cookie)).status_code == 401
    by_token = await served.http.post("/sign-out", headers=served.bearer())
    assert by_token.status_code == 200
    assert (await served.http.get("/me", headers=served.bearer())).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"origin": "OWN"}, 201),
        ({"sec-fetch-site": "same-origin"}, 201),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "https://listed.example"}, 401),
    ],
)
async def test_a_cookie_is_valid_only_for_our_own_pages(home: Path, headers: dict[str, str], status: int) -> None:
    async with serve_desk(home, origins=["https://listed.example"]) as served:
        cookie = await served.cookie()
        sent_headers = {name: served.url if value == "OWN" else value for name, value in headers.items()}
        reply = await served.http.post(
            "/tasks", json={"prompt": "x", "agent": "demo"}, headers={**cookie, **sent_headers}
        )
        assert reply.status_code == status, reply.text
        assert (await served.http.get("/me", headers=cookie)).status_code == 200


async def test_a_browser_signed_in_by_a_viewer_is_a_viewer(served: Served) -> None:
    cookie = {**await served.cookie(await served.token("viewer")), "origin": served.url}
    assert await served.status("POST", "/tasks", cookie, json={"prompt": "x"}) == (403, "forbidden")
    reply = await served.http.post("/links", headers=cookie)
    assert reply.status_code == 201
    again = await served.http.post("/sign-in", json={"code": reply.json()["url"].partition("#")[2]})
    assert again.json()["role"] == "viewer"


async def test_failed_sign_ins_are_limited_and_successful_ones_are_not(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = [await served.http.post("/sign-in", json={"code": "mw_wrong"}) for _ in range(MOST_OF_A_PEER + 3)]
    assert [reply.status_code for reply in wrong] == [401] * MOST_OF_A_PEER + [429] * 3
    assert wrong[-1].json()["code"] == "limit_reached"
    assert 1 <= int(wrong[-1].headers["retry-after"]) <= 60
    assert (await served.http.post("/sign-in", json={"code": await served.code()})).status_code == 200
    assert [record.getMessage() for record in caplog.records if "sign-in" in record.getMessage()] == [
        "a sign-in from 127.0.0.1 failed"
    ]


# -- origins of requests -----------------------------------------------------------------------------------------------


async def test_requests_for_another_host_are_refused(served: Served) -> None:
    evil = {"host": "evil.example", **served.bearer()}
    for path in ("/api/v1/health", "/api/v1/me", "/", "/sign-in"):
        assert await served.status("GET", f"{served.url}{path}", evil) == (421, "wrong_host")
    reply = await served.http.get("/me", headers=evil)
    assert "`hosts`" in reply.json()["detail"]


async def test_a_foreign_origin_is_refused_even_with_a_token(served: Served) -> None:
    evil = {"origin": "https://evil.example", **served.bearer()}
    for method in ("GET", "POST", "OPTIONS", "DELETE"):
        assert await served.status(method, "/tasks", evil) == (403, "foreign_origin")
    own = await served.http.get("/me", headers={"origin": served.url, **served.bearer()})
    assert own.status_code == 200
    assert not [name for name in own.headers if name.startswith("access-control")]


async def test_a_listed_origin_is_answered_without_credentials(home: Path) -> None:
    async with serve_desk(home, origins=["https://listed.example"]) as served:
        listed = {"origin": "https://listed.example"}
        ask = {**listed, "access-control-request-method": "POST"}
        reply = await served.http.options("/tasks", headers=ask)
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (204, "https://listed.example")
        assert "authorization" in reply.headers["access-control-allow-headers"]
        reply = await served.http.get("/me", headers={**listed, **served.bearer()})
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, "https://listed.example")
        assert "access-control-allow-credentials" not in reply.headers
        assert reply.headers["vary"] == "origin"
        assert (await served.http.get("/me", headers=listed)).status_code == 401


async def test_a_proxy_names_the_actor_only_from_its_own_address(home: Path) -> None:
    named = {"x-forwarded-user": "Ada"}
    async with serve_desk(home, proxy_header="X-Forwarded-User") as served:
        me = (await served.http.get("/me", headers=named)).json()
        assert (me["actor"], me["role"], me["home"]) == ("Ada", "operator", None)
        task = await served.http.post("/tasks", json={"prompt": "x", "agent": "demo"}, headers=named)
        assert task.json()["creator"] == "Ada"
        assert await served.status("POST", "/links", named) == (403, "forbidden")
        assert await served.status("GET", "/tokens", named) == (403, "forbidden")
        assert await served.status("GET", "/me", {**named, **served.bearer("mw_wrong")}) == (401, "unauthorized")
        assert (await served.http.get("/me", headers={**named, "cookie": "midwatch=old"})).json()["actor"] == "Ada"
    async with serve_desk(home, proxy_header="X-Forwarded-User", proxy_addresses=["10.0.0.5"]) as served:
        assert await served.status("GET", "/me", named) == (401, "unauthorized")
    async with serve_desk(home) as served:
        assert await served.status("GET", "/me", named) == (401, "unauthorized")


async def test_pages_of_a_listed_site_need_a_token(home: Path) -> None:
    """Its browser sends the cookie, and the proxy names the user: neither means that the user made the request."""
    task_fields = {"prompt": "x", "agent": "demo"}
    async with serve_desk(home, origins=["https://listed.example"], proxy_header="X-Forwarded-User") as served:
        cookie, named = await served.cookie(), {"x-forwarded-user": "Ada"}
        listed, own = {"origin": "https://listed.example"}, {"origin": served.url}
        for proof in (cookie, named, {**cookie, **named}):
            for site in ({}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-origin"}):
                for method, path, body in (("GET", "/me", None), ("POST", "/tasks", task_fields)):
                    status = await served.status(method, path, {**proof, **listed, **site}, json=body)
                    assert status == (401, "unauthorized"), (proof, site, method)
        assert await served.status("POST", "/tasks", {**named, "origin": "null"}, json=task_fields) == (
            403,
            "foreign_origin",
        )
        for proof in (cookie, named):
            assert await served.status("POST", "/tasks", {**proof, **own}, json=task_fields) == (201, None)
        assert await served.status("POST", "/tasks", {**served.bearer(), **listed}, json=task_fields) == (201, None)
        assert (await served.runtime.store.count_tasks()).total == 3


async def test_the_stream_of_a_proxy_user_ends_within_an_hour(home: Path) -> None:
    clock, named = FakeClock(), {"x-forwarded-user": "Ada"}
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serve_desk(home, clock, proxy_header="X-Forwarded-User"))
        served.app.state.streams.heartbeat = 0.05
        reply, token_reply = [
            await stack.enter_async_context(served.http.stream("GET", "/events", headers=headers))
            for headers in (named, served.bearer())
        ]
        parts, token_parts = reply.aiter_bytes(), token_reply.aiter_bytes()
        await clock.advance(3599)
        for _ in range(3):
            assert await anext(parts)
        await clock.advance(1)
        async with asyncio.timeout(20):
            async for _ in parts:
                pass
        assert await anext(token_parts), "a token is looked up instead"


async def test_behind_https_the_cookie_is_secure(served: Served) -> None:
    host = served.url.removeprefix("http://")
    secure = {"x-forwarded-proto": "https", "origin": f"https://{host}"}
    reply = await served.http.post("/sign-in", json={"code": await served.code()}, headers=secure)
    assert "; secure" in reply.headers["set-cookie"].lower()
    link = await served.http.post("/links", headers={**secure, **served.bearer()})
    assert link.json()["url"].startswith(f"https://{host}/sign-in#mw_")


# -- bodies and headers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("media", "status"),
    [
        ("application/json", 201),
        ("Application/JSON; charset=utf-8", 201),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/jsonx", 415),
        ("", 415),
    ],
)
async def test_a_body_must_be_declared_as_json(served: Served, media: str, status: int) -> None:
    headers = {**served.bearer(), **({"content-type": media} if media else {})}
    reply = await served.http.post("/tasks", content=b'{"prompt": "x", "agent": "demo"}', headers=headers)
    assert reply.status_code == status
    if status == 415:
        assert reply.json()["code"] == "unsupported_media_type"


async def test_requests_without_a_token_have_small_limits(served: Served) -> None:
    big = b'"' + b"x" * MAX_STRANGERS_BODY + b'"'
    assert (await served.http.post("/sign-in", content=big, headers=JSON)).status_code == 413
    headers = {**JSON, **served.bearer()}
    assert (await served.http.post("/tasks", content=b"x" * (MAX_BODY + 1), headers=headers)).status_code == 413

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * (MAX_STRANGERS_BODY // 2)

    assert (await served.http.post("/sign-in", content=chunks(), headers=JSON)).status_code == 413


@pytest.mark.parametrize(
    "target",
    [
        "//api/v1/tasks", "/./api/v1/tasks", "/web/../api/v1/tasks", "/web/%2e%2e/api/v1/tasks", "/api%2fv1%2ftasks",
        "/%61pi/v1/tasks", "/api/v1/health/../tasks", "/api/v1/health%2f..%2ftasks", "/api/v1/tasks%00",
        "/api/v1/health?/../tasks", "/API/v1/tasks", "/api/v1//tasks", "/api/v1/tasks/", "/api/v1/health%3f",
        "/sign-in/../api/v1/tasks", "/\\api\\v1\\tasks", "/api;x/v1/tasks", "/%2e/api/v1/tasks", "/api/v1/tasks%20",
        "http://localhost/api/v1/tasks", "*",
    ],
)  # fmt: skip
async def test_path_traversal_is_refused(served: Served, target: str) -> None:
    host = served.url.removeprefix("http://")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(host.rpartition(":")[2]))
    writer.write(f"GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    reply = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert b'"tasks"' not in reply
    status = int(reply.split()[1])
    assert status in (307, 400, 401, 404) or (status == 200 and b'"status":"ok"' in reply), reply[:300]


async def test_every_reply_has_security_headers(served: Served) -> None:
    for path in ("/api/v1/health", "/api/v1/me", "/api/v1/nothing", "/nothing", "/"):
        for headers in ({}, served.bearer(), {"host": "evil.example"}):
            reply = await served.http.get(f"{served.url}{path}", headers=headers)
            assert HEADERS.items() <= dict(reply.headers).items(), (path, headers)
            if path.startswith("/api"):
                assert reply.headers["cache-control"] == "no-store"


async def test_an_internal_error_has_security_headers_and_no_details(home: Path) -> None:
    async with serve_desk(home) as served:

        async def broken() -> None:
            raise RuntimeError("secret details")

        served.app.add_api_route("/api/v1/broken", broken)
        reply = await served.http.get("/broken", headers=served.bearer())
        assert reply.status_code == 500
        assert "secret" not in reply.text
        assert HEADERS.items() <= dict(reply.headers).items()


async def test_refusals_are_logged_once_without_secrets(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        await served.http.get("/me", headers=served.bearer("mw_wrong_secret"))
        await served.http.get("/me", headers={"host": "evil.example"})
        await served.http.get("/me", headers={"cookie": "midwatch=mw_wrong_secret"})
    messages = [record.getMessage() for record in caplog.records if record.name == "midwatch.guard"]
    assert messages == [
        "refused GET '/api/v1/me' from 127.0.0.1: unauthorized",
        "refused GET '/api/v1/me' from 127.0.0.1: wrong_host",
    ]
    assert "mw_wrong_secret" not in caplog.text
