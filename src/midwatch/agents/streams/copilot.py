"""GitHub Copilot CLI: `copilot --output-format json`."""

from __future__ import annotations

from collections.abc import Iterator

from midwatch.agents.streams import steps
from midwatch.agents.streams.base import Line, Parser, Profile
from midwatch.agents.streams.reading import find_paths, get_count, get_dict, get_dicts, get_text, make_title, read_patch


class CopilotStream(Parser):
    """Parses the events of a session, and the result, which contains the id of the session."""

    def read(self, line: Line) -> Iterator[steps.Step]:
        data = get_dict(line, "data")
        kind = get_text(line, "type")
        if kind.startswith("assistant.") and not data.get("parentToolCallId"):
            yield from self._assistant(kind.removeprefix("assistant."), data)
        elif kind.startswith("tool.execution_"):
            yield from self._tool(kind.removeprefix("tool.execution_"), data)
        elif kind == "session.tools_updated" and (model := get_text(data, "model")):
            yield steps.Model(model)
        elif kind == "model.call_failure":
            status, reason = get_count(data, "statusCode"), get_text(data, "errorMessage")
            fault = self.fault(reason, status=status)
            yield steps.Retry(message=f"a call of the model failed ({status or reason})", fault=fault)
        elif kind == "session.error":
            yield self.fail(get_text(data, "message"), get_count(data, "statusCode"))
        elif kind == "result":
            if thread := get_text(line, "sessionId"):
                yield steps.Thread(thread)
            if line.get("exitCode") == 0:
                yield steps.Done()

    def _assistant(self, kind: str, data: Line) -> Iterator[steps.Step]:
        match kind:
            case "message_delta":
                yield steps.TextPiece(get_text(data, "deltaContent"))
            case "message" if text := get_text(data, "content"):
                yield steps.Text(text)
            case "reasoning_delta":
                yield steps.ThoughtPiece(get_text(data, "deltaContent"))
            case "reasoning" if text := get_text(data, "content"):
                yield steps.Thought(text)
            case "usage":
                input, output = get_count(data, "inputTokens"), get_count(data, "outputTokens")
                yield steps.Reply(model=get_text(data, "model") or None, input_tokens=input, output_tokens=output)
                yield steps.Spent(input_tokens=input, output_tokens=output)

    def _tool(self, phase: str, data: Line) -> Iterator[steps.Step]:
        number = get_text(data, "toolCallId")
        if phase == "start":
            name, arguments = get_text(data, "toolName"), data.get("arguments")
            yield self.start_tool(number, name, arguments, make_title(name, arguments))
        elif phase == "complete":
            _, arguments = self.find_tool(number)
            failed, error, result = (data.get("success") is not True, get_dict(data, "error"), get_dict(data, "result"))
            text = get_text(result, "content") or get_text(error, "message")
            edited = [get_text(edit, "path") for edit in get_dicts(data, "fileEdits")] or find_paths(arguments)
            patch = get_text(result, "detailedContent")
            diffs = (read_patch(edited[0], patch.lstrip()),) if "@@" in patch and edited else ()
            denied = failed and error.get("code") in ("denied", "rejected")
            yield from self.end_tool(number, text, failed=failed, diffs=diffs, denied=denied)


START = ("--output-format", "json", "--no-ask-user", "{options}", "--session-id={thread}")
PROFILE = Profile(
    name="copilot",
    start=START,
    resume=START,  # the same option resumes a conversation or begins one
    parser=CopilotStream,
    known_version="1.0.102",
    permissions={"edit": ("--allow-tool=write",), "all": ("--allow-all",)},
    names_thread=True,
)
