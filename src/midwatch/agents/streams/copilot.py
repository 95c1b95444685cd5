"""GitHub Copilot CLI: `copilot --output-format json`."""

from __future__ import annotations

from collections.abc import Iterator

from midwatch.agents.streams import steps
from midwatch.agents.streams.base import Line, Parser, Profile
from midwatch.agents.streams.reading import (
    locations_of,
    part,
    parts,
    patch_of,
    title_of,
    whole_number,
    words,
)


class CopilotStream(Parser):
    """Events of a session, and a result that names it."""

    def read(self, line: Line) -> Iterator[steps.Step]:
        data = part(line, "data")
        kind = words(line.get("type"))
        if kind.startswith("assistant.") and not data.get("parentToolCallId"):
            yield from self._assistant(kind.removeprefix("assistant."), data)
        elif kind.startswith("tool.execution_"):
            yield from self._tool(kind.removeprefix("tool.execution_"), data)
        elif kind == "session.tools_updated" and (model := words(data.get("model"))):
            yield steps.Model(model)
        elif kind == "model.call_failure":
            status, why = whole_number(data.get("statusCode")), words(data.get("errorMessage"))
            fault = self.fault(why, status=status)
            yield steps.Retry(message=f"a call of the model failed ({status or why})", fault=fault)
        elif kind == "session.error":
            said = words(data.get("message")) or "its turn failed"
            yield steps.Failed(self.fault(said, status=whole_number(data.get("statusCode"))))
        elif kind == "result":
            if thread := words(line.get("sessionId")):
                yield steps.Thread(thread)
            if line.get("exitCode") == 0:
                yield steps.Done()

    def _assistant(self, kind: str, data: Line) -> Iterator[steps.Step]:
        match kind:
            case "message_delta":
                yield steps.TextPiece(words(data.get("deltaContent")))
            case "message" if text := words(data.get("content")):
                yield steps.Text(text)
            case "reasoning_delta":
                yield steps.ThoughtPiece(words(data.get("deltaContent")))
            case "reasoning" if text := words(data.get("content")):
                yield steps.Thought(text)
            case "usage":
                sent, made = whole_number(data.get("inputTokens")), whole_number(data.get("outputTokens"))
                yield steps.Reply(model=words(data.get("model")) or None, input_tokens=sent, output_tokens=made)
                yield steps.Spent(input_tokens=sent, output_tokens=made)

    def _tool(self, phase: str, data: Line) -> Iterator[steps.Step]:
        number = words(data.get("toolCallId"))
        if phase == "start":
            name, given = words(data.get("toolName")), data.get("arguments")
            yield self.start_tool(number, name, given, title_of(name, given))
        elif phase == "complete":
            _, given = self.find_tool(number)
            failed, error, result = data.get("success") is not True, part(data, "error"), part(data, "result")
            said = words(result.get("content")) or words(error.get("message"))
            edited = [words(edit.get("path")) for edit in parts(data.get("fileEdits"))] or locations_of(given)
            patch = words(result.get("detailedContent"))
            diffs = (patch_of(edited[0], patch.lstrip()),) if "@@" in patch and edited else ()
            denied = failed and error.get("code") in ("denied", "rejected")
            yield from self.end_tool(number, said, failed=failed, diffs=diffs, denied=denied)


START = ("--output-format", "json", "--no-ask-user", "{options}", "--session-id={thread}")
PROFILE = Profile(
    name="copilot",
    start=START,
    resume=START,  # the same id takes up the conversation, or begins it
    parser=CopilotStream,
    known_version="1.0.102",
    permissions={"edit": ("--allow-tool=write",), "all": ("--allow-all",)},
    names_thread=True,
)
