"""What a restart costs: python -m tests.e2e.tiers.restart TRACE.

The calls of a few recorded sessions, first turns first, go to a runtime that restarts after half of them: not at all,
after SIGTERM with --persist, after SIGKILL with a disk tier. What the second half finds in the cache is printed beside
what it finds where nothing was interrupted. Then prompts of 6,000 tokens: the time to the first token cold, and as the
first turn after a restart.

Every variant is a line of JSON as soon as it is there; the last line says which floors were missed.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_client import RadixClient
from agent_client.replay.plan import choose_sessions, prompt_of
from agent_client.traces import read_trace
from tests.e2e.tiers.checked_server import CheckedServer, checked_server

PROMPT = 6000
PROMPTS = 3
# Floors: of the uninterrupted second half's hit rate, and how many times faster the first token is.
CLEAN, KILLED, FASTER = 0.95, 0.85, 8.0
VARIANTS = ("uninterrupted", "clean", "killed", "ttft")
Prompts = list[Sequence[int]]


class Bench:
    """A model, a pool that holds everything, and a folder for what survives."""

    def __init__(self, folder: Path, model: str, blocks: int, disk: str) -> None:
        self._folder = folder
        self._model = model
        self._flags = ["--block-size", "16", "--num-blocks", str(blocks)]
        self._disk = disk
        self._prompts: Prompts | None = None

    def prompts(self, server: CheckedServer, trace: Path, sessions: int, output_tokens: int) -> Prompts:
        """The prompts of a trace, which are the same for every variant."""
        if self._prompts is None:
            self._prompts = encoded(server, trace, sessions, output_tokens)
        return self._prompts

    def flags(self, variant: str) -> list[str]:
        """Of `serve`; every variant has a folder of its own."""
        folder = self._folder / variant
        tiers = {
            "clean": ["--persist", str(folder)],
            "ttft": ["--persist", str(folder)],
            "killed": ["--disk-cache", f"{folder}:{self._disk}"],
        }
        return [*self._flags, *tiers.get(variant, [])]

    def server(self, variant: str) -> Any:
        return checked_server(self._folder / "server", self._model, *self.flags(variant))


def encoded(server: CheckedServer, trace: Path, sessions: int, output_tokens: int) -> Prompts:
    """The prompts of a trace as token ids, the first turns of all sessions first; those that fit the context."""
    read = read_trace(trace)
    chosen = choose_sessions(read, sessions, None)
    turns = [(turn, n) for n, session in enumerate(chosen) for turn in range(len(session.calls))]
    with RadixClient(server.target) as client:
        room = client.model_info().context_length - output_tokens
        told = [client.tokenize(prompt_of(chosen[n].calls[t], chosen[n])).token_ids for t, n in sorted(turns)]
    return [tokens for tokens in told if len(tokens) <= room]


def replay(server: CheckedServer, prompts: Prompts, output_tokens: int) -> tuple[int, int, dict[str, int]]:
    """Tokens sent, found, and found by tier."""
    sent = found = 0
    tiers: dict[str, int] = {}
    with RadixClient(server.target) as client:
        for prompt in prompts:
            usage = client.generate(prompt, max_tokens=output_tokens, ignore_eos=True).usage
            sent, found = sent + usage.prompt_tokens, found + usage.cached_tokens
            for tier, n in usage.cached_by_tier.items():
                tiers[tier] = tiers.get(tier, 0) + n
    return sent, found, tiers


def halves(bench: Bench, variant: str, trace: Path, sessions: int, output_tokens: int) -> dict[str, Any]:
    """Hit rates of the two halves of a replay, with a restart between them unless the variant has none."""
    with bench.server(variant) as server:
        prompts = bench.prompts(server, trace, sessions, output_tokens)
        middle = len(prompts) // 2
        first = replay(server, prompts[:middle], output_tokens)
        if variant == "uninterrupted":
            second = replay(server, prompts[middle:], output_tokens)
            start_s = None
        else:
            server.stop(signal.SIGTERM if variant == "clean" else signal.SIGKILL)
    if variant != "uninterrupted":
        with bench.server(variant) as server:
            start_s = round(server.start_s, 1)
            second = replay(server, prompts[middle:], output_tokens)
            server.idle_books()
    return {
        "calls": len(prompts),
        "prompt_tokens": first[0] + second[0],
        "hit_rate": round((first[1] + second[1]) / (first[0] + second[0]), 4),
        "second_half": {"hit_rate": round(second[1] / second[0], 4), "tokens": {"sent": second[0], **second[2]}},
        "start_s": start_s,
    }


def first_token(client: RadixClient, prompt: Sequence[int]) -> float:
    return client.generate(prompt, max_tokens=1).timing.ttft_s


def times_to_first_token(bench: Bench) -> dict[str, Any]:
    """Prompts when nobody has seen them, and again after SIGTERM and a start."""
    dice = random.Random(1)
    known = [dice.choices(range(64, 30_000), k=PROMPT) for _ in range(PROMPTS)]
    times = []
    for _ in ("cold", "restarted"):
        with bench.server("ttft") as server, RadixClient(server.target) as client:
            # The first call of a process pays for what is set up at first use.
            first_token(client, dice.choices(range(64, 30_000), k=100))
            times.append([first_token(client, prompt) for prompt in known])
            server.stop()
    cold, kept = times
    return {
        "prompt_tokens": PROMPT,
        "cold_s": [round(s, 3) for s in cold],
        "restarted_s": [round(s, 3) for s in kept],
        "faster": round(statistics.median(cold) / statistics.median(kept), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.tiers.restart", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--output-tokens", type=int, default=1)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--num-blocks", type=int, default=4096)
    parser.add_argument("--disk-size", default="4GiB")
    parser.add_argument("--only", default=",".join(VARIANTS), help="some of " + ", ".join(VARIANTS))
    asked = parser.parse_args()
    told: dict[str, Any] = {}
    # A time limit ends it as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), asked.model, asked.num_blocks, asked.disk_size)
            for variant in asked.only.split(","):
                if variant == "ttft":
                    told[variant] = times_to_first_token(bench)
                else:
                    told[variant] = halves(bench, variant, asked.trace, asked.sessions, asked.output_tokens)
                print(json.dumps({variant: told[variant]}), flush=True)
    except KeyboardInterrupt:
        print(json.dumps({**verdict(told), "interrupted": True}), flush=True)
        return 130
    last = verdict(told)
    print(json.dumps(last))
    return 1 if last["missed"] else 0


def verdict(told: dict[str, Any]) -> dict[str, Any]:
    """Of the uninterrupted hit rate what each other variant reached, and the floors that were missed."""
    shares, missed = {}, []
    if "uninterrupted" in told:
        whole = told["uninterrupted"]["second_half"]["hit_rate"]
        for variant, floor in (("clean", CLEAN), ("killed", KILLED)):
            if variant in told:
                share = shares[variant] = round(told[variant]["second_half"]["hit_rate"] / whole, 4)
                missed += [f"{variant}: {share} of the hit rate, {floor} wanted"] * (share < floor)
    if "ttft" in told and told["ttft"]["faster"] < FASTER:
        missed.append(f"the first token comes {told['ttft']['faster']} times faster, {FASTER} wanted")
    return {"shares": shares, "missed": missed}


if __name__ == "__main__":
    sys.exit(main())
