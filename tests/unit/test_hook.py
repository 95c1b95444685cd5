"""Test decisions and patches of hooks, and the chain that calls them: order, changes, and failures that deny."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from midwatch.base.errors import BadConfig, InvalidInput
from midwatch.client.http import SILENT_SECONDS
from midwatch.domain.event import HookDecided
from midwatch.domain.hook import ACTIONS, SEAMS, Hook, HookDecision, HookMeta, Seam, check_decision, read_decision
from midwatch.domain.hook_patch import apply_patch
from midwatch.domain.hook_subject import make_example
from midwatch.running import hook_chain
from midwatch.running.hook_chain import HookChain
from midwatch.running.hook_thread import HookThread
from midwatch.running.python_hook import PythonHook

META = HookMeta("it", "t_1", 1, "t_1.1", "bg:t_1")
REQUEST: dict[str, Any] = {
    "model": "openai:fake",
    "instructions": "Be kind.",
    "messages": [{"role": "system", "text": "s"}, {"role": "user", "text": "hello"}, {"role": "call", "text": "{}"}],
    "settings": {"temperature": 1.0},
    "tools": ["add", "push", "read"],
}
CALLS = [{"id": "1", "tool": "a", "arguments": {}}, {"id": "2", "tool": "b", "arguments": {}}]
SUBJECTS: dict[Seam, dict[str, Any]] = {
    "before_model": REQUEST,
    "after_model": {"text": "yes", "tool_calls": CALLS},
    "before_tool": make_example("before_tool", "push", {"force": True, "to": "main"}, ""),
    "after_tool": make_example("after_tool", "push", {}, "done"),
}


def decisions() -> dict[str, HookDecision]:
    return {
        "go_on": HookDecision.go_on(), "change": HookDecision.change({}), "answer": HookDecision.answer("x"),
        "deny": HookDecision.deny("no"), "stop": HookDecision.stop("no"),
    }  # fmt: skip


@pytest.mark.parametrize("seam", SEAMS)
def test_each_seam_accepts_its_decisions_only_and_from_json_the_same(seam: Seam) -> None:
    for action, decision in decisions().items():
        if action in ACTIONS[seam]:
            assert check_decision(seam, decision) is decision
            assert read_decision(seam, decision.data()) == decision
        else:
            with pytest.raises(InvalidInput, match="it may decide"):
                check_decision(seam, decision)


@pytest.mark.parametrize(
    "data",
    [
        None, [], {}, {"action": "allow"}, {"action": "deny"}, {"action": "deny", "reason": " "},
        {"action": "change"}, {"action": "change", "patch": []}, {"action": "answer", "text": 1},
        {"action": "go_on", "patch": {}}, {"action": "answer", "text": "x", "is_error": "no"}, {"action": ["deny"]},
    ],
)  # fmt: skip
def test_a_wrong_decision_of_a_program_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput):
        read_decision("before_tool", data)


@pytest.mark.parametrize(
    ("seam", "patch", "name", "expected"),
    [
        ("before_tool", {"arguments": {"force": None, "dry": True}}, "arguments", {"to": "main", "dry": True}),
        ("after_tool", {"text": "***", "is_error": True}, "text", "***"),
        ("before_model", {"instructions": "Be kind. Be brief."}, "instructions", "Be kind. Be brief."),
        ("before_model", {"tools": ["add", "read"]}, "tools", ["add", "read"]),
        ("before_model", {"settings": {"temperature": None, "max_tokens": 9}}, "settings", {"max_tokens": 9}),
        (
            "before_model",
            {"messages": [REQUEST["messages"][0], {"role": "user", "text": "***"}, REQUEST["messages"][2],
                          {"role": "user", "text": "new"}]},
            "messages",
            [REQUEST["messages"][0], {"role": "user", "text": "***"}, REQUEST["messages"][2],
             {"role": "user", "text": "new"}],
        ),
        ("after_model", {"tool_calls": CALLS[1:]}, "tool_calls", CALLS[1:]),
    ],
)  # fmt: skip
def test_a_patch_changes_what_it_names_and_keeps_the_rest(
    seam: Seam, patch: dict[str, Any], name: str, expected: Any
) -> None:
    subject = SUBJECTS[seam]
    changed = apply_patch(seam, subject, patch)
    assert changed[name] == expected
    assert {key: value for key, value in changed.items() if key not in patch} == {
        key: value for key, value in subject.items() if key not in patch
    }


def nest(levels: int) -> dict[str, Any]:
    """Return an object that is nested in so many levels."""
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("seam", "patch", "why"),
    [
        ("before_tool", {"tool": "rm"}, "names 'tool'"),
        ("before_tool", {"arguments": None}, "not an object"),
        ("before_tool", {"arguments": {"x": object()}}, "not JSON"),
        ("before_tool", {"arguments": {"x": float("nan")}}, "not JSON"),
        ("before_tool", {"arguments": {"x": "y" * 2_000_000}}, "characters"),
        ("before_tool", {"arguments": {"x": [2**70]}}, "64 bits"),
        ("before_tool", {"arguments": {"x": "\ud83d"}}, "half of a character"),
        ("before_tool", {"arguments": {"\ud83d": 1}}, "half of a character"),
        ("before_tool", {"arguments": {"x": {1: 2}}}, "name that is not a text"),
        ("before_tool", {"arguments": nest(201)}, "more than 200 levels"),
        ("before_tool", {"arguments": nest(100_000)}, "more than 200 levels"),
        ("before_model", {"model": "other"}, "names 'model'"),
        ("before_model", {"instructions": "Be cruel."}, "only append"),
        ("before_model", {"instructions": None}, "only append"),
        ("before_model", {"tools": ["add", "sudo"]}, "only remove"),
        ("before_model", {"tools": ["read", "add"]}, "only remove"),
        ("before_model", {"settings": {"seed": 1}}, "unknown setting"),
        ("before_model", {"settings": {"temperature": True}}, "not valid"),
        ("before_model", {"messages": REQUEST["messages"][:1]}, "removes messages"),
        ("before_model", {"messages": [{"role": "system", "text": "x"}, *REQUEST["messages"][1:]]}, "role system"),
        ("before_model", {"messages": [*REQUEST["messages"][:2], {"role": "call", "text": "x"}]}, "role call"),
        ("before_model", {"messages": [*REQUEST["messages"], {"role": "system", "text": "x"}]}, "more than the text"),
        ("before_model", {"messages": [*REQUEST["messages"], "x"]}, "no text"),
        ("after_model", {"tool_calls": [{**CALLS[0], "tool": "rm"}]}, "only remove"),
        ("after_model", {"text": " ", "tool_calls": []}, "leaves nothing"),
        ("after_tool", {"is_error": 1}, "true or false"),
        ("after_tool", {"text": None}, "not a text"),
    ],
)
def test_an_invalid_patch_is_refused_as_a_whole(seam: Seam, patch: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        apply_patch(seam, SUBJECTS[seam], patch)


class Deciding:
    """A hook that decides before a tool as it was told."""

    def __init__(self, name: str, decide: Any, priority: int = 100) -> None:
        self.name, self.priority, self.seconds, self._decide = name, priority, 0.2, decide
        self.got: list[dict[str, Any]] = []

    async def before_tool(self, subject: dict[str, Any], meta: HookMeta) -> Any:
        self.got.append(subject)
        return await self._decide(subject) if callable(self._decide) else self._decide


async def run(*hooks: Deciding) -> tuple[Any, list[HookDecided]]:
    events: list[HookDecided] = []
    chain = HookChain([PythonHook(hook) for hook in hooks])
    subject = SUBJECTS["before_tool"]
    return await chain.decide("before_tool", subject, META, events.append, tool="push", tool_call_id="1"), events


async def test_hooks_are_called_by_priority_then_name_and_a_change_feeds_the_next() -> None:
    async def spoil(subject: dict[str, Any]) -> None:
        subject["arguments"].clear()

    spoiler = Deciding("b", spoil)
    first = Deciding("z", HookDecision.change({"arguments": {"force": None}}), priority=1)
    last, never = Deciding("c", HookDecision.deny("not on Friday")), Deciding("d", HookDecision.stop("x"))
    outcome, events = await run(never, last, spoiler, first)
    assert (outcome.action, outcome.hook, outcome.reason, outcome.failed) == ("deny", "c", "not on Friday", False)
    assert [hook.got[0]["arguments"] for hook in (first, last)] == [{"force": True, "to": "main"}, {"to": "main"}]
    assert [(event.hook, event.decision, event.tool) for event in events] == [
        ("z", "change", "push"), ("c", "deny", "push"),
    ]  # fmt: skip
    assert not never.got


async def hang(subject: dict[str, Any]) -> None:
    """Hang, and ignore the cancellation."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if asyncio.get_running_loop().time() > 0 and not subject.pop("tool", None):
                raise


def fail_with(problem: BaseException) -> Any:
    async def raise_it(subject: dict[str, Any]) -> None:
        raise problem

    return raise_it


@pytest.mark.parametrize(
    ("decide", "why"),
    [
        (fail_with(RuntimeError("secret")), "RuntimeError"),
        (fail_with(GeneratorExit("secret")), "GeneratorExit"),
        (fail_with(SystemExit(3)), "SystemExit"),
        (fail_with(KeyboardInterrupt()), "KeyboardInterrupt"),
        (fail_with(asyncio.CancelledError()), "cancelled itself"),
        (hang, "within 0.2 s"),
        (True, "returned a bool"),
        (HookDecision.change({"tool": "rm"}), "names 'tool'"),
        (HookDecision("allow"), "may decide"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
async def test_a_hook_that_fails_denies_and_the_event_names_it(decide: Any, why: str) -> None:
    outcome, events = await run(Deciding("bad", decide))
    assert (outcome.action, outcome.hook, outcome.failed) == ("deny", "bad", True)
    assert why in outcome.reason and "secret" not in outcome.reason
    assert [(event.hook, event.decision, event.failed, event.reason) for event in events] == [
        ("bad", "deny", True, outcome.reason)
    ]
    assert events[0].duration < 5


@pytest.mark.parametrize("decision", [HookDecision.deny("\ud83d"), HookDecision.answer("\ud83d")])
def test_a_text_that_no_store_takes_is_refused(decision: HookDecision) -> None:
    with pytest.raises(InvalidInput, match="half of a character"):
        check_decision("before_tool", decision)


async def test_a_test_ends_before_the_patience_of_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hook_chain.TEST_SECONDS < SILENT_SECONDS
    monkeypatch.setattr(hook_chain, "TEST_SECONDS", 0.01)
    chain = HookChain([PythonHook(Deciding("slow", hang))])
    tested = await chain.test("slow", "before_tool", tool="push", arguments={}, text="")
    assert "within 0.01 s, the longest wait of a test" in tested["decision"]["reason"]


async def test_a_turn_that_is_cancelled_stays_cancelled() -> None:
    running = asyncio.create_task(run(Deciding("slow", hang)))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


class Plain:
    def before_tool(self, subject: Any, meta: Any) -> None:
        """This is not async."""


class Timed(Hook):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # type: ignore[misc]  # a class attribute in most hooks

    async def before_tool(self, subject: Any, meta: Any) -> None:
        """Decide nothing."""


class Nothing:
    name = "none"


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (Plain(), "not an async method"),
        (Nothing(), "has none of the methods"),
        (Deciding, "is a class"),
        (Deciding("a b", None), "is no name"),
        (Deciding("x", None, priority="high"), "whole number"),  # type: ignore[arg-type]
        (Timed(math.nan), "up to 3600"),
        (Timed(math.inf), "up to 3600"),
        (Timed(0), "above 0"),
    ],
)  # fmt: skip
def test_an_object_that_is_no_hook_is_refused(hook: object, why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        PythonHook(hook)


def test_two_hooks_must_not_have_the_same_name() -> None:
    with pytest.raises(BadConfig, match="two hooks are named 'x'"):
        HookChain([PythonHook(Deciding("x", None)), PythonHook(Deciding("x", None))])


# -- the thread on which a hook observes ---------------------------------------------------------------------------


async def test_events_whose_time_is_over_are_not_taken_after_a_block() -> None:
    thread, blocks, released, taken = HookThread("x"), threading.Event(), threading.Event(), list[int]()

    async def block() -> None:
        blocks.set()
        released.wait(60)

    async def take(number: int) -> None:
        taken.append(number)

    blocking = asyncio.create_task(thread.run(block))
    assert await asyncio.to_thread(blocks.wait, 60)
    late = [asyncio.create_task(thread.run(partial(take, number))) for number in range(3)]
    await asyncio.sleep(0)  # the calls are on their way
    for call in late:
        call.cancel()
    await asyncio.wait(late)
    released.set()
    await blocking
    await thread.run(partial(take, 3))
    assert taken == [3]
    await thread.stop()


async def test_a_call_may_clean_up_when_its_thread_ends() -> None:
    thread, waits, cleaned = HookThread("x"), threading.Event(), threading.Event()

    async def wait() -> None:
        waits.set()
        try:
            await asyncio.sleep(3600)
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            cleaned.set()

    waiting = asyncio.create_task(thread.run(wait))
    assert await asyncio.to_thread(waits.wait, 60)
    await thread.stop()
    assert cleaned.is_set()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()


async def test_a_hook_that_ends_its_event_loop_gets_a_new_one() -> None:
    thread, ending, may_end, again = HookThread("x"), threading.Event(), threading.Event(), threading.Event()

    async def end_loop() -> None:
        asyncio.get_running_loop().stop()
        try:
            await asyncio.sleep(3600)
        finally:
            ending.set()
            may_end.wait(60)

    async def note() -> None:
        again.set()

    first = asyncio.create_task(thread.run(end_loop))
    await asyncio.to_thread(ending.wait, 60)
    late = asyncio.create_task(thread.run(partial(asyncio.sleep, 3600)))
    await asyncio.sleep(0)  # the call is with the loop that is ending now
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(RuntimeError, match="its event loop has ended"):
        await late
    while not again.is_set():  # the old thread may still be ending
        with suppress(RuntimeError):
            await thread.run(note)
    await thread.stop()
