"""What a request must look like, and what a client is told when it does not."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from midwatch.agents.terminal.format import BLANK
from midwatch.api.agentapi.replies import INVALID, Detail, Refusal

LARGEST_BODY = 1024 * 1024
LARGEST_FILE = 10 * 1024 * 1024
FORM = 64 * 1024
"""Bytes that a form may have around its file."""
LONGEST_NAME = 200
TYPES = ("user", "raw")
LONGEST_ECHO = 2000


class Wish(NamedTuple):
    """What is to be sent: to the agent, or to its terminal as it is."""

    content: str
    raw: bool


class File(NamedTuple):
    """What was uploaded."""

    name: str
    content: bytes


def message(body: bytes, media: str | None) -> Wish:
    """The body of POST /message, or a Refusal."""
    if len(body) >= LARGEST_BODY:
        raise Refusal(413, f"request body is too large limit={LARGEST_BODY} bytes")
    if not body:
        raise Refusal(400, "request body is required")
    kind = (media or "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Refusal(415, INVALID, Detail(f"unknown content type: {kind}", "body", _shown(body)))
    try:
        told = json.loads(body.decode())
    except (ValueError, RecursionError) as problem:
        raise Refusal(400, INVALID, Detail(_why(problem), "body", _shown(body))) from None
    if wrong := _flaws(told):
        raise Refusal(422, INVALID, *wrong)
    content: str = told["content"]
    return Wish(content, True) if told["type"] == "raw" else Wish(content.strip(BLANK), False)


def _flaws(told: Any) -> list[Detail]:
    if not isinstance(told, dict):
        return [Detail("expected object", "body", told)]
    found: list[Detail] = []
    for name in ("content", "type"):
        if name not in told:
            found.append(Detail(f"expected required property {name} to be present", "body", told))
        elif not isinstance(told[name], str):
            found.append(Detail("expected string", f"body.{name}", told[name]))
        elif name == "type" and told[name] not in TYPES:
            found.append(Detail(f'expected value to be one of "{", ".join(TYPES)}"', "body.type", told[name]))
        elif not _is_text(told[name]):
            found.append(Detail("expected text in UTF-8", f"body.{name}"))
    return [*found, *(Detail("unexpected property", f"body.{name}", told) for name in told if name not in KNOWN)]


KNOWN = ("$schema", "content", "type")


def _why(problem: Exception) -> str:
    if not isinstance(problem, json.JSONDecodeError):
        return "invalid UTF-8 in JSON input" if isinstance(problem, UnicodeDecodeError) else "exceeded max depth"
    if problem.pos >= len(problem.doc.rstrip()):
        return "unexpected end of JSON input"
    return f"invalid character {problem.doc[problem.pos]!r} looking for beginning of value"


def _is_text(text: str) -> bool:
    """Whether it can be written; JSON may hold half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(body: bytes) -> str:
    return body[:LONGEST_ECHO].decode("utf-8", "replace")


# -- uploads ---------------------------------------------------------------------------------------------------------


def upload(body: bytes, media: str | None) -> File:
    """The file of POST /upload, or a Refusal."""
    kind, _, parameters = (media or "").partition(";")
    if kind.strip().lower() != "multipart/form-data":
        raise _unreadable("request Content-Type isn't multipart/form-data")
    boundary = _parameters(parameters).get("boundary", "")
    if not boundary or len(boundary) > 70:
        raise _unreadable("no multipart boundary param in Content-Type")
    files = [file for name, file in _parts(body, boundary.encode()) if name == "file"]
    if not files:
        raise Refusal(422, INVALID, Detail("File required", "file"))
    if len(files) > 1:
        raise Refusal(422, INVALID, Detail("Multiple files received but only one was expected", "file"))
    if len(files[0].content) > LARGEST_FILE:
        raise too_large()
    return files[0]


def too_large() -> Refusal:
    """For a file above the limit."""
    return Refusal(400, "file size exceeds 10MB limit")


def _unreadable(why: str) -> Refusal:
    return Refusal(422, INVALID, Detail(f"cannot read multipart form: {why}", "body"))


def _parts(body: bytes, boundary: bytes) -> list[tuple[str, File]]:
    """The named files of a form; fields that are no files are left out."""
    line = b"\r\n--" + boundary
    found = (b"\r\n" + body).split(line)
    if len(found) < 2 or not found[-1].startswith(b"--"):
        raise _unreadable("multipart: NextPart: EOF")
    parts: list[tuple[str, File]] = []
    for part in found[1:-1]:
        head, gap, content = part.partition(b"\r\n\r\n")
        if not gap:
            raise _unreadable("multipart: malformed part")
        told = _disposition(head.decode("utf-8", "replace"))
        if "filename" in told:
            parts.append((told.get("name", ""), File(file_name(told["filename"]), content)))
    return parts


def _disposition(head: str) -> dict[str, str]:
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            return _parameters(value.partition(";")[2])
    return {}


def _parameters(text: str) -> dict[str, str]:
    """Parameters of a header; quoted ones may hold semicolons and escaped quotes."""
    found: dict[str, str] = {}
    while text.strip():
        name, _, rest = text.partition("=")
        rest = rest.lstrip()
        value = ""
        if rest.startswith('"'):
            place = 1
            while place < len(rest) and rest[place] != '"':
                place += rest[place] == "\\" and rest[place + 1 : place + 2] in ('"', "\\")
                value += rest[place : place + 1]
                place += 1
            text = rest[place + 1 :].partition(";")[2]
        else:
            value, _, text = rest.partition(";")
            value = value.strip()
        found.setdefault(name.strip().lower(), value)
    return found


def file_name(told: str) -> str:
    """The last part of what a client calls its file. Nothing that leads elsewhere, and nothing that is no name."""
    name = told.rpartition("/")[2]
    name = "".join(char for char in name if char.isprintable())
    while len(name.encode()) > LONGEST_NAME:
        name = name[1:]
    if name in ("", ".", ".."):
        raise Refusal(422, INVALID, Detail("File required", "file"))
    return name
