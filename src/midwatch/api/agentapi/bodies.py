"""The messages of the agentapi surface. One model checks, writes and describes each of them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema
from typing_extensions import TypeAliasType

from midwatch.agents.terminal.format import BLANK
from midwatch.base.clock import SECOND, iso


def rfc3339(when: int) -> str:
    """Return a time in the form that clients expect: with a fraction only if there is one."""
    text = iso(when) or ""
    return text.replace(".000000", "") if when % SECOND == 0 else text.rstrip("Z").rstrip("0") + "Z"


def check_text(text: str) -> str:
    """Return the text. Raise ValueError if it holds half a character, which JSON allows and UTF-8 does not."""
    text.encode()
    return text


AgentStatus = TypeAliasType("AgentStatus", Literal["running", "stable"])
ConversationRole = TypeAliasType("ConversationRole", Literal["agent", "user"])
ErrorLevel = TypeAliasType("ErrorLevel", Literal["error", "warning"])
MessageType = TypeAliasType("MessageType", Literal["raw", "user"])
Transport = TypeAliasType("Transport", Literal["acp", "pty"])

AgentType = Annotated[str, Field(description="What the agent is.")]
Int64 = Annotated[int, Field(json_schema_extra={"format": "int64"})]
Number = Annotated[Int64, Field(description="Place of the message in the conversation, from 0.")]
Ok = Annotated[bool, Field(description="Whether it was done.")]
Role = Annotated[ConversationRole, Field(description="Whose message it is.")]
Status = Annotated[AgentStatus, Field(description="`running` while the agent works, `stable` when it waits for input.")]
Time = Annotated[
    int,
    PlainSerializer(rfc3339),
    WithJsonSchema({"type": "string", "format": "date-time"}),
    Field(description="When it was written, or last changed."),
]


class Body(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class LinkedBody(Body):
    """A body with the address of its schema."""

    schema_: Any = Field(
        default_factory=str,
        alias="$schema",
        description="Where the schema of this object is.",
        json_schema_extra={"type": "string", "format": "uri", "readOnly": True},
    )


class MessageRequestBody(LinkedBody):
    """Something for the agent, or for its terminal."""

    content: Annotated[str, AfterValidator(check_text)] = Field(
        description="What to send.", json_schema_extra={"example": "Hello, agent!"}
    )
    type: MessageType = Field(
        description="`user`: a message for the agent; `raw`: keystrokes for its terminal, as they are."
    )

    @property
    def text(self) -> str:
        """Return what is sent: keystrokes as they are, a message without the blanks around it."""
        return self.content if self.type == "raw" else self.content.strip(BLANK)


class StatusResponseBody(LinkedBody):
    """What the agent does now."""

    status: Status
    agent_type: AgentType
    transport: Transport = Field(description="How the agent is driven.")


class Message(Body):
    """One message of the conversation."""

    id: Number
    content: str = Field(description="The text of the message.")
    role: Role
    time: Time


class MessagesResponseBody(LinkedBody):
    """The whole conversation."""

    messages: list[Message]


class MessageResponseBody(LinkedBody):
    """The reply to a message."""

    ok: Ok


class UploadResponseBody(LinkedBody):
    """The reply to a file."""

    ok: Ok
    file_path: str = Field(alias="filePath", description="Where the file is now.")


class ErrorDetail(Body):
    """One thing that is wrong with a request."""

    message: str = Field(default_factory=str, description="What is wrong.")
    location: str = Field(default_factory=str, description="Where in the request.")
    value: Any = Field(default_factory=str)


class ErrorModel(LinkedBody):
    """A problem document."""

    title: str = Field(default_factory=str, description="The HTTP status in words.")
    status: Int64 = Field(default_factory=int, description="The HTTP status.")
    detail: str = Field(default_factory=str, description="What went wrong.")
    errors: list[ErrorDetail] = Field(default_factory=list)
    instance: str = Field(default_factory=str, description="Not used.", json_schema_extra={"format": "uri"})
    type: str = Field("about:blank", description="Not used.", json_schema_extra={"format": "uri"})


class EventBody(Body):
    """An event of a stream. Its `long_field` is cut if the event is too long."""

    event: ClassVar[str]
    long_field: ClassVar[str | None] = None

    @property
    def subject(self) -> Hashable:
        """Return what the event is about. A later event with the same subject replaces it."""
        return self.event


class MessageUpdateBody(EventBody):
    """A message that is new, or not as it was."""

    event = "message_update"
    long_field = "message"

    id: Number
    role: Role
    message: str = Field(description="The text of the message so far.")
    time: Time

    @property
    def subject(self) -> Hashable:
        return self.event, self.id


class StatusChangeBody(EventBody):
    """What the agent does now."""

    event = "status_change"

    status: Status
    agent_type: AgentType


class ErrorBody(EventBody):
    """Something that went wrong."""

    event = "agent_error"
    long_field = "message"

    message: str = Field(description="What went wrong.")
    level: ErrorLevel = Field(description="How bad it is.")
    time: Time

    @property
    def subject(self) -> Hashable:
        return self.event, self.time, self.message


class ScreenUpdateBody(EventBody):
    """What the terminal shows now."""

    event = "screen"
    long_field = "screen"

    screen: str = Field(description="What the terminal shows.")


EVENTS: tuple[type[EventBody], ...] = (MessageUpdateBody, StatusChangeBody, ErrorBody)
"""The events of GET /events; the screen has a stream of its own."""
