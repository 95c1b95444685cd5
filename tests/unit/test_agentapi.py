"""Test the parts of the agentapi server alone: event feed, requests, hosts and origins, files."""

from __future__ import annotations

import contextlib
import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from midwatch.api.agentapi import allowed_origins, statefile
from midwatch.api.agentapi.app import describe_surface
from midwatch.api.agentapi.bodies import EVENTS, EventBody, MessageUpdateBody, ScreenUpdateBody, rfc3339
from midwatch.api.agentapi.describe import describe_bodies
from midwatch.api.agentapi.feed import LARGEST_FRAME, Feed, encode_event
from midwatch.api.agentapi.replies import Refusal
from midwatch.api.agentapi.requests import parse_message
from midwatch.api.agentapi.statefile import SavedMessage, State, StateFile, UnusableState
from midwatch.api.agentapi.uploads import UploadedFile, Uploads, parse_upload
from midwatch.base.clock import SECOND
from midwatch.base.errors import AlreadyRunning, InvalidInput
from midwatch.runtime.serve_agentapi import add_profile_flags

NOW = 1_700_000_000 * SECOND
ALL: tuple[type[EventBody], ...] = (*EVENTS, ScreenUpdateBody)


def message(number: int, text: str = "x", role: Any = "agent", time: int = NOW) -> MessageUpdateBody:
    return MessageUpdateBody(id=number, message=text, role=role, time=time)


def body(event: EventBody) -> Any:
    return event.model_dump()


# -- the feed ----------------------------------------------------------------------------------------------------------


async def test_each_changed_message_is_sent_and_no_other() -> None:
    feed = Feed("claude")
    feed.emit_messages([message(0), message(1, "hi", "user")])
    reader = feed.follow(*EVENTS)
    await anext(reader)
    feed.emit_messages([message(0), message(1, "hi", "user"), message(2, "a")])
    feed.emit_messages([message(0), message(1, "hi", "user"), message(2, "a")])
    assert list(map(body, await anext(reader))) == [
        {"id": 2, "role": "agent", "message": "a", "time": "2023-11-14T22:13:20Z"}
    ]
    feed.emit_messages([message(0, "y"), message(1, "hi", "user"), message(2, "a", time=NOW + 1)])
    assert [body(event)["id"] for event in await anext(reader)] == [0, 2], "the time counts, too"
    feed.emit_messages([message(0, "y")])
    feed.emit_messages([message(0, "y"), message(1, "hi", "user")])
    assert [body(event)["id"] for event in await anext(reader)] == [1], "what is gone is not told, what is back is"


async def test_status_and_screen_are_sent_when_they_change() -> None:
    feed = Feed("claude")
    reader = feed.follow(*ALL)
    await anext(reader)
    feed.emit_status("running")
    feed.emit_screen("")
    feed.emit_status("stable")
    feed.emit_screen("a  \n\n")
    feed.emit_screen("a  \n\n")
    feed.emit_status("stable")
    feed.emit_status("running")
    assert [(event.event, body(event)) for event in await anext(reader)] == [
        ("status_change", {"status": "stable", "agent_type": "claude"}),
        ("screen", {"screen": "a"}),
        ("status_change", {"status": "running", "agent_type": "claude"}),
    ]


async def test_a_new_watcher_gets_the_state_in_order() -> None:
    feed = Feed("claude")
    feed.emit_error("first", "warning", NOW)
    feed.emit_screen("shown")
    feed.emit_status("stable")
    feed.emit_messages([message(0), message(1, "hi", "user")])
    state = await anext(feed.follow(*ALL))
    assert [event.event for event in state] == [
        "message_update", "message_update", "status_change", "screen", "agent_error"
    ]  # fmt: skip
    assert body(state[-1]) == {"message": "first", "level": "warning", "time": "2023-11-14T22:13:20Z"}
    assert list(map(body, await anext(feed.follow(ScreenUpdateBody)))) == [{"screen": "shown"}]
    fresh = await anext(Feed("claude").follow(*EVENTS))
    assert list(map(body, fresh)) == [{"status": "running", "agent_type": "claude"}]


async def test_the_last_hundred_errors_are_kept() -> None:
    feed = Feed("claude")
    for number in range(150):
        feed.emit_error(f"e{number}", "error", NOW)
    state = (await anext(feed.follow(*EVENTS)))[1:]
    assert [body(event)["message"] for event in state] == [f"e{number}" for number in range(50, 150)]


async def test_a_slow_reader_gets_the_newest_state_and_delays_nobody() -> None:
    feed = Feed("claude", 10)
    slow, quick = feed.follow(*EVENTS), feed.follow(*EVENTS)
    await anext(slow)
    await anext(quick)
    for number in range(200):
        feed.emit_status("running" if number % 2 else "stable")
        feed.emit_messages([message(0, f"a{number}"), message(1, f"b{number}", "user")])
        feed.emit_screen(f"{number}")
        assert len(await anext(quick)) == 3
    events = await anext(slow)
    assert len(events) <= 11
    newest = {event.subject: body(event) for event in events}
    assert newest["message_update", 0]["message"] == "a199"
    assert newest["message_update", 1]["message"] == "b199"
    assert newest["status_change"]["status"] == "running"


async def test_a_quick_turn_is_sent_whole_to_a_slow_reader() -> None:
    feed = Feed("claude")
    feed.emit_status("stable")
    reader = feed.follow(*EVENTS)
    await anext(reader)
    feed.emit_status("running")
    feed.emit_messages([message(0, "q", "user")])
    feed.emit_messages([message(0, "q", "user"), message(1, "par")])
    feed.emit_messages([message(0, "q", "user"), message(1, "partly")])
    feed.emit_status("stable")
    texts = [body(event).get("status") or body(event)["message"] for event in await anext(reader)]
    assert texts == ["running", "q", "partly", "stable"]


async def test_readers_end_when_the_feed_does() -> None:
    feed = Feed("claude")
    reader = feed.follow(*EVENTS)
    await anext(reader)
    feed.emit_status("stable")
    feed.close()
    assert [len(events) async for events in reader] == [1]
    assert [len(events) async for events in feed.follow(*EVENTS)] == [1], "who comes late is told the state"
    assert len(feed) == 0


async def test_a_reader_that_leaves_is_removed() -> None:
    feed = Feed("claude")
    reader = feed.follow(*EVENTS)
    await anext(reader)
    assert len(feed) == 1
    await reader.aclose()
    assert len(feed) == 0


def test_times_and_frames_have_the_format_of_agentapi() -> None:
    assert rfc3339(NOW) == "2023-11-14T22:13:20Z"
    assert rfc3339(NOW + 500_000) == "2023-11-14T22:13:20.5Z"
    assert encode_event(message(0, "<a> & \u2028 ü")) == (
        b'event: message_update\ndata: {"id":0,"role":"agent","message":"\\u003ca\\u003e \\u0026 \\u2028 \xc3\xbc",'
        b'"time":"2023-11-14T22:13:20Z"}\n\n'
    )


@pytest.mark.parametrize("text", ["x" * 300_000, "<" * 200_000, "ü" * 100_000, "x" * 100_000])
def test_no_frame_is_longer_than_clients_can_read(text: str) -> None:
    data = encode_event(message(0, text))
    assert len(data) < 128 * 1024
    whole = json.loads(data.split(b"data: ")[1])["message"]
    assert whole == text or (len(data) <= LARGEST_FRAME + 1000 and whole.endswith("has the whole text]"))


# -- requests ----------------------------------------------------------------------------------------------------------


def read_refused(content: bytes | dict[str, Any], media: str | None = "application/json") -> tuple[int, str, list[Any]]:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(Refusal) as caught:
        parse_message(raw, media)
    errors = [error.model_dump(exclude_unset=True) for error in caught.value.errors]
    return caught.value.status, caught.value.detail, errors


@pytest.mark.parametrize(
    ("body", "media", "sent"),
    [
        (rb'{"content":" \t\n hi \f","type":"user"}', None, ("user", "hi")),
        (rb'{"content":" \r","type":"raw","$schema":"x"}', "application/json; charset=utf-8", ("raw", " \r")),
        (b'{"content":"\\u001c\xc2\x85a\xc2\xa0","type":"user"}', None, ("user", "\x1c\x85a\xa0")),
    ],
)
def test_messages_are_read(body: bytes, media: str | None, sent: tuple[str, str]) -> None:
    message = parse_message(body, media)
    assert (message.type, message.text) == sent


def test_wrong_messages_are_refused_with_the_texts_of_agentapi() -> None:
    assert read_refused(b"") == (400, "request body is required", [])
    good = {"content": "a", "type": "user"}
    assert read_refused({**good, "z": 1}) == (
        422, "validation failed",
        [{"message": "unexpected property", "location": "body.z", "value": {**good, "z": 1}}],
    )  # fmt: skip
    assert read_refused({"content": "a"})[2] == [
        {"message": "expected required property type to be present", "location": "body", "value": {"content": "a"}}
    ]
    assert read_refused({**good, "content": 5})[2] == [
        {"message": "expected string", "location": "body.content", "value": 5}
    ]
    status, _, (error,) = read_refused({**good, "type": "foo"})
    assert (status, error["location"], error["value"]) == (422, "body.type", "foo")
    assert [error["message"] for error in read_refused({})[2]] == [
        "expected required property content to be present", "expected required property type to be present"
    ]  # fmt: skip
    assert read_refused(b"[]")[0] == 422
    assert read_refused(b'{"content":')[:2] == (400, "validation failed")
    assert read_refused(b'{"content":')[2][0]["message"] == "unexpected end of JSON input"
    assert read_refused(b"hello")[2] == [
        {"message": "invalid character 'h' looking for beginning of value", "location": "body", "value": "hello"}
    ]
    assert read_refused(b"\xff\xfe")[0] == 400
    assert read_refused(b"[" * 100_000)[0] in (400, 422)
    assert read_refused(b'{"content":"\\ud800","type":"user"}')[0] == 422
    assert read_refused(b"x", "text/plain") == (
        415, "validation failed", [{"message": "unknown content type: text/plain", "location": "body", "value": "x"}],
    )  # fmt: skip
    assert read_refused(b" " * 1048576) == (413, "request body is too large limit=1048576 bytes", [])
    assert read_refused(b" " * 1048575)[0] == 400


def form(*parts: bytes, boundary: bytes = b"xyz", end: bytes = b"--xyz--\r\n") -> bytes:
    return b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + end


def part(name: str, content: bytes, field: str = "file") -> bytes:
    head = f'Content-Disposition: form-data; name="{field}"; filename="{name}"\r\nContent-Type: text/plain\r\n\r\n'
    return head.encode() + content


MEDIA = "multipart/form-data; boundary=xyz"


def test_uploads_are_read() -> None:
    assert parse_upload(form(part("a.txt", b"a\r\n--b\r\n")), MEDIA) == ("a.txt", b"a\r\n--b\r\n")
    assert parse_upload(form(part("a.txt", b"")), 'multipart/form-data; boundary="xyz"') == ("a.txt", b"")
    extra = b'Content-Disposition: form-data; name="note"\r\n\r\nhello'
    assert parse_upload(form(extra, part("b", b"1")), MEDIA) == ("b", b"1")
    assert parse_upload(form(part("b", b"1", "other"), part("c", b"2")), MEDIA) == ("c", b"2")
    assert len(parse_upload(form(part("big", b"x" * (10 << 20))), MEDIA).content) == 10 << 20


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("../../etc/passwd", "passwd"), ("/etc/passwd", "passwd"), ("..\\..\\win.ini", "..\\..\\win.ini"),
        ("a;b.txt", "a;b.txt"), ('quo\\"te', 'quo"te'), ("nul\x00l", "null"), ("new\nline", "newline"),
        ("ü.txt", "ü.txt"),
    ],
)  # fmt: skip
def test_only_the_last_part_of_a_file_name_is_used(path: str, name: str) -> None:
    assert parse_upload(form(part(path, b"x")), MEDIA).name == name


def test_a_long_file_name_keeps_its_end() -> None:
    name = parse_upload(form(part("é" * 500 + ".txt", b"x")), MEDIA).name
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
        (form(part("x" * 10_000, b"x")), MEDIA, "cannot read multipart form: multipart: malformed part"),
        (form(*[part("a", b"x", "other")] * 101), MEDIA, "cannot read multipart form: multipart: too many parts"),
    ],
)
def test_wrong_forms_are_refused(body: bytes, media: str | None, message: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_upload(body, media)
    assert caught.value.status == 422
    assert caught.value.errors[0].message == message


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(Refusal) as caught:
        parse_upload(form(part("big", b"x" * ((10 << 20) + 1))), MEDIA)
    assert (caught.value.status, caught.value.detail) == (400, "file size exceeds 10MB limit")


# -- hosts and origins -------------------------------------------------------------------------------------------------


def test_hosts_are_checked() -> None:
    assert allowed_origins.check_hosts(("localhost", "[::1]", "EXAMPLE.com")) == ("localhost", "::1", "example.com")
    assert allowed_origins.check_hosts(("a b", "*")) == ("*",)
    for bad, message in (
        ((), "the list must not be empty"),
        (("a b",), "'a b' contains whitespace characters, which are not allowed"),
        (("a,b",), "'a,b' contains comma characters, which are not allowed"),
        (("http://a",), "'http://a' must not include http:// or https://"),
        (("a:80",), "'a:80' must not include a port"),
        (("::1",), "'::1' must not include a port"),
    ):
        with pytest.raises(InvalidInput) as caught:
            allowed_origins.check_hosts(bad)
        assert message in str(caught.value)


def test_a_server_answers_only_to_its_names() -> None:
    rules = allowed_origins.Rules(allowed_origins.check_hosts(allowed_origins.HOSTS), ())
    for host in ("localhost", "LOCALHOST:3284", "127.0.0.1:1", "[::1]:3284", "[::1]"):
        assert rules.allows_host(host), host
    for host in ("localhost.", "evil.com", "localhost.evil.com", "", "127.0.0.2", "::2"):
        assert not rules.allows_host(host), host
    assert allowed_origins.Rules(("*",), ()).allows_host("anything")


def test_origins_are_checked_and_matched() -> None:
    origins = ("https://*.example.com", "http://a.org:3000/path?x", "HTTPS://B.org")
    rules = allowed_origins.Rules((), allowed_origins.check_origins(origins))
    assert rules.origins == ("https://*.example.com", "http://a.org:3000", "https://b.org")
    for origin in ("https://x.example.com", "https://x.y.EXAMPLE.com", "http://a.org:3000", "https://b.org"):
        assert rules.allows_origin(origin), origin
    for origin in ("http://x.example.com", "https://example.com", "http://a.org", "https://x.example.com.evil", ""):
        assert not rules.allows_origin(origin), origin
    assert allowed_origins.Rules((), allowed_origins.check_origins(("*",))).allows_origin("https://anything")
    for bad in ((), ("a b",), ("nothing",), ("ftp://x",), ("https://*.*.com",)):
        with pytest.raises(InvalidInput):
            allowed_origins.check_origins(bad)


# -- files -------------------------------------------------------------------------------------------------------------


def make_saved(number: int, text: str = "x", role: Any = "agent", time: int = NOW) -> SavedMessage:
    return SavedMessage(**dict(message(number, text, role, time)))


def test_a_state_file_is_read_and_written_in_its_format(tmp_path: Path) -> None:
    state_path = tmp_path / "deep" / "state.json"
    file = StateFile(state_path)
    assert file.load() == State()
    messages = [make_saved(0, "hello <b>"), make_saved(1, "hi ü", "user", NOW + 1)]
    state = State(messages=messages, initial_prompt="do it", initial_prompt_sent=True)
    file.save(state)
    assert state_path.read_text() == (
        '{"version":1,"messages":[{"id":0,"message":"hello <b>","role":"agent","time":"2023-11-14T22:13:20Z"},'
        '{"id":1,"message":"hi ü","role":"user","time":"2023-11-14T22:13:20.000001Z"}],'
        '"initial_prompt":"do it","initial_prompt_sent":true}\n'
    )
    assert state_path.stat().st_mode & 0o777 == 0o600
    assert state_path.parent.stat().st_mode & 0o777 == 0o700
    again = StateFile(state_path)
    assert again.load() == state
    before = state_path.stat().st_mtime_ns, state_path.stat().st_ino
    again.save(state)
    assert (state_path.stat().st_mtime_ns, state_path.stat().st_ino) == before, "nothing has changed"
    assert [path.name for path in state_path.parent.iterdir()] == ["state.json"]
    content = state_path.read_text()
    StateFile(state_path, writable=False).save(State())
    assert state_path.read_text() == content, "it is not to be written"


def test_a_state_file_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    link, real = tmp_path / "state.json", tmp_path / "volume" / "real.json"
    link.symlink_to(real)
    file = StateFile(link)
    assert file.load() == State()
    file.save(State(messages=[make_saved(0, "one")]))
    file.save(State(messages=[make_saved(0, "two")]))
    assert link.is_symlink() and "two" in real.read_text()
    assert StateFile(link).load().messages == [make_saved(0, "two")]


def test_special_files_are_not_read_as_state_or_process_id(tmp_path: Path) -> None:
    for name in ("state", "pid"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(UnusableState, match=r"is not a regular file.*will not be written either"):
        StateFile(tmp_path / "state").load()
    statefile.release_pid_file(tmp_path / "pid")
    assert (tmp_path / "pid").exists()


async def test_an_uploaded_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    with contextlib.closing(Uploads()) as uploads:
        first = Path(await uploads.keep(UploadedFile("a", b"one")))
        assert first.read_bytes() == b"one"
        place = first.parents[1] / sha256(b"two").hexdigest()[:16]
        place.mkdir()
        (place / "a").symlink_to(tmp_path / "elsewhere")
        await uploads.keep(UploadedFile("a", b"two"))
    assert not (tmp_path / "elsewhere").exists()


def test_a_state_file_of_agentapi_is_read() -> None:
    text = (
        '{"version":1,"messages":[{"id":0,"message":"Hi  ","role":"agent",'
        '"time":"2026-04-10T12:00:00.123456789+02:00"}],'
        '"initial_prompt":"","initial_prompt_sent":false}\n'
    )
    (first,) = statefile.parse_state(text.encode()).messages
    assert (first.message, rfc3339(first.time)) == ("Hi  ", "2026-04-10T10:00:00.123456Z")
    assert statefile.parse_state(b'{"version":1,"messages":null}') == State()
    assert statefile.parse_state(State().to_json().encode()) == State()


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
def test_an_unusable_state_file_is_kept_under_another_name(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "state.json"
    (tmp_path / "state.json.bad-1").write_text("an earlier one")
    path.write_bytes(content)
    file = StateFile(path)
    with pytest.raises(UnusableState) as caught:
        file.load()
    assert words in str(caught.value) and "state.json.bad-2" in str(caught.value)
    file.save(State(messages=[make_saved(0)]))
    assert (tmp_path / "state.json.bad-2").read_bytes() == content
    assert (tmp_path / "state.json.bad-1").read_text() == "an earlier one"
    assert StateFile(path).load().messages == [make_saved(0)]


@pytest.mark.parametrize(
    ("prompt", "before", "chosen"),
    [
        ("", ("old", True), ("old", True)), ("old", ("old", True), ("old", True)),
        ("new", ("old", True), ("new", False)),
        ("", ("old", False), ("old", False)), ("", ("", False), ("", False)),
    ],
)  # fmt: skip
def test_the_initial_prompt_comes_from_the_option_or_the_state(
    prompt: str, before: tuple[str, bool], chosen: tuple[str, bool]
) -> None:
    state = State(initial_prompt=before[0], initial_prompt_sent=before[1])
    state = statefile.choose_prompt(prompt, state)
    assert (state.initial_prompt, state.initial_prompt_sent) == chosen


def test_a_pid_file_belongs_to_one_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "pid"
    statefile.claim_pid_file(path)
    assert path.read_text() == f"{os.getpid()}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    statefile.claim_pid_file(path)
    statefile.release_pid_file(path)
    assert not path.exists()
    statefile.release_pid_file(path)
    for content in ("garbage", "", "999999999\n", "-1"):
        path.write_text(content)
        statefile.claim_pid_file(path)
        assert path.read_text() == f"{os.getpid()}\n", content
    path.write_text(f"{os.getppid()}\n")
    with pytest.raises(AlreadyRunning) as caught:
        statefile.claim_pid_file(path)
    expected = f"another instance is already running with PID {os.getppid()} (PID file: {path})"
    assert expected in str(caught.value)
    statefile.release_pid_file(path)
    assert path.exists(), "it is not ours to remove"


@pytest.mark.parametrize(
    ("command", "run"),
    [
        ("claude", 'claude --settings {"tui":"default"}'),
        ("/opt/claude --model x", '/opt/claude --settings {"tui":"default"} --model x'),
        ("claude --settings mine", "claude --settings mine"),
        ("claude mcp", "claude mcp"),
        ("claude-wrapper", "claude-wrapper"),
    ],
)
def test_an_agent_gets_the_flags_its_profile_needs(command: str, run: str) -> None:
    profile_argv = ("claude", "--settings", '{"tui":"default"}', "--session-id", "{thread}")
    assert " ".join(add_profile_flags(tuple(command.split()), profile_argv)) == run
    assert add_profile_flags(("goose",), ("goose", "session", "--name", "{thread}")) == ("goose",)
    assert add_profile_flags(("python3", "-i"), ()) == ("python3", "-i")


def test_the_openapi_document_is_consistent() -> None:
    for version in ("3.1.0", "3.0.3"):
        document = describe_surface(version)
        assert document["openapi"] == version
        references = json.dumps(document).split('"$ref": "#/components/schemas/')[1:]
        assert {text.partition('"')[0] for text in references} <= set(document["components"]["schemas"])
    assert set(describe_surface("3.1.0")["paths"]) == {"/events", "/message", "/messages", "/status", "/upload"}
    assert '"const"' not in json.dumps(describe_surface("3.0.3"))
    assert '"const"' in json.dumps(describe_surface("3.1.0"))
    assert describe_bodies()["Message"]["properties"]["role"]["$ref"] == "#/components/schemas/ConversationRole"
