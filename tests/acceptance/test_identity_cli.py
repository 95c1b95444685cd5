"""Test the commands `token` and `open`, and commands that use a remote server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from commands import run
from servers import Server, environment, eventually

SHOWN = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": ""}


def midwatch(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    variables = environment(home, **{**SHOWN, **env})
    return run(arguments, env=variables)


def parse_output(ran: subprocess.CompletedProcess[str]) -> dict:
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def code_of(ran: subprocess.CompletedProcess[str]) -> str:
    """Return the error code of a failed command with --json."""
    assert ran.returncode != 0
    return json.loads(ran.stderr)["error"]["code"]


@pytest.fixture
async def server(home: Path) -> AsyncIterator[Server]:
    home.mkdir()
    server = Server(home, MIDWATCH_DETECT_AGENTS="false", MIDWATCH_SHUTDOWN_GRACE="0")
    await server.start()
    yield server
    await server.stop()


async def check_token_commands(home: Path) -> None:
    created = midwatch(home, "token", "create", "--name", "ci", "--role", "operator", "--actor", "ada")
    assert created.returncode == 0
    assert created.stdout.startswith("mw_")
    assert len(created.stdout.split()) == 1
    assert "Bearer" in created.stderr
    again = midwatch(home, "token", "create", "--name", "ci", "--role", "viewer", "--json")
    assert (again.returncode, code_of(again)) == (4, "conflict")
    listed = midwatch(home, "token", "list")
    assert "ci" in listed.stdout
    assert created.stdout.strip() not in listed.stdout
    (token,) = parse_output(midwatch(home, "token", "list", "--json"))["tokens"]
    assert (token["name"], token["actor"], token["role"], token["created_by"]) == ("ci", "ada", "operator", "owner")
    assert parse_output(midwatch(home, "token", "revoke", "ci", "--json"))["id"] == token["id"]
    missing = midwatch(home, "token", "revoke", "ci", "--json")
    assert (missing.returncode, code_of(missing)) == (3, "not_found")
    wrong = midwatch(home, "token", "create", "--name", "x", "--role", "king", "--json")
    assert (wrong.returncode, code_of(wrong)) == (2, "usage")
    assert "create" in midwatch(home, "token").stdout


async def test_tokens_are_managed_with_a_server(server: Server) -> None:
    await check_token_commands(server.home)


async def test_tokens_are_managed_without_a_server(home: Path) -> None:
    await check_token_commands(home)


async def test_open_needs_a_server(home: Path) -> None:
    ran = midwatch(home, "open", "--json")
    assert (ran.returncode, code_of(ran)) == (8, "not_running")
    assert not home.exists()


async def test_open_prints_a_link_that_works_once(server: Server) -> None:
    link = midwatch(server.home, "open", "--print").stdout.strip()
    assert link.startswith(f"{server.url}/sign-in#mw_")
    assert parse_output(midwatch(server.home, "open", "--json"))["url"].startswith(f"{server.url}/sign-in#mw_")
    async with httpx2.AsyncClient(base_url=server.url) as browser:
        page = await browser.get(link)
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        body = {"code": link.partition("#")[2]}
        assert (await browser.post("/api/v1/sign-in", json=body)).status_code == 200
        assert (await browser.get("/api/v1/me")).json()["actor"] == "owner"
        assert (await browser.post("/api/v1/sign-in", json=body)).status_code == 401


async def test_open_starts_the_browser(server: Server, tmp_path: Path) -> None:
    file, program = tmp_path / "seen", tmp_path / "browser"
    program.write_text(f'#!/bin/sh\nprintf %s "$1" > {file}.part && mv {file}.part {file}\n')
    program.chmod(0o755)
    ran = midwatch(server.home, "open", BROWSER=str(program))
    assert ran.returncode == 0
    assert await eventually(file.exists)
    assert file.read_text() == ran.stdout.strip()
    broken = midwatch(server.home, "open", BROWSER=str(tmp_path / "none"))
    assert (broken.returncode, broken.stdout.startswith(server.url)) == (0, True)


async def test_commands_use_a_remote_server(server: Server, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    secret = parse_output(midwatch(server.home, "token", "create", "--name", "ada", "--role", "operator", "--json"))[
        "secret"
    ]
    there = {"MIDWATCH_URL": f"{server.url}/", "MIDWATCH_TOKEN": secret}
    done = parse_output(
        midwatch(nowhere, "run", "hello", "--agent", "demo", "--json", "--workdir", str(tmp_path), **there)
    )
    assert (done["status"], done["creator"]) == ("done", "ada")
    status = parse_output(midwatch(nowhere, "status", "--json", **there))
    assert (status["done"], status["server"]) == (1, {"pid": None, "url": server.url})
    assert f"Server: {server.url}\n" in midwatch(nowhere, "status", **there).stdout
    refused = midwatch(nowhere, "token", "list", "--json", **there)
    assert (refused.returncode, code_of(refused)) == (6, "forbidden")
    wrong = midwatch(nowhere, "status", "--json", **{**there, "MIDWATCH_TOKEN": "mw_wrong"})
    assert (wrong.returncode, code_of(wrong)) == (6, "unauthorized")
    address = midwatch(nowhere, "status", "--json", **{**there, "MIDWATCH_URL": "desk.example"})
    assert (address.returncode, code_of(address)) == (2, "bad_config")
    assert not nowhere.exists()
    alone = midwatch(nowhere, "down", "--json", **there)  # it concerns this machine only
    assert (alone.returncode, code_of(alone)) == (8, "not_running")
