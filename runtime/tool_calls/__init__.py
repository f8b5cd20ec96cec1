"""Tool calls in what models write: the formats, and telling calls from text, while a reply streams too."""

from runtime.tool_calls.formats import MARKERS, SAMPLE_ARGUMENTS, SAMPLE_NAME, SEPARATORS, ToolFormat, recognise
from runtime.tool_calls.streams import CallPiece, HeldCalls, Pieces, StreamedCalls, TextOnly
from runtime.tool_calls.whole_text import ParsedToolCall, parse_tool_calls

CallReader = TextOnly | HeldCalls | StreamedCalls

__all__ = [
    "MARKERS",
    "SAMPLE_ARGUMENTS",
    "SAMPLE_NAME",
    "SEPARATORS",
    "CallPiece",
    "CallReader",
    "HeldCalls",
    "ParsedToolCall",
    "Pieces",
    "StreamedCalls",
    "TextOnly",
    "ToolFormat",
    "parse_tool_calls",
    "recognise",
]
