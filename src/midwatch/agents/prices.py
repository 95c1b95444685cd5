"""Computes the cost of models without a configured price, from the price list in the extra `llm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def find_listed_cost(model: str, usage: Mapping[str, Any]) -> float | None:
    """Return the cost of a usage in US dollars, from the price list.

    Return None if the price list is not installed or does not contain the model.
    """
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    provider, _, name = model.rpartition(":")
    counts = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
    try:
        price = calc_price(Usage(**{key: usage.get(key) for key in counts}), name, provider_id=provider or None)
    except (LookupError, ValueError, TypeError):
        return None
    return round(float(price.total_price), 9)
