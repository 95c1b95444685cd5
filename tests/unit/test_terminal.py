"""Test terminal agents with small programs in place of real ones: turns, and programs that behave badly."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.registry import build
from midwatch.agents.terminal.kind import TerminalOptions
from midwatch.agents.terminal.screen import MOST_BYTES, Screen
from midwatch.base.errors import AgentError, BadConfig, Conflict
from midwatch.domain.agent import Answer, TurnResult, has_terminal
from midwatch.domain.event import AgentExited
from midwatch.programs import reaper
from midwatch.testing import RecordingTurn
from servers import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_is_left")]

ECHO = """
import sys
print("hello, I echo")
while True:
    try: said = input("> ")
    except EOFError: break
    exec(said[1:]) if said.startswith("!") else print("you said", said)
"""

BYTES_OF_A_CELL = 8


def agent(program: str | list[str] = ECHO, **options: Any) -> Any:
    argv = [sys.executable, "-c", program] if isinstance(program, str) else program
    all_options = {"prompt": "^> $", **options} if program == ECHO else options
    return build("x", "terminal", {"argv": argv, **all_options})


@asynccontextmanager
async def open_conversation(agent: Any) -> AsyncIterator[Any]:
    talk = await agent.open(RecordingTurn().session())
    try:
        yield talk
    finally:
        await talk.close()


async def say(talk: Any, text: str, **options: Any) -> TurnResult:
    async with asyncio.timeout(100):
        result: TurnResult = await talk.turn(RecordingTurn(text, **options))
        return result


def screen_of(talk: Any) -> Any:
    return talk._live.screen


async def wait_for_prompt(talk: Any) -> None:
    """Wait for the program's prompt: otherwise a slow start without known signs would count as idle."""
    await talk.start(RecordingTurn())
    await until(lambda: screen_of(talk).text().strip())


def count_kept_lines(talk: Any) -> int:
    height: int = screen_of(talk).height
    return height


# -- turns --------------------------------------------------------------------------------------------------------


async def test_a_program_that_is_no_known_agent_does_not_get_the_earlier_conversation() -> None:
    async with open_conversation(agent()) as talk:
        turn = RecordingTurn("hi", said=[("user", "!print('run again')")])
        assert (await talk.turn(turn)).text == "you said hi", "it might run the text as a command"
        assert "message_update" not in turn.kinds()


async def test_all_turns_use_one_program() -> None:
    async with open_conversation(agent()) as talk:
        assert has_terminal(talk)
        pids = set()
        for number in range(4):
            assert (await say(talk, f"number {number}")).text == f"you said number {number}"
            pids.add((await say(talk, "!import os; print(os.getpid())")).text)
        assert len(pids) == 1
        assert talk.alive
    assert not talk.alive


async def test_repeated_replies_and_prompts_are_read() -> None:
    async with open_conversation(agent()) as talk:
        for prompt in ("!print('ok')", "!print('o' + 'k')", "!print('ok')", "!print('ok')"):
            assert (await say(talk, prompt)).text == "ok"


async def test_a_reply_that_quotes_the_prompt_is_complete() -> None:
    async with open_conversation(agent()) as talk:
        assert (await say(talk, "!print('a > b\\n> !print\\n=> c')")).text == "a > b\n> !print\n=> c"


async def test_lines_wrapped_by_the_terminal_are_joined() -> None:
    async with open_conversation(agent(columns=40)) as talk:
        assert (await say(talk, "!print('x' * 300)")).text == "x" * 300
        long = "a prompt that is much longer than the terminal is wide, " * 3
        assert (await say(talk, long)).text == f"you said {long.strip()}"


async def test_wide_characters_keep_their_columns() -> None:
    async with open_conversation(agent()) as talk:
        text = "你好 | 👩🏽‍🚀 | é | 全角"
        assert (await say(talk, text)).text == f"you said {text}"
        assert (await say(talk, "!print('你好\\x1b[10Gx\\n🙂\\x1b[10Gx')")).text == "你好     x\n🙂       x"


async def test_a_reply_of_fifty_thousand_lines_is_complete() -> None:
    async with open_conversation(agent()) as talk:
        result = await say(talk, "!print('\\n'.join(f'line {n}' for n in range(50000)))")
        assert result.text.split("\n") == [f"line {n}" for n in range(50_000)]
        assert (await say(talk, "and now?")).text == "you said and now?"


async def test_scrolled_lines_are_kept_only_while_needed() -> None:
    async with open_conversation(agent()) as talk:
        assert len((await say(talk, "!print('x\\n' * 20000)")).text) > 39_000
        assert count_kept_lines(talk) < 100, "nobody reads them any more"
        talk.send_keys(b"!print('x\\n' * 20000, 'by hand')\r")
        await until(lambda: "by hand" in talk.screenshot().text)
        assert count_kept_lines(talk) < 4000, "nobody has asked for them"
        assert (await say(talk, "and now?")).text == "you said and now?"


LATE = """
import time
def title(text): print(f"\\x1b]2;{text}\\x07", end="", flush=True)
title("idle")
while True:
    said = input("> ")
    title("busy")
    title("idle")
    time.sleep(0.8)  # as an agent does that is slow to paint: longer than the silence after which idle counts
    print("* you said", said)
"""


async def test_a_reply_painted_after_the_agent_became_idle_is_complete() -> None:
    signs = {"ready": "^>", "busy_title": "busy", "idle_title": "idle", "explicit": True}
    async with open_conversation(agent(LATE, echo="> ", box="^> ?$", marker=r"^\* ", **signs)) as talk:
        assert (await say(talk, "hello")).text == "you said hello"
        assert (await say(talk, "again")).text == "you said again"


async def test_a_reply_is_shown_while_it_is_written() -> None:
    async with open_conversation(agent()) as talk:
        turn = RecordingTurn("!import time; print('one', flush=True); input(); print('two')")
        working = asyncio.create_task(talk.turn(turn))
        async with asyncio.timeout(60):
            await turn.until(lambda t: "one" in t.text())
            talk.send_keys(b"\r")
            assert (await working).text.split() == ["one", "two"]


async def test_the_screen_is_sent_and_can_be_resized() -> None:
    shown: list[str] = []
    async with open_conversation(agent()) as talk:
        talk.listen(shown.append)
        await say(talk, "hello")
        talk.resize(50, 20)
        result = await say(talk, "!import shutil; print(*shutil.get_terminal_size())")
        assert result.text == "50 20"
        picture = talk.screenshot(styled=True)
        assert (picture.columns, picture.rows, picture.status, picture.certain) == (50, 20, "idle", True)
        assert picture.text.endswith("50 20\n>")
        assert picture.cursor[0] == 2
        assert "\x1b]4;" not in picture.styled and "50 20" in picture.styled
        await until(lambda: any("you said hello" in text for text in shown))


async def test_control_characters_in_a_prompt_are_not_typed() -> None:
    async with open_conversation(agent()) as talk:
        assert (await say(talk, "a\x03b\x04c\x1b[201~d\x15e\x9bf\x7f")).text == "you said abc[201~def"


async def test_a_prompt_a_line_program_cannot_take_is_refused() -> None:
    async with open_conversation(agent()) as talk:
        with pytest.raises(AgentError, match="accepts only one line"):
            await say(talk, "two\nlines")
        with pytest.raises(AgentError, match="4000 bytes"):
            await say(talk, "x" * 5000)
        with pytest.raises(AgentError, match="no characters that can be typed"):
            await say(talk, "\x00\x01")
        assert (await say(talk, "fine")).text == "you said fine"


# -- shells and other programs without a profile --------------------------------------------------------------------


async def test_a_shell_needs_no_settings(tmp_path: Path) -> None:
    async with open_conversation(agent(["bash", "--norc", "-i"], env={"HOME": str(tmp_path), "HISTFILE": ""})) as talk:
        await wait_for_prompt(talk)
        assert (await say(talk, "echo one; echo two")).text == "one\ntwo"
        assert (await say(talk, "sleep 1.2; echo late")).text == "late"
        picture = talk.screenshot()
        assert (picture.status, picture.evidence) == ("idle", "mode")
        assert (await say(talk, "for n in 1 2\ndo echo $n\ndone")).text.endswith("1\n2")


async def test_a_shell_without_bracketed_paste_is_read_by_its_prompt_or_by_silence() -> None:
    async with open_conversation(agent(["sh", "-i"], env={"PS1": "$ "})) as talk:
        await wait_for_prompt(talk)
        assert (await say(talk, "echo one; sleep 0.2; echo two")).text == "one\ntwo"
        picture = talk.screenshot()
        assert (picture.evidence, picture.certain) == ("prompt", False)


async def test_python_works_as_an_agent(tmp_path: Path) -> None:
    async with open_conversation(
        agent([sys.executable, "-i", "-q"], prompt="^>>> $", env={"HOME": str(tmp_path)})
    ) as talk:
        assert (await say(talk, "6 * 7")).text == "42"
        assert (await say(talk, "print('>>> ' * 3)")).text == ">>> >>> >>>"


async def test_silence_does_not_end_a_turn_of_a_program_with_a_known_prompt() -> None:
    async with open_conversation(agent()) as talk:
        assert (await say(talk, "!import time; time.sleep(3); print('late')")).text == "late"
        assert (await say(talk, "hello")).text == "you said hello"


async def test_silence_rarely_ends_a_turn_of_a_program_whose_prompt_was_seen() -> None:
    async with open_conversation(agent([sys.executable, "-c", ECHO], quiet=0.5)) as talk:
        await wait_for_prompt(talk)
        assert (await say(talk, "hello")).text == "you said hello"
        assert (await say(talk, "!import time; time.sleep(2); print('late')")).text == "late"
        assert (await say(talk, "!print(input('your name? '))")).text.startswith("your name?")


async def test_a_program_without_a_prompt_is_idle_when_it_is_silent() -> None:
    async with open_conversation(agent(["cat"], quiet=1)) as talk:
        assert (await say(talk, "hello")).text == "hello"
        assert talk.screenshot().evidence == "silence"


# -- programs that behave badly -------------------------------------------------------------------------------------


async def test_a_missing_program_is_reported() -> None:
    missing_agent = agent(["no-such-program-here"])
    assert "not installed" in missing_agent.describe()["problem"]
    async with open_conversation(missing_agent) as talk:
        with pytest.raises(AgentError, match="not installed"):
            await say(talk, "hello")


async def test_a_program_that_exits_at_once_is_reported_with_its_screen_and_code() -> None:
    async with open_conversation(agent("print('no licence'); raise SystemExit(3)")) as talk:
        turn = RecordingTurn("hello")
        with pytest.raises(AgentError, match="failed with exit code 3: no licence"):
            await talk.turn(turn)
        (exit_event,) = [e for e in turn.events if isinstance(e, AgentExited)]
        assert (exit_event.code, exit_event.screen) == (3, "no licence")
        with pytest.raises(Conflict, match="no open terminal"):
            talk.send_keys(b"x")


async def test_a_program_that_exits_during_a_turn_is_restarted_for_the_next() -> None:
    async with open_conversation(agent()) as talk:
        with pytest.raises(AgentError, match="failed with exit code 7"):
            await say(talk, "!print('bye'); sys.exit(7)")
        assert not talk.alive
        assert (await say(talk, "again")).text == "you said again"


async def test_a_program_that_exits_between_turns_is_reported_with_the_next() -> None:
    terminal_agent = agent()
    async with open_conversation(terminal_agent) as talk:
        await say(talk, "hello")
        talk.send_keys(b"!sys.exit(5)\r")
        await until(lambda: terminal_agent.exits)
    async with open_conversation(terminal_agent) as talk:
        turn = RecordingTurn("hello again")
        turn.session_key = key = talk._session.key
        terminal_agent.exits[key] = terminal_agent.exits.popitem()[1]
        assert (await talk.turn(turn)).text == "you said hello again"
        assert [e.code for e in turn.events if isinstance(e, AgentExited)] == [5]


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(b"\xff\xfe\xc3(\xe2\x82", id="invalid UTF-8"),
        pytest.param(b"\x1b]0;" + b"x" * 3_000_000 + b"\x07", id="endless title"),
        pytest.param(b"\x1b]7501;" + b"x" * 3_000_000 + b"\x1b\\", id="endless status"),
        pytest.param(b"\x1bP" + b"q" * 3_000_000 + b"\x1b\\", id="endless device string"),
        pytest.param(b"\x1b[" + b"1;" * 500_000 + b"m", id="endless parameters"),
        pytest.param(b"\x1b_G" + b"f=100;" * 300_000 + b"\x1b\\", id="endless picture"),
        pytest.param(bytes(range(256)) * 2000 + b"\x1bc\x1b[!p\x1b[?1049l", id="all bytes"),
    ],
)
async def test_binary_noise_is_harmless(noise: bytes, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(noise)
    shout = f"!sys.stdout.buffer.write(open({str(tmp_path / 'noise')!r}, 'rb').read()); sys.stdout.flush()"
    async with open_conversation(agent(columns=200)) as talk:
        turn = RecordingTurn(shout)
        working = asyncio.create_task(talk.turn(turn))
        await asyncio.wait({working}, timeout=3)
        if not working.done():  # its prompt is on the line where the noise ended
            talk.send_keys(b"\r")
        async with asyncio.timeout(60):
            await working
            assert "you said after" in (await say(talk, "after")).text


async def test_terminal_queries_without_a_reader_are_harmless() -> None:
    program = """
import os, sys, time, tty
tty.setraw(0)
os.write(1, b"> ")
while not os.read(0, 100).endswith(b"\\r"): pass
os.write(1, b"\\r\\n")
for _ in range(1000): os.write(1, b"\\x1b[6n\\x1b[c\\x1b[>c\\x1b]10;?\\x07" * 100)
os.write(1, b"\\r\\nwell asked\\r\\n> ")
time.sleep(100)
"""
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    async with open_conversation(agent([sys.executable, "-c", program], prompt="^> $")) as talk:
        assert (await say(talk, "go")).text.endswith("well asked")
    assert faults == []


def test_a_wider_terminal_uses_no_more_memory() -> None:
    screen = Screen(120, 40)
    screen.feed(b"x\r\n" * 5000)
    screen.resize(1000, 1000)
    assert screen.read().count("x") == 5000, "a history of a usual size stays whole"
    screen.resize(120, 40)
    for _ in range(200):
        screen.feed(b"x\r\n" * 1000)
    assert screen.height > 190_000
    screen.resize(1000, 1000)
    assert screen.height * 1000 * BYTES_OF_A_CELL < 1.3 * MOST_BYTES
    screen.close()


async def test_a_program_that_ignores_signals_is_killed() -> None:
    deaf = "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
    async with open_conversation(agent(deaf + ECHO, prompt="^> $")) as talk:
        turn = RecordingTurn("!print('ready', flush=True); time.sleep(600)")
        working = asyncio.create_task(talk.turn(turn))
        async with asyncio.timeout(60):
            await turn.until(lambda t: "ready" in t.text())
            await talk.interrupt("stop")
            await talk.interrupt("terminate")
            assert not working.done()
            await talk.interrupt("kill")
            with pytest.raises(AgentError, match="ended by SIGKILL"):
                await working


async def test_an_interrupt_stops_the_turn_and_the_program_continues(tmp_path: Path) -> None:
    async with open_conversation(agent(["bash", "--norc", "-i"], env={"HOME": str(tmp_path)})) as talk:
        await wait_for_prompt(talk)
        await say(talk, "echo warm")
        turn = RecordingTurn("echo ready; sleep 600")
        working = asyncio.create_task(talk.turn(turn))
        async with asyncio.timeout(60):
            await turn.until(lambda t: "ready" in t.text())
            await talk.interrupt("stop")
            with pytest.raises(AgentError, match="interrupted"):
                await working
        assert (await say(talk, "echo still here")).text == "still here"


async def test_closing_leaves_no_process_of_the_session(tmp_path: Path) -> None:
    async with open_conversation(agent(["bash", "--norc", "-i"], env={"HOME": str(tmp_path)})) as talk:
        await wait_for_prompt(talk)
        result = await say(talk, "sleep 600 & sleep 601 & jobs -p")
        pids = [int(word) for word in result.text.split() if word.isdigit()]
        assert len(pids) >= 2
    assert not [pid for pid in pids if reaper._is_running(pid)]


# -- questions ------------------------------------------------------------------------------------------------------

ASKING = """
import sys, tty, termios
while True:
    said = input("> ")
    old = termios.tcgetattr(0); tty.setcbreak(0)  # it forgets what was typed before, so it comes before the question
    print("─" * 40, "Run the command?", "  rm -r build", sep="\\n")
    print(" ❯ 1. Yes", "   2. Always", "   3. No, stop", "Esc to cancel", sep="\\n", flush=True)
    print("\\033[2J\\033[H> " + said + "\\nkey " + sys.stdin.read(1), flush=True)
    termios.tcsetattr(0, termios.TCSADRAIN, old)
"""


@pytest.mark.parametrize(
    ("answer", "key"), [("Yes", "1"), ("Always", "2"), ("No, stop", "3"), (Answer("expired"), "3")]
)
async def test_a_question_on_the_screen_is_asked_and_answered_by_its_key(answer: str | Answer, key: str) -> None:
    async with open_conversation(agent(ASKING, prompt="^> $", asking="Esc to cancel", echo="> ")) as talk:
        turn = RecordingTurn("clean up", answers=[answer])
        async with asyncio.timeout(60):
            assert (await talk.turn(turn)).text == f"key {key}"
    (question,) = turn.asked
    assert (question.text, question.kind) == ("Run the command?\nrm -r build", "execute")
    assert [choice.kind for choice in question.choices] == ["allow_once", "allow_always", "reject_once"]


async def test_a_question_may_be_answered_in_the_terminal() -> None:
    async with open_conversation(agent(ASKING, prompt="^> $", asking="Esc to cancel", echo="> ")) as talk:
        turn = UnansweredTurn("clean up")
        working = asyncio.create_task(talk.turn(turn))
        async with asyncio.timeout(60):
            await turn.until(lambda t: bool(t.asked))
            talk.send_keys(b"2")
            assert (await working).text == "key 2"


REPEATING = """
import os, sys, time, tty
input("> "); tty.setcbreak(0)
while True:
    print("\\033[2J\\033[H" + "─" * 40, "Run it?", " ❯ 1. Yes", "   2. No", "Esc to cancel", sep="\\n", flush=True)
    key = sys.stdin.read(1)
    print("\\033[2J\\033[Hat work" if WORKS else "\\033[2J", flush=True)
    time.sleep(0.5)
"""


async def test_a_question_that_comes_back_unchanged_is_not_asked_again() -> None:
    options = {"prompt": "^> $", "asking": "Esc to cancel", "busy": "at work"}
    async with open_conversation(agent("WORKS = False" + REPEATING, **options)) as talk:
        turn = RecordingTurn("go", answers=["Yes", "Yes"])
        with pytest.raises(AgentError, match=r"did not accept the answer, .*its screen: (?s:.*)Run it\?"):
            async with asyncio.timeout(60):
                await talk.turn(turn)
    assert len(turn.asked) == 1
    async with open_conversation(agent("WORKS = True" + REPEATING, **options)) as talk:  # other work, the same question
        turn = RecordingTurn("go", answers=["Yes", "Yes", "Yes"])
        with pytest.raises(AgentError, match="the test gave no answer"):
            async with asyncio.timeout(60):
                await talk.turn(turn)
    assert len(turn.asked) == 4


TWO = """
import sys, tty
said = input("> "); tty.setcbreak(0)
keys = []
for name in ("first", "second"):
    print("\\033[2J\\033[H" + "─" * 40, f"Run the {name}?", " ❯ 1. Yes", "   2. No", sep="\\n")
    print("Esc to cancel", flush=True)
    keys.append(sys.stdin.read(1))
print("\\033[2J\\033[H> " + said, f"keys {keys}", "> ", sep="\\n", end="", flush=True)
sys.stdin.read()
"""


async def test_an_answer_is_never_typed_into_another_dialog() -> None:
    async with open_conversation(agent(TWO, prompt="^> $", asking="Esc to cancel", echo="> ")) as talk:
        turn = HeldTurn("go")
        working = asyncio.create_task(talk.turn(turn))
        async with asyncio.timeout(60):
            await turn.until(lambda t: len(t.asked) == 1)
            talk.send_keys(b"2")  # a person answers at the terminal, and the next dialog comes at once
            await turn.until(lambda t: len(t.asked) == 2)
            turn.answer.set_result(Answer("granted", "Yes"))
            assert (await working).text == "keys ['2', '1']"
    assert [question.text for question in turn.asked] == ["Run the first?", "Run the second?"]


class HeldTurn(RecordingTurn):
    """A turn whose questions wait for `answer`."""

    def __init__(self, prompt: str) -> None:
        super().__init__(prompt)
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    async def ask(self, question: Any, *_: Any, **__: Any) -> Answer:
        self.asked.append(question)
        await self._notify()
        return await asyncio.shield(self.answer)


class UnansweredTurn(RecordingTurn):
    """A turn whose questions nobody answers."""

    async def ask(self, question: Any, *_: Any, **__: Any) -> Answer:
        self.asked.append(question)
        await self._notify()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


async def test_nothing_is_typed_into_an_unknown_screen() -> None:
    menu = "print('Update now? Enter installs it'); print('installed', input())"
    async with open_conversation(agent(menu, ready="^never seen$", quiet=0.5)) as talk:
        with pytest.raises(AgentError, match="does not know its screen; look at its terminal: Update now"):
            await say(talk, "hello")
        assert "installed" not in talk.screenshot().text and "hello" not in talk.screenshot().text


# -- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"profile": "nobody"}, "there is no profile 'nobody'"),
        ({}, "set it to the program"),
        ({"argv": ["x"], "prompt": "("}, "not a regular expression"),
        ({"argv": ["x"], "columns": 5}, "at least 20"),
        ({"argv": ["x"], "promt": "x"}, "there is no such option"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        build("x", "terminal", options)


def test_a_profile_can_be_overridden_in_the_settings() -> None:
    agent = build("x", "terminal", {"profile": "claude", "busy": "at work", "argv": ["my-claude"]})
    assert agent.profile.busy == "at work" and agent.profile.echo == "❯ "
    assert (agent.profile.argv, agent.profile.resume_argv, agent.profile.thread) == (("my-claude",), (), "")
    assert os.environ.get("TERM") != "x"


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/terminal.md").read_text()
    for name, option in TerminalOptions.model_fields.items():
        assert f"`{name}`" in page, name
        assert option.description
