"""Replays recorded agent loops against a runtime and reports what was reused."""

from .experiment import Hooks, experiment
from .options import ReplayOptions
from .records import CallRecord

__all__ = ["CallRecord", "Hooks", "ReplayOptions", "experiment"]
