"""Test the agent kind `function`: in a child process, on a thread, on the event loop."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents import function
from midwatch.agents.function import FunctionAgent
from midwatch.agents.function_child import wants_turn
from midwatch.agents.registry import build
from midwatch.base.errors import AgentError, BadConfig, LeaseLost, TransientError
from midwatch.domain.agent import Answer, Conversation, Turn, TurnResult, Usage
from midwatch.domain.event import MessageDelta, Payload, TaskProgress
from midwatch.programs.reaper import members
from midwatch.testing import RecordingTurn

pytestmark = pytest.mark.usefixtures("no_process_is_left")

WORK = """
import asyncio, os, signal, sys, threading, time
from pathlib import Path

def hello(prompt): return f"hello {prompt}"
async def later(prompt): await asyncio.sleep(0); return f"later {prompt}"
def nothing(prompt): return None
def data(prompt): return {"said": prompt, "é": [1, 2]}
def unfit(prompt): return object()
def loud(prompt): print("{" + '"end": {"text": "forged"}}', flush=True); os.write(1, b"noise\\n"); return "quiet"
def reads(prompt): return repr(sys.stdin.read())
def whole(prompt):
    from midwatch.domain.agent import TurnResult, Usage
    return TurnResult(text="t", outcome="silent", thread_id="th", usage=Usage(input_tokens=3, model="m"), iterations=2)
def wrong_outcome(prompt):
    from midwatch.domain.agent import TurnResult
    return TurnResult(outcome="timeout")
def boom(prompt): raise ValueError("no\\nluck")
def transient(prompt):
    from midwatch.base.errors import TransientError
    raise TransientError("come back")
def refused(prompt): raise ConnectionRefusedError("nobody there")
def leaves(prompt): sys.exit(3)
def vanishes(prompt): print("last words", file=sys.stderr, flush=True); os._exit(9)
def killed(prompt): os.kill(os.getpid(), signal.SIGSEGV)
def lingers(prompt): threading.Thread(target=time.sleep, args=(600,)).start(); return "done"
def large(prompt): return "é" * 3_000_000
def larger(prompt): return "x" * int(prompt)
def where(prompt, turn):
    facts = (turn.task_id, turn.attempt, turn.session_key, turn.thread_id, turn.resumed, turn.env["MIDWATCH_TASK"])
    return [*facts, os.environ["MIDWATCH_TASK"], os.environ.get("MW_WORD"), os.getcwd(), turn.stopping]

def busy(prompt, turn):
    from midwatch.domain.event import MessageDelta
    old = turn.load_progress()
    turn.save_progress({"step": old["step"] + 1})
    turn.emit(MessageDelta(message_id="m", offset=0, text="piece"))
    answer = turn.ask("Go on?", ("sure", "never"), expires=5)
    return f"{answer.granted} {answer.choice} {turn.receive()} {turn.deadline}"

async def async_busy(prompt, turn):
    from midwatch.domain.event import MessageDelta
    old = await turn.load_progress()
    await turn.save_progress({"step": old["step"] + 1})
    await turn.emit(MessageDelta(message_id="m", offset=0, text="piece"))
    message, answer = await asyncio.gather(turn.receive(), turn.ask("Go on?", ("sure", "never"), expires=5))
    return f"{answer.granted} {answer.choice} {message} {turn.deadline}"

def hang(prompt, turn):
    from midwatch.domain.event import TaskProgress
    try:
        turn.emit(TaskProgress(text="ready"))
        time.sleep(600)
    finally: Path("stopping").write_text(str(turn.stopping))
async def async_hang(prompt, turn):
    from midwatch.domain.event import TaskProgress
    await turn.emit(TaskProgress(text="ready"))
    await asyncio.sleep(600)
def deaf(prompt, turn):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hang(prompt, turn)
def asks(prompt, turn): return turn.ask("", ())
def tells(prompt, turn):
    class Odd:
        kind = "no_such_kind"
        def data(self): return {}
    turn.emit(Odd())
"""


@pytest.fixture
def work(tmp_path: Path) -> Callable[[str], FunctionAgent]:
    (tmp_path / "mw_work.py").write_text(WORK)

    def agent(name: str, **options: Any) -> FunctionAgent:
        options = {"target": f"mw_work:{name}", "path": str(tmp_path), "workdir": str(tmp_path), **options}
        function_agent = build("x", "function", options)
        assert isinstance(function_agent, FunctionAgent)
        return function_agent

    return agent


Work = Callable[..., FunctionAgent]


async def run(agent: FunctionAgent, turn: RecordingTurn | None = None) -> TurnResult:
    turn = turn or RecordingTurn("Ada")
    talk = await agent.open(turn.session("x"))
    try:
        return await talk.turn(turn)
    finally:
        await talk.close()


async def start_turn(agent: FunctionAgent, turn: RecordingTurn) -> tuple[Conversation, asyncio.Task[TurnResult]]:
    """Start a turn and wait until the function has reported that it is ready."""
    talk = await agent.open(turn.session("x"))
    working = asyncio.create_task(talk.turn(turn))
    await turn.until(lambda t: bool(t.events))
    return talk, working


# -- in a child process ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [("hello", "hello Ada"), ("later", "later Ada"), ("nothing", ""), ("loud", "quiet"), ("reads", "''")],
)
async def test_results_of_a_function_become_text(work: Work, name: str, text: str) -> None:
    assert (await run(work(name))).text == text


async def test_dictionaries_and_lists_become_json(work: Work) -> None:
    assert json.loads((await run(work("data"))).text) == {"said": "Ada", "é": [1, 2]}


async def test_large_results_are_complete_or_refused(work: Work) -> None:
    assert (await run(work("large"))).text == "é" * 3_000_000
    with pytest.raises(AgentError, match="its result is too long"):
        await run(work("larger"), RecordingTurn(str(function.LONGEST_LINE + 1_000_000)))


async def test_a_turn_result_is_passed_whole(work: Work) -> None:
    assert await run(work("whole")) == TurnResult(
        text="t", outcome="silent", thread_id="th", usage=Usage(input_tokens=3, model="m"), iterations=2
    )


async def test_a_function_reads_its_turn(work: Work, tmp_path: Path) -> None:
    turn = RecordingTurn("p", attempt=3, thread_id="th", resumed=True)
    values = json.loads((await run(work("where", env={"MW_WORD": "w"}), turn)).text)
    task = turn.task_id
    assert values == [task, 3, f"bg:{task}", "th", True, f"{task}/3", f"{task}/3", "w", str(tmp_path), False]


@pytest.mark.parametrize("name", ["busy", "async_busy"])
async def test_a_function_calls_the_methods_of_its_turn(work: Work, name: str) -> None:
    class MovingTurn(RecordingTurn):
        async def ask(self, *arguments: Any, **named: Any) -> Answer:
            self.deadline = 42.5
            assert named == {"expires": 5}
            return await super().ask(*arguments, **named)

    turn = MovingTurn("p", progress={"step": 1}, answers=["sure"], messages=["faster"])
    assert (await run(work(name), turn)).text == "True sure faster 42.5"
    assert turn.progress == {"step": 2}
    assert turn.events == [MessageDelta(message_id="m", offset=0, text="piece")]
    assert turn.questions == [("Go on?", ("sure", "never"))]


@pytest.mark.parametrize(
    ("name", "error", "why"),
    [
        ("boom", AgentError, "luck"),
        ("transient", TransientError, "^come back$"),
        ("refused", TransientError, "^ConnectionRefusedError: nobody there$"),
        ("leaves", AgentError, "^SystemExit: 3$"),
        ("vanishes", AgentError, "ended with code 9 before the function returned: last words"),
        ("killed", AgentError, f"ended with code -{int(signal.SIGSEGV)} "),
        ("unfit", AgentError, "TypeError: Object of type object is not JSON"),
        ("wrong_outcome", AgentError, "a function cannot return the outcome 'timeout'"),
        ("asks", AgentError, "RuntimeError: the test gave no answer"),
        ("tells", AgentError, "no_such_kind"),
        ("missing", AgentError, "AttributeError: module 'mw_work' has no attribute 'missing'"),
    ],
)
async def test_failures_of_a_function_are_reported(work: Work, name: str, error: type[AgentError], why: str) -> None:
    with pytest.raises(AgentError, match=why) as failed:
        await run(work(name))
    assert type(failed.value) is error


async def test_an_import_error_is_reported(work: Work) -> None:
    agent = work("x", target="mw_no_such_module.function")
    assert "cannot be imported" in agent.describe()["problem"]
    with pytest.raises(AgentError, match="No module named 'mw_no_such_module'"):
        await run(agent)
    assert work("hello").describe() == {"target": "mw_work:hello"}


async def test_targets_may_have_a_dot_or_name_the_standard_library(work: Work) -> None:
    assert (await run(work("x", target="mw_work.hello"))).text == "hello Ada"
    assert (await run(work("x", target="os.path:basename"), RecordingTurn("/a/b"))).text == "b"


async def test_remaining_threads_do_not_delay_the_end(work: Work) -> None:
    turn = RecordingTurn("p")
    assert (await run(work("lingers"), turn)).text == "done"
    assert members(turn.groups[0]) == set()


@pytest.mark.parametrize(
    ("name", "mode", "why"),
    [
        ("hang", "stop", "the function was interrupted"),
        ("async_hang", "stop", "the function was interrupted"),
        ("hang", "terminate", "code -15"),
        ("deaf", "kill", "code -9"),
    ],
)
async def test_a_child_can_be_interrupted(work: Work, tmp_path: Path, name: str, mode: Any, why: str) -> None:
    turn = RecordingTurn("p")
    talk, working = await start_turn(work(name), turn)
    if name == "deaf":
        await talk.interrupt("stop")
    await talk.interrupt(mode)
    with pytest.raises(AgentError, match=why):
        await working
    await talk.close()
    assert members(turn.groups[0]) == set()
    if (name, mode) == ("hang", "stop"):
        assert (tmp_path / "stopping").read_text() == "True"


async def test_a_lost_lease_ends_the_child(work: Work) -> None:
    class RefusingTurn(RecordingTurn):
        async def emit(self, payload: Payload) -> None:
            raise LeaseLost(self.task_id, self.attempt)

    turn = RefusingTurn("p")
    with pytest.raises(LeaseLost):
        await run(work("hang"), turn)
    assert members(turn.groups[0]) == set()


def test_the_child_process_imports_only_the_standard_library() -> None:
    code = "import sys, midwatch.agents.function_child as c; print(c.__file__)"
    child_path = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    order = {"target": "mw_list:run", "path": [], "facts": {"prompt": "p"}}
    listing = "import sys, types; m = types.ModuleType('mw_list'); sys.modules['mw_list'] = m\n"
    listing += "m.run = lambda prompt: ' '.join(sorted({n.partition('.')[0] for n in sys.modules}))\n"
    program = f"{listing}import runpy; runpy.run_path({child_path!r}, run_name='__main__')"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps(order) + "\n")
        child.stdin.flush()
        loaded = set(json.loads(child.stdout.readline())["end"]["text"].split())
    assert not loaded & {"midwatch", "pydantic", "asyncio"}


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({}, "agents.x.target:"),
        ({"target": "no dots here"}, "agents.x.target: write the dotted path"),
        ({"target": "single"}, "agents.x.target: write the dotted path"),
        ({"target": "a:b", "path": 3}, "agents.x.path"),
        ({"target": "a:b", "on_loop": True}, "agents.x.on_loop: there is no such option"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], where: str) -> None:
    with pytest.raises(BadConfig) as wrong:
        build("x", "function", options)
    assert str(wrong.value).startswith(where)


def test_the_kind_has_its_terms() -> None:
    assert build("x", "function", {"target": "a:b"}).terms[:5] == (1800.0, "rerun", 3, 64, False)


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("lambda prompt: 0", False),
        ("lambda prompt, turn: 0", True),
        ("lambda prompt, turn=None: 0", True),
        ("lambda prompt, size=5: 0", False),
        ("lambda *both: 0", True),
        ("print", True),
        ("str.upper", False),
    ],
)
def test_functions_get_the_turn_if_they_take_it(text: str, takes: bool) -> None:
    assert wants_turn(eval(text)) is takes


# -- on a thread -------------------------------------------------------------------------------------------------


def thread_of(prompt: str) -> str:
    return threading.current_thread().name


async def async_thread_of(prompt: str) -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


@pytest.mark.parametrize("target", [thread_of, async_thread_of])
async def test_an_object_runs_on_its_own_thread(target: Callable[..., Any]) -> None:
    assert (await run(FunctionAgent("y", target))).text == "midwatch-y"


def test_objects_have_descriptions() -> None:
    assert FunctionAgent("y", thread_of).describe() == {"target": "thread_of (on a thread)"}
    assert FunctionAgent("y", async_thread_of, on_loop=True).describe() == {
        "target": "async_thread_of (on the event loop)"
    }


async def test_a_blocking_function_does_not_block_the_loop() -> None:
    free = threading.Event()
    turn = RecordingTurn("p")

    def block(prompt: str, turn: Any) -> str:
        turn.emit(TaskProgress(text="ready"))
        return str(free.wait(60))

    talk, working = await start_turn(FunctionAgent("y", block), turn)
    free.set()
    assert (await working).text == "True"
    await talk.close()


async def async_busy(prompt: str, turn: Turn) -> str:
    await turn.save_progress({"step": (await turn.load_progress())["step"] + 1})
    await turn.emit(TaskProgress(text="half"))
    message, answer = await asyncio.gather(turn.receive(), turn.ask("Go on?", ("sure", "never")))
    return f"{answer.choice} {message} {turn.deadline}"


def busy(prompt: str, turn: Any) -> str:
    turn.save_progress({"step": turn.load_progress()["step"] + 1})
    turn.emit(TaskProgress(text="half"))
    return f"{turn.ask('Go on?', ('sure', 'never')).choice} {turn.receive()} {turn.deadline}"


@pytest.mark.parametrize(("target", "on_loop"), [(busy, False), (async_busy, False), (async_busy, True)])
async def test_the_turn_works_from_a_thread_and_from_the_loop(target: Callable[..., Any], on_loop: bool) -> None:
    turn = RecordingTurn("p", progress={"step": 1}, answers=["sure"], messages=["faster"])
    turn.deadline = 7.0
    assert (await run(FunctionAgent("y", target, on_loop=on_loop), turn)).text == "sure faster 7.0"
    assert turn.progress == {"step": 2}
    assert turn.events == [TaskProgress(text="half")]


def fails(problem: BaseException) -> Callable[..., Any]:
    def plain(prompt: str) -> None:
        raise problem

    return plain


def async_fails(problem: BaseException) -> Callable[..., Any]:
    async def waiting(prompt: str) -> None:
        raise problem

    return waiting


@pytest.mark.parametrize(("make", "on_loop"), [(fails, False), (async_fails, False), (async_fails, True)])
async def test_any_error_of_a_function_fails_the_turn(make: Callable[..., Any], on_loop: bool) -> None:
    async def failure(problem: BaseException) -> AgentError:
        with pytest.raises(AgentError) as failed:
            await run(FunctionAgent("y", make(problem), on_loop=on_loop))
        return failed.value

    assert str(await failure(ValueError("bad"))) == "ValueError: bad"
    assert isinstance(await failure(ConnectionResetError("gone")), TransientError)
    assert str(await failure(TransientError("later"))) == "later"
    assert "SystemExit" in str(await failure(SystemExit(1)))
    assert isinstance(await failure(asyncio.CancelledError()), AgentError)
    assert asyncio.current_task() is not None and asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_function_that_waits_for_an_answer_can_be_stopped() -> None:
    def waits(prompt: str, turn: Any) -> str:
        turn.emit(TaskProgress(text="ready"))
        return str(turn.receive())

    for _ in range(5):  # the interrupt comes before, during or after the wait
        turn = RecordingTurn("p")
        talk, working = await start_turn(FunctionAgent("y", waits), turn)
        await talk.interrupt("stop")
        with pytest.raises(AgentError):
            await working
        await talk.close()


async def test_an_async_function_on_a_thread_is_cancelled() -> None:
    cleaned: list[bool] = []

    async def hang(prompt: str, turn: Turn) -> None:
        try:
            await turn.emit(TaskProgress(text="ready"))
            await asyncio.Event().wait()
        finally:
            cleaned.append(turn.stopping)  # type: ignore[attr-defined]

    talk, working = await start_turn(FunctionAgent("y", hang), RecordingTurn("p"))
    await talk.interrupt("stop")
    with pytest.raises(AgentError, match="interrupted"):
        await working
    await talk.close()
    assert cleaned == [True]


async def test_a_plain_function_can_check_for_a_stop() -> None:
    def checks_for_stop(prompt: str, turn: Any) -> str:
        turn.emit(TaskProgress(text="ready"))
        while not turn.stopping:
            threading.Event().wait(0.005)
        return "stopped by itself"

    talk, working = await start_turn(FunctionAgent("y", checks_for_stop), RecordingTurn("p"))
    await talk.interrupt("stop")
    assert (await working).text == "stopped by itself"
    await talk.close()


async def test_a_thread_that_cannot_be_stopped_is_abandoned_and_close_waits_for_it() -> None:
    free, refused = threading.Event(), []

    def stuck(prompt: str, turn: Any) -> str:
        turn.emit(TaskProgress(text="ready"))
        free.wait(60)
        for call in (lambda: turn.emit(TaskProgress(text="late")), turn.receive):
            try:
                call()
            except AgentError as problem:
                refused.append(str(problem))
        return "late"

    turn = RecordingTurn("p")
    talk, working = await start_turn(FunctionAgent("y", stuck), turn)
    await talk.interrupt("stop")
    await talk.interrupt("terminate")
    assert not working.done()
    await talk.interrupt("kill")
    result = await working
    assert (result.stuck, result.outcome) == (True, "error")
    assert result.error is not None and "did not stop" in result.error
    closing = asyncio.create_task(talk.close())
    await asyncio.sleep(0)
    assert not closing.done()
    free.set()
    await closing
    assert refused == ["this turn has ended"] * 2
    assert len(turn.events) == 1


async def test_an_abandoned_turn_on_a_thread_still_waits_in_close() -> None:
    free = threading.Event()

    def stuck(prompt: str, turn: Any) -> None:
        turn.emit(TaskProgress(text="ready"))
        free.wait(60)

    talk, working = await start_turn(FunctionAgent("y", stuck), RecordingTurn("p"))
    working.cancel()
    await asyncio.wait({working})
    closing = asyncio.create_task(talk.close())
    await asyncio.sleep(0)
    assert not closing.done()
    free.set()
    await closing


def test_a_closed_loop_does_not_break_the_thread() -> None:
    free, thread_ended = threading.Event(), threading.Event()

    def stuck(prompt: str, turn: Any) -> None:
        turn.emit(TaskProgress(text="ready"))
        free.wait(60)
        thread_ended.set()

    async def leave() -> None:
        talk, working = await start_turn(FunctionAgent("y", stuck), RecordingTurn("p"))
        await talk.interrupt("kill")
        assert (await working).stuck

    asyncio.run(leave())
    thread = next(t for t in threading.enumerate() if t.name == "midwatch-y")
    free.set()
    assert thread_ended.wait(60)
    thread.join(60)
    assert not thread.is_alive()


# -- on the loop -------------------------------------------------------------------------------------------------


async def test_an_on_loop_function_runs_in_the_turns_own_task() -> None:
    callers: list[Any] = []

    async def look(prompt: str) -> str:
        callers.append((asyncio.current_task(), threading.current_thread()))
        return prompt

    assert (await run(FunctionAgent("y", look, on_loop=True))).text == "Ada"
    assert callers == [(asyncio.current_task(), threading.main_thread())]


@pytest.mark.parametrize("target", ["a:b", thread_of])
def test_only_async_functions_may_run_on_the_loop(target: Any) -> None:
    with pytest.raises(BadConfig, match="`on_loop` needs an async function"):
        FunctionAgent("y", target, on_loop=True)


async def test_an_interrupt_on_the_loop_reaches_only_the_function() -> None:
    async def stubborn(prompt: str, turn: Turn) -> str:
        try:
            await turn.emit(TaskProgress(text="ready"))
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished all the same"
        return ""

    turn = RecordingTurn("p")
    talk = await FunctionAgent("y", stubborn, on_loop=True).open(turn.session("y"))

    async def worker() -> tuple[str, int]:
        result = await talk.turn(turn)
        await asyncio.sleep(0)  # a cancellation that was left over would be raised here
        task = asyncio.current_task()
        assert task is not None
        return result.text, task.cancelling()

    working = asyncio.create_task(worker())
    await turn.until(lambda t: bool(t.events))
    await talk.interrupt("stop")
    assert await working == ("finished all the same", 0)
    await talk.interrupt("kill")


async def test_cancelling_the_worker_cancels_the_function() -> None:
    async def hang(prompt: str, turn: Turn) -> None:
        await turn.emit(TaskProgress(text="ready"))
        await asyncio.Event().wait()

    talk, working = await start_turn(FunctionAgent("y", hang, on_loop=True), RecordingTurn("p"))
    await talk.interrupt("stop")
    working.cancel()
    await asyncio.wait({working})
    assert working.cancelled()


def test_an_object_may_have_an_async_call() -> None:
    class Echo:
        async def __call__(self, prompt: str) -> str:
            return prompt

    assert asyncio.run(run(FunctionAgent("y", Echo(), on_loop=True))).text == "Ada"
    assert asyncio.run(run(FunctionAgent("y", Echo()))).text == "Ada"
