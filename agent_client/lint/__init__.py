"""Finds in recorded sessions what breaks prefixes, before it is sent again."""

from .findings import Finding
from .live import lint_live
from .rules import lint

__all__ = ["Finding", "lint", "lint_live"]
