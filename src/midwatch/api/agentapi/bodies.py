"""The bodies of requests, replies and events of agentapi. A model checks, writes and describes each body."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema
from typing_extensions import TypeAliasType

from midwatch.agents.terminal.format import BLANK
from midwatch.base.clock import SECOND, iso


def rfc3339(when: int) -> str:
    """Return a time in microseconds in the format of RFC 3339. The fraction is left out if it is zero."""
    text = iso(when) or ""
    return text.replace(".000000", "") if when % SECOND == 0 else text.rstrip("Z").rstrip("0") + "Z"


def check_text(text: str) -> str:
    """Return the text. Raise ValueError if the text has half of a surrogate pair, which UTF-8 cannot encode."""
    text.encode()
    return text


AgentStatus = TypeAliasType("AgentStatus", Literal["running", "stable"])
ConversationRole = TypeAliasType("ConversationRole", Literal["agent", "user"])
ErrorLevel = TypeAliasType("ErrorLevel", Literal["error", "warning"])
MessageType = TypeAliasType("MessageType", Literal["raw", "user"])
Transport = TypeAliasType("Transport", Literal["acp", "pty"])

AgentType = Annotated[str, Field(description="The type of the agent.")]
Int64 = Annotated[int, Field(json_schema_extra={"format": "int64"})]
Number = Annotated[Int64, Field(description="Number of the message in the conversation, from 0.")]
Ok = Annotated[bool, Field(description="Whether the request succeeded.")]
Role = Annotated[ConversationRole, Field(description="Author of the message.")]
Status = Annotated[AgentStatus, Field(description="`running` while the agent works, `stable` when it waits for input.")]
Time = Annotated[
    int,
    PlainSerializer(rfc3339),
    WithJsonSchema({"type": "string", "format": "date-time"}),
    Field(description="Time of the last change."),
]


class Body(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class LinkedBody(Body):
    """A body with the address of its schema."""

    schema_: Any = Field(
        default_factory=str,
        alias="$schema",
        description="Address of the schema of this object.",
        json_schema_extra={"type": "string", "format": "uri", "readOnly": True},
    )


class MessageRequestBody(LinkedBody):
    """A message for the agent, or keystrokes for its terminal."""

    content: Annotated[str, AfterValidator(check_text)] = Field(
        description="The text or the keystrokes.", json_schema_extra={"example": "Hello, agent!"}
    )
    type: MessageType = Field(
        description="`user`: a message for the agent; `raw`: keystrokes for its terminal, as they are."
    )

    @property
    def text(self) -> str:
        """Return the content to send. Keystrokes are unchanged; a message loses blanks at its start and end."""
        return self.content if self.type == "raw" else self.content.strip(BLANK)


class StatusResponseBody(LinkedBody):
    """The status of the agent, its type, and the connection to it."""

    status: Status
    agent_type: AgentType
    transport: Transport = Field(description="The connection to the agent.")


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
    """The reply to an uploaded file."""

    ok: Ok
    file_path: str = Field(alias="filePath", description="Path of the stored file.")


class ErrorDetail(Body):
    """One error in a request."""

    message: str = Field(default_factory=str, description="What is wrong.")
    location: str = Field(default_factory=str, description="Location in the request.")
    value: Any = Field(default_factory=str)


class ErrorModel(LinkedBody):
    """A problem document: the reply to a request that failed."""

    title: str = Field(default_factory=str, description="The HTTP status in words.")
    status: Int64 = Field(default_factory=int, description="The HTTP status.")
    detail: str = Field(default_factory=str, description="What went wrong.")
    errors: list[ErrorDetail] = Field(default_factory=list)
    instance: str = Field(default_factory=str, description="Not used.", json_schema_extra={"format": "uri"})
    type: str = Field("about:blank", description="Not used.", json_schema_extra={"format": "uri"})


class EventBody(Body):
    """An event of a stream. If the event is too long, the text in the field named by `long_field` is cut."""

    event: ClassVar[str]
    long_field: ClassVar[str | None] = None

    @property
    def subject(self) -> Hashable:
        """Return what the event is about. A later event with the same subject replaces this event."""
        return self.event


class MessageUpdateBody(EventBody):
    """A new or changed message."""

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
    """A new status of the agent."""

    event = "status_change"

    status: Status
    agent_type: AgentType


class ErrorBody(EventBody):
    """An error of the agent."""

    event = "agent_error"
    long_field = "message"

    message: str = Field(description="What went wrong.")
    level: ErrorLevel = Field(description="Severity.")
    time: Time

    @property
    def subject(self) -> Hashable:
        return self.event, self.time, self.message


class ScreenUpdateBody(EventBody):
    """The screen of the terminal."""

    event = "screen"
    long_field = "screen"

    screen: str = Field(description="The text on the screen.")


EVENTS: tuple[type[EventBody], ...] = (MessageUpdateBody, StatusChangeBody, ErrorBody)
"""The events of GET /events. The screen has a separate stream."""
