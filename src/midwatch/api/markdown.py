"""Render Markdown as safe HTML on the server, because the text of an agent is not trusted.

Raw HTML is shown as text. An image becomes a link, so that the browser does not load the image. Links lead only to the
web or to a mail address. A sanitiser removes all tags and attributes that this module does not list.
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
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token

MOST_CHARACTERS = 50_000
MOST_BRACKETS = 5000
"""Maximum number of opening brackets in a text. Each bracket may start a link, so many brackets take long to parse."""
MOST_TOKENS = 20_000
MOST_ADDRESSES = 200_000
"""Maximum characters of all link addresses and titles in a page. Many links can share one long address."""
KEPT_PAGES = 64
QUICK_CHARACTERS = 4000
TAGS = {
    "a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}}
ALIGNED = {"align": {"left", "center", "right"}}
SCHEMES = {"http", "https", "mailto"}
NOTE = "<p><em>The text is too long; only its beginning is shown.</em></p>"

logger = logging.getLogger(__name__)


async def to_html(text: str) -> str:
    """Return `text` as safe HTML. A long text is rendered in a Python thread, so that other requests do not wait."""
    return render(text) if len(text) <= QUICK_CHARACTERS else await asyncio.to_thread(render, text)


def render(text: str) -> str:
    """Return `text` as sanitised HTML. A text that cannot be rendered, or is too costly, is shown as plain text."""
    if len(text) <= MOST_CHARACTERS:
        return _render_page(text)
    return _render_page(text[:MOST_CHARACTERS]) + NOTE


@lru_cache(maxsize=KEPT_PAGES)
def _render_page(text: str) -> str:
    try:
        return _sanitise(_parser().render(text))
    except _PageTooLarge:
        pass
    except Exception:
        logger.exception("a text could not be rendered as Markdown; it is shown as plain text")
    return f"<pre>{html.escape(text)}</pre>"


def _sanitise(page: str) -> str:
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

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.core.ruler.at("block", _parse_blocks)
    parser.core.ruler.at("inline", _parse_inline)
    parser.add_render_rule("image", _render_image)
    parser.add_render_rule("th_open", _render_cell)
    parser.add_render_rule("td_open", _render_cell)
    return parser


class _PageTooLarge(Exception):
    """Raised when a short text would become a large page."""


class _LimitedTokens(list["Token"]):
    """The parts of a parsed page (markdown-it calls them tokens), up to a maximum number.

    A short table can have very many parts, because the parser adds missing cells.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def append(self, token: Token) -> None:
        if len(self) >= self._most:
            raise _PageTooLarge
        super().append(token)


def _parse_blocks(state: StateCore) -> None:
    state.tokens = _LimitedTokens(min(MOST_TOKENS, 100 + 2 * len(state.src)))
    state.md.block.parse(state.src, state.md, state.env, state.tokens)


def _parse_inline(state: StateCore) -> None:
    from markdown_it.token import Token

    addresses = brackets = 0
    for token in state.tokens:
        if token.type != "inline":
            continue
        token.children = []
        brackets += token.content.count("[")
        if brackets > MOST_BRACKETS:
            token.children.append(Token("text", "", 0, content=token.content))
            continue
        state.md.inline.parse(token.content, state.md, state.env, token.children)
        addresses += sum(len(str(value)) for child in token.children for value in child.attrs.values())
        if addresses > MOST_ADDRESSES:
            raise _PageTooLarge


def _render_image(self: Any, tokens: Sequence[Token], index: int, options: Any, env: MutableMapping[str, Any]) -> str:
    """Render an image as a link, so that opening the page loads nothing."""
    token = tokens[index]
    address = str(token.attrGet("src") or "")
    label = self.renderInlineAsText(token.children, options, env) or address
    return f'<a href="{html.escape(address)}">{html.escape(label)}</a>'


def _render_cell(self: Any, tokens: Sequence[Token], index: int, options: Any, env: MutableMapping[str, Any]) -> str:
    """Render the start of a table cell. The alignment is an attribute, because the console forbids inline styles."""
    token = tokens[index]
    side = str(token.attrGet("style") or "").removeprefix("text-align:")
    return f'<{token.tag} align="{html.escape(side)}">' if side else f"<{token.tag}>"
