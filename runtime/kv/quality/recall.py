"""What a model finds again in a long context: needles at several depths, and the calls that a recorded loop made."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.kv.quality.comparison import Lane, compare
from runtime.kv.quality.texts import CALL, CALL_END, call_text, rendered

DEPTHS = (0.05, 0.25, 0.5, 0.75, 0.95)
_THINGS = ("harbour", "lantern", "granary", "orchard", "viaduct")
CALL_TOKENS = 64
# Of a recorded session, what comes before the call that the model is to make.
CALL_CONTEXT = 1536


def needles(lanes: Sequence[Lane], tokenizer: Any, filler: np.ndarray, seed: int) -> dict[str, list[int]]:
    """Hide a number for each of DEPTHS in the filler and ask for each.

    Returns for each lane, by depth, 1 where every token of the number is what the model finds most likely.
    """
    drawn = random.Random(seed)
    numbers = [str(drawn.randrange(10_000, 100_000)) for _ in DEPTHS]

    def encode(text: str) -> np.ndarray:
        return np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    pieces, last = [], 0
    for depth, thing, number in zip(DEPTHS, _THINGS, numbers, strict=True):
        at = int(depth * len(filler))
        pieces += [filler[last:at], encode(f"\nThe secret number of the {thing} is {number}.\n")]
        last = at
    context = np.concatenate([*pieces, filler[last:]])
    compare(lanes, "needles", context)
    found: dict[str, list[int]] = {lane.name: [] for lane in lanes}
    for thing, number in zip(_THINGS, numbers, strict=True):
        question = encode(f"\nThe secret number of the {thing} is")
        answer = encode(f"\nThe secret number of the {thing} is {number}.")[len(question) :]
        # The full stop is no part of it.
        answer = answer[:-1]
        asked = np.concatenate([question, answer[:-1]])
        for lane in lanes:
            # Every question is written over the one before.
            said = lane.compute(asked, len(context), len(answer)).argmax(-1).cpu().numpy()
            found[lane.name].append(int(np.array_equal(said, answer)))
    return found


@dataclass(frozen=True)
class CallReport:
    """Of `asked` calls, how many parse and name a tool of the session, and how many are the exact pool's."""

    asked: int
    valid: int
    same: int


def tool_calls(
    lanes: Sequence[Lane], tokenizer: Any, sessions: Sequence[list[dict[str, Any]]], wanted: int
) -> dict[str, CallReport]:
    """Let every lane write the call that a session made next, greedily, after its `<tool_call>`."""
    cases = _cases(sessions, wanted)
    counts = {lane.name: [0, 0] for lane in lanes}
    for text, names in cases:
        tokens = np.array(tokenizer.encode(text, add_special_tokens=False)[-CALL_CONTEXT:], dtype=np.int32)
        written = [_write(lane, tokenizer, tokens) for lane in lanes]
        for lane, call in zip(lanes, written, strict=True):
            counts[lane.name][0] += _is_call(call, names)
            counts[lane.name][1] += call == written[0]
    return {name: CallReport(len(cases), valid, same) for name, (valid, same) in counts.items()}


def _cases(sessions: Sequence[list[dict[str, Any]]], wanted: int) -> list[tuple[str, set[str]]]:
    """The text up to a call, for a session's last call, and the tools that it named so far."""
    found: list[tuple[str, set[str]]] = []
    for messages in sessions:
        calling = [index for index, message in enumerate(messages) if message.get("tool_calls")]
        if len(calling) < 2 or len(found) == wanted:
            continue
        before = messages[: calling[-1]]
        names = {json.loads(call_text(call))["name"] for message in before for call in message.get("tool_calls") or ()}
        found.append((f"{rendered(before)}assistant: {CALL}", names))
    return found


def _write(lane: Lane, tokenizer: Any, tokens: np.ndarray) -> str:
    said: list[int] = []
    at, following = 0, tokens
    text = ""
    while len(said) < CALL_TOKENS and CALL_END not in text:
        said.append(int(lane.compute(following, at, 1)[0].argmax()))
        at += len(following)
        following = np.array(said[-1:], dtype=np.int32)
        text = tokenizer.decode(said)
    return text.partition(CALL_END)[0].strip()


def _is_call(text: str, names: set[str]) -> bool:
    try:
        call = json.loads(text)
    except ValueError:
        return False
    return isinstance(call, dict) and call.get("name") in names and isinstance(call.get("arguments"), dict)
