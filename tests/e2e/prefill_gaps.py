"""How long a long prompt holds up those who write.

    python -m tests.e2e.prefill_gaps [--prompts 2] [--prompt-tokens 6000] [--max-itl-ms N and other flags of serve]

Four streams decode while long prompts come, one after the other.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from agent_client import Delta, RadixClient

from .conftest import running_server

STREAMS = 4


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(1000, 40_000, length).tolist()


def write(client: RadixClient, seed: int, replies: list[list[float]], ended: threading.Event) -> None:
    """Note when each piece of each reply comes, until told to end."""
    while not ended.is_set():
        reply: list[float] = []
        replies.append(reply)
        for event in client.stream(prompt(seed, 200), max_tokens=4000, ignore_eos=True):
            if isinstance(event, Delta) and event.token_ids:
                reply.append(time.perf_counter())
            if ended.is_set():
                return


def measure(prompts: int, prompt_tokens: int, flags: list[str]) -> None:
    blocks = ["--num-blocks", "2048", "--max-context", "8192"]
    with running_server(Path(tempfile.mkdtemp()), "smollm2", *blocks, *flags) as server:
        ended = threading.Event()
        replies: list[list[float]] = []
        with RadixClient(server.target) as client:
            threads = [threading.Thread(target=write, args=(client, seed, replies, ended)) for seed in range(STREAMS)]
            for thread in threads:
                thread.start()
            first, gaps = [], []
            for turn in range(prompts):
                time.sleep(4)
                begun = time.perf_counter()
                client.generate(prompt(100 + turn, prompt_tokens), max_tokens=1, ignore_eos=True)
                now = time.perf_counter()
                first.append(now - begun)
                for reply in replies:
                    at = np.array(reply)
                    gaps += np.diff(at[(at > begun) & (at < now)]).tolist()
            ended.set()
            for thread in threads:
                thread.join()
    p50, p95 = (1000 * np.percentile(gaps, q) for q in (50, 95))
    told = f"gaps p50 {p50:.0f}, p95 {p95:.0f}, longest {1000 * max(gaps):.0f} ms"
    print(f"{' '.join(flags) or 'no bound'}: {told} of {len(gaps)}; prompts {', '.join(f'{s:.1f}' for s in first)} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=6000)
    chosen, flags_of_serve = parser.parse_known_args()
    measure(chosen.prompts, chosen.prompt_tokens, flags_of_serve)
