"""Replies with and without drafts, in one process and in turn: what drafts win, and what they cost where none holds.

    python -m tests.runtime.draft_speed [--batches 1,4,8] [--rounds 3] [--tokens 100] [--model smollm2]

Eight pieces of the recorded sample are continued greedily, prompts cached, by an engine without drafts, by one that
looks them up in its own text, and by one whose drafts are always wrong. To be run on a machine that has nothing else to
do; about 80 s with SmolLM2.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.resources import files
from statistics import median

import numpy as np

from runtime.drafting.drafts import Draft, DraftSettings, DraftSource
from runtime.models.loaded_model import LoadedModel
from runtime.models.loader import load_model
from runtime.request import Run
from tests.runtime.engine_harness import Harness, running

PROMPTS = 8
PROMPT_TOKENS = 500
VARIANTS = ("no drafts", "own text", "always wrong")


def prompts(loaded: LoadedModel) -> list[list[int]]:
    text = (files("agent_client") / "samples" / "repository.jsonl").read_text(encoding="utf-8")
    tokens = loaded.tokenizer.encode(text)
    apart = (len(tokens) - PROMPT_TOKENS) // PROMPTS
    return [tokens[i * apart : i * apart + PROMPT_TOKENS] for i in range(PROMPTS)]


def always_wrong(answers: dict[bytes, list[int]], longest: int) -> Callable[[Run], Draft | None]:
    """Drafts that differ from the answer in every token; `answers` by the prompt's bytes."""

    def find(run: Run) -> Draft | None:
        written = len(run.output.token_ids)
        prompt = run.tokens[:PROMPT_TOKENS].astype(np.int32).tobytes()
        # The last token of a reply has no successor.
        n = min(longest, run.request.max_tokens - written - 1)
        wrong = np.array(answers.get(prompt, [])[written : written + n], np.int32) ^ 1
        return Draft(wrong, DraftSource.LOOKUP, 4) if len(wrong) else None

    return find


def reply(harness: Harness, batch: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
    """Seconds until all have ended, and what was written."""
    begun = time.perf_counter()
    replies = [harness.submit(prompt, max_tokens=tokens) for prompt in batch]
    written = [each.tokens for each in replies]
    return time.perf_counter() - begun, written


def main(model: str, batches: list[int], rounds: int, tokens: int) -> None:
    loaded = load_model(model, dtype="fp32", device="cpu")
    asked = prompts(loaded)
    lookup = DraftSettings(frozenset({DraftSource.LOOKUP}))
    with ExitStack() as opened:
        engines = {
            name: opened.enter_context(
                running(loaded, num_blocks=500, kv_fill=0.0, drafts=None if name == "no drafts" else lookup)
            )
            for name in VARIANTS
        }
        answers: dict[bytes, list[int]] = {}
        for name, harness in engines.items():
            if name == "always wrong":
                drafter = harness.engine._drafter
                drafter._find = always_wrong(answers, lookup.longest)
            _, written = reply(harness, asked, tokens)
            if not answers:
                of = (np.array(prompt, np.int32).tobytes() for prompt in asked)
                answers.update(zip(of, written, strict=True))
        for batch in batches:
            taken: dict[str, list[float]] = {name: [] for name in VARIANTS}
            before = {name: engine.engine.counters.draft_tokens for name, engine in engines.items()}
            for turn in range(rounds):
                chosen = [asked[(turn * batch + i) % PROMPTS] for i in range(batch)]
                for name in VARIANTS if turn % 2 else VARIANTS[::-1]:
                    taken[name].append(reply(engines[name], chosen, tokens)[0])
            plain = taken["no drafts"]
            told = [f"batch {batch}: no drafts {1000 * median(plain) / tokens:.1f} ms a step"]
            for name in VARIANTS[1:]:
                ratios = sorted(mine / other for mine, other in zip(taken[name], plain, strict=True))
                drafted = (engines[name].engine.counters.draft_tokens - before[name]) / (rounds * batch * tokens)
                told.append(
                    f"{name} {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}), {drafted:.2f} drafted a token"
                )
            print("; ".join(told), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--batches", default="1,4,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--model", default="smollm2")
    given = parser.parse_args()
    main(given.model, [int(batch) for batch in given.batches.split(",")], given.rounds, given.tokens)
