"""Test the files of the console: all exist, all are reachable, and none violates the content security policy."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from midwatch.api.web import POLICY, TYPES, load
from midwatch.domain.event import KINDS

ASSETS = load()
SCRIPTS = sorted(name for name in ASSETS if name.endswith(".js"))
IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*["'](\.[^"']+)["']""")


def text(name: str) -> str:
    return ASSETS[name].body.decode()


def test_every_file_has_a_type_and_a_content_hash() -> None:
    assert {"index.html", "app.js", "app.css", "tokens.css", "mark.svg"} <= set(ASSETS)
    assert all(PurePosixPath(name).suffix in TYPES for name in ASSETS)
    assert len({asset.etag for asset in ASSETS.values()}) == len(ASSETS)


def test_files_the_page_refers_to_exist() -> None:
    files = re.findall(r'(?:src|href)="/web/([^"]+)"', text("index.html"))
    assert files and set(files) <= set(ASSETS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_modules_a_script_imports_exist(name: str) -> None:
    for path in IMPORT.findall(text(name)):
        parts: list[str] = list(PurePosixPath(name).parent.parts)
        for step in path.split("/"):
            if step == "..":
                parts.pop()
            elif step != ".":
                parts.append(step)
        assert "/".join(parts) in ASSETS, f"{name} imports {path}"


def test_there_is_no_inline_code_and_nothing_from_elsewhere() -> None:
    page = text("index.html")
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"\s(?:style|on[a-z]+)=", page)
    assert "unsafe" not in POLICY and "http" not in POLICY
    for name in ASSETS:
        outside = re.findall(r"https?://[^\s\"')]+", text(name))
        assert set(outside) <= {"http://www.w3.org/2000/svg"}, name


def test_every_kind_of_event_has_a_text() -> None:
    lines = re.search(r"const LINES = \{(.*?)\n\};", text("model.js"), re.S)
    assert lines is not None
    assert set(re.findall(r"^  (\w+): ", lines[1], re.M)) == set(KINDS)


def test_html_is_inserted_at_one_place_only() -> None:
    users = [
        name for name in SCRIPTS if re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text(name))
    ]
    assert users == ["dom.js"]
    assert text("dom.js").count("innerHTML") == 1


def test_scripts_are_small() -> None:
    assert all(len(text(name).splitlines()) < 400 for name in SCRIPTS)
