"""Test the parsers of agent programs: their results on recordings, the classes of errors, and the reading of lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from midwatch.agents.streams import PROFILES, steps
from midwatch.agents.streams.base import Parser
from midwatch.agents.streams.claude import ClaudeStream
from midwatch.agents.streams.codex import CodexStream
from midwatch.agents.streams.copilot import CopilotStream
from midwatch.agents.streams.faults import LONGEST_SPAN, find_reset_time, judge
from midwatch.agents.streams.gemini import GeminiStream
from midwatch.agents.streams.goose import GooseStream
from midwatch.agents.streams.lines import LINE_LIMIT, Lines
from midwatch.agents.streams.opencode import OpencodeStream
from midwatch.agents.streams.reading import make_title, read_change, read_plan, unwrap_command
from midwatch.base.clock import SECOND
from midwatch.domain.tool_name import guess_kind

RECORDINGS = Path(__file__).parents[1] / "recordings/headless"
NAMES = sorted(PROFILES)
S = TypeVar("S")


def read(name: str, case: str) -> list[steps.Step]:
    parser = PROFILES[name].parser()
    lines = (RECORDINGS / name / f"{case}.jsonl").read_text().splitlines()
    parsed_steps = [step for line in lines for step in parser.read(json.loads(line))]
    return [*parsed_steps, *parser.end()]


def steps_of_kind(kind: type[S], parsed_steps: Iterable[Any]) -> list[S]:
    return [step for step in parsed_steps if isinstance(step, kind)]


def answer_of(parsed_steps: list[steps.Step]) -> str:
    """Return the answer: of the result, or the last text."""
    done = steps_of_kind(steps.Done, parsed_steps)
    if done and done[-1].text is not None:
        return done[-1].text
    last, pieces = "", ""
    for step in parsed_steps:
        if isinstance(step, steps.TextPiece):
            pieces += step.text
        elif isinstance(step, steps.Text):
            last, pieces = step.text, ""
        elif isinstance(step, steps.ToolStart | steps.TextEnd):
            last, pieces = pieces or last, ""
    return pieces or last


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_answer_is_read(name: str) -> None:
    parsed_steps = read(name, "plain")
    assert answer_of(parsed_steps).strip() == "hello there"
    assert (
        steps_of_kind(steps.Done, parsed_steps)
        and not steps_of_kind(steps.Failed, parsed_steps)
        and not steps_of_kind(steps.Denied, parsed_steps)
    )
    threads = {step.id for step in steps_of_kind(steps.Thread, parsed_steps)}
    assert len(threads) == (0 if name == "goose" else 1)  # goose gets its thread id from us


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_conversation_is_read(name: str) -> None:
    parsed_steps = read(name, "resumed")
    assert "My name is Ada" in answer_of(parsed_steps)
    if name != "goose":
        assert steps_of_kind(steps.Thread, parsed_steps)[0] == steps_of_kind(steps.Thread, read(name, "plain"))[0]


@pytest.mark.parametrize("name", NAMES)
def test_tool_calls_are_read(name: str) -> None:
    parsed_steps = read(name, "work")
    starts, ends = steps_of_kind(steps.ToolStart, parsed_steps), steps_of_kind(steps.ToolEnd, parsed_steps)
    assert [step.id for step in starts] == [step.id for step in ends]
    assert not any(step.is_error for step in ends)
    assert [guess_kind(step.name) for step in starts] == ["execute", "execute" if name == "codex" else "edit"]
    assert "echo one" in make_title(starts[0].name, starts[0].arguments)
    assert "one" in ends[0].result
    assert answer_of(parsed_steps).rstrip().endswith("all done")
    if name != "codex":  # it has no tool for writing
        (change,) = ends[1].diffs
        assert change["path"].startswith("/home/me/project/") and "+hello" in change["patch"]
        assert (change["added"], change["removed"], change["cut"]) == (1, 0, False)


@pytest.mark.parametrize(
    ("name", "sent", "made"),
    [("claude", 2832, 2), ("codex", 5242, 2), ("gemini", 146, 2), ("goose", 1171, 2), ("opencode", 2448, 2)],
)
def test_usage_is_as_reported_by_the_program(name: str, sent: int, made: int) -> None:
    (spent,) = steps_of_kind(steps.Spent, read(name, "plain"))
    assert spent.input_tokens is not None and abs(spent.input_tokens - sent) < 200  # prompts contain paths and dates
    assert spent.output_tokens == made
    assert spent.of_thread == (name in ("codex", "goose"))
    assert (spent.cost_usd is not None) == (name in ("claude", "opencode"))


def test_the_cost_of_a_turn_is_not_that_of_the_conversation() -> None:
    first, second = (steps_of_kind(steps.Spent, read("claude", case))[0].cost_usd for case in ("plain", "resumed"))
    assert first and second and second < 1.5 * first


@pytest.mark.parametrize(("case", "known"), [("plain", True), ("resumed", False)])
def test_the_total_cost_is_used_only_for_a_whole_conversation(case: str, known: bool) -> None:
    line = json.loads((RECORDINGS / "claude" / f"{case}.jsonl").read_text().splitlines()[-1])
    del line["model_usage_since_last_result"]
    (spent,) = steps_of_kind(steps.Spent, ClaudeStream().read(line))
    assert spent.cost_usd == (line["total_cost_usd"] if known else None)


def test_missing_values_are_unknown() -> None:
    assert steps_of_kind(steps.Spent, read("copilot", "plain")) == []


@pytest.mark.parametrize(
    ("name", "tool"), [("claude", "Bash"), ("codex", "shell"), ("copilot", "bash"), ("opencode", "bash")]
)
def test_a_denied_tool_is_recognised(name: str, tool: str) -> None:
    parsed_steps = read(name, "denied")
    assert {step.tool for step in steps_of_kind(steps.Denied, parsed_steps)} == {tool}
    assert bool(steps_of_kind(steps.Done, parsed_steps)) == (name != "opencode")  # the recording ends there


def test_a_tool_that_only_asks_does_not_count_as_denied() -> None:
    denials = [{"tool_name": "ExitPlanMode"}, {"tool_name": "AskUserQuestion"}, {"tool_name": "Edit"}]
    parsed_steps = steps_of(
        ClaudeStream(), {"type": "result", "is_error": False, "result": "x", "permission_denials": denials}
    )
    assert steps_of_kind(steps.Denied, parsed_steps) == [steps.Denied("Edit")]


@pytest.mark.parametrize("name", ["claude", "codex", "copilot", "gemini"])
def test_a_usage_limit_is_recognised(name: str) -> None:
    parsed_steps = read(name, "limit")
    (failed,) = steps_of_kind(steps.Failed, parsed_steps)
    assert failed.fault.kind == "limit" and not steps_of_kind(steps.Done, parsed_steps)
    assert (failed.fault.resets_at is not None) == (name in ("claude", "codex"))


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_key_is_recognised(name: str) -> None:
    parsed_steps = read(name, "auth")
    (failed,) = steps_of_kind(steps.Failed, parsed_steps)
    assert failed.fault.kind == "auth" and not steps_of_kind(steps.Done, parsed_steps)
    assert not steps_of_kind(steps.Text, parsed_steps) and not steps_of_kind(steps.TextPiece, parsed_steps), (
        "an error is no answer"
    )


@pytest.mark.parametrize("name", ["claude", "codex", "goose"])
def test_an_overloaded_provider_is_recognised(name: str) -> None:
    parsed_steps = read(name, "overloaded")
    (failed,) = steps_of_kind(steps.Failed, parsed_steps)
    assert failed.fault.kind == "passing" and not steps_of_kind(steps.Done, parsed_steps)
    assert bool(steps_of_kind(steps.Retry, parsed_steps)) == (name != "goose")


def test_a_usage_limit_of_opencode_is_read_from_its_log() -> None:
    line = (
        'timestamp=2026-11-15T09:52:23.052Z level=ERROR run=cfe6f66c message="stream error" providerID=fake '
        'error.error="AI_APICallError: This request would exceed your account\'s rate limit."'
    )
    (retry,) = steps_of_kind(steps.Retry, OpencodeStream().read_error(line))
    assert retry.fault.kind == "limit"
    assert list(OpencodeStream().read_error("timestamp=1 level=ERROR message=other")) == []


def test_a_denial_of_codex_may_be_in_its_log_only() -> None:
    line = (
        "2026-11-15T10:53:52.696989Z ERROR codex_core::tools::router: error=approval policy is Never; reject "
        "command \u2014 you cannot ask for escalated permissions if the approval policy is Never"
    )
    assert list(CodexStream().read_error(line)) == [steps.Denied("shell")]
    assert list(CodexStream().read_error("ERROR codex_core::tools::router: error=no such file")) == []


def test_a_very_long_line_of_a_log_is_read_in_linear_time() -> None:
    """An expression that tries all combinations does not end within the time limit of a test."""
    assert list(OpencodeStream().read_error('level=ERROR message="stream error" ' * 20_000)) == []
    assert list(CodexStream().read_error("codex_core::tools::router: error=" * 60_000)) == []


def steps_of(parser: Parser, *lines: dict[str, Any]) -> list[steps.Step]:
    return [step for line in lines for step in parser.read(line)]


def test_thoughts_are_read() -> None:
    block = {"type": "thinking", "thinking": "hm"}
    delta = {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "h"}}
    claude: list[dict[str, Any]] = [
        {"type": "stream_event", "event": delta},
        {"type": "assistant", "message": {"content": [block]}},
    ]
    assert steps_of(ClaudeStream(), *claude) == [steps.ThoughtPiece("h"), steps.Thought("hm")]
    item = {"id": "i", "type": "reasoning", "text": "hm"}
    assert steps_of(CodexStream(), {"type": "item.completed", "item": item}) == [steps.Thought("hm")]
    part = {"type": "reasoning", "text": "hm"}
    assert steps_of(OpencodeStream(), {"type": "reasoning", "part": part}) == [steps.Thought("hm")]
    parsed_steps = steps_of(CopilotStream(), {"type": "assistant.reasoning", "data": {"content": "hm"}})
    assert parsed_steps == [steps.Thought("hm")]
    message = {"id": "m", "content": [{"type": "thinking", "thinking": "hm"}]}
    assert steps.ThoughtPiece("hm") in steps_of(GooseStream(), {"type": "message", "message": message})


def test_plans_are_read() -> None:
    todos = [{"content": "look", "status": "completed"}, {"content": "act", "status": "in_progress"}]
    plan = [("look", "completed"), ("act", "in_progress")]

    def entries(parsed_steps: list[steps.Step]) -> list[tuple[str, str]]:
        return [(entry["content"], entry["status"]) for entry in steps_of_kind(steps.Plan, parsed_steps)[-1].entries]

    block = {"type": "tool_use", "id": "1", "name": "TodoWrite", "input": {"todos": todos}}
    assert entries(steps_of(ClaudeStream(), {"type": "assistant", "message": {"content": [block]}})) == plan
    items = [{"text": "look", "completed": True}, {"text": "act", "completed": False}]
    listed = {"type": "item.updated", "item": {"id": "1", "type": "todo_list", "items": items}}
    assert entries(steps_of(CodexStream(), listed)) == [("look", "completed"), ("act", "pending")]
    state = {"status": "completed", "input": {"todos": todos}}
    used = {"type": "tool_use", "part": {"tool": "todowrite", "callID": "1", "state": state}}
    assert entries(steps_of(OpencodeStream(), used)) == plan
    wished = {"type": "tool_use", "tool_name": "write_todos", "tool_id": "1", "parameters": {"todos": todos}}
    assert entries(steps_of(GeminiStream(), wished)) == plan
    assert read_plan("none") == read_plan([1, {"status": "pending"}]) == ()


def test_a_plan_of_claude_made_of_single_tasks_is_read() -> None:
    parser = ClaudeStream()

    def used(number: str, name: str, arguments: dict[str, Any], result: dict[str, Any]) -> list[steps.Step]:
        call = {"type": "tool_use", "id": number, "name": name, "input": arguments}
        back = {"type": "tool_result", "tool_use_id": number, "content": "ok"}
        return steps_of(
            parser,
            {"type": "assistant", "message": {"content": [call]}},
            {"type": "user", "message": {"content": [back]}, "tool_use_result": result},
        )

    used("a", "TaskCreate", {"subject": "look"}, {"task": {"id": "1", "subject": "look"}})
    used("b", "TaskCreate", {"subject": "act"}, {"task": {"id": "2", "subject": "act"}})
    parsed_steps = used("c", "TaskUpdate", {"taskId": "1", "status": "completed"}, {"success": True})
    assert [entry["status"] for entry in steps_of_kind(steps.Plan, parsed_steps)[0].entries] == ["completed", "pending"]
    parsed_steps = used("d", "TaskUpdate", {"taskId": "2", "status": "deleted"}, {"success": True})
    assert [entry["content"] for entry in steps_of_kind(steps.Plan, parsed_steps)[0].entries] == ["look"]
    assert not steps_of_kind(steps.Plan, used("e", "TaskUpdate", {"taskId": "9", "status": "completed"}, {}))


def test_text_of_a_subagent_is_not_the_answer_but_its_tools_are_shown() -> None:
    blocks = [{"type": "text", "text": "inner"}, {"type": "tool_use", "id": "1", "name": "Read", "input": {}}]
    parsed_steps = steps_of(
        ClaudeStream(), {"type": "assistant", "parent_tool_use_id": "t", "message": {"content": blocks}}
    )
    assert [type(step) for step in parsed_steps] == [steps.ToolStart]


def test_a_patch_of_claude_is_read() -> None:
    hunk = {"oldStart": 3, "oldLines": 1, "newStart": 3, "newLines": 2, "lines": ["-a", "+b", "+c"]}
    back = {"type": "tool_result", "tool_use_id": "1", "content": "ok"}
    changed = {"filePath": "/p/x.py", "structuredPatch": [hunk]}
    parsed_steps = steps_of(
        ClaudeStream(), {"type": "user", "message": {"content": [back]}, "tool_use_result": changed}
    )
    (change,) = steps_of_kind(steps.ToolEnd, parsed_steps)[0].diffs
    assert change["patch"] == "--- a/p/x.py\n+++ b/p/x.py\n@@ -3,1 +3,2 @@\n-a\n+b\n+c\n"
    assert (change["added"], change["removed"]) == (2, 1)


def test_file_changes_of_codex_have_their_paths() -> None:
    item = {"id": "1", "type": "file_change", "changes": [{"path": "/p/x.py", "kind": "update"}], "status": "completed"}
    start, end = steps_of(CodexStream(), {"type": "item.completed", "item": item})
    assert isinstance(start, steps.ToolStart) and start.locations == ("/p/x.py",)
    assert isinstance(end, steps.ToolEnd) and not end.is_error


@pytest.mark.parametrize("name", NAMES)
def test_a_parser_survives_any_input(name: str) -> None:
    """Replace each value of each line of the recordings by an unexpected one."""
    odd: tuple[Any, ...] = (None, 7, -1, "x", [], [1, None], {}, {"type": {}}, True)
    for path in sorted((RECORDINGS / name).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            for strange in spoil(json.loads(line), odd):
                list(PROFILES[name].parser().read(strange))


def spoil(value: Any, odd: tuple[Any, ...]) -> Iterator[Any]:
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: odd_value} for odd_value in odd)
            yield from ({**value, key: inner} for inner in spoil(value[key], odd))
    elif isinstance(value, list) and value:
        yield from ([*value[:-1], inner] for inner in spoil(value[-1], odd))


def test_the_programs_get_their_arguments() -> None:
    claude = PROFILES["claude"].arguments("th", resumed=True, model="opus", allowed="edit", own=("--add-dir", "/x"))
    assert claude[-2:] == ("--resume", "th")
    assert claude[5:] == ("--model", "opus", "--permission-mode", "acceptEdits", "--add-dir", "/x", "--resume", "th")
    codex = PROFILES["codex"].arguments("th", resumed=True, model=None, allowed="all", own=())
    assert codex[:2] == ("exec", "resume") and codex[-2:] == ("th", "-")
    for profile in PROFILES.values():
        arguments = profile.arguments("t-42", resumed=False, model=None, allowed=None, own=())
        assert ("t-42" in " ".join(arguments)) == profile.names_thread
        assert not any("{" in part for part in arguments)


# -- classes of errors -------------------------------------------------------------------------------------------

NOW = int(datetime(2026, 11, 15, 9, 41, 52, tzinfo=UTC).timestamp()) * SECOND


def make_time(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp()) * SECOND  # type: ignore[arg-type]  # year, month, ...


@pytest.mark.parametrize(
    ("text", "resets"),
    [
        ("You've hit your 5-hour limit · resets 10:44am (UTC)", make_time(2026, 11, 15, 10, 45)),
        ("Your limit will reset at 3pm (America/New_York)", make_time(2026, 11, 15, 20, 1)),
        ("resets 9am (UTC)", make_time(2026, 11, 16, 9, 1)),
        ("resets 9:41am (UTC)", NOW + 60 * SECOND),
        ("You've hit your weekly limit · resets Nov 20, 9am (UTC)", make_time(2026, 11, 20, 9, 1)),
        ("try again at Nov 20th, 2026 9:42 AM (UTC)", make_time(2026, 11, 20, 9, 43)),
        ("resets Jan 2 at 5am (UTC)", make_time(2027, 1, 2, 5, 1)),
        ("Claude AI usage limit reached|1794739455", 1794739455 * SECOND),
        ("You exceeded your current quota. Please retry in 30s.", NOW + 30 * SECOND),
        ('"retryDelay": "1.5s"', NOW + 3 * SECOND // 2),
        ("try again in 3 days 4 hours 5 minutes.", NOW + (3 * 86400 + 4 * 3600 + 300) * SECOND),
        ("limit resets at 2026-11-15T10:00:00Z", make_time(2026, 11, 15, 10)),
        ("rate limit, retry after 1h30m", NOW + 5400 * SECOND),
        ("resets Feb 31, 9am (UTC)", None),
        ("resets 99pm (UTC)", None),
        ("resets Dec 31 9999 11:59 pm (UTC)", None),
        ("limit resets at 2026-99-15T99:00:00Z", None),
        (f"try again in {'9' * 400} days", NOW + int(LONGEST_SPAN) * SECOND),
        ("You've hit your limit, 5 of 5 in use", None),
        ("quota exceeded", None),
    ],
)
def test_the_end_of_a_limit_is_read(text: str, resets: int | None) -> None:
    assert find_reset_time(text, NOW) == resets


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    here = datetime.fromtimestamp(NOW / SECOND).astimezone()
    text = f"try again at {here.replace(hour=23, minute=59):%I:%M %p}."
    reset_at = find_reset_time(text, NOW)
    assert (
        reset_at is not None and reset_at == (int(here.replace(hour=23, minute=59, second=0).timestamp()) + 60) * SECOND
    )


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        ("You\u2019ve hit your usage limit.", None, "limit"),
        ("anything", 429, "limit"),
        ("[API Error: You have exhausted your daily quota on this model.]", None, "limit"),
        ("Not logged in · Please run /login", None, "auth"),
        ("anything", 401, "auth"),
        ("error: Error Unknown provider: .", None, "auth"),
        ("When using Gemini API, you must specify the GEMINI_API_KEY environment variable.", None, "auth"),
        ("API Error: 529 Overloaded", None, "passing"),
        ("TypeError: fetch failed, cause: ECONNREFUSED", None, "passing"),
        ("anything", 503, "passing"),
        ("No conversation found with session ID: 0c", None, "thread"),
        ("Error resuming session: No previous sessions found for this project.", None, "thread"),
        ("error: unknown option '--verbose'", None, "options"),
        ("error: unexpected argument '--json' found", None, "options"),
        ("Unknown arguments: output-format", None, "options"),
        ("opencode run [message..]\n\nrun opencode with a message", None, "options"),
        ("the file was not found", None, "other"),
        ("", None, "other"),
    ],
)
def test_error_messages_are_classified(text: str, status: int | None, kind: str) -> None:
    assert judge(text, now=NOW, status=status).kind == kind


# -- titles, kinds and file changes ------------------------------------------------------------------------------


def test_commands_are_shown_without_their_shell() -> None:
    assert unwrap_command("/bin/bash -lc 'echo one; echo two'") == "echo one; echo two"
    assert unwrap_command("git log") == "git log"
    assert unwrap_command("echo 'torn") == "echo 'torn"


def test_titles_have_one_line() -> None:
    assert make_title("Bash", {"command": "make\nmake test"}) == "Bash: make"
    assert make_title("Bash", None) == "Bash"
    assert len(make_title("Bash", {"command": "x" * 500})) == 120


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Bash", "execute"), ("Read", "read"), ("MultiEdit", "edit"), ("Grep", "search"), ("WebFetch", "fetch"),
        ("google_web_search", "fetch"), ("list_directory", "search"), ("TodoWrite", "think"), ("mcp.x", "other"),
    ],
)  # fmt: skip
def test_tools_have_kinds(name: str, kind: str) -> None:
    assert guess_kind(name) == kind


def test_file_changes_are_read_from_arguments() -> None:
    (change,) = read_change({"file_path": "/p/x", "old_string": "a\n", "new_string": "b\n"})
    assert (change["added"], change["removed"]) == (1, 1)
    assert read_change({"command": "x"}) == read_change(None) == read_change({"path": "/p/x"}) == ()


# -- lines -------------------------------------------------------------------------------------------------------


async def feed_lines(*data: bytes) -> tuple[list[dict[str, Any]], Lines]:
    lines = Lines(lambda: None)
    for chunk in data:
        lines.data_received(chunk)
    lines.finish()
    records = []
    while (line := await lines.next(1.0)) is not None:
        records.append(line)
    return records, lines


async def test_lines_may_arrive_in_pieces_and_without_an_end() -> None:
    records, lines = await feed_lines(b'{"a"', b":1}\n{", b'"b":2}')
    assert records == [{"a": 1}, {"b": 2}]
    assert (lines.objects, lines.noise, lines.too_long) == (2, 0, 0)


async def test_noise_is_ignored_and_counted() -> None:
    records, lines = await feed_lines(b"banner\n\n[1]\n{broken\n", b'{"a":1}\n\xff\xfe\n')
    assert records == [{"a": 1}]
    assert (lines.noise, lines.first_noise) == (4, "banner")


async def test_a_line_that_is_too_long_is_ignored() -> None:
    records, lines = await feed_lines(b'{"a":"' + b"x" * LINE_LIMIT, b'y"}\n{"b":1}\n')
    assert records == [{"b": 1}]
    assert (lines.too_long, lines.noise) == (1, 0)


async def test_invalid_characters_are_replaced() -> None:
    records, _ = await feed_lines(b'{"a":"\\ud83d\\ude42 \\ud83d \\u0000","b":["\\udc00"]}\n')
    assert records == [{"a": "🙂 \ufffd \ufffd", "b": ["\ufffd"]}]


async def test_waiting_is_limited() -> None:
    lines = Lines(lambda: None)
    with pytest.raises(TimeoutError):
        await lines.next(0.01)
    asyncio.get_running_loop().call_soon(lines.wake)
    with pytest.raises(TimeoutError):
        await lines.next(600)
