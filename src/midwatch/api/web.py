"""The web console: serve its files, which are read once into memory, with security headers.

The files contain no secret and need no token. The console gets all data from the API, which requires a token.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from midwatch.api.permissions import needs

FOLDER = Path(__file__).parent / "web"
PAGES = (
    "/", "/inbox", "/tasks", "/tasks/new", "/tasks/{id}", "/sessions", "/sessions/{key:path}", "/automations",
    "/automations/new", "/automations/{id}", "/goals", "/goals/new", "/goals/{id}", "/handoffs",
    "/handoffs/{id}", "/events", "/rules", "/budgets", "/budgets/{id}", "/usage", "/agents", "/settings", "/sign-in",
)  # fmt: skip
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}
"""Headers of the console's files, in addition to the headers that the guard adds to every reply."""


class Asset(NamedTuple):
    """A file and its headers."""

    body: bytes
    type: str
    etag: str


def load(folder: Path = FOLDER) -> dict[str, Asset]:
    """Return all files by their path below the folder. No other file is served."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in TYPES and path.is_file())
    return {path.relative_to(folder).as_posix(): make_asset(path.read_bytes(), TYPES[path.suffix]) for path in paths}


def make_asset(body: bytes, media: str) -> Asset:
    """Return an asset with an etag that depends on its content."""
    return Asset(body, media, f'"{sha256(body).hexdigest()[:20]}"')


def mount(app: FastAPI) -> None:
    """Serve the console: `index.html` at the address of every page, all other files under /web."""
    assets = load()

    @needs("open")
    async def page(request: Request) -> Response:
        return reply(request, assets["index.html"])

    @needs("open")
    async def file(request: Request) -> Response:
        asset = assets.get(request.path_params["name"])
        if asset is None:
            raise HTTPException(404, "Not Found")
        return reply(request, asset)

    for address in PAGES:
        app.add_route(address, page, methods=["GET"], include_in_schema=False)
    app.add_route("/web/{name:path}", file, methods=["GET"], include_in_schema=False)


def reply(request: Request, asset: Asset) -> Response:
    """Return the file, or status 304 if the browser has the same version of it."""
    headers = {**HEADERS, "etag": asset.etag}
    tags = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if asset.etag in tags:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers={**headers, "content-type": asset.type})
