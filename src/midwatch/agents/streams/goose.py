"""Goose: `goose run --output-format stream-json`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from midwatch.agents.streams import steps
from midwatch.agents.streams.base import Line, Parser, Profile
from midwatch.agents.streams.drift import Versions, Words
from midwatch.agents.streams.reading import get_count, get_dict, get_dicts, get_text, join_text

ERROR_PREFIX = "Ran into this error:"
GAVE_UP = "Unable to continue:"  # the beginning of the notice that no answer will come

WORDS = Words.of(
    "agentVisible cache_read_input_tokens cache_write_input_tokens content created error id inference input_tokens "
    "isError kind message metadata msg name notificationType output_tokens provider requestedModel resultType role "
    "signature status text thinking toolCall toolResult total_tokens userVisible value",
    "complete error message notification redactedThinking systemNotification text thinking toolRequest toolResponse",
    free="_meta annotations arguments data structuredContent",
)


class GooseStream(Parser):
    """Parses messages that come in pieces. The pieces of one answer have the same id."""

    words = WORDS

    def __init__(self) -> None:
        super().__init__()
        self._message: str | None = None
        self._model: str | None = None
        self._failed = False

    def read(self, line: Line) -> Iterator[steps.Step]:
        match line.get("type"):
            case "message":
                yield from self._message_line(self.drift.need(line, "message", kind=dict))
            case "error" if not self._failed:
                yield self._failure(self.drift.need_text(line, "error"))
            case "complete":
                input, output = get_count(line, "input_tokens"), get_count(line, "output_tokens")
                yield steps.Spent(input_tokens=input or None, output_tokens=output or None, of_thread=True)
                if not self._failed:
                    yield steps.Done()

    def _failure(self, message: str) -> steps.Failed:
        self._failed = True
        return self.fail(message)

    def _message_line(self, message: Any) -> Iterator[steps.Step]:
        inference = get_dict(message, "metadata", "inference")
        if (model := get_text(inference, "requestedModel")) and model != self._model:
            self._model = model
            yield steps.Model(model)
        if get_text(message, "id") != self._message:
            self._message = get_text(message, "id")
            yield steps.TextEnd()
        self.drift.need(message, "content", kind=list)
        for block in get_dicts(message, "content"):
            yield from self._block(block, by_model=bool(inference))

    def _block(self, block: Line, *, by_model: bool) -> Iterator[steps.Step]:
        match block.get("type"):
            case "text" if text := self.drift.need_text(block, "text"):
                if text.startswith(ERROR_PREFIX) and not by_model:
                    yield self._failure(text)
                else:
                    yield steps.TextPiece(text)
            case "thinking" if thought := get_text(block, "thinking"):
                yield steps.ThoughtPiece(thought)
            case "error":
                yield self._failure(self.drift.need_text(block, "message"))
            case "systemNotification":
                notice = get_text(block, "msg")
                yield self._failure(notice) if notice.startswith(GAVE_UP) else steps.Note(notice)
            case "toolRequest":
                call = get_dict(block, "toolCall", "value")
                name = get_text(call, "name") or "a tool"
                yield self.start_tool(get_text(block, "id"), name, call.get("arguments"))
            case "toolResponse":
                result = get_dict(block, "toolResult")
                value = get_dict(result, "value")
                failed = result.get("status") != "success" or value.get("isError") is True
                text_result = join_text(value.get("content")) or get_text(result, "error")
                yield from self.end_tool(get_text(block, "id"), text_result, failed=failed)


START = ("run", "--quiet", "--output-format", "stream-json", "{options}", "--instructions", "-", "--name", "{thread}")
PROFILE = Profile(
    name="goose",
    start=START,
    resume=(*START, "--resume"),
    parser=GooseStream,
    versions=Versions("1.52.0", "1.52.0"),
    permissions={"read": (), "all": ()},
    permission_env={"read": {"GOOSE_MODE": "chat"}, "all": {"GOOSE_MODE": "auto"}},
    env={"GOOSE_PROVIDER_SKIP_BACKOFF": "true"},  # without it the program waits silently for a limit, however long
    names_thread=True,
)
