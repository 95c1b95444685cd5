"""Calls one model of one provider: opens the connection, streams the answer, and classifies failures."""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from midwatch.agents.base import cancel, message_id
from midwatch.agents.llm.options import LlmOptions
from midwatch.agents.streams.faults import find_reset_time
from midwatch.base.clock import SECOND
from midwatch.base.errors import AgentError, BadConfig, MidwatchError, TransientError, UsageLimit
from midwatch.base.text import cut
from midwatch.domain.agent import Turn
from midwatch.domain.event import LlmDelta, LlmRetry, MessageDelta, ThoughtDelta
from midwatch.programs.process import wait_within

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.providers import Provider

EXTRA = "kind llm needs pydantic-ai: pip install 'midwatch[llm]'"
KEYS: Mapping[str, tuple[str, ...]] = {
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    "openai-chat": ("OPENAI_API_KEY",),
    "openai-responses": ("OPENAI_API_KEY",),
    **{
        provider: (f"{provider.upper()}_API_KEY",)
        for provider in ("anthropic", "deepseek", "groq", "mistral", "openai", "openrouter", "xai")
    },
}
"""The environment variables that contain the API keys of common providers. So a missing key is reported early."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a retry: doubled each time, half of it random
PATIENCE = 60.0  # longest wait that a provider may request; for a longer one the task releases its slot
SHOWN_EVERY = 0.05
ERROR_SHOWN = 500
VISIBLE = re.compile(r"[!-~]+")  # characters that a key may have
SHORTEST_KEY = 8
LONGEST_NAME = 64
OTHER_THAN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
"""Characters that a tool name must not have. Models sometimes use them, but providers refuse such a conversation."""

FaultKind = Literal["limit", "quota", "passing", "context", "refused"]


class Fault(Exception):
    """A failed model call and the kind of failure. `refused` and `quota` are not retried: they would fail again."""

    def __init__(self, kind: FaultKind, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.kind, self.text, self.wait = kind, text, wait


class Connection:
    """The connection to a model. It is opened at the first use, and all turns of the agent share it."""

    def __init__(self, agent: str, model: str, base_url: str | None, api_key_env: str | None) -> None:
        self.name = model
        self._agent = agent
        self._base_url = base_url
        self._key = api_key_env
        self._model: Model | None = None
        self._making = asyncio.Lock()

    def problem(self) -> str | None:
        """Return the reason why the model cannot be used here, or None. The check is fast: it loads no library."""
        if find_spec("pydantic_ai") is None:
            return EXTRA
        variables, keys = self._key_variables(), self._keys()
        if not keys and variables and (self._key or not self._base_url):
            return f"the API key is missing: set {' or '.join(variables)} in the environment of midwatch"
        for name, key in keys.items():
            if not VISIBLE.fullmatch(key):  # clients refuse to send such a key, and some print it in the error
                return f"the key in {name} has a space, a line break or another invalid character: set it again"
        return None

    def _key_variables(self) -> tuple[str, ...]:
        """Return the names of the environment variables that may contain the API key."""
        return (self._key,) if self._key else KEYS.get(self.name.partition(":")[0], ())

    def _keys(self) -> dict[str, str]:
        """Return the API keys that are set, by the name of their environment variable."""
        return {name: key for name in self._key_variables() if (key := os.environ.get(name))}

    def hide(self, text: str) -> str:
        """Replace the API key in an error message by the name of its variable, because many people can read events."""
        for name, key in self._keys().items():
            if len(key) >= SHORTEST_KEY:  # a short placeholder key may occur in other words
                text = text.replace(key, f"({name})")
        return text

    async def model(self) -> Model:
        """Return the model. The first call loads the library in a Python thread, because this takes time."""
        async with self._making:
            if self._model is None:
                if problem := self.problem():
                    error = BadConfig if problem == EXTRA else AgentError
                    raise error(f"agent {self._agent!r}: {problem}.")
                self._model = await asyncio.to_thread(self._make)
            return self._model

    def _make(self) -> Model:
        import pydantic_ai.direct  # noqa: F401 - loaded here, in a thread
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model

        name = self.name
        if self._base_url and name.startswith("openai:"):  # compatible servers have only the older interface
            name = name.replace("openai:", "openai-chat:", 1)
        try:
            return infer_model(name, self._provider)
        except ImportError as problem:
            raise AgentError(f"agent {self._agent!r}: {problem}") from problem
        except (UserError, ValueError, TypeError) as problem:
            reason = cut(str(problem).partition(" To try Pydantic AI")[0], ERROR_SHOWN)
            raise AgentError(f"agents.{self._agent}.model: {reason}") from problem

    def _provider(self, name: str) -> Provider[Any]:
        from pydantic_ai.providers import infer_provider, infer_provider_class

        arguments = {"base_url": self._base_url} if self._base_url else {}
        if self._key:
            arguments["api_key"] = os.environ[self._key]
        elif self._base_url and name in KEYS and not any(os.environ.get(key) for key in KEYS[name]):
            arguments["api_key"] = "none"  # own servers often need no key, but clients require one
        return infer_provider_class(name)(**arguments) if arguments else infer_provider(name)


class Live:
    """Shows an answer while it arrives."""

    def __init__(self, turn: Turn, request_id: str, number: int) -> None:
        self.usage: Any = None
        self._turn = turn
        self._request = request_id
        self._ids = f"{message_id(turn)}.{number}", f"{message_id(turn)}.t{number}"
        self._shown = [0, 0]
        self._new: tuple[list[str], list[str]] = ([], [])
        self._news, self._over = asyncio.Event(), asyncio.Event()

    def take(self, event: ModelResponseStreamEvent) -> None:
        """Add a piece of the answer."""
        from pydantic_ai import messages

        texts, thoughts = self._new
        match event:
            case messages.PartStartEvent(part=messages.TextPart(content=text)):
                texts.append(text)
            case messages.PartStartEvent(part=messages.ThinkingPart(content=thought)):
                thoughts.append(thought)
            case messages.PartDeltaEvent(delta=messages.TextPartDelta(content_delta=text)):
                texts.append(text)
            case messages.PartDeltaEvent(delta=messages.ThinkingPartDelta(content_delta=thought)):
                thoughts.append(thought or "")
        self._news.set()

    @asynccontextmanager
    async def show_pieces(self) -> AsyncIterator[None]:
        """Emit new pieces regularly while the `async with` block runs, and the remaining pieces at its end."""
        self._over.clear()
        shown = asyncio.create_task(self._show_all())
        try:
            yield
            self._over.set()
            self._news.set()
            await shown
        finally:
            await cancel(shown)

    async def _show_all(self) -> None:
        while not self._over.is_set():
            await self._news.wait()
            self._news.clear()
            await self._show()
            await wait_within(SHOWN_EVERY, self._over)
        await self._show()

    async def _show(self) -> None:
        text, thought = (join_halves("".join(new)) for new in self._new)
        if not text and not thought:
            return
        offset, thought_offset = self._shown
        self._shown = [offset + len(text), thought_offset + len(thought)]
        for new in self._new:
            new.clear()
        event = LlmDelta(content_delta_len=len(text), reasoning_delta_len=len(thought), request_id=self._request)
        await self._turn.emit(event)
        if text:
            await self._turn.emit(MessageDelta(message_id=self._ids[0], offset=offset, text=text))
        if thought:
            await self._turn.emit(ThoughtDelta(thought_id=self._ids[1], offset=thought_offset, text=thought))

    async def discard(self) -> None:
        """Empty the text that people see, because the model begins its answer again."""
        for new in self._new:
            new.clear()
        if self._shown[0]:
            await self._turn.emit(MessageDelta(message_id=self._ids[0], offset=0, text=""))
        if self._shown[1]:
            await self._turn.emit(ThoughtDelta(thought_id=self._ids[1], offset=0, text=""))
        self._shown = [0, 0]


class Caller:
    """Calls a model, and retries temporary failures."""

    def __init__(self, model: Model, turn: Turn, options: LlmOptions, hide: Callable[[str], str]) -> None:
        self._model = model
        self._turn = turn
        self._hide = hide
        self._retries, self._silence = options.retries, options.silence
        configured = {"temperature": options.temperature, "max_tokens": options.max_tokens}
        self.settings = {name: value for name, value in configured.items() if value is not None}

    async def call(
        self, messages: list[ModelMessage], params: ModelRequestParameters, settings: Mapping[str, Any], live: Live,
        request_id: str,
    ) -> ModelResponse:  # fmt: skip
        """Call the model and return its answer. Retry temporary failures.

        Raise Fault with the kind `context` if the request is too long for the model. After other failures, raise
        AgentError, TransientError or UsageLimit.
        """
        attempt = 0
        while True:
            try:
                return await self._call_once(messages, params, settings, live)
            except Fault as fault:
                await live.discard()
                attempt += 1
                pause = _choose_pause(fault, attempt)
                if fault.kind == "context":
                    raise
                if fault.kind in ("refused", "quota") or attempt > self._retries or pause > PATIENCE:
                    raise _convert_fault(fault) from fault
                event = LlmRetry(
                    attempt=attempt, max_retries=self._retries, reason=fault.kind, error=fault.text,
                    backoff=round(pause, 3), request_id=request_id,
                )  # fmt: skip
            await self._turn.emit(event)
            await asyncio.sleep(pause)

    async def _call_once(
        self, messages: list[ModelMessage], params: ModelRequestParameters, chosen: Mapping[str, Any], live: Live
    ) -> ModelResponse:
        from pydantic_ai.direct import model_request_stream

        settings: Any = {**chosen, "max_retries": 0}
        try:
            async with asyncio.timeout(self._silence) as watch:
                stream = model_request_stream(
                    self._model, messages, model_settings=settings, model_request_parameters=params
                )
                async with live.show_pieces(), stream as answer:
                    try:
                        async for event in answer:
                            watch.reschedule(asyncio.get_running_loop().time() + self._silence)
                            live.take(event)
                    finally:
                        live.usage = answer.usage
                response = answer.get()
        except MidwatchError:
            raise
        except Exception as problem:
            raise _judge(problem, self._model.model_name, self._silence, self._hide) from problem
        _check(response, chat=any(base.__name__ == "OpenAIChatModel" for base in type(self._model).__mro__))
        return _clean(response)


def _choose_pause(fault: Fault, attempt: int) -> float:
    """Return the seconds to wait before the next call: what the provider requests, or a random time that grows."""
    if fault.wait is not None:
        return fault.wait * random.uniform(1.0, 1.1)  # noqa: S311 - nothing secret depends on it
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)  # noqa: S311


def _convert_fault(fault: Fault) -> AgentError:
    """Convert the fault of a model call to the error that the turn ends with."""
    if fault.kind in ("limit", "quota"):
        reset = None if fault.wait is None else time.time_ns() // 1000 + int(fault.wait * SECOND)
        return UsageLimit(fault.text, resets_at=reset)
    return TransientError(fault.text) if fault.kind == "passing" else AgentError(fault.text)


def _check(response: ModelResponse, *, chat: bool) -> None:
    """Raise Fault if an answer is empty or not complete.

    With `chat`, the older interface of OpenAI, the library reports an incomplete answer as complete. So this is checked
    in another way.
    """
    cut_off = chat and "finish_reason" not in (response.provider_details or {})
    if cut_off or response.finish_reason is None or response.state == "incomplete":
        raise Fault("passing", "the model's answer is incomplete")
    if not response.tool_calls and not (response.text or "").strip():
        if response.finish_reason == "content_filter":
            raise Fault("refused", "the provider's content filter blocked the answer; change the words of the prompt.")
        if response.finish_reason == "length":
            raise Fault("refused", "the model used all its tokens for thinking; increase `max_tokens`.")
        raise Fault("passing", "the answer of the model was empty")


def join_halves(text: str) -> str:
    """Return text that can be sent and stored. Join surrogate pairs, replace single surrogates, remove NULs."""
    if text.isascii():
        return text.replace("\0", "")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "")


def _clean(response: ModelResponse) -> ModelResponse:
    """Return the answer with texts and tool names that can be stored and sent back to the provider."""
    parts: list[Any] = []
    part: Any
    for part in response.parts:
        for name in (field.name for field in fields(part)):
            text = getattr(part, name)
            if isinstance(text, str) and (clean_text := join_halves(text)) != text:
                part = replace(part, **{name: clean_text})
        if part.part_kind == "tool-call":
            named = OTHER_THAN_NAMES.sub("_", part.tool_name)[:LONGEST_NAME] or "_"
            part = part if named == part.tool_name else replace(part, tool_name=named)
        parts.append(part)
    return replace(response, parts=parts)


def _judge(problem: Exception, model: str, silence: float, hide: Callable[[str], str]) -> Fault:
    """Classify an exception that a model call raised, and return it as a Fault."""
    from pydantic_ai import exceptions as known

    text = _error_text(problem, hide)
    match problem:
        case TimeoutError() if not isinstance(problem, known.ModelAPIError):
            return Fault("passing", f"the model was silent for {silence:g} s")
        case known.ModelContextWindowExceededError():
            return Fault("context", f"the request is too long for the model: {text}")
        case known.ModelAuthenticationError():
            return Fault("refused", f"the provider refused the API key: {text}; check the key and its permissions.")
        case known.ModelNotFoundError():
            return Fault(
                "refused", f"the provider does not know the model {model!r}: {text}; correct `model` or `base_url`."
            )
        case known.ModelRateLimitError():
            return Fault("limit", f"the provider's limit is reached: {text}", _seconds_to_wait(problem, text))
        case known.ModelQuotaExceededError() if (wait := _seconds_to_wait(problem, text)) is not None:
            return Fault("limit", f"the provider's limit is reached: {text}", wait)  # such as the quota of a day
        case known.ModelQuotaExceededError():
            return Fault("quota", f"the quota of the account is used up: {text}; check the account's plan.")
        case known.ModelUnavailableError() | known.ModelServerError() | known.ModelRequestTimeout():
            return Fault("passing", f"the provider failed: {text}", problem.retry_after)
        case known.ModelConnectionError():
            return Fault("passing", f"the provider was not reached, or broke off: {text}")
        case known.ModelHTTPError():
            kind: FaultKind = "passing" if problem.status_code >= 500 or problem.status_code == 408 else "refused"
            return Fault(kind, f"the provider refused the request: {text}")
        case known.ModelRequestRejectedError() | known.UserError():
            return Fault("refused", f"the request was refused: {text}")
        case known.ModelAPIError() | known.UnexpectedModelBehavior() | OSError():
            return Fault("passing", f"the model call failed: {text}")
    if "Transport" in {base.__name__[:9] for base in type(problem).__mro__}:  # the HTTP library depends on the provider
        return Fault("passing", f"the provider was not reached, or broke off: {text}")
    return Fault("refused", f"the model call failed: {type(problem).__name__}: {text}")


def _seconds_to_wait(problem: Any, text: str) -> float | None:
    """Return the seconds until the provider's usage limit ends; None if the provider does not tell."""
    if problem.retry_after is not None:
        return float(problem.retry_after)
    now = time.time_ns() // 1000
    reset = find_reset_time(f"{text} {problem.body}", now)
    return None if reset is None else max(0.0, (reset - now) / SECOND)


def _error_text(problem: Exception, hide: Callable[[str], str]) -> str:
    """Return the provider's error message in one line, without the API key."""
    body: Any = getattr(problem, "body", None)
    error = body.get("error", body) if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    text = message if isinstance(message, str) and message else str(problem)
    status = getattr(problem, "status_code", None)
    line = " ".join(hide(text).split()).rstrip(".")
    return cut(f"{line} ({status})" if status else line, ERROR_SHOWN)
