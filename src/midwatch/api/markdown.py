"""Markdown as harmless HTML, made on the server: what an agent writes is never trusted.

Raw HTML is shown as text, images become links and are never loaded, links lead only to the web or to a mail address,
and the outcome passes a sanitiser with an explicit list of what may stay.
"""

from __future__ import annotations

import asyncio
import html
import logging
from collections.abc import MutableMapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MOST_CHARACTERS = 200_000
MOST_BYTES = 200_000
KEPT_PAGES = 64
QUICK_CHARACTERS = 4000
TAGS = {
    "a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}}
ALIGNED = {"align": {"left", "center", "right"}}
SCHEMES = {"http", "https", "mailto"}
NOTE = "<p><em>The text goes on; only its beginning is shown as a page.</em></p>"

logger = logging.getLogger(__name__)


async def page_of(text: str) -> str:
    """`render`, without holding up others for a long text."""
    return render(text) if len(text) <= QUICK_CHARACTERS else await asyncio.to_thread(render, text)


@lru_cache(maxsize=KEPT_PAGES)
def render(text: str) -> str:
    """`text` as sanitised HTML. It never raises: what cannot be rendered is shown as it is."""
    shown = _beginning(text)
    note = NOTE if len(shown) < len(text) else ""
    try:
        return _sanitised(_parser().render(shown)) + note
    except Exception:
        logger.exception("a text could not be rendered as Markdown")
        return f"<pre>{html.escape(shown)}</pre>{note}"


def _beginning(text: str) -> str:
    """As much as is rendered: rendering takes time in proportion to the text."""
    encoded = text[:MOST_CHARACTERS].encode("utf-8", "replace")
    if len(encoded) <= MOST_BYTES:
        return text[:MOST_CHARACTERS]
    return encoded[:MOST_BYTES].decode("utf-8", "ignore")


def _sanitised(page: str) -> str:
    import nh3

    return nh3.clean(
        page,
        tags=TAGS,
        attributes=ATTRIBUTES,
        tag_attribute_values={"td": ALIGNED, "th": ALIGNED},
        set_tag_attribute_values={"a": {"target": "_blank"}},
        url_schemes=SCHEMES,
        url_relative="deny",
        link_rel="noopener noreferrer nofollow",
    )


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    made.add_render_rule("image", _image)
    made.add_render_rule("th_open", _cell)
    made.add_render_rule("td_open", _cell)
    return made


def _image(self: Any, tokens: Sequence[Token], index: int, options: Any, env: MutableMapping[str, Any]) -> str:
    """A link to the image, so that reading a page fetches nothing."""
    token = tokens[index]
    address = str(token.attrGet("src") or "")
    said = self.renderInlineAsText(token.children, options, env) or address
    return f'<a href="{html.escape(address)}">{html.escape(said)}</a>'


def _cell(self: Any, tokens: Sequence[Token], index: int, options: Any, env: MutableMapping[str, Any]) -> str:
    """Alignment as an attribute: inline styles are forbidden on our pages."""
    token = tokens[index]
    side = str(token.attrGet("style") or "").removeprefix("text-align:")
    return f'<{token.tag} align="{html.escape(side)}">' if side else f"<{token.tag}>"
