"""Options of kind `llm`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from midwatch.agents.llm.toolkit import ToolOptions
from midwatch.wire.fields import Seconds


def _check_model(model: str) -> str:
    provider, colon, name = model.partition(":")
    if not (provider.strip() and colon and name.strip()):
        raise ValueError("write provider:model, such as anthropic:claude-sonnet-4-5 or openai:gpt-5")
    return model.strip()


class LlmOptions(ToolOptions):
    """Options of kind `llm`."""

    model: Annotated[str, AfterValidator(_check_model)] = Field(
        description="provider:model, as pydantic-ai names them."
    )
    base_url: str | None = Field(
        None, pattern=r"^https?://", description="Another address of the provider. With `openai:` any server like it."
    )
    api_key_env: str | None = Field(
        None, description="Environment variable that has the key, where it is not the provider's usual one."
    )
    system: str = Field("", description="What the model is told first.")
    system_file: str | None = Field(None, description="A file with it.")
    temperature: float | None = Field(None, ge=0.0, le=2.0, description="How much is left to chance.")
    max_tokens: int | None = Field(None, ge=1, description="Longest answer, in tokens.")
    context_tokens: int | None = Field(
        None, ge=1000, description="Size of the window. Unset: what is known of the model."
    )
    max_steps: int = Field(50, ge=1, description="Model calls in a turn; then one more, for a closing answer.")
    retries: int = Field(
        3, ge=0, le=20, description="How often a failed call, or a result of a wrong form, is tried again."
    )
    silence: Seconds = Field(600.0, gt=0, description="A model that says nothing for so long is asked again.")
    output: dict[str, Any] | None = Field(None, description="JSON schema of its result.")
    workdir: str | None = Field(None, description="Working directory of tasks that name none.")

    @model_validator(mode="after")
    def _check_system(self) -> LlmOptions:
        if self.system and self.system_file:
            raise ValueError("give system or system_file, not both")
        return self
