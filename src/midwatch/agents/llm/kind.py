"""Kind `llm`: midwatch calls a model and runs the tools that the model requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

from pydantic import BaseModel

from midwatch.agents.base import BaseAgent, SharedSettings
from midwatch.agents.llm.conversation import LlmConversation
from midwatch.agents.llm.model import Connection
from midwatch.agents.llm.options import LlmOptions
from midwatch.agents.llm.output import Output
from midwatch.agents.llm.toolkit import DESK, build_toolkit
from midwatch.agents.llm.tools import Tool
from midwatch.base.errors import BadConfig, Conflict
from midwatch.base.files import read_regular
from midwatch.domain.agent import AgentTerms
from midwatch.domain.session import Session

LONGEST_SYSTEM_FILE = 1_000_000  # bytes


class LlmAgent(BaseAgent):
    """An agent that calls a model and runs the tools that the model requests."""

    kind = "llm"
    starts_programs = True
    takes_history = True
    takes_results = True
    reserves_steps = True
    options_class: ClassVar[type[LlmOptions]] = LlmOptions
    terms = AgentTerms(timeout_seconds=3600.0, on_crash="resume", slots=16)

    def __init__(
        self,
        name: str,
        model: str = "",
        *,
        tools: Iterable[Tool | Callable[..., Any] | str] = (),
        output: type[BaseModel] | Mapping[str, Any] | None = None,
        options: LlmOptions | None = None,
        terms: AgentTerms | None = None,
        description: str = "",
        **more: Any,
    ) -> None:
        """Build the agent.

        `tools` are functions, tools made with `tool`, or names as in the option `tools`. `more` are other options of
        kind `llm`, and settings that all kinds share.
        """
        all_tools = tuple(tools)
        names = tuple(tool for tool in all_tools if isinstance(tool, str))
        shared: Any = {key: more.pop(key) for key in ("capabilities", "sandbox", "why") if key in more}
        super().__init__(name, terms=terms or self.terms_for({"tools": names}), description=description, **shared)
        self.terms = self.terms._replace(steerable=True)
        self.options = options or LlmOptions.read(name, {"model": model, "tools": names, **more})
        form = output if output is not None else self.options.output
        self.output = None if form is None else Output(name, form)
        self.system = self._read_system()
        self.connection = Connection(name, self.options.model, self.options.base_url, self.options.api_key_env)
        self.hands_to = {
            to.agent: option for option in ("handoffs", "delegates") for to in getattr(self.options, option)
        }
        self.kit = build_toolkit(self, self.options, [tool for tool in all_tools if not isinstance(tool, str)])

    @classmethod
    def terms_for(cls, options: Mapping[str, Any]) -> AgentTerms:
        """Return the default terms. An agent with the tools `desk` may submit tasks."""
        return cls.terms._replace(submits=DESK in (options.get("tools") or ()))

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], **shared: Unpack[SharedSettings]) -> Self:
        """Return the agent that `[agents.NAME]` describes."""
        return cls(name, options=cls.options_class.read(name, options), **shared)

    def _read_system(self) -> str:
        if self.options.system_file is None:
            return self.options.system
        try:
            return read_regular(Path(self.options.system_file).expanduser().resolve(), LONGEST_SYSTEM_FILE).decode()
        except (OSError, UnicodeDecodeError, Conflict) as problem:
            why = getattr(problem, "strerror", None) or "it is not a text file, or too large"
            raise BadConfig(f"agents.{self.name}.system_file: the file cannot be read ({why}); correct it.") from None

    async def open(self, session: Session) -> LlmConversation:
        """Open a conversation."""
        return LlmConversation(self, session)

    def describe(self) -> Mapping[str, Any]:
        """Return `target`, the model, and `problem` if the model cannot be used here."""
        description: dict[str, Any] = {"target": self.options.model}
        if problem := self.connection.problem():
            description["problem"] = problem
        return description
