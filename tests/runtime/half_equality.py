"""Token equality where a number has 8 or 11 bits: what a right answer may be, measured on the weights themselves.

The truth is float32 arithmetic on the same, already rounded weights. Transformers' own forward at the narrow dtype
misses it by so much, at most, in any logit of the same texts: that is the dtype's noise. A token is right when, after
the tokens before it, its true logit lies within two of these of the best one: both of them may have moved. Every token
is judged, also behind one that differs from what transformers would have said.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from runtime.models.loaded_model import LoadedModel
from tests.runtime.token_equality import BLOCK, HEAD, TOPICS, Workload


@dataclass(frozen=True)
class HalfWorkload(Workload):
    """A workload judged by the truth.

    noise: the largest error of a logit that transformers makes at the dtype.
    """

    truth: Any = None
    noise: float = 0.0

    @property
    def limit(self) -> float:
        return 2 * self.noise

    def check(self, index: int, tokens: list[int]) -> None:
        assert len(tokens) == self.n
        rows = logits(self.truth, [*self.prompts[index], *tokens[:-1]])[-self.n :]
        behind = rows.amax(-1) - rows[torch.arange(self.n), tokens]
        worst = int(behind.argmax())
        assert behind[worst] <= self.limit, (
            f"prompt {index}, token {worst}: {tokens[worst]} is {behind[worst]:.3f} below the best, "
            f"limit {self.limit:.3f}"
        )

    def admissible(self) -> float:
        """How many tokens the limit lets through at a place, on average: how easily a wrong one would pass."""
        passing = 0
        for prompt, expected in zip(self.prompts, self.expected, strict=True):
            rows = logits(self.truth, [*prompt, *expected[:-1]])[-self.n :]
            passing += int((rows >= rows.amax(-1, keepdim=True) - self.limit).sum())
        return passing / (self.n * len(self.prompts))


def logits(network: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        rows: torch.Tensor = network(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
        return rows


def half_workload(
    loaded: LoadedModel, folder: Path, count: int, n: int, hit_lengths: list[int] | None = None
) -> HalfWorkload:
    """The first `count` prompts, and the first `n` tokens that the truth answers to each."""
    dtype = loaded.model.dtype
    narrow, truth = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval() for _ in range(2)
    )
    truth = truth.float()
    prompts = [
        loaded.tokenizer(f"{HEAD}Question: please explain {topic}.\n\nAnswer:")["input_ids"] for topic in TOPICS[:count]
    ]
    expected: list[list[int]] = []
    noise = 0.0
    for prompt in prompts:
        ids = torch.tensor([prompt])
        asked = {"do_sample": False, "min_new_tokens": n, "max_new_tokens": n, "eos_token_id": -1, "pad_token_id": 0}
        tokens = truth.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **asked)[0].tolist()
        expected.append(tokens[len(prompt) :])
        noise = max(noise, float((logits(narrow, tokens) - logits(truth, tokens)).abs().max()))
    return HalfWorkload(
        loaded, prompts, expected, [], hit_lengths or list(range(1, 2 * BLOCK + 1)), truth=truth, noise=noise
    )
