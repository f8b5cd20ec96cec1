"""What "the cache never changes an answer" means: greedy tokens against transformers alone.

Each case drives the engine another way over the same prompts. The expected tokens come from `generate` of the unhooked
model with an explicit mask, in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from radix import Namespace
from runtime.attention.hook import plain_attention
from runtime.models.loaded_model import LoadedModel
from tests.runtime.engine_harness import Harness, Reply, running

BLOCK = 16
# Another order of additions may choose another of two tokens whose logits are closer than fp32 tells apart.
TIE = 1e-3

TOPICS = """the weather in the mountains
a list of files in a repository
how a hash table resolves collisions
the history of the steam engine
booking a flight from Boston to Denver
the rules of chess for beginners
writing a unit test in Python
cooking rice without a rice cooker
the water cycle
reading a stack trace
why the sky is blue
a letter to a landlord
the difference between TCP and UDP
planning a week of meals
the causes of the First World War
how vaccines work
a short story about a lighthouse
sorting a list of numbers
the parts of a flower
choosing a bicycle
the Pythagorean theorem
what a compiler does
learning to play the piano
the phases of the moon
a recipe for lentil soup
renting a car abroad
the life of a honey bee
how to fold a paper crane
the French Revolution
a database transaction""".splitlines()

HEAD = (
    "You are a careful assistant. Answer briefly, name what you do not know, and never invent a source. "
    "The question below was asked by a user of a help desk.\n\n"
)


@dataclass(frozen=True)
class Workload:
    """Prompts that share a beginning, and what transformers answers to each; `config` is of all engines that run it.

    tie: of two tokens whose logits are closer either may be chosen.
    """

    loaded: LoadedModel
    prompts: list[list[int]]
    expected: list[list[int]]
    gaps: list[list[float]]
    # Lengths of a hit that end inside a block, or just beside its border.
    hit_lengths: list[int]
    config: dict[str, Any] = field(default_factory=dict)
    tie: float = TIE

    @property
    def n(self) -> int:
        return len(self.expected[0])

    def check(self, index: int, tokens: list[int]) -> None:
        """Assert equality; a different token is let through only where the two best logits are a tie."""
        expected = self.expected[index]
        if tokens == expected:
            return
        at = next(i for i, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b)
        gap = self.gaps[index][at]
        assert gap < self.tie, f"prompt {index}, token {at}: {tokens[at]} instead of {expected[at]}, {gap:.1e} apart"


def workload(
    loaded: LoadedModel, count: int, n: int, head_repeats: int = 1, hit_lengths: list[int] | None = None
) -> Workload:
    """The first `count` prompts and the first `n` tokens that transformers answers to each."""
    tokenizer = loaded.tokenizer
    texts = [f"{HEAD * head_repeats}Question: please explain {topic}.\n\nAnswer:" for topic in TOPICS[:count]]
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    expected: list[list[int]] = []
    gaps: list[list[float]] = []
    with plain_attention(loaded.model):
        for start in range(0, count, 10):
            tokens, gap = _generate(loaded, prompts[start : start + 10], n)
            expected += tokens
            gaps += gap
    return Workload(loaded, prompts, expected, gaps, hit_lengths or list(range(1, 2 * BLOCK + 1)))


def _generate(loaded: LoadedModel, prompts: list[list[int]], n: int) -> tuple[list[list[int]], list[list[float]]]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    out = loaded.model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=False,
        min_new_tokens=n,
        max_new_tokens=n,
        eos_token_id=-1,
        pad_token_id=0,
        use_cache=True,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.stack([step.float().topk(2).values for step in out.logits], dim=1)
    return out.sequences[:, width:].tolist(), (best[..., 0] - best[..., 1]).tolist()


class Recorder:
    """Keeps the logits of each request's first token, to compare a hit's with a miss's."""

    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []

    def watch(self, harness: Harness) -> None:
        run = harness.engine._runner.run

        def recording(*step: Any) -> torch.Tensor:
            logits = run(*step)
            self.rows.append(logits.clone())
            return logits

        harness.engine._runner.run = recording  # type: ignore[method-assign]


@contextmanager
def engine(work: Workload, **config: Any) -> Iterator[Harness]:
    defaults = {"block_size": BLOCK, "num_blocks": 64 + 2 * sum(-(-(len(p) + work.n) // BLOCK) for p in work.prompts)}
    with running(work.loaded, **{**defaults, **work.config, **config}) as harness:
        yield harness


def salted(harness: Harness, salt: object) -> Namespace:
    return Namespace(harness.namespace.fingerprint, salt=str(salt))


def submit_all(harness: Harness, work: Workload, *, apart: bool = False) -> list[Reply]:
    """Queue every prompt; `apart` gives each its own namespace."""
    return [
        harness.submit(p, max_tokens=work.n, namespace=salted(harness, i) if apart else None)
        for i, p in enumerate(work.prompts)
    ]


def check_all(work: Workload, replies: list[Reply]) -> None:
    for i, reply in enumerate(replies):
        work.check(i, reply.tokens)


def cold(work: Workload) -> None:
    with engine(work, max_running=8) as harness:
        replies = submit_all(harness, work, apart=True)
        check_all(work, replies)
        assert all(reply.started.usage.cached_tokens == 0 for reply in replies)


def warm(work: Workload) -> None:
    with engine(work, max_running=8) as harness:
        for i, tokens in enumerate(work.prompts):
            harness.run(tokens, prefill_only=True, namespace=salted(harness, i))
        replies = submit_all(harness, work, apart=True)
        check_all(work, replies)
        assert [r.started.usage.cached_tokens for r in replies] == [len(p) - 1 for p in work.prompts]


def partial_block(work: Workload) -> None:
    """A hit of every length, each on a cache that holds just that much of the prompt."""
    with engine(work, num_blocks=2048) as harness:
        replies = []
        for length in work.hit_lengths:
            tokens = work.prompts[length % len(work.prompts)]
            other = [*tokens[:length], (tokens[length] + 1) % 1000, 5, 6]
            harness.run(other, prefill_only=True, namespace=salted(harness, length))
            replies.append(harness.submit(tokens, max_tokens=work.n, namespace=salted(harness, length)))
        for length, reply in zip(work.hit_lengths, replies, strict=True):
            work.check(length % len(work.prompts), reply.tokens)
            assert reply.started.usage.cached_tokens == length


def concurrent(work: Workload) -> None:
    with engine(work, max_running=16) as harness:
        replies = submit_all(harness, work)
        check_all(work, replies)
        assert sum(r.started.usage.cached_tokens for r in replies) > 0


def forked(work: Workload) -> None:
    """Two choices of one prefill, each of which writes into the block that they share."""
    with engine(work, num_blocks=2048) as harness:
        replies = [harness.submit(p, max_tokens=work.n, n=2) for p in work.prompts]
        for i, reply in enumerate(replies):
            for output in reply.finished.outputs:
                work.check(i, list(output))


def evicted_and_refilled(work: Workload) -> None:
    with engine(work, max_running=16) as harness:
        check_all(work, submit_all(harness, work))
        harness.evict_all()
        assert harness.check().cached_tokens == 0
        check_all(work, submit_all(harness, work))


def preempted(work: Workload) -> None:
    # Room for four prompts and next to nothing of what they write.
    blocks = 1 + sum(-(-len(p) // BLOCK) for p in work.prompts[:4])
    with engine(work, num_blocks=blocks, max_running=8) as harness:
        check_all(work, submit_all(harness, work, apart=True))
        assert harness.engine.counters.preemptions > 0


def chunks_of_one(work: Workload) -> None:
    with engine(work, max_batch_tokens=1, max_running=1, max_queue=len(work.prompts)) as harness:
        check_all(work, [harness.submit(p, max_tokens=work.n) for p in work.prompts])


def chunks_of_512(work: Workload) -> None:
    with engine(work, max_batch_tokens=512, max_running=16) as harness:
        check_all(work, submit_all(harness, work, apart=True))


CASES = [
    cold,
    warm,
    partial_block,
    concurrent,
    forked,
    evicted_and_refilled,
    preempted,
    chunks_of_one,
    chunks_of_512,
]


def hit_against_miss(work: Workload) -> float:
    """The largest difference of any logit between a miss and a hit of every prompt, over all lengths of the hit."""
    worst = 0.0
    with engine(work) as harness:
        recorder = Recorder()
        recorder.watch(harness)
        for i, tokens in enumerate(work.prompts[:8]):
            name = salted(harness, i)
            recorder.rows.clear()
            harness.run(tokens, max_tokens=1, namespace=name)
            miss = recorder.rows[-1]
            for length in (1, BLOCK - 1, BLOCK, BLOCK + 1, len(tokens) - 1):
                harness.flush()
                harness.run(tokens[:length], prefill_only=True, namespace=name)
                recorder.rows.clear()
                reply = harness.run(tokens, max_tokens=1, namespace=name)
                assert reply.started.usage.cached_tokens == length
                worst = max(worst, float((recorder.rows[-1] - miss).abs().max()))
    return worst
