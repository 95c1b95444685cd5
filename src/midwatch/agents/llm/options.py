"""Options of kind `llm`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from midwatch.agents.llm.toolkit import ToolOptions
from midwatch.wire.fields import Seconds
from midwatch.wire.flaws import WEB_ADDRESS


def _check_model(model: str) -> str:
    provider, colon, name = model.partition(":")
    if not (provider.strip() and colon and name.strip()):
        raise ValueError("must be provider:model, such as anthropic:claude-sonnet-4-5 or openai:gpt-5")
    return model.strip()


class LlmOptions(ToolOptions):
    """Options of kind `llm`."""

    model: Annotated[str, AfterValidator(_check_model)] = Field(
        description="provider:model, as pydantic-ai names them."
    )
    base_url: str | None = Field(
        None, pattern=WEB_ADDRESS, description="Address of the provider. With `openai:` any compatible server."
    )
    api_key_env: str | None = Field(
        None, description="Environment variable with the key, if it is not the usual one of the provider."
    )
    system: str = Field("", description="Instructions for the model.")
    system_file: str | None = Field(None, description="File with the instructions for the model.")
    temperature: float | None = Field(None, ge=0.0, le=2.0, description="Randomness of the model's answers.")
    max_tokens: int | None = Field(None, ge=1, description="Maximum length of an answer, in tokens.")
    context_tokens: int | None = Field(
        None, ge=1000, description="Size of the context window, in tokens; by default the known size of the model."
    )
    max_steps: int = Field(50, ge=1, description="Maximum number of model calls in a turn, before the closing answer.")
    retries: int = Field(
        3, ge=0, le=20, description="Maximum number of retries of a failed call or a result with a wrong form."
    )
    silence: Seconds = Field(600.0, gt=0, description="Time without output after which a model call is retried.")
    output: dict[str, Any] | None = Field(None, description="JSON schema of the result.")
    workdir: str | None = Field(None, description="Working directory of tasks without their own.")

    @model_validator(mode="after")
    def _check_system(self) -> LlmOptions:
        if self.system and self.system_file:
            raise ValueError("set `system` or `system_file`, not both")
        return self
