"""Qwen Code: its output is similar to the output of Claude Code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from midwatch.agents.streams import steps
from midwatch.agents.streams.base import Line, Profile, map_modes
from midwatch.agents.streams.claude import ClaudeStream
from midwatch.agents.streams.drift import Versions, Words
from midwatch.agents.streams.faults import Fault
from midwatch.agents.streams.reading import get_dict, get_text, read_tokens

ERROR_PREFIX = "[API Error:"
WAITING = re.compile(r"\[qwen-code\] Waiting for API capacity\.{3} attempt \d+, retry in (\d+)s")


WORDS = Words.of(
    "agents content content_block cwd data delta duration_api_ms duration_ms error event id index is_error "
    "mcp_servers message model name num_turns parent_tool_use_id partial_json permission_denials permission_mode "
    "qwen_code_version result role session_id signature slash_commands stop_reason text thinking tool_name "
    "tool_use_id tools uuid",
    "assistant content_block_delta content_block_start content_block_stop goal_state input_json_delta message "
    "message_start message_stop result stream_event system text text_delta thinking thinking_delta tool_result "
    "tool_use user",
    free="input usage goal_state tool_input subtype",
)


class QwenStream(ClaudeStream):
    """Parses messages, each of which reports its usage. The usage in the result is for the whole conversation."""

    words = WORDS
    version_field = "qwen_code_version"

    def read(self, line: Line) -> Iterator[steps.Step]:
        for step in super().read(line):
            if isinstance(step, steps.Spent):
                yield steps.Spent(input_tokens=step.input_tokens, output_tokens=step.output_tokens, of_thread=True)
            elif isinstance(step, steps.TextPiece) and step.text.startswith(ERROR_PREFIX):
                continue  # the result reports the error, too
            elif not isinstance(step, steps.Reply):
                yield step
        message = get_dict(line, "message")
        usage = get_dict(message, "usage")
        if line.get("type") == "assistant" and usage.get("total_tokens"):
            model, reason = get_text(message, "model") or None, get_text(message, "stop_reason") or None
            yield steps.Reply(**read_tokens(usage), model=model, finish_reason=reason)

    def read_error(self, line: str) -> Iterator[steps.Step]:
        """Yield a step for a usage limit. The program waits for its end, and says so only on standard error."""
        if match := WAITING.match(line):
            reason = f"qwen waits for the end of a usage limit, {match[1]} s more"
            yield steps.Retry(message=reason, fault=Fault("limit", reason), seconds=float(match[1]))

    def _synthetic(self, line: Line) -> bool:
        content = get_dict(line, "message").get("content")
        first = content[0] if isinstance(content, list) and content else None
        return get_text(first, "text").startswith(ERROR_PREFIX)


START = ("--output-format", "stream-json", "--include-partial-messages", "{options}")
PROFILE = Profile(
    name="qwen",
    start=START,
    resume=(*START, "--resume", "{thread}"),
    parser=QwenStream,
    versions=Versions("0.24.4", "0.24.4"),
    permissions=map_modes("--approval-mode", read="plan", edit="auto-edit", all="yolo"),
    env={
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        "QWEN_CODE_UNATTENDED_RETRY": "1",  # without it the program does not say that it waits for a usage limit
    },
)
