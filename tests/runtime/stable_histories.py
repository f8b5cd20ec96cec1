"""Live multi-turn chats through the stateless API, and how many turns reuse all that the turn before left.

    python -m tests.runtime.stable_histories [--sessions 40] [--turns 3] [--max-tokens 112] [--temperature 1.0]

Prints the share with the memory of histories and without it, on SmolLM2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from radixloop.v1 import common_pb2

from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import load_model
from tests.runtime.services_harness import Server, chat_prompt, generate, serving

QUESTIONS = (
    "Tell me a long story about the river {n}, with many names.",
    "Why? Write a long list with numbers like 1{n}.5, prices and dates.",
    "Write all of it as JSON with odd keys, naïve words and emoji.",
    "Go on where you stopped, and add {n} new words.",
)


@dataclass(frozen=True)
class Turn:
    """A turn behind a first one.

    Attributes:
        left: tokens that the turn before left in the cache: its prompt and its output, less one.
        lost: of these, those that were computed again.
        reply_tokens: of the turn before.
    """

    left: int
    lost: int
    reply_tokens: int


def sampling(session: int, temperature: float) -> dict[str, Any]:
    """Every fourth session greedy, the others at the temperature. A reply ends by the model's end token or by length.

    None ends by a stop string: its tokens are of the output and not of the text, so that no text could keep them.
    """
    if session % 4 == 0:
        return {"temperature": 0.0, "ignore_eos": False}
    return {"temperature": temperature, "seed": session, "ignore_eos": False}


def converse(server: Server, session: int, turns: int, max_tokens: int, temperature: float) -> list[Turn]:
    salt = common_pb2.Namespace(salt=f"s{session}")
    drawn = sampling(session, temperature)
    messages = [("system", "You are a writer. Answer at length, in several paragraphs.")]
    told: list[Turn] = []
    left = reply_tokens = 0
    for turn in range(turns):
        messages.append(("user", QUESTIONS[turn % len(QUESTIONS)].format(n=session)))
        answer = generate(server, chat_prompt(*messages), max_tokens, namespace=salt, sampling=drawn)
        usage = answer.finished.usage
        if turn:
            told.append(Turn(left, max(0, left - usage.cached_tokens), reply_tokens))
        left, reply_tokens = usage.prompt_tokens + usage.output_tokens - 1, usage.output_tokens
        messages.append(("assistant", answer.text))
    return told


def measure(
    loaded: LoadedModel,
    *,
    sessions: int,
    turns: int,
    history_memory: int,
    max_tokens: int,
    temperature: float = 1.0,
    at_once: int = 8,
) -> list[Turn]:
    """All turns behind a first one; `at_once` sessions run side by side, so that the pool holds all of them."""
    with serving(loaded, history_memory=history_memory) as server, ThreadPoolExecutor(at_once) as threads:
        done = threads.map(lambda session: converse(server, session, turns, max_tokens, temperature), range(sessions))
        return [turn for told in done for turn in told]


def whole(told: Sequence[Turn]) -> int:
    """How many turns reused all."""
    return sum(not turn.lost for turn in told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=112)
    parser.add_argument("--temperature", type=float, default=1.0)
    given = parser.parse_args()
    loaded = load_model("smollm2", dtype="fp32", device="cpu")
    for name, memory in (("with", 2**27), ("without", 0)):
        told = measure(
            loaded,
            sessions=given.sessions,
            turns=given.turns,
            history_memory=memory,
            max_tokens=given.max_tokens,
            temperature=given.temperature,
        )
        lost, left = sum(turn.lost for turn in told), sum(turn.left for turn in told)
        mean = sum(turn.reply_tokens for turn in told) / len(told)
        share = whole(told) / len(told)
        print(f"{name:>7} remembered histories: {whole(told)} of {len(told)} turns reuse all ({share:.1%}), ", end="")
        print(f"{lost} of {left} tokens computed again, replies of {mean:.0f} tokens on average", flush=True)


if __name__ == "__main__":
    main()
