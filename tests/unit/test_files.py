"""Test the reading of files that an agent can write."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from midwatch.base.errors import Conflict
from midwatch.base.files import read_untrusted


async def test_a_regular_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert await read_untrusted(file, 5) == b"12345"
    with pytest.raises(Conflict, match="larger than 4 bytes"):
        await read_untrusted(file, 4)
    with pytest.raises(FileNotFoundError):
        await read_untrusted(tmp_path / "none", 5)


@pytest.mark.parametrize("kind", ["fifo", "link", "device", "directory", "socket"])
async def test_anything_else_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    else:
        path.symlink_to("/dev/zero" if kind == "device" else __file__)
    with pytest.raises(Conflict, match="is not a regular file"):
        await read_untrusted(path, 5)
