"""Functions for one turn: make the blocks of the prompt, count the usage, judge the answer."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midwatch.agents.acp.faults import convert_fault
from midwatch.agents.acp.profiles import Profile
from midwatch.agents.acp.updates import Transcript, read_tokens
from midwatch.agents.streams.drift import MARK, make_drift_error
from midwatch.agents.streams.reading import get_dict, get_dicts, get_text
from midwatch.agents.tool_question import is_inside
from midwatch.base.errors import AgentError
from midwatch.domain.agent import TurnResult, Usage
from midwatch.domain.event import AgentFault, LlmResponse, MessageUpdate, Payload

NAMED_FILE = re.compile(r"^@(/.*\S)\s*$", re.MULTILINE)
MOST_FILES = 50
EARLY = {
    "max_tokens": "the token limit of its model was reached",
    "max_turn_requests": "the limit of model requests in one turn was reached",
    "refusal": "its model refused to continue",
}


def make_blocks(prompt: str, root: str) -> list[dict[str, Any]]:
    """Return the prompt as content blocks. A line `@/path` in the prompt adds a link to that file."""
    text = prompt.replace("\0", "").encode("utf-8", "replace").decode()
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    real_root = os.path.realpath(root)
    paths = map(Path, dict.fromkeys(NAMED_FILE.findall(text)[:MOST_FILES]))
    files = (path for path in paths if is_inside(str(path), real_root) and path.is_file())
    return content + [{"type": "resource_link", "uri": path.as_uri(), "name": path.name} for path in files]


class Ledger:
    """Counts the model tokens and the cost of each turn of a session. Values that are not reported are None."""

    def __init__(self, *, running_total: bool) -> None:
        self.model: str | None = None
        self._resumed = False  # whether the session is older than this process, so that its earlier cost is unknown
        self._running_total = running_total
        self._totals: dict[str, int] = {}
        self._cost: float | None = None
        self._cost_before: float | None = None
        self._cost_told = False
        self._used: dict[str, int] = {}

    def open_session(self, model: str | None, *, resumed: bool) -> None:
        """Note the model of the session, and whether the session was resumed."""
        self.model, self._resumed = model, resumed

    def begin(self) -> None:
        """Begin to count for a new turn."""
        self._used = {}
        known = self._cost is not None or not self._resumed
        self._cost_before = (self._cost or 0.0) if known else None
        self._cost_told = False

    def note(self, update: Mapping[str, Any]) -> None:
        """Read the model and the cost from an update, if the update contains them."""
        self.model = get_text(update, "_meta", "_claude/model") or self.model
        cost = get_dict(update, "cost")
        amount = cost.get("amount") if update.get("sessionUpdate") == "usage_update" else None
        if isinstance(amount, int | float) and cost.get("currency", "USD") == "USD":
            self._cost, self._cost_told = float(amount), True

    def finish(self, answer: Mapping[str, Any], transcript: Transcript) -> list[Payload]:
        """Read the usage from the answer to the prompt and return the event that reports it.

        Return no event if the usage is unknown, or if updates have reported it already.
        """
        quota = get_dict(answer, "_meta", "quota")
        for usage in get_dicts(quota, "model_usage")[:1]:
            self.model = usage.get("model") or self.model
        if transcript.usage:
            self._used = dict(transcript.usage)
            return []
        used = read_tokens(get_dict(answer, "usage")) or read_tokens(get_dict(quota, "token_count"))
        if self._running_total:
            totals, self._totals = self._totals, dict(used)
            used = {name: count - totals.get(name, 0) for name, count in used.items()}
            if min(used.values(), default=0) < 0 or not any(used.values()):
                used = {}
        elif answer.get("stopReason") == "cancelled":
            used = {}  # some agents report the usage of an earlier turn here
        if not used:
            return []
        for name, count in used.items():  # a turn may have several prompts
            self._used[name] = self._used.get(name, 0) + count
        reason = get_text(answer, "stopReason") or None
        return [LlmResponse(model=self.model, usage=used, finish_reason=reason)]

    def usage(self) -> Usage:
        """Return the usage of the turn."""
        cost = None
        now, before = self._cost if self._cost_told else None, self._cost_before
        if now is not None and before is not None and now >= before:
            cost = round(now - before, 9)
        known = bool(self._used) or cost is not None
        return Usage(
            input_tokens=self._used.get("input_tokens"), output_tokens=self._used.get("output_tokens"), cost_usd=cost,
            model=self.model if known else None,
        )  # fmt: skip


def tell_reasons(reasons: list[tuple[str, str]]) -> str:
    """Return the prompt that tells the agent why its actions were denied."""
    denied = "\n".join(f"- {label!r}: {why}" for label, why in reasons)
    return f"These actions of yours were denied, for these reasons:\n{denied}\nGo on with the task accordingly."


def judge_answer(
    agent: str,
    profile: Profile,
    answer: Mapping[str, Any],
    transcript: Transcript,
    *,
    stopped: bool,
    now: int,
    version: str | None = None,
    printed: str = "",
) -> tuple[TurnResult, list[Payload]]:
    """Return the result of the turn. For a failed turn, also return an event with the agent's last text.

    Raise AgentError if the answer is only the text of an error. If there is no answer, because the updates of this
    version of the agent were not understood, the result has the lines that the agent `printed`.
    """
    text, reason = transcript.text, str(answer.get("stopReason"))
    messages: list[Payload] = []
    if transcript.spoke_last:
        messages = [MessageUpdate(message_id=transcript.last_id, role="agent", message=text)]
    denied = ", ".join(f"{tool.label!r} ({tool.denied})" for tool in transcript.denied[:3])
    if reason == "cancelled":
        why = "the turn was interrupted." if stopped else f"{agent} cancelled its work by itself; retry the task."
        if denied and not stopped:
            why = f"{agent} stopped after these actions were denied: {denied}."
        return TurnResult(outcome="error", error=why), messages
    if reason in EARLY:
        return TurnResult(outcome="error", error=f"{agent} stopped early: {EARLY[reason]}."), messages
    certain = transcript.failed or profile.is_fault(text, transcript.part)
    if certain or any(pattern.fullmatch(text) for pattern in profile.doubtful):
        error = "" if transcript.failed and not transcript.spoke_last else text
        problem = convert_fault(agent, 0, "", error, now, sign_in=profile.program.sign_in)
        if certain or type(problem) is not AgentError:
            raise problem
    if denied and not transcript.spoke_last:
        return TurnResult(outcome="error", error=f"{agent} stopped without an answer; denied actions: {denied}."), []
    transcript.drift.need_text(answer, "stopReason")
    drift = transcript.drift.describe()
    if drift and not text:
        program, why = profile.argv[0] if profile.argv else agent, f"it has no text; {drift}"
        problem = make_drift_error(program, version, profile.versions, why)
        return TurnResult(text=printed, outcome="error", error=str(problem)), []
    if profile.no_text and not text and not transcript.tools:
        raise AgentError(f"{agent} failed without an answer: {profile.no_text}; shorten it or begin a new session.")
    if transcript.drift.missing:
        messages = [AgentFault(message=f"a part of what {agent} sent {MARK}: {drift}", level="warning")]
        return TurnResult(text=text), messages
    return TurnResult(text=text), []
