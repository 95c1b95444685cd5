"""The chat page: the console for one conversation. It speaks to the surface it is served beside and to nothing else."""

from __future__ import annotations

from hashlib import sha256
from html import escape

from starlette.requests import Request
from starlette.responses import Response

from midwatch.api.web import FOLDER, HEADERS, POLICY, load, reply

FILES = {
    "chat.js": "chat/chat.js",
    "chat.css": "chat/chat.css",
    "tokens.css": "tokens.css",
    "mark.svg": "mark.svg",
}
PAGES = ("", "embed", "embed/", "index.html")
BASE = b"/chat-base-path"
"""In the page: where its files are found."""


class Chat:
    """Its files."""

    def __init__(self, frames: str = "'none'") -> None:
        """`frames` are the sites that may embed it."""
        assets = load(FOLDER)
        self._page = assets["chat/index.html"]
        self._files = {name: assets[path] for name, path in FILES.items()}
        self._policy = POLICY.replace("frame-ancestors 'none'", f"frame-ancestors {frames}")
        self._framed = frames != "'none'"

    def reply(self, request: Request, name: str, base: str) -> Response:
        """A page or a file of it, 404 for what is neither. `base` is the address of the page as browsers see it."""
        if name in PAGES:
            body = self._page.body.replace(BASE, escape(base.rstrip("/")).encode())
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
