"""Drives the same token streams against several servers, in turns, and compares them."""

from .experiment import BenchOptions, bench
from .targets import TargetSpec, open_targets, parse_target
from .workload import FanOut

__all__ = ["BenchOptions", "FanOut", "TargetSpec", "bench", "open_targets", "parse_target"]
