"""Files that clients upload for the agent. The server deletes these files when it stops."""

from __future__ import annotations

import asyncio
import re
import weakref
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request

from midwatch.api.agentapi.replies import INVALID, Refusal, describe_error
from midwatch.api.guard import read_body
from midwatch.programs.scratch import ScratchFolder

MAX_TOTAL_BYTES = 1024 * 1024 * 1024
MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_FORM_BYTES = MAX_FILE_BYTES + 64 * 1024
MAX_NAME_BYTES = 200
MAX_BOUNDARY = 70
MAX_PARTS = 100
MAX_PART_HEAD = 8192
PARAMETER = re.compile(r'([^=]*)=\s*(?:"([^"\\]*(?:\\.[^"\\]*)*)"?[^;]*|([^;]*));?', re.DOTALL)
"""Matches a parameter of a header. A quoted value may contain semicolons and escaped quotes."""


class UploadedFile(NamedTuple):
    """A file that a client has sent."""

    name: str
    content: bytes


class Uploads:
    """A temporary folder for the uploaded files of one server. It is created with the first file."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._size = 0
        self._remove_folder: weakref.finalize[..., Uploads] | None = None

    async def keep(self, file: UploadedFile) -> str:
        """Write a file and return its path. A file with the same name and content is written only once."""
        if self._size + len(file.content) > MAX_TOTAL_BYTES:
            raise Refusal(507, "the server's space for uploads is full; restart the server, or send a smaller file")
        try:
            return await asyncio.to_thread(self._write, file)
        except OSError as problem:
            raise Refusal(507, f"the file could not be written: {problem.strerror}; check the server's disk") from None

    def _write(self, file: UploadedFile) -> str:
        if self._folder is None:
            scratch = ScratchFolder("midwatch-uploads-")
            self._folder, self._remove_folder = scratch.path, weakref.finalize(self, scratch.close)
        folder = self._folder / sha256(file.content).hexdigest()[:16]
        folder.mkdir(mode=0o755, exist_ok=True)
        path = folder / file.name
        with suppress(FileExistsError), path.open("xb") as new:  # "x": never through a link of the agent
            new.write(file.content)
            path.chmod(0o644)
            self._size += len(file.content)
        return str(path)

    def close(self) -> None:
        """Remove all uploaded files."""
        if self._remove_folder is not None:
            self._remove_folder()


# -- forms -----------------------------------------------------------------------------------------------------------


async def read_upload(request: Request) -> UploadedFile:
    """Return the file of POST /upload, or raise Refusal."""
    body = await read_body(request, MAX_FORM_BYTES)
    if len(body) > MAX_FORM_BYTES:
        raise refuse_large_file()
    return parse_upload(body, request.headers.get("content-type"))


def parse_upload(body: bytes, media: str | None) -> UploadedFile:
    """Return the file in the body of a form. Raise Refusal if the form is not valid."""
    kind, _, parameters = (media or "").partition(";")
    if kind.strip().lower() != "multipart/form-data":
        raise refuse_form("request Content-Type isn't multipart/form-data")
    boundary = parse_parameters(parameters).get("boundary", "")
    if not 0 < len(boundary) <= MAX_BOUNDARY:
        raise refuse_form("no multipart boundary param in Content-Type")
    files = parse_form(body, boundary.encode())
    if len(files) != 1:
        reason = "Multiple files received but only one was expected" if files else "File required"
        raise Refusal(422, INVALID, describe_error(reason, "file"))
    if len(files[0].content) > MAX_FILE_BYTES:
        raise refuse_large_file()
    return files[0]


def parse_form(body: bytes, boundary: bytes) -> list[UploadedFile]:
    """Return the files in the fields `file` of a form; skip all other fields."""
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_PARTS + 1)
    if len(parts) > MAX_PARTS + 1:
        raise refuse_form("multipart: too many parts")
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise refuse_form("multipart: NextPart: EOF")
    files: list[UploadedFile] = []
    for part in parts[1:-1]:
        head, gap, content = part.partition(b"\r\n\r\n")
        if not gap or len(head) > MAX_PART_HEAD:
            raise refuse_form("multipart: malformed part")
        parameters: dict[str, str] = {}
        for line in head.decode("utf-8", "replace").split("\r\n"):
            if line.partition(":")[0].strip().lower() == "content-disposition":
                parameters = parse_parameters(line.partition(";")[2])
                break
        if "filename" in parameters:
            name = clean_file_name(parameters["filename"])
            if parameters.get("name") == "file":
                files.append(UploadedFile(name, content))
    return files


def parse_parameters(text: str) -> dict[str, str]:
    """Return the parameters of a header. If a name occurs twice, the first value is used."""
    parameters: dict[str, str] = {}
    end = 0
    while match := PARAMETER.match(text, end):
        name, quoted, plain = match.groups("")
        parameters.setdefault(name.strip().lower(), re.sub(r'\\(["\\])', r"\1", quoted) or plain.strip())
        end = match.end()
    return parameters


def clean_file_name(path: str) -> str:
    """Return the last part of a path that a client sent. Raise Refusal if this part is not a valid file name."""
    name = "".join(char for char in path.rpartition("/")[2] if char.isprintable())
    name = name.encode()[-MAX_NAME_BYTES:].decode(errors="ignore")
    if name in ("", ".", ".."):
        raise Refusal(422, INVALID, describe_error("File required", "file"))
    return name


def refuse_large_file() -> Refusal:
    """Return the error for a file that is larger than 10 MB."""
    return Refusal(400, "file size exceeds 10MB limit")


def refuse_form(reason: str) -> Refusal:
    """Return the error for a form that cannot be read."""
    return Refusal(422, INVALID, describe_error(f"cannot read multipart form: {reason}", "body"))
