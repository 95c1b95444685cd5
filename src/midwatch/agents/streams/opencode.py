"""opencode: `opencode run --format json`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from midwatch.agents.streams import steps
from midwatch.agents.streams.base import Line, Parser, Profile
from midwatch.agents.streams.drift import Versions, Words
from midwatch.agents.streams.reading import add_counts, get_count, get_dict, get_text, read_patch

LOGGED_ERROR = re.compile(r'(?>.*?level=ERROR )(?>.*?message="stream error").* error\.error="(?P<why>[^"]*)"')


NEEDED = ("text", "tool_use", "step_finish")
WORDS = Words.of(
    "attachments callID cost data error id isRetryable message messageID name output part raw reason responseBody "
    "responseHeaders sessionID snapshot state status statusCode text timestamp title tool",
    "error reasoning step-finish step-start step_finish step_start text tool tool_use",
    free="input metadata time tokens",
)


class OpencodeStream(Parser):
    """Parses parts of messages. The program prints no result; the last part shows whether the turn is complete."""

    words = WORDS

    def __init__(self) -> None:
        super().__init__()
        self._thread: str | None = None
        self._last_reason: str | None = None

    def read(self, line: Line) -> Iterator[steps.Step]:
        if (thread := get_text(line, "sessionID")) and thread != self._thread:
            self._thread = thread
            yield steps.Thread(thread)
        part = get_dict(line, "part")
        if line.get("type") in NEEDED:
            self.drift.need(line, "part", kind=dict)
        match line.get("type"):
            case "text":
                yield steps.Text(self.drift.need_text(part, "text"))
            case "reasoning":
                yield steps.Thought(get_text(part, "text"))
            case "tool_use":
                yield from self._tool(part)
            case "step_finish":
                yield from self._step(part)
            case "error":
                yield self._failure(line)

    def read_error(self, line: str) -> Iterator[steps.Step]:
        """Yield a step for each failed model call. The program reports them only on standard error."""
        if match := LOGGED_ERROR.match(line):
            reason = match["why"]
            yield steps.Retry(message=f"opencode tries again: {reason}", fault=self.fault(reason))

    def end(self) -> Iterator[steps.Step]:
        if self._last_reason not in (None, "tool-calls"):
            yield steps.Done()

    def _failure(self, line: Line) -> steps.Failed:
        data = self.drift.need(line, "error", "data", kind=dict)
        message = self.drift.need_text(data, "message") if data else ""  # some errors have only a name
        return self.fail(message or get_text(line, "error", "name"), get_count(data, "statusCode"))

    def _tool(self, part: Line) -> Iterator[steps.Step]:
        name, number, state = get_text(part, "tool"), get_text(part, "callID"), get_dict(part, "state")
        arguments, failed = state.get("input"), self.drift.need(state, "status") == "error"
        title = get_text(state, "title")
        yield self.start_tool(number, name, arguments, f"{name}: {title}" if title else None)
        if name == "todowrite":
            yield self.plan(get_dict(arguments).get("todos"))
        diff, path = get_text(state, "metadata", "diff"), get_text(arguments, "filePath")
        diffs = (read_patch(path, diff),) if diff else ()
        result = self.drift.need_text(state, "error") if failed else get_text(state, "output")
        begun, ended = (get_count(get_dict(state, "time").get(edge)) for edge in ("start", "end"))
        seconds = None if begun is None or ended is None else max(0, ended - begun) / 1000
        denied = failed and "permission" in result.lower()
        yield from self.end_tool(number, result, failed=failed, diffs=diffs, denied=denied, seconds=seconds)

    def _step(self, part: Line) -> Iterator[steps.Step]:
        self._last_reason = self.drift.need_text(part, "reason") or None
        tokens, cost = get_dict(part, "tokens"), part.get("cost")
        cached = get_dict(tokens, "cache")
        input = add_counts(tokens.get("input"), cached.get("read"), cached.get("write"))
        output = add_counts(tokens.get("output"), tokens.get("reasoning"))
        yield steps.Reply(input_tokens=input, output_tokens=output, finish_reason=self._last_reason)
        yield steps.Spent(
            input_tokens=input, output_tokens=output, cost_usd=float(cost) if isinstance(cost, int | float) else None
        )


START = ("run", "--format", "json", "--thinking", "--print-logs", "--log-level", "ERROR", "{options}")
PROFILE = Profile(
    name="opencode",
    start=START,
    resume=(*START, "--session", "{thread}"),
    parser=OpencodeStream,
    versions=Versions("1.18.33", "1.18.33"),
    permissions={"read": ("--agent", "plan"), "all": ("--auto",)},
)
