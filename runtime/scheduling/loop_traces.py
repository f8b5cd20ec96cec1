"""Recorded agent loops as lists of token ids and pauses, for simulation: no model, no tokenizer."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import InvalidRequest

Tokens = NDArray[np.int32]

# English and code come to about so many characters a token.
_CHARS_A_TOKEN = 4
_VOCABULARY = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LoopCall:
    """One call of a loop.

    Attributes:
        runs: int32[n], the first tokens of the runs of `unit` consecutive ids that the prompt is made of.
        length: tokens of the prompt; the last run may be cut.
        output: int32[m], m >= 1, what the model writes.
        pause_s: from the end of the call before it to its beginning.
    """

    runs: Tokens
    unit: int
    length: int
    output: Tokens
    pause_s: float

    @property
    def prompt(self) -> Tokens:
        """int32[length]; made anew, since a long session's prompts together fill the memory."""
        tokens: Tokens = np.add.outer(self.runs, np.arange(self.unit, dtype=np.int32)).reshape(-1)[: self.length]
        return tokens


Loop = list[LoopCall]


def read_loops(file: Path, sessions: int, *, pause_s: float, longest_pause_s: float, max_context: int) -> list[Loop]:
    """The first `sessions` sessions of a .jsonl.gz file of chats or of claude-code hash ids.

    A chat's text is cut into runs of four characters, each a token. Pauses that the file does not record are drawn
    from an exponential distribution, the same at every call of this function. A loop ends before the call that would
    pass the context.

    Args:
        pause_s: mean of those pauses.
        longest_pause_s: recorded pauses that are longer (somebody was at lunch) are cut to this.
        max_context: tokens of prompt and output at most.

    Raises:
        InvalidRequest: a line that is neither, or no calls.
    """
    drawn = random.Random(0)
    loops = []
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(islice(lines, sessions)):
            session = json.loads(line)
            if "messages" in session:
                calls = _chat(session["messages"], drawn, pause_s)
            elif "requests" in session:
                calls = _hash_ids(session["requests"], session["block_size"], number, longest_pause_s)
            else:
                raise InvalidRequest(f"line {number + 1}", sorted(session)[:4], "must hold messages or requests")
            loop = []
            for call in calls:
                if call.length + len(call.output) > max_context:
                    break
                loop.append(call)
            if loop:
                loops.append(loop)
    if not loops:
        raise InvalidRequest("trace", str(file), f"no session has a call of up to {max_context} tokens")
    return loops


def _chat(messages: list[dict[str, Any]], drawn: random.Random, pause_s: float) -> Iterator[LoopCall]:
    history: list[int] = []
    for index, message in enumerate(messages):
        tokens = _tokens(message)
        if message["role"] == "assistant" and history:
            pause = drawn.expovariate(1 / pause_s) if index > 2 and pause_s else 0.0
            yield LoopCall(np.array(history, np.int32), 1, len(history), np.array(tokens, np.int32), pause)
        history += tokens


def _tokens(message: dict[str, Any]) -> list[int]:
    text = message["role"] + json.dumps({key: value for key, value in message.items() if key != "role"})
    pieces = (text[at : at + _CHARS_A_TOKEN] for at in range(0, len(text), _CHARS_A_TOKEN))
    return [int.from_bytes(piece.encode()[:4], "little") % _VOCABULARY for piece in pieces]


def _hash_ids(
    requests: list[dict[str, Any]], block_size: int, session: int, longest_pause_s: float
) -> Iterator[LoopCall]:
    """Main-line calls only: those of subagents run beside them and are not waited for in order."""
    end = None
    for request in requests:
        if "hash_ids" not in request:
            continue
        ids = np.array(request["hash_ids"], np.int64)
        # Ids are local to a session.
        first = (ids * 7919 + session * 104_729_001) % (_VOCABULARY // block_size) * block_size
        length = min(int(request["in"]), len(ids) * block_size)
        began = float(request["t"])
        pause = 0.0 if end is None else min(longest_pause_s, max(0.0, began - end))
        end = began + float(request.get("api_time") or 0.0)
        # What it wrote is in the next prompt, under ids that nothing ties to it.
        output = np.full(max(1, int(request["out"] or 1)), _VOCABULARY - 1 - session, np.int32)
        yield LoopCall(first.astype(np.int32), block_size, length, output, pause)
