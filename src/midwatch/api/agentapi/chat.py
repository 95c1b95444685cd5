"""The chat page: the console, limited to the page of one session."""

from __future__ import annotations

from html import escape

from starlette.requests import Request
from starlette.responses import Response

from midwatch.api.web import HEADERS, POLICY, load, make_asset, reply

PAGES = ("", "embed", "embed/", "index.html")


class Chat:
    """The files of the console, served at the address of the chat page."""

    def __init__(self, frames: str = "'none'") -> None:
        """Load the files. `frames` are the sites that may show the page in a frame."""
        self._files = load()
        self._page = self._files.pop("index.html")
        self._policy = POLICY.replace("frame-ancestors 'none'", f"frame-ancestors {frames}")
        self._framed = frames != "'none'"

    def reply(self, request: Request, name: str, key: str, base: str, api: str) -> Response:
        """Return the chat page or one of its files, or 404. `base` and `api` are the paths of the page and the API."""
        if name in PAGES:
            body = write_page(self._page.body.decode(), key, base.rstrip("/"), api).encode()
            response = reply(request, make_asset(body, self._page.type))
        elif name in self._files:
            response = reply(request, self._files[name])
        else:
            return Response("404 page not found\n", 404, headers=HEADERS, media_type="text/plain; charset=utf-8")
        response.headers["content-security-policy"] = self._policy
        if self._framed:
            del response.headers["x-frame-options"]
            response.headers["cross-origin-resource-policy"] = "cross-origin"
        return response


def write_page(console: str, key: str, base: str, api: str) -> str:
    """Return the chat page: the page of the console with the key of the session and the paths that the page needs."""
    start = f'<html data-session="{escape(key)}" data-surface="{escape(base)}/.." data-api="{escape(api)}"'
    return console.replace('"/web/', f'"{escape(base)}/').replace("<html", start, 1)
