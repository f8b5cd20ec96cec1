"""What `--host-kv-dtype` costs by itself: `python -m tests.runtime.tiers.narrow_cost`.

Two engines over SmolLM2 in float32 with a host tier, one of which keeps int8 there, by turns. Each computes every
prompt, which pushes the one before into memory, and is then asked for each again: the prompt comes back from memory. To
be run on a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from statistics import median
from typing import Any

from runtime.kv.quality.texts import texts
from runtime.models.loader import load_model
from runtime.sampling.sampler import SampledToken
from runtime.tiers.settings import TierSettings
from tests.runtime.engine_harness import Harness, Reply, running

BLOCK = 16
# One prompt and its reply, and not two.
POOL = 170
HOST = 2**30
REPLY = 32
TOP = 20


class Timed:
    """A reply, when its first token came, and the log-probabilities of its steps."""

    def __init__(self, harness: Harness, prompt: list[int]) -> None:
        self.ttft = 0.0
        began = time.monotonic()

        def first(reply: Reply, event: Any) -> None:
            if not self.ttft and getattr(event, "token_ids", None):
                self.ttft = time.monotonic() - began

        reply = harness.submit(prompt, max_tokens=REPLY, temperature=0, logprobs=True, top_logprobs=TOP, on_event=first)
        self.tokens = reply.tokens
        self.usage = reply.started.usage
        self.steps: list[SampledToken] = [step for delta in reply.deltas() for step in delta.logprobs]


def kl(exact: SampledToken, other: SampledToken) -> float:
    """Nats of the likeliest tokens that both name, and of all others taken together."""
    p, q = dict(exact.top), dict(other.top)
    both = p.keys() & q.keys()
    rest = [max(1e-9, 1 - sum(math.exp(d[token]) for token in both)) for d in (p, q)]
    return sum(math.exp(p[token]) * (p[token] - q[token]) for token in both) + rest[0] * math.log(rest[0] / rest[1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.runtime.tiers.narrow_cost", description=__doc__)
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--each", type=int, default=4, help="prompts of prose, and of code")
    parser.add_argument("--tokens", type=int, default=2000)
    asked = parser.parse_args()
    loaded = load_model("smollm2", dtype="fp32", device="cpu")
    found = texts(["prose", "code"], None)
    work = [ids.tolist() for text in found for ids in text.windows(loaded.tokenizer, asked.tokens, asked.each)]
    config: dict[str, Any] = {"num_blocks": POOL, "block_size": BLOCK}
    with (
        running(loaded, tiers=TierSettings(host_bytes=HOST), **config) as plain,
        running(loaded, tiers=TierSettings(host_bytes=HOST, kv_dtype=asked.dtype), **config) as narrow,
    ):
        both = (plain, narrow)
        cold = [[Timed(harness, prompt) for prompt in work] for harness in both]
        for harness in both:
            # What the last prompt left makes way as all others did.
            harness.run(work[0][:0:-1], max_tokens=1)
        hits: list[list[Timed]] = [[], []]
        for prompt in work:
            for harness, told in zip(both, hits, strict=True):
                told.append(Timed(harness, prompt))
    from_host = [min(reply.usage.host_tokens for reply in told) for told in hits]
    equal = [
        sum(a == b for a, b in zip(hit.tokens, miss.tokens, strict=True))
        for hit, miss in zip(hits[1], cold[1], strict=True)
    ]
    alike = [
        next((i for i, (a, b) in enumerate(zip(hit.tokens, miss.tokens, strict=True)) if a != b), REPLY)
        for hit, miss in zip(hits[1], cold[1], strict=True)
    ]
    divergence = [
        kl(miss.steps[i], hit.steps[i])
        for hit, miss, n in zip(hits[1], cold[1], alike, strict=True)
        for i in range(min(n + 1, REPLY))
    ]
    print(
        json.dumps(
            {
                "prompts": len(work),
                "prompt_tokens": asked.tokens,
                "from_host": dict(zip(("plain", asked.dtype), from_host, strict=True)),
                "cold_ttft_s": round(median(reply.ttft for told in cold for reply in told), 3),
                "ttft_s": {
                    name: [round(f(r.ttft for r in told), 4) for f in (min, median, max)]
                    for name, told in zip(("plain", asked.dtype), hits, strict=True)
                },
                "plain_equal": sum(hit.tokens == miss.tokens for hit, miss in zip(hits[0], cold[0], strict=True)),
                "equal_tokens": round(sum(equal) / (REPLY * len(work)), 4),
                "equal_until": alike,
                "kl": sum(divergence) / len(divergence),
            }
        )
    )


if __name__ == "__main__":
    main()
