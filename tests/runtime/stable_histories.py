"""Live multi-turn chats through the stateless API, and how many turns reuse all that the turn before left.

    python -m tests.runtime.stable_histories [--sessions 40] [--turns 4]

Prints the share with the memory of histories and without it, on SmolLM2.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from radixloop.v1 import common_pb2

from runtime.loaded_model import LoadedModel
from runtime.loader import load_model
from tests.runtime.services_harness import Server, chat_prompt, generate, serving

QUESTIONS = (
    "Tell me about the river {n} in one line.",
    "Why? Use a list with numbers like 1{n}.5 and names.",
    "Write it as JSON with odd keys, naïve words and emoji.",
    "Go on where you stopped, and add {n} new words.",
)


@dataclass
class Turns:
    """Turns behind a first one, and those that found prompt + output - 1 tokens of the turn before in the cache."""

    total: int = 0
    whole: int = 0

    @property
    def share(self) -> float:
        return self.whole / self.total


def sampling(session: int) -> dict[str, Any]:
    """Greedy, at a temperature, and with a stop string that cuts replies; most replies end by length."""
    if session % 4 == 0:
        return {"temperature": 0.0, "ignore_eos": False}
    return {"temperature": 0.8, "seed": session, "ignore_eos": False}


def converse(server: Server, session: int, turns: int, books: Turns, max_tokens: int) -> None:
    salt = common_pb2.Namespace(salt=f"s{session}")
    messages = [("system", "You are terse.")]
    left = 0
    for turn in range(turns):
        messages.append(("user", QUESTIONS[turn % len(QUESTIONS)].format(n=session)))
        answer = generate(server, chat_prompt(*messages), max_tokens, namespace=salt, sampling=sampling(session))
        usage = answer.finished.usage
        if turn:
            books.total += 1
            books.whole += usage.cached_tokens >= left
        left = usage.prompt_tokens + usage.output_tokens - 1
        messages.append(("assistant", answer.text))


def measure(loaded: LoadedModel, *, sessions: int, turns: int, history_memory: int, max_tokens: int = 24) -> Turns:
    books = Turns()
    with serving(loaded, history_memory=history_memory) as server:
        for session in range(sessions):
            converse(server, session, turns, books, max_tokens)
    return books


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=24)
    given = parser.parse_args()
    loaded = load_model("smollm2", dtype="fp32", device="cpu")
    for name, memory in (("with", 2**27), ("without", 0)):
        books = measure(
            loaded,
            sessions=given.sessions,
            turns=given.turns,
            history_memory=memory,
            max_tokens=given.max_tokens,
        )
        print(f"{name:>7} remembered histories: {books.whole} of {books.total} turns ({books.share:.1%})")


if __name__ == "__main__":
    main()
