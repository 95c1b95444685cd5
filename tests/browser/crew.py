"""Agents with invented output, so that pages have content to show."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from midwatch.domain.agent import TurnResult, Usage
from midwatch.domain.event import AgentFault, MessageDelta, TaskProgress, ToolExecEnd, ToolExecStart

REVIEW = """## Review of the retry logic

The change is **sound**, with two remarks:

1. `backoff()` doubles without a ceiling: after 12 failures a task waits more than an hour.
2. The test for a lost connection sleeps; it should wait for the event instead.

```python
def backoff(failures: int, ceiling: float = 300.0) -> float:
    return min(ceiling, 2.0**failures)
```

| file | lines | verdict |
|---|---:|---|
| `worker.py` | +41 -12 | fine |
| `task.py` | +7 -3 | one remark |
| `test_worker.py` | +88 | sleeps |

> Nothing here blocks the release.

See the [notes](https://example.org/notes) for what was left out.
"""
TRIAGE = """Eleven new mails, two of them need you:

- **Harbour office**: the berth is free from Thursday 06:00, they want a yes by tonight.
- **The harbour**: asks whether the third watch can be moved by an hour.

The other nine were newsletters and receipts; they are filed.
"""
USED = Usage(input_tokens=18_240, output_tokens=1_312, cost_usd=0.0743, model="large-4")
PLAIN = "All 412 links answer. Three are slow (more than two seconds): /archive, /search and /feed.xml."


def run(prompt: str, turn: Any) -> TurnResult:
    """Run one turn; words in the prompt decide its behaviour."""
    use(turn, "read_file", {"path": "src/midwatch/worker.py"}, "412 lines", 0.06)
    if "quota" in prompt:
        return TurnResult(
            outcome="error", error="the provider refused: monthly quota used up; it begins again on the 1st"
        )
    use(turn, "grep", {"pattern": "backoff", "path": "src"}, "7 matches in 3 files", 0.12)
    if "nightly" in prompt:
        turn.emit(TaskProgress(text="comparing 1 204 of 3 880 files", percent=31))
        write(turn, "The first third is compared; so far nothing differs but the timestamps")
        turn.receive()
    if "deploy" in prompt:
        turn.emit(AgentFault(message="the build cache was cold; this took longer", level="warning"))
        turn.ask(
            "Deploy build 1842 to production? 14 changes since the last one, all checks are green.",
            ["Deploy", "Not now"],
        )
    use(turn, "run_tests", {"select": "tests/unit/test_worker.py"}, "88 passed in 3.1 s", 0.2)
    text = REVIEW if "eview" in prompt else TRIAGE if "inbox" in prompt else PLAIN
    write(turn, text)
    return TurnResult(text=text, usage=USED, iterations=3)


def use(turn: Any, tool: str, arguments: dict[str, Any], result: str, seconds: float) -> None:
    """Use a tool that takes some time."""
    turn.emit(ToolExecStart(tool=tool, arguments=arguments, tool_call_id=tool))
    time.sleep(seconds)
    turn.emit(ToolExecEnd(tool=tool, tool_call_id=tool, duration=seconds, for_llm_len=len(result), result=result))


def write(turn: Any, text: str) -> None:
    """Write the answer in two pieces."""
    half = len(text) // 2
    name = f"{turn.task_id}.{turn.attempt}"
    turn.emit(MessageDelta(message_id=name, offset=0, text=text[:half]))
    turn.emit(MessageDelta(message_id=name, offset=half, text=text[half:]))


def listen(prompt: str, turn: Any) -> str:
    """Take messages after its tool returned, until a message says enough or asks it to stop."""
    messages = []
    while not messages or not messages[-1].startswith(("enough", "Stop")):
        messages.append(turn.receive())
    return f"heard: {', '.join(messages)}"


def ignore_messages(prompt: str, turn: Any) -> str:
    """Take no message, although it could, until a file exists."""
    path = Path(prompt)
    while not path.exists() and not turn.stopping:
        time.sleep(0.02)
    return f"did {prompt}"
