"""A fake model for Anthropic Messages, OpenAI Chat and Responses, and Gemini on one loopback port.

The prompt contains the script of its answers, see `fakes.script`. A key that begins with "bad" is refused, and a model
that begins with "no-such" is unknown. As a program:
`PYTHONPATH=tests python -m fakes.model_server --port 8099`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from types import ModuleType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fakes import anthropic, gemini, openai_chat, openai_responses
from fakes.script import Call, Command, Json, ModelRequest, Step, Text, Thought, clean, sample, script, tool_call

MODELS = ("fake-model", "claude-sonnet-4-5", "gemini-2.5-pro", "gpt-5")
LONGEST_HOLD = 300.0
EXCEEDED = {
    "limit": "This request would exceed your account's rate limit.",
    "quota": "You exceeded your current quota, please check your plan and billing details.",
}
FAILURES = {"400": "The value of `messages` is invalid.", "529": "Overloaded"}
"""Texts of errors by status."""
TOO_LONG = (
    "prompt is too long: {0} tokens > {1} maximum; this model's maximum context length is {1} tokens; "
    "the input token count ({0}) exceeds the maximum number of tokens allowed ({1})"
)
"""Contains the words of all providers."""


class Refused(Exception):
    """The provider refuses the request."""

    def __init__(self, status: int, text: str, reset: float | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.reset = status, text, reset


class CutOff(Exception):
    """The answer ends here as if it were complete."""


class Model:
    """The requests that the fake received, and the answers it delays."""

    def __init__(self) -> None:
        self.requests: list[Json] = []
        """All requests: provider format, path and content."""
        self.held: set[str] = set()
        """Names of `[[hold NAME]]` that an answer has reached."""
        self._released: dict[str, asyncio.Event] = {}
        self._limits: dict[str, float] = {}
        self._failed: Counter[str] = Counter()
        self._news = asyncio.Condition()

    def _hold(self, name: str) -> asyncio.Event:
        return self._released.setdefault(name, asyncio.Event())

    def release(self, name: str) -> None:
        """Release delayed answers, now and later."""
        self._hold(name).set()

    def lift(self, name: str) -> None:
        """End a limit now."""
        self._limits[name] = 0.0

    async def until(self, condition: Callable[[Model], bool], seconds: float = 60.0) -> None:
        """Return once `condition` is true of the fake; raise TimeoutError if it never is."""
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(lambda: condition(self))

    async def notify(self) -> None:
        """Wake the waiting tests."""
        async with self._news:
            self._news.notify_all()

    def check(self, request: ModelRequest) -> None:
        """Raise Refused if the script says so."""
        if request.is_side_request:
            return
        for command in script(request):
            if command.verb in ("limit", "quota"):
                seconds, name = command.words(2)
                reset = self._limits.setdefault(name, time.time() + float(seconds))
                if time.time() < reset:
                    raise Refused(429, EXCEEDED[command.verb], reset if command.verb == "limit" else None)
            elif command.verb == "fail":
                status, count, name = command.words(3)
                if self._is_early(count, name):
                    raise Refused(int(status), FAILURES.get(status, "Internal server error"))
            elif command.verb == "window" and request.size > int(command.rest):
                raise Refused(400, TOO_LONG.format(request.size, command.rest))

    def _is_early(self, count: str, name: str) -> bool:
        """Return whether this is one of the first `count` times."""
        self._failed[name] += 1
        return not count or self._failed[name] <= int(count)

    async def answer(self, request: ModelRequest) -> AsyncIterator[Step]:
        """Yield the steps of the script with their delays."""
        if request.is_side_request:
            yield Text("Fake title" if request.schema is None else json.dumps(sample(request.schema)))
            return
        commands = script(request)
        if request.results:
            yield Text(f"The tool said: {clean(request.results[-1])[:300]} ")
        elif not commands:
            yield Text(f"You said: {request.newest}")
        for command in commands:
            async for step in self._do(request, command):
                yield step

    async def _do(self, request: ModelRequest, command: Command) -> AsyncIterator[Step]:
        match command.verb:
            case "say":
                for word in command.rest.split(" "):
                    yield Text(word + " ")
            case "recall":
                quoted = (line for line in request.newest.splitlines() if line.startswith(">"))
                yield Text("You said: " + " | ".join((*request.user_texts[:-1], *quoted)))
            case "long":
                for number in range(int(command.rest)):
                    yield Text(f"line {number} of a long answer\n")
            case "slow":
                count, seconds = command.words(2)
                for number in range(int(count)):
                    await asyncio.sleep(float(seconds) / int(count))
                    yield Text(f"word{number} ")
            case "pause":
                yield Text("Let me think ... ")
                await asyncio.sleep(float(command.rest))
                yield Text("that is it. ")
            case "hold":
                yield Text("I am holding. ")
                self.held.add(command.rest)
                await self.notify()
                async with asyncio.timeout(LONGEST_HOLD):
                    await self._hold(command.rest).wait()
                yield Text("I go on. ")
            case "drop" | "cut":
                count, name = command.words(2)
                if self._is_early(count, name):
                    yield Text("This will break. ")
                    raise CutOff if command.verb == "cut" else ConnectionAbortedError("as the script says")
            case "halves":
                for piece in ("\ud83d", "\ude42", " ", "\ud83d"):
                    yield Text(piece)
            case "think":
                yield Thought(command.rest)
            case "garble":
                yield Call("call_\ud83d\0", f"add.\ud83d\0{'d' * 100}", {})
            case "shell" | "escalate" | "write" | "tool" | "also":
                yield tool_call(request, command)
            case "window":
                pass
            case "limit" | "quota" | "fail":
                yield Text("It is over. ")
            case unknown:
                yield Text(f"I do not know [[{unknown}]]. ")


async def stop_at_cut(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield an answer; one that is cut off stops without its end."""
    with suppress(CutOff):
        async for piece in stream:
            yield piece


def key_of(request: Request) -> str:
    """Return the key of a request from the header or query of its format."""
    carried = request.headers.get("authorization", "").removeprefix("Bearer ")
    header_key = request.headers.get("x-api-key") or request.headers.get("x-goog-api-key")
    return header_key or carried or request.query_params.get("key", "")


async def speak(request: Request, dialect: ModuleType, model_request: ModelRequest) -> Response:
    """Answer in the format of a provider."""
    model: Model = request.app.state.model
    record = {
        "dialect": dialect.__name__.rpartition(".")[2],
        "path": request.url.path,
        "model": model_request.model,
        "said": list(model_request.user_texts),
        "results": list(model_request.results),
        "tools": sorted(model_request.tools),
        "system": model_request.system,
        "size": model_request.size,
        "errand": model_request.is_side_request,
        "agent": request.headers.get("user-agent", ""),
    }
    model.requests.append(record)
    await model.notify()
    try:
        if (key := key_of(request)).startswith("bad"):
            raise Refused(401, f"Invalid API key provided: {key}")
        if model_request.model.startswith("no-such"):
            raise Refused(404, f"The model `{model_request.model}` does not exist")
        model.check(model_request)
    except Refused as no:
        headers, body = dialect.refusal(no.status, no.text, no.reset)
        return JSONResponse(body, 400 if (dialect is gemini and no.status == 401) else no.status, headers)
    if model_request.stream:
        stream = stop_at_cut(dialect.stream(model_request, model.answer(model_request)))
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-cache"})
    return JSONResponse(dialect.whole(model_request, [step async for step in model.answer(model_request)]))


async def on_messages(request: Request) -> Response:
    """Answer Anthropic Messages."""
    return await speak(request, anthropic, anthropic.read(await request.json()))


async def on_count(request: Request) -> Response:
    """Return the number of tokens of a message."""
    return JSONResponse({"input_tokens": anthropic.read(await request.json()).input_tokens})


async def on_chat(request: Request) -> Response:
    """Answer OpenAI Chat Completions."""
    return await speak(request, openai_chat, openai_chat.read(await request.json()))


async def on_responses(request: Request) -> Response:
    """Answer OpenAI Responses."""
    return await speak(request, openai_responses, openai_responses.read(await request.json()))


async def on_gemini(request: Request) -> Response:
    """Answer Gemini, whose method is at the end of the path."""
    model, _, verb = request.path_params["rest"].partition(":")
    body = await request.json()
    model_request = gemini.read(body, model, verb == "streamGenerateContent")
    if verb == "countTokens":
        return JSONResponse({"totalTokens": model_request.input_tokens})
    return await speak(request, gemini, model_request)


async def on_models(request: Request) -> Response:
    """Return the models with the fields of all formats."""
    models = [
        {"id": name, "name": f"models/{name}", "object": "model", "type": "model", "display_name": name, "created": 1}
        for name in MODELS
    ]
    return JSONResponse({"object": "list", "data": models, "models": models, "has_more": False})


async def on_package(request: Request) -> Response:
    """Answer like the registry of npm: every package has a version 99, which cannot be downloaded."""
    path = request.path_params["package"].removesuffix("/latest")
    newest = {"name": path, "version": "99.0.0", "dist": {"tarball": str(request.url_for("anything", rest="none"))}}
    if request.url.path.endswith("/latest"):
        return JSONResponse(newest)
    return JSONResponse({"name": path, "dist-tags": {"latest": "99.0.0"}, "versions": {"99.0.0": newest}})


async def on_release(request: Request) -> Response:
    """Release delayed answers: `POST /fake/release/NAME`."""
    request.app.state.model.release(request.path_params["name"])
    return JSONResponse({})


async def on_requests(request: Request) -> Response:
    """Return the requests so far, for users that run the fake as a program."""
    return JSONResponse(request.app.state.model.requests)


async def on_anything(request: Request) -> Response:
    """Answer unknown paths with 404, and record them."""
    request.app.state.model.requests.append({"dialect": "unknown", "path": request.url.path, "errand": True})
    return JSONResponse({"error": {"message": f"no such address: {request.url.path}"}}, 404)


def create_app(model: Model) -> Starlette:
    """Return the fake as an ASGI app. Clients differ in whether their base address includes the version."""
    post, get = ["POST"], ["GET"]
    routes = [
        Route("/fake/npm/{package:path}", on_package, methods=get),
        Route("/fake/requests", on_requests, methods=get),
        Route("/fake/release/{name:path}", on_release, methods=post),
    ]
    for base in ("", "/v1"):
        routes += [
            Route(f"{base}/messages", on_messages, methods=post),
            Route(f"{base}/messages/count_tokens", on_count, methods=post),
            Route(f"{base}/chat/completions", on_chat, methods=post),
            Route(f"{base}/responses", on_responses, methods=post),
            Route(f"{base}/models", on_models, methods=get),
        ]
    routes += [
        Route(f"/{version}/models/{{rest:path}}", on_gemini, methods=post) for version in ("v1beta", "v1alpha", "v1")
    ]
    routes += [
        Route("/v1beta/models", on_models, methods=get),
        Route("/{rest:path}", on_anything, methods=["GET", "POST", "HEAD"], name="anything"),
    ]
    app = Starlette(routes=routes)
    app.state.model = model
    return app


class _Server(uvicorn.Server):
    """A server without signal handlers: its owner ends it at once."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.ended.wait()

    @contextmanager
    def capture_signals(self) -> Any:
        yield


@asynccontextmanager
async def serve(port: int = 0) -> AsyncIterator[tuple[str, Model]]:
    """Serve the fake on a loopback port and yield it with its address."""
    model = Model()
    config = uvicorn.Config(create_app(model), log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    with socket.create_server(("127.0.0.1", port)) as listener:
        server = _Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", model
        finally:
            server.ended.set()
            await running


@contextmanager
def serve_beside() -> Iterator[str]:
    """Serve the fake in a thread, for tests without an event loop, and yield its address."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    address: Future[str] = Future()

    async def work() -> None:
        async with serve() as (url, _):
            address.set_result(url)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(work()))
    thread.start()
    try:
        yield address.result(60)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def main(port: int) -> None:
    """Serve until interrupted."""
    async with serve(port) as (url, _):
        print(f"A fake model listens on {url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=8099)
    with suppress(KeyboardInterrupt):
        asyncio.run(main(options.parse_args().port))
