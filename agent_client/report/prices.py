"""What tokens cost, and what a run would have cost with every prompt token at the full price."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[1] / "samples" / "example_prices.json"
_FIELDS = ("input", "cached_input", "output")
_MILLION = 1_000_000
_LONGEST_NAME = 80


class BadPrices(Exception):
    """A price table that cannot be used; the message names file, field and value."""


@dataclass(frozen=True)
class Prices:
    """Money for a million tokens: prompt tokens in full, those found in the cache, generated ones."""

    name: str
    currency: str
    input: float
    cached_input: float
    output: float
    is_example: bool = False


@dataclass(frozen=True)
class Cost:
    """`full` is without a cache; `saved_share` is None where nothing costs anything."""

    computed_input: float
    cached_input: float
    output: float
    total: float
    full: float
    saved: float
    saved_share: float | None


def read_prices(path: Path | None) -> Prices:
    """A JSON file like the example that comes with the package, which None stands for. Raises BadPrices."""
    path = path or EXAMPLE
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadPrices(f"{path} is no price table: {error}") from None
    per_million = table.get("per_million_tokens") if isinstance(table, dict) else None
    if not isinstance(per_million, dict):
        raise BadPrices(f"{path} has no object per_million_tokens with {', '.join(_FIELDS)}")
    prices = {name: _price(path, name, per_million.get(name)) for name in _FIELDS}
    return Prices(
        name=_word(path, table, "name", path.name),
        currency=_word(path, table, "currency", "USD"),
        is_example=path == EXAMPLE,
        **prices,
    )


def _price(path: Path, name: str, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:
        raise BadPrices(f"{path}: per_million_tokens.{name} is {json.dumps(value)[:40]}, not a price from 0 up")
    return float(value)


def _word(path: Path, table: dict[str, Any], name: str, default: str) -> str:
    value = table.get(name, default)
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        raise BadPrices(f"{path}: {name} is not a text of 1 to {_LONGEST_NAME} characters")
    return value


def cost(summary: dict[str, Any], prices: Prices) -> Cost:
    """Of a run as the report sums it up."""
    full_input = summary["input_tokens"] * prices.input / _MILLION
    computed = (summary["input_tokens"] - summary["cached_tokens"]) * prices.input / _MILLION
    cached = summary["cached_tokens"] * prices.cached_input / _MILLION
    output = summary["output_tokens"] * prices.output / _MILLION
    total, full = computed + cached + output, full_input + output
    return Cost(computed, cached, output, total, full, full - total, (full - total) / full if full else None)
