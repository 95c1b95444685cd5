"""Agents that speak the protocol: how each is started, what it needs, and which of its texts are not answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from midwatch.agents.known import KNOWN, UNKNOWN, KnownProgram
from midwatch.agents.streams import PROFILES as STREAMS
from midwatch.agents.streams.base import Parser
from midwatch.agents.streams.drift import Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How to use one agent over the protocol."""

    program: KnownProgram = UNKNOWN
    argv: tuple[str, ...] = ()
    adapter: str | None = None  # how to install the adapter, if the agent's own program does not speak the protocol
    mode: str | None = None  # the mode that asks before it acts, used unless the configuration names another
    model_argument: str | None = None  # option for the model, for agents that accept a model too late over the protocol
    asides: tuple[re.Pattern[str], ...] = ()  # pieces of text that are not part of an answer
    faults: tuple[re.Pattern[str], ...] = ()  # whole answers that are the text of an error
    own_ids: re.Pattern[str] | None = None  # ids of messages that the program wrote, not its model; None if unknown
    no_text: str = ""  # why a turn ends without any text or tool call, if this is always a failure
    doubtful: tuple[re.Pattern[str], ...] = ()  # answers that are an error only if they contain a known fault
    own_files: bool = False  # whether it opens files itself, because it misunderstands the error for a missing file
    log: Callable[[], Parser] | None = (
        None  # reads its standard error, if only this tells that it waits for a usage limit
    )
    env: Mapping[str, str] = field(default_factory=dict)
    versions: Versions | None = None  # versions of the agent or its adapter that midwatch was tested with
    running_total: bool = False  # whether the reported tokens are those of all turns so far

    def is_fault(self, text: str, message_id: str | None) -> bool:
        """Return whether an answer is the text of an error. A model that only quotes an error has its own ids."""
        if message_id and self.own_ids and not self.own_ids.fullmatch(message_id):
            return False
        return any(pattern.fullmatch(text) for pattern in self.faults)

    @property
    def install(self) -> str:
        """The command that installs the agent or its adapter."""
        return self.adapter or self.program.install


UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def _patterns(*texts: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text, re.DOTALL) for text in texts)


_ALL = (
    Profile(
        program=KNOWN["claude"],
        argv=("claude-agent-acp",),
        adapter="npm install -g @agentclientprotocol/claude-agent-acp",
        mode="default",
        faults=_patterns(r"API Error: .*", r"Not logged in.*"),
        own_ids=re.compile(UUID),
        versions=Versions("0.99.0", "0.99.0"),
    ),
    Profile(
        program=KNOWN["codex"],
        argv=("codex-acp",),
        adapter="npm install -g @agentclientprotocol/codex-acp",
        mode="read-only",
        versions=Versions("0.16.0", "2.6.0"),
        asides=_patterns(
            r"Model metadata for `[^`]*` not found\..*",
            r"Under-development features enabled: .*",
            r"(Heads up[,:]|Warning:|⚠).*",
            r"Long threads and multiple compactions .*",
        ),
    ),
    Profile(
        program=KNOWN["gemini"],
        argv=("gemini", "--acp"),
        mode="default",
        model_argument="-m",
        own_files=True,
        versions=Versions("0.61.0", "0.61.0"),
    ),
    Profile(
        program=KNOWN["opencode"],
        argv=("opencode", "acp", "--print-logs", "--log-level", "ERROR"),
        log=STREAMS["opencode"].parser,
        versions=Versions("1.18.33", "1.18.33"),
    ),
    Profile(
        program=KNOWN["goose"],
        argv=("goose", "acp"),
        mode="approve",
        faults=_patterns(r"(.*\n)?Ran into this error: .*"),
        own_ids=re.compile(f"msg_{UUID}"),
        no_text="its provider refused the request, perhaps because the conversation is too long",
        versions=Versions("1.52.0", "1.52.0"),
    ),
    Profile(
        program=KNOWN["qwen"],
        argv=("qwen", "--acp"),
        mode="default",
        log=STREAMS["qwen"].parser,
        env=STREAMS["qwen"].env,
        versions=Versions("0.24.4", "0.24.4"),
    ),
    Profile(
        program=KNOWN["copilot"],
        argv=("copilot", "--acp"),
        asides=_patterns(r"Info: .*"),
        faults=_patterns(r".*\bError: Failed to get response from the AI model.*", r"Error: [45]\d\d .*"),
        doubtful=_patterns(r"Error: .*"),
        running_total=True,
        versions=Versions("1.0.102", "1.0.102"),
    ),
)
PROFILES: Mapping[str, Profile] = {profile.program.name: profile for profile in _ALL}
UNKNOWN_AGENT = Profile()  # for a configured agent that midwatch does not know
