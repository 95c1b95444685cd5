"""The parts of the agentapi surface by themselves: feed, requests, hosts and origins, files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from midwatch.api.agentapi import allowed_origins, checks, describe
from midwatch.api.agentapi.feed import Feed, Said, rfc3339
from midwatch.api.agentapi.replies import LARGEST_FRAME, Refusal, frame
from midwatch.api.agentapi.statefile import PidFile, Saved, StateFile, Unusable, prompt_to_send, read, written
from midwatch.base.clock import SECOND
from midwatch.base.errors import AlreadyRunning, InvalidInput
from midwatch.runtime.serve_agentapi import with_flags

NOW = 1_700_000_000 * SECOND
EVENTS = ("message_update", "status_change", "agent_error")
ALL = (*EVENTS, "screen")


def feed(most: int = 1024) -> Feed:
    return Feed("claude", lambda: NOW, most)


def said(place: int, text: str = "x", role: Any = "agent", time: int = NOW) -> Said:
    return Said(place, text, role, time)


# -- the feed ----------------------------------------------------------------------------------------------------------


async def test_each_message_that_changed_is_told_and_no_other() -> None:
    made = feed()
    made.emit_messages([said(0), said(1, "hi", "user")])
    reader, _ = made.subscribe(*EVENTS)
    made.emit_messages([said(0), said(1, "hi", "user"), said(2, "a")])
    made.emit_messages([said(0), said(1, "hi", "user"), said(2, "a")])
    told = await reader.take()
    assert [one.body for one in told] == [{"id": 2, "role": "agent", "message": "a", "time": "2023-11-14T22:13:20Z"}]
    made.emit_messages([said(0, "y"), said(1, "hi", "user"), said(2, "a", time=NOW + 1)])
    assert [one.body["id"] for one in await reader.take()] == [0, 2], "the time counts, too"
    made.emit_messages([said(0, "y")])
    made.emit_messages([said(0, "y"), said(1, "hi", "user")])
    assert [one.body["id"] for one in await reader.take()] == [1], "what is gone is not told, what is back is"


async def test_status_and_screen_are_told_when_they_differ() -> None:
    made = feed()
    reader, _ = made.subscribe(*ALL)
    made.emit_status("running")
    made.emit_screen("")
    made.emit_status("stable")
    made.emit_screen("a  \n\n")
    made.emit_screen("a  \n\n")
    made.emit_status("stable")
    made.emit_status("running")
    told = [(one.name, one.body) for one in await reader.take()]
    assert told == [
        ("status_change", {"status": "stable", "agent_type": "claude"}),
        ("screen", {"screen": "a"}),
        ("status_change", {"status": "running", "agent_type": "claude"}),
    ]


async def test_who_begins_to_watch_is_told_the_state_in_order() -> None:
    made = feed()
    made.emit_error("first", "warning")
    made.emit_screen("shown")
    made.emit_status("stable")
    made.emit_messages([said(0), said(1, "hi", "user")])
    _, state = made.subscribe(*ALL)
    assert [one.name for one in state] == ["message_update", "message_update", "status_change", "screen", "agent_error"]
    assert state[-1].body == {"message": "first", "level": "warning", "time": "2023-11-14T22:13:20Z"}
    _, of_screen = made.subscribe("screen")
    assert [one.body for one in of_screen] == [{"screen": "shown"}]
    _, fresh = feed().subscribe(*EVENTS)
    assert [one.body for one in fresh] == [{"status": "running", "agent_type": "claude"}]


async def test_the_last_hundred_errors_are_kept() -> None:
    made = feed()
    for number in range(150):
        made.emit_error(f"e{number}", "error")
    _, state = made.subscribe("agent_error")
    assert [one.body["message"] for one in state] == [f"e{number}" for number in range(50, 150)]


async def test_a_reader_that_falls_behind_gets_the_newest_of_everything_and_delays_nobody() -> None:
    made = feed(most=10)
    slow, _ = made.subscribe(*EVENTS)
    quick, _ = made.subscribe(*EVENTS)
    for number in range(200):
        made.emit_status("running" if number % 2 else "stable")
        made.emit_messages([said(0, f"a{number}"), said(1, f"b{number}", "user")])
        made.emit_screen(f"{number}")
        assert len(await quick.take()) == 3
    told = await slow.take()
    assert len(told) <= 11
    newest = {one.about: one.body for one in told}
    assert newest["message 0"]["message"] == "a199"
    assert newest["message 1"]["message"] == "b199"
    assert newest["status"]["status"] == "running"


async def test_a_quick_turn_is_told_whole_to_a_reader_that_was_not_asked_meanwhile() -> None:
    made = feed()
    made.emit_status("stable")
    reader, _ = made.subscribe(*EVENTS)
    made.emit_status("running")
    made.emit_messages([said(0, "q", "user")])
    made.emit_messages([said(0, "q", "user"), said(1, "par")])
    made.emit_messages([said(0, "q", "user"), said(1, "partly")])
    made.emit_status("stable")
    told = await reader.take()
    assert [one.body.get("status") or one.body["message"] for one in told] == ["running", "q", "partly", "stable"]


async def test_readers_end_when_the_feed_does() -> None:
    made = feed()
    reader, _ = made.subscribe(*EVENTS)
    made.emit_status("stable")
    made.close()
    assert len(await reader.take()) == 1
    assert await reader.take() == []
    made.unsubscribe(reader)
    late, _ = made.subscribe(*EVENTS)
    assert await late.take() == []
    assert len(made) == 0


def test_times_and_frames_are_written_as_clients_read_them() -> None:
    assert rfc3339(NOW) == "2023-11-14T22:13:20Z"
    assert rfc3339(NOW + 500_000) == "2023-11-14T22:13:20.5Z"
    made = feed()
    made.emit_messages([said(0, "<a> & \u2028 ü")])
    told = made.state()[0]
    assert frame(told) == (
        b'event: message_update\ndata: {"id":0,"role":"agent","message":"\\u003ca\\u003e \\u0026 \\u2028 \xc3\xbc",'
        b'"time":"2023-11-14T22:13:20Z"}\n\n'
    )


@pytest.mark.parametrize("text", ["x" * 300_000, "<" * 200_000, "ü" * 100_000, "x" * 100_000])
def test_no_frame_is_longer_than_clients_can_read(text: str) -> None:
    made = feed()
    made.emit_messages([said(0, text)])
    data = frame(made.state()[0])
    assert len(data) < 128 * 1024
    whole = json.loads(data.split(b"data: ")[1])["message"]
    assert whole == text or (len(data) <= LARGEST_FRAME + 1000 and whole.endswith("[cut; GET /messages has it whole]"))


# -- requests ----------------------------------------------------------------------------------------------------------


def refused(body: bytes | dict[str, Any], media: str | None = "application/json") -> tuple[int, str, list[Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(Refusal) as caught:
        checks.message(raw, media)
    return caught.value.status, caught.value.detail, [error.told() for error in caught.value.errors]


def test_messages_are_read() -> None:
    assert checks.message(b'{"content":" \\t\\n hi \\f","type":"user"}', None) == ("hi", False)
    assert checks.message(b'{"content":" \\r","type":"raw","$schema":"x"}', "application/json; charset=utf-8") == (
        " \r", True
    )  # fmt: skip
    assert checks.message('{"content":"\x1c\x85a\xa0","type":"user"}'.replace("\x1c", "\\u001c").encode(), None) == (
        "\x1c\x85a\xa0", False
    )  # fmt: skip


def test_messages_that_are_wrong_are_refused_in_the_known_words() -> None:
    assert refused(b"") == (400, "request body is required", [])
    good = {"content": "a", "type": "user"}
    assert refused({**good, "z": 1}) == (
        422, "validation failed",
        [{"message": "unexpected property", "location": "body.z", "value": {**good, "z": 1}}],
    )  # fmt: skip
    assert refused({"content": "a"})[2] == [
        {"message": "expected required property type to be present", "location": "body", "value": {"content": "a"}}
    ]
    assert refused({**good, "content": 5})[2] == [
        {"message": "expected string", "location": "body.content", "value": 5}
    ]
    status, _, (error,) = refused({**good, "type": "foo"})
    assert (status, error["location"], error["value"]) == (422, "body.type", "foo")
    assert [error["message"] for error in refused({})[2]] == [
        "expected required property content to be present", "expected required property type to be present"
    ]  # fmt: skip
    assert refused(b"[]")[0] == 422
    assert refused(b'{"content":')[:2] == (400, "validation failed")
    assert refused(b'{"content":')[2][0]["message"] == "unexpected end of JSON input"
    assert refused(b"hello")[2] == [
        {"message": "invalid character 'h' looking for beginning of value", "location": "body", "value": "hello"}
    ]
    assert refused(b"\xff\xfe")[0] == 400
    assert refused(b"[" * 100_000)[0] in (400, 422)
    assert refused(b'{"content":"\\ud800","type":"user"}')[0] == 422
    assert refused(b"x", "text/plain") == (
        415, "validation failed", [{"message": "unknown content type: text/plain", "location": "body", "value": "x"}],
    )  # fmt: skip
    assert refused(b" " * 1048576) == (413, "request body is too large limit=1048576 bytes", [])
    assert refused(b" " * 1048575)[0] == 400


def form(*parts: bytes, boundary: bytes = b"xyz", end: bytes = b"--xyz--\r\n") -> bytes:
    return b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + end


def part(name: str, content: bytes, field: str = "file") -> bytes:
    head = f'Content-Disposition: form-data; name="{field}"; filename="{name}"\r\nContent-Type: text/plain\r\n\r\n'
    return head.encode() + content


MEDIA = "multipart/form-data; boundary=xyz"


def test_uploads_are_read() -> None:
    assert checks.upload(form(part("a.txt", b"a\r\n--b\r\n")), MEDIA) == ("a.txt", b"a\r\n--b\r\n")
    assert checks.upload(form(part("a.txt", b"")), 'multipart/form-data; boundary="xyz"') == ("a.txt", b"")
    extra = b'Content-Disposition: form-data; name="note"\r\n\r\nhello'
    assert checks.upload(form(extra, part("b", b"1")), MEDIA) == ("b", b"1")
    assert checks.upload(form(part("b", b"1", "other"), part("c", b"2")), MEDIA) == ("c", b"2")
    assert len(checks.upload(form(part("big", b"x" * (10 << 20))), MEDIA).content) == 10 << 20


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ("../../etc/passwd", "passwd"), ("/etc/passwd", "passwd"), ("..\\..\\win.ini", "..\\..\\win.ini"),
        ("a;b.txt", "a;b.txt"), ('quo\\"te', 'quo"te'), ("nul\x00l", "null"), ("new\nline", "newline"),
        ("ü.txt", "ü.txt"),
    ],
)  # fmt: skip
def test_only_the_last_part_of_a_file_name_counts(told: str, kept: str) -> None:
    assert checks.upload(form(part(told, b"x")), MEDIA).name == kept


def test_a_long_file_name_keeps_its_end() -> None:
    name = checks.upload(form(part("é" * 500 + ".txt", b"x")), MEDIA).name
    assert name.endswith("é.txt") and len(name.encode()) <= 200


@pytest.mark.parametrize(
    ("body", "media", "message"),
    [
        (form(), MEDIA, "File required"),
        (form(part("a", b"x", "other")), MEDIA, "File required"),
        (form(part("..", b"x")), MEDIA, "File required"),
        (form(part("a/", b"x")), MEDIA, "File required"),
        (form(part("a", b"x"), part("b", b"y")), MEDIA, "Multiple files received but only one was expected"),
        (b"{}", "application/json", "cannot read multipart form: request Content-Type isn't multipart/form-data"),
        (b"{}", None, "cannot read multipart form: request Content-Type isn't multipart/form-data"),
        (b"{}", "multipart/form-data", "cannot read multipart form: no multipart boundary param in Content-Type"),
        (b"junk", MEDIA, "cannot read multipart form: multipart: NextPart: EOF"),
        (form(part("a", b"x"), end=b""), MEDIA, "cannot read multipart form: multipart: NextPart: EOF"),
        (form(b"no head"), MEDIA, "cannot read multipart form: multipart: malformed part"),
    ],
)
def test_forms_that_are_wrong_are_refused(body: bytes, media: str | None, message: str) -> None:
    with pytest.raises(Refusal) as caught:
        checks.upload(body, media)
    assert caught.value.status == 422
    assert caught.value.errors[0].message == message


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(Refusal) as caught:
        checks.upload(form(part("big", b"x" * ((10 << 20) + 1))), MEDIA)
    assert (caught.value.status, caught.value.detail) == (400, "file size exceeds 10MB limit")


# -- hosts and origins -------------------------------------------------------------------------------------------------


def test_hosts_are_checked() -> None:
    assert allowed_origins.checked_hosts(("localhost", "[::1]", "EXAMPLE.com")) == ("localhost", "::1", "example.com")
    assert allowed_origins.checked_hosts(("a b", "*")) == ("*",)
    for bad, words in (
        ((), "the list must not be empty"),
        (("a b",), "'a b' contains whitespace characters, which are not allowed"),
        (("a,b",), "'a,b' contains comma characters, which are not allowed"),
        (("http://a",), "'http://a' must not include http:// or https://"),
        (("a:80",), "'a:80' must not include a port"),
        (("::1",), "'::1' must not include a port"),
    ):
        with pytest.raises(InvalidInput) as caught:
            allowed_origins.checked_hosts(bad)
        assert words in str(caught.value)


def test_a_server_answers_to_its_names_only() -> None:
    rules = allowed_origins.Rules(allowed_origins.checked_hosts(allowed_origins.HOSTS), ())
    for host in ("localhost", "LOCALHOST:3284", "127.0.0.1:1", "[::1]:3284", "[::1]"):
        assert rules.answers_to(host), host
    for host in ("localhost.", "evil.com", "localhost.evil.com", "", "127.0.0.2", "::2"):
        assert not rules.answers_to(host), host
    assert allowed_origins.Rules(("*",), ()).answers_to("anything")


def test_origins_are_checked_and_matched() -> None:
    wanted = ("https://*.example.com", "http://a.org:3000/path?x", "HTTPS://B.org")
    rules = allowed_origins.Rules((), allowed_origins.checked_origins(wanted))
    assert rules.origins == ("https://*.example.com", "http://a.org:3000", "https://b.org")
    for origin in ("https://x.example.com", "https://x.y.EXAMPLE.com", "http://a.org:3000", "https://b.org"):
        assert rules.allows(origin), origin
    for origin in ("http://x.example.com", "https://example.com", "http://a.org", "https://x.example.com.evil", ""):
        assert not rules.allows(origin), origin
    assert allowed_origins.Rules((), allowed_origins.checked_origins(("*",))).allows("https://anything")
    for bad in ((), ("a b",), ("nothing",), ("ftp://x",), ("https://*.*.com",)):
        with pytest.raises(InvalidInput):
            allowed_origins.checked_origins(bad)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_state_file_is_read_and_written_in_its_form(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "state.json"
    file = StateFile(place)
    assert file.load() == Saved()
    file.save([said(0, "hello <b>"), said(1, "hi ü", "user", NOW + 1)], "do it", True)
    assert place.read_text() == (
        '{"version":1,"messages":[{"id":0,"message":"hello <b>","role":"agent","time":"2023-11-14T22:13:20Z"},'
        '{"id":1,"message":"hi ü","role":"user","time":"2023-11-14T22:13:20.000001Z"}],'
        '"initial_prompt":"do it","initial_prompt_sent":true}\n'
    )
    assert place.stat().st_mode & 0o777 == 0o600
    assert place.parent.stat().st_mode & 0o777 == 0o700
    again = StateFile(place)
    saved = again.load()
    assert saved == Saved((said(0, "hello <b>"), said(1, "hi ü", "user", NOW + 1)), "do it", True)
    before = place.stat().st_mtime_ns, place.stat().st_ino
    again.save(saved.messages, "do it", True)
    assert (place.stat().st_mtime_ns, place.stat().st_ino) == before, "nothing has changed"
    assert [one.name for one in place.parent.iterdir()] == ["state.json"]


def test_a_state_file_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    link, real = tmp_path / "state.json", tmp_path / "volume" / "real.json"
    link.symlink_to(real)
    file = StateFile(link)
    assert file.load() == Saved()
    file.save([said(0, "one")], "", False)
    file.save([said(0, "two")], "", False)
    assert link.is_symlink() and "two" in real.read_text()
    assert StateFile(link).load().messages == (said(0, "two"),)


def test_a_state_of_the_reference_is_read() -> None:
    text = (
        '{"version":1,"messages":[{"id":0,"message":"Hi  ","role":"agent",'
        '"time":"2026-04-10T12:00:00.123456789+02:00"}],'
        '"initial_prompt":"","initial_prompt_sent":false}\n'
    )
    (message,) = read(text).messages
    assert (message.message, rfc3339(message.time)) == ("Hi  ", "2026-04-10T10:00:00.123456Z")
    assert read('{"version":1,"messages":null}') == Saved()
    assert read(written(Saved())) == Saved()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "failed to unmarshal state (corrupted or invalid JSON)"),
        (b"", "failed to unmarshal state (corrupted or invalid JSON)"),
        (b"\xff", "failed to unmarshal state (corrupted or invalid JSON)"),
        (b"[]", "failed to unmarshal state (corrupted or invalid JSON)"),
        (b'{"version":1,"messages":[{"id":0}]}', "failed to unmarshal state (corrupted or invalid JSON)"),
        (b'{"version":1,"messages":[5]}', "failed to unmarshal state (corrupted or invalid JSON)"),
        (b'{"version":2}', "unsupported state file version 2 (expected 1)"),
    ],
)
def test_a_state_that_cannot_be_taken_up_is_kept_aside(tmp_path: Path, content: bytes, words: str) -> None:
    place = tmp_path / "state.json"
    (tmp_path / "state.json.bad-1").write_text("an earlier one")
    place.write_bytes(content)
    file = StateFile(place)
    with pytest.raises(Unusable) as caught:
        file.load()
    assert words in str(caught.value) and "state.json.bad-2" in str(caught.value)
    file.save([said(0)], "", False)
    assert (tmp_path / "state.json.bad-2").read_bytes() == content
    assert (tmp_path / "state.json.bad-1").read_text() == "an earlier one"
    assert StateFile(place).load().messages == (said(0),)


def test_what_becomes_of_an_initial_prompt() -> None:
    saved = Saved((), "old", True)
    assert prompt_to_send("", saved) == ("old", True)
    assert prompt_to_send("old", saved) == ("old", True)
    assert prompt_to_send("new", saved) == ("new", False)
    assert prompt_to_send("", Saved((), "old", False)) == ("old", False)
    assert prompt_to_send("", Saved()) == ("", False)


def test_a_pid_file_belongs_to_one_process(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "pid"
    file = PidFile(place)
    file.claim()
    assert place.read_text() == f"{os.getpid()}\n"
    assert place.stat().st_mode & 0o777 == 0o600
    file.claim()
    file.release()
    assert not place.exists()
    file.release()
    for left in ("garbage", "", "999999999\n", "-1"):
        place.write_text(left)
        file.claim()
        assert place.read_text() == f"{os.getpid()}\n", left
    place.write_text(f"{os.getppid()}\n")
    with pytest.raises(AlreadyRunning) as caught:
        file.claim()
    expected = f"another instance is already running with PID {os.getppid()} (PID file: {place})"
    assert expected in str(caught.value)
    file.release()
    assert place.exists(), "it is not ours to remove"


@pytest.mark.parametrize(
    ("said", "run"),
    [
        ("claude", 'claude --settings {"tui":"default"}'),
        ("/opt/claude --model x", '/opt/claude --settings {"tui":"default"} --model x'),
        ("claude --settings mine", "claude --settings mine"),
        ("claude mcp", "claude mcp"),
        ("claude-wrapper", "claude-wrapper"),
    ],
)
def test_an_agent_gets_the_flags_its_profile_relies_on(said: str, run: str) -> None:
    known = ("claude", "--settings", '{"tui":"default"}', "--session-id", "{thread}")
    assert " ".join(with_flags(tuple(said.split()), known)) == run
    assert with_flags(("goose",), ("goose", "session", "--name", "{thread}")) == ("goose",)
    assert with_flags(("python3", "-i"), ()) == ("python3", "-i")


def test_the_description_holds_together() -> None:
    for version in ("3.1.0", "3.0.3"):
        made = describe.document(version)
        assert made["openapi"] == version
        refs = set(json.dumps(made).split('"$ref": "#/components/schemas/')[1:])
        assert {one.partition('"')[0] for one in refs} <= set(made["components"]["schemas"])
    assert set(describe.document()["paths"]) == {"/events", "/message", "/messages", "/status", "/upload"}
    assert '"const"' not in json.dumps(describe.document("3.0.3"))
    assert describe.schema("Message", "")["properties"]["role"]["$ref"] == "/schemas/ConversationRole.json"
    assert describe.schema("nothing", "") is None
