"""The chat page: the console, with the page of one session and nothing else."""

from __future__ import annotations

from hashlib import sha256
from html import escape

from starlette.requests import Request
from starlette.responses import Response

from midwatch.api.web import HEADERS, POLICY, load, reply

PAGES = ("", "embed", "embed/", "index.html")


class Chat:
    """The console's files, below another address than its own."""

    def __init__(self, frames: str = "'none'") -> None:
        """`frames` are the sites that may embed it."""
        self._files = load()
        self._page = self._files.pop("index.html")
        self._policy = POLICY.replace("frame-ancestors 'none'", f"frame-ancestors {frames}")
        self._framed = frames != "'none'"

    def reply(self, request: Request, name: str, key: str, base: str, api: str) -> Response:
        """A page or a file of it, 404 for what is neither. `base` is the address of the page as browsers see it, `api`
        that of the interface it asks."""
        if name in PAGES:
            body = page_of(self._page.body.decode(), key, base.rstrip("/"), api).encode()
            made = reply(request, self._page._replace(body=body, etag=f'"{sha256(body).hexdigest()[:20]}"'))
        elif name in self._files:
            made = reply(request, self._files[name])
        else:
            return Response("404 page not found\n", 404, headers=HEADERS, media_type="text/plain; charset=utf-8")
        made.headers["content-security-policy"] = self._policy
        if self._framed:
            del made.headers["x-frame-options"]
            made.headers["cross-origin-resource-policy"] = "cross-origin"
        return made


def page_of(console: str, key: str, base: str, api: str) -> str:
    """The console's page, told which session it is for and where its files, the interface and agentapi's routes are."""
    told = f'<html data-session="{escape(key)}" data-surface="{escape(base)}/.." data-api="{escape(api)}"'
    return console.replace('"/web/', f'"{escape(base)}/').replace("<html", told, 1)
