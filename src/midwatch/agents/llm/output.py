"""Results with a given form: how a model learns the form, and whether an answer has it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from midwatch.base.errors import BadConfig

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

OUTPUT_TOOL = "final_result"
FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n\s*```", re.DOTALL)


class Output:
    """The form of a result: a JSON schema of an object, or a pydantic model."""

    def __init__(self, agent: str, form: Mapping[str, Any] | type[BaseModel]) -> None:
        self._model: TypeAdapter[Any] | None = None
        self._validator: Validator | None = None
        if isinstance(form, Mapping):
            self.schema = dict(form)
            self._validator = _validator(agent, self.schema)
        else:
            self._model = TypeAdapter(form)
            self.schema = self._model.json_schema()
        if self.schema.get("type", "object") != "object":
            raise BadConfig(f"agents.{agent}.output: write the schema of an object; put other values into one.")

    def check(self, text: str) -> tuple[str | None, str | None]:
        """Return the result as JSON, or what is wrong with it."""
        match = FENCED.search(text)
        try:
            value = json.loads(match[1] if match else text)
        except (ValueError, RecursionError) as problem:
            return None, f"The result is not JSON ({problem}). Answer with JSON of the form that was asked for."
        if problems := self._problems(value):
            return None, f"The result does not have the form that was asked for: {problems}. Correct it."
        return json.dumps(value, ensure_ascii=False), None

    def _problems(self, value: Any) -> str:
        if self._model is not None:
            try:
                self._model.validate_python(value)
            except ValidationError as problem:
                errors = problem.errors(include_url=False, include_input=False, include_context=False)
                return "; ".join(f"{'.'.join(map(str, error['loc'])) or 'it'}: {error['msg']}" for error in errors[:10])
            return ""
        assert self._validator is not None
        wrong = [(list(error.absolute_path), error.message) for error in self._validator.iter_errors(value)]
        return "; ".join(f"{'.'.join(map(str, path)) or 'it'}: {message[:200]}" for path, message in wrong[:10])


def _validator(agent: str, schema: Mapping[str, Any]) -> Validator:
    try:
        import jsonschema
    except ImportError:
        raise BadConfig(f"agents.{agent}.output needs jsonschema: pip install 'midwatch[llm]'") from None
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        cls.check_schema(schema)
    except jsonschema.SchemaError as problem:
        raise BadConfig(f"agents.{agent}.output: it is no JSON schema: {problem.message[:200]}.") from None
    validator: Validator = cls(schema)
    return validator
