"""Gemini CLI: `gemini -o stream-json`."""

from __future__ import annotations

from collections.abc import Iterator

from midwatch.agents.streams import steps
from midwatch.agents.streams.base import Line, Parser, Profile, map_modes
from midwatch.agents.streams.drift import Versions, Words
from midwatch.agents.streams.reading import get_dict, get_text, read_tokens

REFUSALS = ("policy_violation", "permission_denied")


WORDS = Words.of(
    "code content delta error message model output role session_id severity status timestamp tool_id tool_name",
    "error init message result tool_result tool_use",
    free="parameters stats error",
)


class GeminiStream(Parser):
    """Parses pieces of text, tool calls, and the result, which contains the usage."""

    words = WORDS

    def __init__(self) -> None:
        super().__init__()
        self._thread = ""

    def read(self, line: Line) -> Iterator[steps.Step]:
        if self._thread and line.get("type") in ("message", "tool_use") and line.get("role") != "user":
            yield steps.Thread(self._thread)  # the program saves the session only when the model has answered
            self._thread = ""
        match line.get("type"):
            case "init":
                self._thread = get_text(line, "session_id")
                yield steps.Model(get_text(line, "model"))
            case "message" if self._is_answer(line):
                text = self.drift.need_text(line, "content")
                yield steps.TextPiece(text) if self.drift.need(line, "delta") else steps.Text(text)
            case "tool_use":
                name, number = get_text(line, "tool_name"), get_text(line, "tool_id")
                yield self.start_tool(number, name, line.get("parameters"))
                if name == "write_todos":
                    yield self.plan(get_dict(line, "parameters").get("todos"))
            case "tool_result":
                yield from self._end_of_tool(line)
            case "error":
                yield steps.Note(get_text(line, "message"))
            case "result":
                yield from self._result(line)

    def _is_answer(self, line: Line) -> bool:
        """Return whether a message is from the model and not from the user."""
        role = line.get("role")
        if role not in ("assistant", "user"):
            self.drift.miss("role")
        return role == "assistant"

    def _end_of_tool(self, line: Line) -> Iterator[steps.Step]:
        number, error = get_text(line, "tool_id"), get_dict(line, "error")
        text = get_text(line, "output") or get_text(error, "message")
        failed = self.drift.need(line, "status") != "success"
        denied = failed and (error.get("type") in REFUSALS or "denied by policy" in text)
        yield from self.end_tool(number, text, failed=failed, denied=denied)

    def _result(self, line: Line) -> Iterator[steps.Step]:
        yield steps.Spent(**read_tokens(get_dict(line, "stats")))
        if line.get("status") == "success":
            yield steps.Done()
        elif line.get("status") == "error":
            yield self.fail(self.drift.need_text(line, "error", "message"))
        else:
            self.drift.miss("result.status")


START = ("--output-format", "stream-json", "{options}")
TRUST = {"GEMINI_CLI_TRUST_WORKSPACE": "true"}
PROFILE = Profile(
    name="gemini",
    start=START,
    resume=(*START, "--resume", "{thread}"),
    parser=GeminiStream,
    versions=Versions("0.61.0", "0.61.0"),
    permissions=map_modes("--approval-mode", read="plan", edit="auto_edit", all="yolo"),
    permission_env={"read": TRUST, "edit": TRUST, "all": TRUST},
)
