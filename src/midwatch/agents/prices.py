"""What models cost that nobody has set a price for: the list of prices that comes with the extra `llm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def listed_cost(model: str, usage: Mapping[str, Any]) -> float | None:
    """What a usage costs by the list, or None when the model is not in it, or there is no list here."""
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    provider, _, name = model.rpartition(":")
    figures = {
        key: usage.get(key) for key in ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
    }
    try:
        found = calc_price(Usage(**figures), name, provider_id=provider or None)
    except (LookupError, ValueError, TypeError):
        return None
    return round(float(found.total_price), 9)
