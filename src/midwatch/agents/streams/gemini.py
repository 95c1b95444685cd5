"""Gemini CLI: `gemini -o stream-json`."""

from __future__ import annotations

from collections.abc import Iterator

from midwatch.agents.streams import steps
from midwatch.agents.streams.base import Line, Parser, Profile
from midwatch.agents.streams.reading import part, plan_of, whole_number, words

REFUSALS = ("policy_violation", "permission_denied")


class GeminiStream(Parser):
    """Pieces of text, tools, and a result with figures."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = ""

    def read(self, line: Line) -> Iterator[steps.Step]:
        if self._thread and line.get("type") in ("message", "tool_use") and line.get("role") != "user":
            yield steps.Thread(self._thread)  # before the model answers the session is not saved
            self._thread = ""
        match line.get("type"):
            case "init":
                self._thread = words(line.get("session_id"))
                yield steps.Model(words(line.get("model")))
            case "message" if line.get("role") == "assistant":
                text = words(line.get("content"))
                yield steps.TextPiece(text) if line.get("delta") else steps.Text(text)
            case "tool_use":
                name, number = words(line.get("tool_name")), words(line.get("tool_id"))
                yield self.start_tool(number, name, line.get("parameters"))
                if name == "write_todos":
                    yield steps.Plan(plan_of(part(line, "parameters").get("todos")))
            case "tool_result":
                yield from self._returned(line)
            case "error":
                yield steps.Note(words(line.get("message")))
            case "result":
                yield from self._result(line)

    def _returned(self, line: Line) -> Iterator[steps.Step]:
        number, error = words(line.get("tool_id")), part(line, "error")
        said = words(line.get("output")) or words(error.get("message"))
        failed = line.get("status") != "success"
        denied = failed and (error.get("type") in REFUSALS or "denied by policy" in said)
        yield from self.end_tool(number, said, failed=failed, denied=denied)

    def _result(self, line: Line) -> Iterator[steps.Step]:
        figures = part(line, "stats")
        yield steps.Spent(
            input_tokens=whole_number(figures.get("input_tokens")),
            output_tokens=whole_number(figures.get("output_tokens")),
        )
        if line.get("status") == "success":
            yield steps.Done()
        else:
            said = words(part(line, "error").get("message")) or "its turn failed"
            yield steps.Failed(self.fault(said))


START = ("--output-format", "stream-json", "{options}")
TRUST = {"GEMINI_CLI_TRUST_WORKSPACE": "true"}
PROFILE = Profile(
    name="gemini",
    start=START,
    resume=(*START, "--resume", "{thread}"),
    parser=GeminiStream,
    known_version="0.61.0",
    permissions={
        "read": ("--approval-mode", "plan"),
        "edit": ("--approval-mode", "auto_edit"),
        "all": ("--approval-mode", "yolo"),
    },
    permission_env={"read": TRUST, "edit": TRUST, "all": TRUST},
)
