"""GitHub Copilot CLI: `copilot --output-format json`."""

from __future__ import annotations

from collections.abc import Iterator

from midwatch.agents.streams import steps
from midwatch.agents.streams.base import Line, Parser, Profile
from midwatch.agents.streams.drift import Versions, Words
from midwatch.agents.streams.reading import find_paths, get_count, get_dict, get_dicts, get_text, make_title, read_patch

NEEDED = ("assistant.message", "tool.execution_", "session.error")
WORDS = Words.of(
    "apiCallId apiEndpoint byokKind code commandName containsBuiltInFileEditRequest content data delivery "
    "deltaContent description detailedContent dispatchDurationMs durationMs editClassifierVersion enabled ephemeral "
    "error errorCode errorMessage errorType exitCode failureKind fileEdits hasWriteFileRedirection id infoType "
    "inputDelta inputTokens intentionSummary interactionId interactionType isAuto isByok kind maxPromptTokens message "
    "messageId model modelProvider name originatingMessageId outcome outputTokens parentAgentTaskId parentId "
    "parentToolCallId partialOutput path possiblePaths providerType reason reasoningId reasoningText requestBodyBytes "
    "requestBodyEncoding requestBodyWireBytes result retryAttempt rte sequence servers sessionId shellExecution "
    "shellToolInfo skills source statusCode stream success supportedNativeDocumentMimeTypes text timestamp toolCallId "
    "toolName toolRequests toolTitle toolType transformedContent transport turnId userInvocable cost cacheReadTokens "
    "cacheWriteTokens duration initiator apiCallIds providerCallId quotaSnapshots",
    "assistant.idle assistant.message assistant.message_delta assistant.message_start assistant.reasoning "
    "assistant.reasoning_delta assistant.tool_call_delta assistant.turn_end assistant.turn_retry "
    "assistant.turn_start assistant.usage function model.call_failure model.call_final_result model.call_finished "
    "model.call_start result session.background_tasks_changed session.error session.info session.mcp_servers_loaded "
    "session.skills_loaded session.tools_updated tool.execution_complete tool.execution_partial_result "
    "tool.execution_start tool.shell_output user.message",
    free="arguments toolTelemetry usage",
)


class CopilotStream(Parser):
    """Parses the events of a session, and the result, which contains the id of the session."""

    words = WORDS

    def read(self, line: Line) -> Iterator[steps.Step]:
        data = get_dict(line, "data")
        kind = get_text(line, "type")
        if kind.startswith(NEEDED):
            self.drift.need(line, "data", kind=dict)
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
            yield self.fail(self.drift.need_text(data, "message"), get_count(data, "statusCode"))
        elif kind == "result":
            if thread := get_text(line, "sessionId"):
                yield steps.Thread(thread)
            if self.drift.need(line, "exitCode", kind=int) == 0:
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
            if failed:
                self.drift.need_text(data, "error", "code")
            denied = failed and error.get("code") in ("denied", "rejected")
            yield from self.end_tool(number, text, failed=failed, diffs=diffs, denied=denied)


START = ("--output-format", "json", "--no-ask-user", "{options}", "--session-id={thread}")
PROFILE = Profile(
    name="copilot",
    start=START,
    resume=START,  # the same option resumes a conversation or begins one
    parser=CopilotStream,
    versions=Versions("1.0.102", "1.0.102"),
    permissions={"edit": ("--allow-tool=write",), "all": ("--allow-all",)},
    names_thread=True,
)
