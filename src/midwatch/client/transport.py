"""How a client speaks to its server: requests, replies, and errors as the classes of `midwatch.base.errors`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import quote

import httpx2
import orjson

from midwatch.base import errors
from midwatch.base.errors import InvalidInput, MidwatchError, NotFound, NotRunning
from midwatch.base.home import Home
from midwatch.base.trace import own_trace

TIMEOUT = httpx2.Timeout(30.0, connect=5.0)


class Transport:
    """Speaks to one server. Use it as an async context manager, or `close` it."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        locate: Callable[[], str | None] | None = None,
    ) -> None:
        """`locate` tells where the server is now; a follower asks it before it connects again."""
        self.url = url
        self._locate = locate
        self._http = httpx2.AsyncClient(
            base_url=f"{url}/api/v1",
            headers={"authorization": f"Bearer {token}", "accept": "application/json", **own_trace()},
            timeout=TIMEOUT,
            transport=transport,
            trust_env=False,  # the server is on this machine; a proxy set for the web is not the way to it
            verify=url.startswith("https:"),
        )

    @classmethod
    def for_home(cls, home: str | Path, token: str | None = None) -> Self:
        """A client of the live server of a home directory, by default as its owner; or NotRunning."""
        place = Home(Path(home).expanduser().absolute())
        live = place.server()
        if live is None:
            raise NotRunning(f"no midwatch server serves {place.path}; start one with `midwatch up`.")

        def locate() -> str | None:
            found = place.server()
            return found.url if found else None

        return cls(live.url, token or place.token(), locate=locate)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.aclose()

    async def _get(self, path: str, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self._call("GET", path, params=without_none(asked or {}))

    async def _post(
        self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        if key is not None:
            if not (key.isascii() and key.isprintable()):
                raise InvalidInput("an idempotency key is printable ASCII here.", field="idempotency_key")
            headers["idempotency-key"] = key
        return await self._call("POST", path, content=orjson.dumps(body or {}, default=str), headers=headers)

    async def _patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        return await self._call("PATCH", path, content=orjson.dumps(body, default=str), headers=headers)

    async def _call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        return cast("dict[str, Any]", orjson.loads((await self._reply(method, path, **request)).content))

    async def _reply(self, method: str, path: str, **request: Any) -> httpx2.Response:
        try:
            response = await self._http.request(method, path, **request)
        except httpx2.TransportError as lost:
            raise self._unreachable(lost) from None
        if response.is_error:
            raise error_of(response)
        return response

    def _unreachable(self, lost: httpx2.TransportError) -> NotRunning:
        if isinstance(lost, httpx2.ConnectError | httpx2.ConnectTimeout):
            return NotRunning(f"no server answers at {self.url}; start it with `midwatch up`.")
        return NotRunning(
            f"the server at {self.url} went away before it answered ({type(lost).__name__}); "
            "see with `midwatch doctor`, and with `midwatch tasks` what it had taken."
        )

    def _move(self) -> None:
        found = self._locate() if self._locate else None
        if found and found != self.url:
            self.url = found
            self._http.base_url = httpx2.URL(f"{found}/api/v1")


def quoted(key: str) -> str:
    """`key` as one part of a path."""
    if not key or key in (".", ".."):
        raise InvalidInput(f"{key!r} cannot be the name of anything; list what there is.", field="id")
    return quote(key, safe="", errors="replace")


def named(noun: str, key: str) -> str:
    """The id of a record as one part of a path. None has a slash in it, and a server would take it for two parts."""
    if "/" in key:
        raise NotFound(noun, key)
    return quoted(key)


def moment(when: datetime | None) -> str | None:
    """A time with its zone, as the interface reads it."""
    return when.astimezone().isoformat() if when else None


def without_none(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Only what was said."""
    return {name: value for name, value in asked.items() if value is not None}


def _subclasses(kind: type[MidwatchError]) -> list[type[MidwatchError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _subclasses(child))]


BY_CODE = {kind.code: kind for kind in _subclasses(errors.MidwatchError)}
FIXED = frozenset({"type", "title", "status", "code", "detail", "field"})


def error_of(response: httpx2.Response) -> MidwatchError:
    """The error a reply tells of, as the class it was raised as."""
    try:
        told = orjson.loads(response.content)
        code, detail = str(told["code"]), str(told["detail"])
    except (ValueError, KeyError, TypeError):
        return MidwatchError(f"the server answered {response.status_code} in a way that was not understood.")
    kind = BY_CODE.get(code, MidwatchError)
    made = kind.__new__(kind, detail)  # its own arguments are not known here, only what came of them
    vars(made).update({name: value for name, value in told.items() if name not in FIXED})
    if isinstance(made, InvalidInput):
        made.field = told.get("field")
    return made
