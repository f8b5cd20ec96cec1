"""One setting: its default, its limits, and what the command line says about it, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class FlagHelp:
    """How a flag is shown: panel of the help page, text, placeholder of its value, words in place of the default."""

    panel: str
    text: str
    metavar: str | None
    shown: str | None


def setting(
    default: Any, panel: str, text: str, *, metavar: str | None = None, shown: str | None = None, **limits: Any
) -> Any:
    """A field of a settings model; `limits` are pydantic's."""
    found: FieldInfo = Field(default=default, **limits)
    found.metadata.append(FlagHelp(panel, text, metavar, shown))
    return found


def flag_help(field: FieldInfo) -> FlagHelp:
    """What `setting` was told about a field."""
    return next(item for item in field.metadata if isinstance(item, FlagHelp))


class BadConfig(ValueError):
    """A setting outside its limit. `field` is None where several fields clash."""

    def __init__(self, field: str | None, message: str) -> None:
        super().__init__(message)
        self.field = field


def explain(error: dict[str, Any]) -> str:
    """Name the value and its limit; `error` is one of pydantic's."""
    context = error.get("ctx", {})
    limits: dict[str, Callable[[], str]] = {
        "greater_than_equal": lambda: f"must be at least {context['ge']}",
        "greater_than": lambda: f"must be above {context['gt']}",
        "less_than_equal": lambda: f"must be at most {context['le']}",
        "literal_error": lambda: f"must be {context['expected']}",
        "string_too_short": lambda: "must not be empty",
        "string_too_long": lambda: f"must have at most {context['max_length']} characters",
        "string_pattern_mismatch": lambda: "may hold letters, digits, '.', '_', ':' and '-' only",
        "int_parsing": lambda: "must be a whole number",
        "float_parsing": lambda: "must be a number",
        "finite_number": lambda: "must be a finite number",
        "value_error": lambda: str(context["error"]),
    }
    words = limits.get(error["type"], lambda: str(error["msg"]))()
    return words if error["type"] == "value_error" and not error["loc"] else f"{error['input']!r}: {words}"
