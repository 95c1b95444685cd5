"""Claude Code: `claude -p --output-format stream-json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from midwatch.agents.streams import steps
from midwatch.agents.streams.base import Line, Parser, Profile, map_modes
from midwatch.agents.streams.drift import Versions, Words
from midwatch.agents.streams.reading import add_counts, get_count, get_dict, get_dicts, get_text, join_text, read_patch
from midwatch.base.clock import SECOND

WORDS = Words.of(
    "additional_directories agents analytics_disabled apiKeySource api_error api_error_params api_error_status "
    "api_error_type api_message_id attempt capabilities claude_code_version compact_metadata container content "
    "content_block context_management cwd decision delta diagnostics duration_api_ms duration_ms error error_status "
    "errors estimated_tokens estimated_tokens_delta event fast_mode_disabled_reason fast_mode_state "
    "first_content_frame_ms id index is_api_error_message is_error max_retries mcp_servers message "
    "messaging_socket_path model name non_execution_kind num_turns original_cwd output_style parent_tool_use_id "
    "partial_json per_turn_effort_active permissionMode permission_decision permission_denials plugins "
    "product_feedback_disabled queued_turn_count reason_type request_id result result_index retry_delay_ms role "
    "safety_stops session_id signature skills slash_commands source status stop_details stop_reason stop_sequence "
    "terminal_reason terminal_slash_commands text thinking thinking_display thinking_duration_ms "
    "time_to_request_ms timestamp tool_name tool_result_meta tool_use_id tools total_cost_usd ttft_ms "
    "ttft_stream_ms ultrathink_available ultrathink_typed_raises uuid view_mode data title citations path "
    "isReplay isSynthetic hook_id hook_name hook_event output exit_code stdout stderr outcome",
    "assistant citations_delta content_block_delta content_block_start content_block_stop document image "
    "input_json_delta message message_delta message_start message_stop rate_limit_event redacted_thinking result "
    "server_tool_use signature_delta stream_event system text text_delta thinking thinking_delta tool_progress "
    "tool_result tool_use user web_search_tool_result ping",
    free="input tool_input tool_use_result usage modelUsage model_usage_since_last_result rate_limit_info "
    "subagent_stats subtype command memory_paths",
)


class ClaudeStream(Parser):
    """Parses the messages of the model and of the tools, and the result at the end."""

    words = WORDS
    version_field = "claude_code_version"

    def __init__(self) -> None:
        super().__init__()
        self._thread: str | None = None
        self._resets_at: int | None = None
        self._answering: dict[str, Any] = {}
        self._tasks: dict[str, dict[str, Any]] = {}

    def read(self, line: Line) -> Iterator[steps.Step]:
        if (thread := get_text(line, "session_id")) and thread != self._thread:
            self._thread = thread
            yield steps.Thread(thread)
        match line.get("type"):
            case "system":
                yield from self._system(line)
            case "stream_event" if not line.get("parent_tool_use_id"):
                yield from self._piece(get_dict(line, "event"))
            case "assistant" if not self._synthetic(line):
                yield from self._assistant(line)
            case "user":
                yield from self._user(line)
            case "rate_limit_event":
                limits = get_dict(line, "rate_limit_info")
                if limits.get("status") == "rejected" and (when := get_count(limits, "resetsAt")) is not None:
                    self._resets_at = when * SECOND
            case "result":
                yield from self._result(line)

    def _system(self, line: Line) -> Iterator[steps.Step]:
        match line.get("subtype"):
            case "init" if model := get_text(line, "model"):
                yield steps.Model(model)
            case "permission_denied":
                yield from _report_denial(line)
            case "api_retry":
                status, reason = get_count(line, "error_status"), get_text(line, "error")
                known_reason = reason if reason != "unknown" else ""
                cause = f" ({known_reason or status})" if known_reason or status else ""
                message = f"claude tries again{cause}, attempt {line.get('attempt')} of {line.get('max_retries')}"
                pause = get_count(line, "retry_delay_ms")
                fault = self.fault(reason, status=status, resets_at=self._resets_at)
                yield steps.Retry(message=message, fault=fault, seconds=None if pause is None else pause / 1000)

    def _piece(self, event: Line) -> Iterator[steps.Step]:
        match event.get("type"):
            case "message_start":
                message = get_dict(event, "message")
                self._answering = {"model": message.get("model"), **get_dict(message, "usage")}
            case "content_block_delta":
                delta = get_dict(event, "delta")
                if text := get_text(delta, "text"):
                    yield steps.TextPiece(text)
                if thought := get_text(delta, "thinking"):
                    yield steps.ThoughtPiece(thought)
            case "message_delta":
                self._answering |= get_dict(event, "usage")
                self._answering["reason"] = get_dict(event, "delta").get("stop_reason")
            case "message_stop" if self._answering:
                reply = self._answering
                model, reason = get_text(reply, "model") or None, get_text(reply, "reason") or None
                tokens = {"input_tokens": _count_input(reply), "output_tokens": get_count(reply, "output_tokens")}
                yield steps.Reply(model=model, finish_reason=reason, **tokens)

    def _synthetic(self, line: Line) -> bool:
        """Return whether the program itself wrote the message to report an error. Its result reports the same error."""
        return bool(line.get("is_api_error_message")) or get_dict(line, "message").get("model") == "<synthetic>"

    def _assistant(self, line: Line) -> Iterator[steps.Step]:
        inner = line.get("parent_tool_use_id")
        for block in get_dicts(line, "message", "content"):
            match block.get("type"):
                case "text" if not inner and (text := get_text(block, "text")):
                    yield steps.Text(text)
                case "thinking" if not inner and (thought := get_text(block, "thinking")):
                    yield steps.Thought(thought)
                case "tool_use":
                    name, arguments = get_text(block, "name"), block.get("input")
                    yield self.start_tool(get_text(block, "id"), name, arguments)
                    if name in ("TodoWrite", "todo_write"):
                        yield self.plan(get_dict(block, "input").get("todos"))

    def _user(self, line: Line) -> Iterator[steps.Step]:
        for block in get_dicts(line, "message", "content"):
            if block.get("type") != "tool_result":
                continue
            id, failed = get_text(block, "tool_use_id"), block.get("is_error") is True
            (name, arguments), result = self.find_tool(id), line.get("tool_use_result")
            yield from self.end_tool(id, join_text(block.get("content")), failed=failed, diffs=_read_patches(result))
            if not failed and self._update_plan(name, get_dict(arguments), get_dict(result)):
                yield self.plan(list(self._tasks.values()))

    def _update_plan(self, name: str, arguments: Line, result: Line) -> bool:
        """Update the to-do list after a tool call, and return whether the list changed."""
        if name == "TaskCreate":
            number = get_text(result, "task", "id") or str(len(self._tasks) + 1)
            self._tasks[number] = {"content": get_text(arguments, "subject"), "status": "pending"}
        elif name == "TaskUpdate" and (task := self._tasks.get(get_text(arguments, "taskId"))):
            task["status"] = arguments.get("status") or task["status"]
            if task["status"] == "deleted":
                del self._tasks[get_text(arguments, "taskId")]
        else:
            return False
        return True

    def _result(self, line: Line) -> Iterator[steps.Step]:
        usage = get_dict(line, "usage")
        yield steps.Spent(
            input_tokens=_count_input(usage), output_tokens=get_count(usage, "output_tokens"), cost_usd=_read_cost(line)
        )
        for denial in get_dicts(line, "permission_denials"):
            yield from _report_denial(denial)
        if not self.drift.need(line, "is_error", kind=bool):
            self.drift.need_text(line, "result")
            yield steps.Done(line["result"] if isinstance(line.get("result"), str) else None)
            return
        errors = [error for error in line.get("errors") or () if isinstance(error, str)]
        message = get_text(line, "result") or get_text(line, "error", "message") or "; ".join(errors)
        status = get_count(line, "api_error_status")
        if not message and line.get("subtype") in (None, "success", "error_during_execution"):
            self.drift.miss("result")
        text = message or f"it ended with {line.get('subtype') or 'an error'}"
        yield self.fail(text, status, self._resets_at)


def _report_denial(denial: Line) -> Iterator[steps.Step]:
    """Yield the step for a denied tool call, unless the tool only asks the user a question."""
    name = get_text(denial, "tool_name") or "a tool"
    if name not in ("AskUserQuestion", "ExitPlanMode"):
        yield steps.Denied(name)


def _count_input(usage: Line) -> int | None:
    """Return the number of input tokens, with those from the cache."""
    cached = (usage.get("cache_creation_input_tokens"), usage.get("cache_read_input_tokens"))
    return add_counts(usage.get("input_tokens"), *cached)


def _read_cost(line: Line) -> float | None:
    """Return the cost of this turn.

    The total cost and `modelUsage` also include earlier turns of the conversation. They are used only if the program
    does not report the usage since the last result, and if their tokens are those of this turn.
    """
    if models := get_dict(line, "model_usage_since_last_result"):
        return _add_figures(models, "costUSD")
    models, total = get_dict(line, "modelUsage"), line.get("total_cost_usd")
    tokens = _add_figures(models, "inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
    own = tokens > 0 and tokens == _count_input(get_dict(line, "usage"))
    return float(total) if own and isinstance(total, int | float) else None


def _add_figures(models: Line, *names: str) -> float:
    """Return the sum of these figures of all models."""
    figures = [get_dict(models, model).get(name) for model in models for name in names]
    return float(sum(figure for figure in figures if isinstance(figure, int | float)))


def _read_patches(result: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the patch in the structured result of a tool that changed a file."""
    hunks = list(get_dicts(result, "structuredPatch"))
    path = get_text(result, "filePath")
    if not hunks or not path:
        return ()
    lines = [f"--- a/{path.lstrip('/')}", f"+++ b/{path.lstrip('/')}"]
    for hunk in hunks:
        old, new = (f"{hunk.get(f'{side}Start')},{hunk.get(f'{side}Lines')}" for side in ("old", "new"))
        lines += [f"@@ -{old} +{new} @@", *(row for row in hunk.get("lines") or () if isinstance(row, str))]
    return (read_patch(path, "\n".join(lines) + "\n"),)


START = ("-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages", "{options}")
PROFILE = Profile(
    name="claude",
    start=START,
    resume=(*START, "--resume", "{thread}"),
    parser=ClaudeStream,
    versions=Versions("2.1.325", "2.1.325"),
    permissions=map_modes("--permission-mode", read="plan", edit="acceptEdits", all="bypassPermissions"),
)
