"""Send requests to a server, and return its replies or raise its errors as classes of `midwatch.base.errors`."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote, urlencode

import orjson

from midwatch.base import errors
from midwatch.base.directories import expand_user
from midwatch.base.errors import InvalidInput, MidwatchError, NotFound, NotRunning, Unauthorized
from midwatch.base.home import Home
from midwatch.base.trace import own_trace
from midwatch.client.http import Answer, Lost, Server, Unreachable

T = TypeVar("T")
Exchange = Callable[[str, str, Mapping[str, str], bytes], Awaitable[Answer]]
"""A function that sends a request (method, target, headers, body) and returns the reply."""
PREFIX = "/api/v1"
SOCKET_SECONDS = 10.0
MAX_ANSWER = 4096
LONGEST_NUMBER = 63
"""How many bits a whole number of a request may have, without its sign."""


class Transport:
    """A connection to one server. Use it as an async context manager, or `close` it."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        exchange: Exchange | None = None,
        locate: Callable[[], tuple[str, str] | None] | None = None,
    ) -> None:
        """Prepare a client.

        `exchange` replaces requests over the network, for an app in the same process; there are no streams then.
        `locate` returns the current address of the server and the token, or None if no server runs. A stream calls it
        before the stream connects again.
        """
        if not token.isprintable():
            raise InvalidInput("the token has a line break or another control character; copy it again.", field="token")
        self.url = url
        self._found = (url, token)
        self._locate = locate
        self._server = Server(url)
        self._exchange = exchange
        self._headers = {"authorization": f"Bearer {token}", "accept": "application/json", **own_trace()}

    @classmethod
    def for_home(cls, home: str | Path, token: str | None = None) -> Self:
        """Return a client of the server that runs for a home directory, by default with the owner's token.

        Raise NotRunning if no server runs for this home.
        """
        directory = Home(expand_user(home, "home").absolute())

        def locate() -> tuple[str, str] | None:
            server = directory.server()
            if server is None:
                return None
            in_file = server.owner_access == "file"
            return server.url, token or (directory.token() if in_file else ask_for_token(directory.owner_socket))

        found = locate()
        if found is None:
            raise NotRunning(f"no midwatch server serves {directory.path}; start one with `midwatch up`.")
        return cls(*found, locate=locate)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._server.close()

    async def _get(self, path: str, part: str = "", /, **query: Any) -> T:
        """Return the reply to a GET request, or only the `part` of the reply."""
        content = orjson.loads(await self._reply("GET", add_query(path, drop_none(query))))
        return cast(T, content[part] if part else content)

    async def _post(
        self, path: str, body: Mapping[str, Any] | None = None, /, *, idempotency_key: str | None = None, **fields: Any
    ) -> T:
        if idempotency_key is not None and not (idempotency_key.isascii() and idempotency_key.isprintable()):
            raise InvalidInput("an idempotency key must be printable ASCII.", field="idempotency_key")
        key = drop_none({"idempotency-key": idempotency_key})
        return cast(T, await self._send("POST", path, {**(body or {}), **drop_none(fields)}, key))

    async def _patch(self, path: str, body: Mapping[str, Any], /, **fields: Any) -> T:
        return cast(T, await self._send("PATCH", path, {**body, **drop_none(fields)}))

    async def _delete(self, path: str) -> T:
        return cast(T, orjson.loads(await self._reply("DELETE", path)))

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> object:
        headers = {"content-type": "application/json", **(headers or {})}
        return orjson.loads(await self._reply(method, path, headers, _encode(body)))

    async def _reply(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> bytes:
        """Return the body of the reply to a request, or raise the error that the reply reports."""
        send = self._exchange or self._server.request
        try:
            answer = await send(method, PREFIX + target, {**self._headers, **(headers or {})}, body)
        except Lost as lost:
            raise self._unreachable(lost) from None
        if answer.status >= 400:
            raise error_of(answer)
        return answer.body

    def _unreachable(self, lost: Lost) -> NotRunning:
        if isinstance(lost, Unreachable):
            return NotRunning(f"no server answers at {self.url}; start it with `midwatch up`.")
        return NotRunning(
            f"the server at {self.url} was lost before it answered ({lost}); "
            "check it with `midwatch doctor`, and see with `midwatch tasks` whether it accepted the request."
        )

    def _move(self) -> bool:
        """Use the current address and token of the server from now on. Return whether one of them is new."""
        found = None
        with suppress(NotRunning):  # the server is being stopped or started
            found = self._locate() if self._locate else None
        if found is None or found == self._found:
            return False
        self._found = found
        self.url, token = found
        self._server.drop()
        self._server = Server(self.url)
        self._headers["authorization"] = f"Bearer {token}"
        return True


def ask_for_token(path: Path) -> str:
    """Return the owner's token from the socket of the server. Raise Unauthorized if the server refuses this process."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SOCKET_SECONDS)
        try:
            connection.connect(str(path))
            with connection.makefile("rb") as reply:
                answer = orjson.loads(reply.read(MAX_ANSWER))
        except (OSError, ValueError) as problem:
            raise NotRunning(f"the server does not answer at {path} ({problem}); start it again.") from None
    if "token" not in answer:
        raise Unauthorized(str(answer.get("error")))
    return str(answer["token"])


def quote_key(key: str) -> str:
    """Return `key` with special characters quoted, as one part of a path."""
    if not key or key in (".", ".."):
        raise InvalidInput(f"{key!r} cannot be an id; list the records to find the right id.", field="id")
    return quote(key, safe="", errors="replace")


def path_of(noun: str, key: str, action: str = "") -> str:
    """Return the path of a record, or of an `action` on the record.

    Raise NotFound for an id with a slash, because no record has such an id.
    """
    if "/" in key:
        raise NotFound(noun, key)
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"/{plural}/{quote_key(key)}/{action}".rstrip("/")


def session_path(key: str, action: str = "") -> str:
    """Return the path of a session, or of an `action` on the session. The key of a session may contain slashes."""
    return f"/sessions/{quote_key(key)}/{action}".rstrip("/")


def format_moment(moment: datetime | None) -> str | None:
    """Return a time with its zone, in the form that the HTTP interface reads."""
    return moment.astimezone().isoformat() if moment else None


def add_query(path: str, query: Mapping[str, Any]) -> str:
    """Return a path with the parameters of a query. A list is repeated; true and false are in lower case."""
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
    encoded = urlencode(texts, doseq=True, errors="replace")
    return f"{path}?{encoded}" if encoded else path


def _encode(body: Mapping[str, Any]) -> bytes:
    """Return the body of a request as JSON. Raise InvalidInput for a value that JSON cannot hold."""
    try:
        return orjson.dumps(body, default=str)
    except TypeError as problem:
        for name, value in body.items():
            if isinstance(value, int) and value.bit_length() > LONGEST_NUMBER:
                raise InvalidInput(f"{name}: the number is too large; use a smaller one.", field=name) from None
        raise InvalidInput(f"the request cannot be sent as JSON: {problem}; correct its values.") from None


def drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without those that are None."""
    return {name: value for name, value in values.items() if value is not None}


def _subclasses(kind: type[MidwatchError]) -> list[type[MidwatchError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _subclasses(child))]


BY_CODE = {kind.code: kind for kind in _subclasses(errors.MidwatchError)}
FIXED = frozenset({"type", "title", "status", "code", "detail", "field"})


def error_of(answer: Answer) -> MidwatchError:
    """Return the error that a reply reports, as the same class that the server raised."""
    try:
        problem = orjson.loads(answer.body)
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return MidwatchError(f"the reply {answer.status} does not come from midwatch; check the address of the server.")
    kind = BY_CODE.get(code, MidwatchError)
    error = kind.__new__(kind, detail)  # the arguments of the class are not known here, only its message
    vars(error).update({name: value for name, value in problem.items() if name not in FIXED})
    if isinstance(error, InvalidInput):
        error.field = problem.get("field")
    return error
