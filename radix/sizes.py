"""Sizes as people write them: bytes (80GiB) and tokens (1M, 64k, inf)."""

from __future__ import annotations

import re
from fractions import Fraction

from radix.errors import InvalidArgument

_BYTE_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _BYTE_UNITS[_letter] = _BYTE_UNITS[f"{_letter}b"] = 1000**_power
    _BYTE_UNITS[f"{_letter}i"] = _BYTE_UNITS[f"{_letter}ib"] = 1024**_power
_TOKEN_UNITS = {"": 1, "k": 1000, "m": 1000**2, "b": 1000**3}
_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str) -> int:
    """Return a positive number of bytes: "80GiB" is 80 * 2**30, "80GB" and "80G" are 80 * 10**9, "4096" is itself.

    Raises:
        InvalidArgument: no number, an unknown unit, or less than one byte.
    """
    return _parse(text, _BYTE_UNITS, "bytes such as 80GiB, 24GB or 512MiB")


def parse_tokens(text: str) -> int:
    """Return a positive number of tokens: "32768", "32_768", "64k" (64,000), "1.5M".

    Raises:
        InvalidArgument: no number, an unknown unit, or less than one token.
    """
    return _parse(text, _TOKEN_UNITS, "tokens such as 32768, 64k or 1.5M")


def parse_capacity(text: str) -> int | None:
    """Return a number of tokens as parse_tokens does, or None for "inf", which has no limit."""
    if text.strip().lower() in {"inf", "infinite", "infinity"}:
        return None
    return _parse(text, _TOKEN_UNITS, "tokens such as 500k or 1.5M, or inf")


def _parse(text: str, units: dict[str, int], wanted: str) -> int:
    found = _NUMBER.fullmatch(text)
    if found is None or found[2].lower() not in units:
        raise InvalidArgument(f"{text.strip()!r} is no size: write {wanted}")
    value = int(Fraction(found[1].replace("_", "")) * units[found[2].lower()])
    if value < 1:
        raise InvalidArgument(f"{text.strip()!r} is below 1: write {wanted}")
    return value


def format_bytes(count: float) -> str:
    """Return bytes with a binary unit and at most two decimals: 131072 is "128 KiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            return f"{_decimals(value)} {unit}"
        value /= 1024
    return f"{_decimals(value)} PiB"


def format_tokens(count: int | None) -> str:
    """Return a number of tokens with thousands separators; None is "inf"."""
    return "inf" if count is None else f"{count:,}"


def short_count(count: int) -> str:
    """Return a count in four digits or fewer: 138841600 is "138.8M"."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return str(count)


def counted(number: int, noun: str) -> str:
    """Return a number of things: "1 session", "2,000 sessions"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _decimals(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".")
