"""Goose: `goose run --output-format stream-json`."""

from __future__ import annotations

from collections.abc import Iterator

from midwatch.agents.streams import steps
from midwatch.agents.streams.base import Line, Parser, Profile
from midwatch.agents.streams.reading import part, parts, text_of, whole_number, words

TROUBLE = "Ran into this error:"


class GooseStream(Parser):
    """Messages in pieces; those of one answer have one id."""

    def __init__(self) -> None:
        super().__init__()
        self._message: str | None = None
        self._model: str | None = None
        self._failed = False

    def read(self, line: Line) -> Iterator[steps.Step]:
        match line.get("type"):
            case "message":
                yield from self._message_line(part(line, "message"))
            case "error" if not self._failed:
                yield self._failure(words(line.get("error")) or "its turn failed")
            case "complete":
                sent, made = whole_number(line.get("input_tokens")), whole_number(line.get("output_tokens"))
                yield steps.Spent(input_tokens=sent or None, output_tokens=made or None, of_thread=True)
                if not self._failed:
                    yield steps.Done()

    def _failure(self, said: str) -> steps.Failed:
        self._failed = True
        return steps.Failed(self.fault(said))

    def _message_line(self, message: Line) -> Iterator[steps.Step]:
        inference = part(message, "metadata", "inference")
        if (model := words(inference.get("requestedModel"))) and model != self._model:
            self._model = model
            yield steps.Model(model)
        if message.get("id") != self._message:
            self._message = words(message.get("id"))
            yield steps.TextEnd()
        for block in parts(message.get("content")):
            yield from self._block(block, by_model=bool(inference))

    def _block(self, block: Line, *, by_model: bool) -> Iterator[steps.Step]:
        match block.get("type"):
            case "text" if text := words(block.get("text")):
                if text.startswith(TROUBLE) and not by_model:
                    yield self._failure(text)
                else:
                    yield steps.TextPiece(text)
            case "thinking" if thought := words(block.get("thinking")):
                yield steps.ThoughtPiece(thought)
            case "error":
                yield self._failure(words(block.get("message")))
            case "systemNotification":
                yield steps.Note(words(block.get("msg")))
            case "toolRequest":
                call = part(block, "toolCall", "value")
                name = words(call.get("name")) or "a tool"
                yield self.start_tool(words(block.get("id")), name, call.get("arguments"))
            case "toolResponse":
                told = part(block, "toolResult")
                value = part(told, "value")
                failed = told.get("status") != "success" or value.get("isError") is True
                said = text_of(value.get("content")) or words(told.get("error"))
                yield from self.end_tool(words(block.get("id")), said, failed=failed)


START = ("run", "--quiet", "--output-format", "stream-json", "{options}", "--instructions", "-", "--name", "{thread}")
PROFILE = Profile(
    name="goose",
    start=START,
    resume=(*START, "--resume"),
    parser=GooseStream,
    known_version="1.52.0",
    permissions={"read": (), "all": ()},
    permission_env={"read": {"GOOSE_MODE": "chat"}, "all": {"GOOSE_MODE": "auto"}},
    names_thread=True,
)
