"""Readers and writer of recorded agent loops."""

from .model import Call, Fork, Session, Trace, TraceError
from .readers import FORMATS, read_trace
from .recorded import TraceWriter

__all__ = ["FORMATS", "Call", "Fork", "Session", "Trace", "TraceError", "TraceWriter", "read_trace"]
