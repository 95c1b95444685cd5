"""Test the rendering of Markdown: what is shown, and that no text of an agent can act in a reader's browser."""

from __future__ import annotations

import time
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midwatch.api import markdown
from midwatch.api.markdown import NOTE, TAGS, render

ATTRIBUTES = {"href", "title", "rel", "target", "start", "align"}


class Elements(HTMLParser):
    """Every element of a page with its attributes, as a browser would read them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    return Elements(page).found


def addresses(page: str) -> list[str | None]:
    return [attributes["href"] for _, attributes in elements(page) if "href" in attributes]


def test_common_markdown_is_rendered() -> None:
    page = render("# Title\n\nSome *soft* and **strong** `code`, ~~gone~~.\n\n- one\n- two\n\n3. three")
    for part in ("<h1>Title</h1>", "<em>soft</em>", "<strong>strong</strong>", "<code>code</code>", "<s>gone</s>"):
        assert part in page
    assert "<li>one</li>" in page
    assert '<ol start="3">' in page


def test_tables_keep_their_alignment_without_inline_styles() -> None:
    page = render("| a | b | c |\n|---|:-:|--:|\n| 1 | 2 | 3 |")
    assert "<th>a</th>" in page
    assert '<td align="center">2</td>' in page
    assert '<td align="right">3</td>' in page
    assert "style" not in page


def test_fenced_code_is_not_changed() -> None:
    assert render("```html\n<b>&amp;</b>\n```") == "<pre><code>&lt;b&gt;&amp;amp;&lt;/b&gt;\n</code></pre>\n"


def test_raw_html_is_shown_as_text() -> None:
    page = render("<script>alert(1)</script>\n\nand <b onclick=x>inline</b> <!-- hidden -->")
    assert "<script" not in page and "<b" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;b onclick=x&gt;" in page


def test_images_become_links_and_are_never_loaded() -> None:
    page = render('![a "chart"](https://example.org/x.png "title") ![](https://example.org/y.png)')
    assert "<img" not in page
    assert 'href="https://example.org/x.png"' in page
    assert ">a &quot;chart&quot;</a>" in page or '>a "chart"</a>' in page
    assert ">https://example.org/y.png</a>" in page


def test_links_open_in_a_new_tab_without_a_referrer() -> None:
    page = render("[web](https://example.org/?a=1&b=2) <mailto:a@example.org>")
    assert 'href="https://example.org/?a=1&amp;b=2"' in page
    assert 'href="mailto:a@example.org"' in page
    assert page.count('rel="noopener noreferrer nofollow"') == page.count('target="_blank"') == 2


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "&#106;avascript:alert(1)",
        "java\tscript:alert(1)",
        "vbscript:x",
        "data:text/html,<script>alert(1)</script>",
        "data:image/png;base64,AAAA",
        "file:///etc/passwd",
        "ftp://example.org",
        "//example.org/x",
        "/settings",
        "\\\\example.org",
        "settings?x=1",
        "#top",
    ],
)
@pytest.mark.parametrize("form", ["[x]({})", "![x]({})", "<{}>", "[x]: {}\n\n[x]"])
def test_only_web_and_mail_links_are_allowed(form: str, address: str) -> None:
    page = render(form.format(address))
    assert addresses(page) == []


def test_text_cannot_escape_from_an_attribute() -> None:
    page = render('[x](https://e.org/"onmouseover=alert(1)) !["><img src=x onerror=alert(1)>](https://e.org/\'>)')
    assert "<img" not in page
    assert {name for name, _ in elements(page)} <= {"p", "a"}
    assert all(set(attributes) <= ATTRIBUTES for _, attributes in elements(page))


@given(st.text(alphabet=st.sampled_from(list("<>&\"'`*_~[]()!#|\\/:- \n\tabcjavscript=0")), max_size=200))
def test_only_allowed_tags_are_produced(text: str) -> None:
    page = render(text)
    for name, attributes in elements(page):
        assert name in TAGS
        assert set(attributes) <= ATTRIBUTES
    assert all(str(address).startswith(("http:", "https:", "mailto:")) for address in addresses(page))


@given(st.text(max_size=300))
def test_any_text_can_be_rendered(text: str) -> None:
    assert isinstance(render(text), str)


def test_unpaired_surrogates_and_nul_do_no_harm() -> None:
    assert isinstance(render("a \ud800 b \x00 c"), str)


def test_a_long_text_is_rendered_in_part_and_marked() -> None:
    page = render("word " * 100_000)
    assert page.endswith(NOTE)
    assert len(page) < 60_000
    wide = render("ä" * 150_000)
    assert wide.endswith(NOTE) and "\ufffd" not in wide


def test_deeply_nested_text_is_rendered() -> None:
    for text in (">" * 50_000, "[" * 20_000, "*a" * 20_000, "- " * 5_000, "![" * 20_000):
        assert isinstance(render(text), str)


HOSTILE = {
    "images": "![" * 100_000,
    "links": "[" * 200_000,
    "links in paragraphs": ("[" * 2000 + "\n\n") * 100,
    "rows that are filled up": "|" + "a|" * 100 + "\n|" + "-|" * 100 + "\n" + "|\n" * 25_000,
    "tables": ("|" + "a|" * 100 + "\n|" + "-|" * 100 + "\n" + "|\n" * 100 + "\n") * 90,
    "a long address everywhere": "[a]: http://" + "b" * 25_000 + "\n\n" + "[a] " * 6000,
    "a long title everywhere": "[a]: http://b '" + "b" * 25_000 + "'\n\n" + "[a]\n\n" * 5000,
    "emphasis": "*_**__" * 30_000,
    "quotes": ">" * 200_000,
    "items": "- a\n" * 50_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_text_keeps_the_server_busy(text: str) -> None:
    """Usually a text takes a tenth of the limit; without bounds some of these take ten times the limit, or hundreds of
    megabytes.
    """
    began = time.process_time()
    page = render(text)
    assert time.process_time() - began < 2.0
    assert len(page) < 1_000_000


def test_texts_with_the_same_shown_part_are_rendered_once() -> None:
    markdown._render_page.cache_clear()
    pages = {render("word " * 20_000 + str(number)) for number in range(5)}
    assert len(pages) == 1
    assert markdown._render_page.cache_info().misses == 1


def test_text_that_cannot_be_rendered_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(page: str) -> str:
        raise RuntimeError("no sanitiser today")

    monkeypatch.setattr(markdown, "_sanitise", broken)
    assert render("**<only here>**") == "<pre>**&lt;only here&gt;**</pre>"  # rendered pages are cached, this one too
